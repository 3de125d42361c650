"""Every metric of the endpoint, once; Ray exports each as ray_<name>. Dashboards are tested against this."""

from collections import Counter as Counted
from functools import cache
from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600]

MEANINGS: dict[type, dict[str, tuple[str, tuple[str, ...]]]] = {
    Counter: {
        "sproutrag_requests_total": ("Requests that were answered", ("route", "status")),
        "sproutrag_rejected_total": ("Requests that were refused at the door", ("reason",)),
        "sproutrag_llm_calls_total": ("LLM calls by prompt", ("prompt", "outcome")),
        "sproutrag_llm_tokens_total": ("Tokens of LLM calls", ("kind",)),
        "sproutrag_cache_hits_total": ("Documents found open", ()),
        "sproutrag_cache_misses_total": ("Documents read from storage", ()),
        "sproutrag_documents_walked_total": ("Trees that a beam search descended", ()),
    },
    Gauge: {
        "sproutrag_open_requests": ("Requests under way", ("route",)),
        "sproutrag_open_questions": ("Questions under way", ()),
        "sproutrag_open_llm_calls": ("LLM calls under way", ()),
        "sproutrag_snapshot_age_seconds": ("Since the served snapshot was published", ()),
        "sproutrag_snapshot_id": ("The served snapshot", ()),
    },
    Histogram: {
        "sproutrag_request_seconds": ("From the first byte to the last", ("route",)),
        "sproutrag_stage_seconds": ("Parts of requests: encode, search, ask", ("stage",)),
    },
}
NAMES: dict[str, tuple[str, ...]] = {
    name: tags for kind in MEANINGS.values() for name, (_, tags) in kind.items()
}

UNDER_WAY: Counted[tuple[str, ...]] = Counted()


@cache
def metric(name: str) -> Any:
    """The process's own instance; made on first use, as Ray must be up."""
    for kind, named in MEANINGS.items():
        if name in named:
            meaning, tags = named[name]
            more = {"boundaries": SECONDS} if kind is Histogram else {}
            return kind(name, description=meaning, tag_keys=tags, **more)
    raise KeyError(name)


def count(name: str, amount: float = 1, **tags: str) -> None:
    if amount > 0:  # Ray refuses to add nothing
        metric(name).inc(amount, tags=tags)


def observe(name: str, seconds: float, **tags: str) -> None:
    metric(name).observe(seconds, tags=tags)


def gauge(name: str, value: float, **tags: str) -> None:
    metric(name).set(value, tags=tags)


def change(name: str, by: int, **tags: str) -> None:
    """A gauge of how many there are in this process."""
    key = (name, *tags.values())
    UNDER_WAY[key] += by
    gauge(name, UNDER_WAY[key], **tags)
