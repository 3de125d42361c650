"""OpenTelemetry: one span per request, one per node of a question's tree, where a collector is configured."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from serve.settings import Settings
from sproutrag.qa.question import QuestionNode

TRACER = trace.get_tracer("sproutrag")  # does nothing until a provider is set


def start_tracing(settings: Settings) -> None:
    if not settings.otlp_endpoint:
        return
    provider = TracerProvider(resource=Resource.create({"service.name": "sproutrag"}))
    exporter = OTLPSpanExporter(f"{settings.otlp_endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


@contextmanager
def span_of_request(route: str, headers: Mapping[str, str], request_id: str) -> Iterator[trace.Span]:
    """A child of the caller's span, if it names one (W3C traceparent)."""
    named = {"http.route": route, "sproutrag.request_id": request_id}
    with TRACER.start_as_current_span(route, context=extract(headers), attributes=named) as span:
        yield span


def spans_of_question(node: QuestionNode) -> None:
    """The resolved tree below the current span, with the times that its nodes had, wherever they ran."""
    began, ended = (int((at or time.time()) * 1e9) for at in (node.began, node.ended))
    named: dict[str, str | int | bool] = {
        "sproutrag.node": node.id,
        "sproutrag.strategy": str(node.strategy or ""),
        "sproutrag.llm_calls": node.bill.usage.calls,
        "sproutrag.answered": node.answered,
    }
    with TRACER.start_as_current_span(
        "question", attributes=named, start_time=began, end_on_exit=False
    ) as span:
        for child in node.children:
            spans_of_question(child)
        span.end(ended)
