"""The HTTP API: routes over the retriever, the questions and the page. What each takes is in bodies.py."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from ray import serve
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from serve import bodies, chat
from serve.asking import Asker, Event, written
from serve.corpora import retriever_handle
from serve.door import Door
from serve.engines import model_id
from serve.keys import Keyring, Tenant
from serve.logs import REQUEST_ID, start_logging
from serve.probes import Probes, scrape
from serve.problems import Problem, on_http_error, on_invalid
from serve.settings import Settings
from serve.traces import start_tracing

PAGE = Path(__file__).parent / "page"
MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
STREAM = "text/event-stream"
KEPT_ALIVE = {"X-Accel-Buffering": "no"}  # a proxy in between must not hold events back
AS_PROBLEM: dict[str, Any] = {"model": bodies.ProblemBody, "content": {"application/problem+json": {}}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The body is no JSON", **AS_PROBLEM},
    401: {"description": "No valid key", **AS_PROBLEM},
    404: {"description": "Not there, or not for this key", **AS_PROBLEM},
    408: {"description": "The body did not come", **AS_PROBLEM},
    413: {"description": "The body is too large", **AS_PROBLEM},
    422: {"description": "The request does not fit", **AS_PROBLEM},
    429: {"description": "Too much at once; Retry-After says when", **AS_PROBLEM},
    500: {"description": "A fault of the server", **AS_PROBLEM},
    503: {"description": "Not ready yet; Retry-After says when", **AS_PROBLEM},
    504: {"description": "No answer in time", **AS_PROBLEM},
}


class Ingress:
    """One replica: routes, keys, the questions under way."""

    def __init__(self, options: dict[str, Any], retriever: Any) -> None:
        self.settings = Settings(**options)
        start_logging(self.settings)
        start_tracing(self.settings)
        self.keys = Keyring(self.settings.keys, concurrent=self.settings.concurrent_per_key)
        self.asker = Asker(self.settings)
        self.probes = Probes(self.asker)
        self.warming = asyncio.get_event_loop().create_task(self.asker.warm_up())

    def __serve_build_asgi_app__(self) -> FastAPI:
        return build_api(self.settings, self.keys, self.asker, self.probes)

    def __del__(self) -> None:
        self.asker.close()


def build_api(settings: Settings, keys: Keyring, asker: Asker, probes: Probes) -> FastAPI:
    api = FastAPI(
        title="sproutrag",
        description="Evidence out of attention-built sentence trees, and answers that cite it.",
        docs_url=None,
        redoc_url=None,
    )
    api.add_exception_handler(RequestValidationError, on_invalid)
    api.add_exception_handler(HTTPException, on_http_error)
    api.add_middleware(Door, settings=settings, keys=keys)
    if settings.cors_origins:
        headers = ["Authorization", "Content-Type", "X-Request-Id"]
        api.add_middleware(
            CORSMiddleware, allow_origins=settings.cors_origins, allow_methods=["*"], allow_headers=headers
        )
    rooms = Routes(settings, asker)
    add_evidence(api, rooms)
    add_questions(api, rooms)
    add_operations(api, probes)
    add_page(api)
    return api


async def tenant_of(request: Request) -> Tenant:
    """Whom the door let in. Async: a plain function would be run in a thread of its own."""
    return request.state.tenant


Who = Annotated[Tenant, Depends(tenant_of)]
WITH_KEY: dict[str, Any] = {
    "responses": PROBLEMS,
    "dependencies": [Security(HTTPBearer(auto_error=False, description="A key of this server"))],
}


Writing = Callable[[AsyncIterator[Event]], AsyncIterator[str]]


async def written_all(events: AsyncIterator[Event]) -> AsyncIterator[str]:
    async for event in events:
        yield written(event)


class QuestionStream(Response):
    """A question takes its place when the stream begins and leaves it when the stream ends, however it ends.

    Refusals come as a status, before anything is streamed.
    """

    def __init__(self, asker: Asker, asked: bodies.AskRequest, tenant: Tenant, write: Writing) -> None:
        super().__init__()
        self.question = asker, asked, tenant
        self.write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asker, asked, tenant = self.question
        with asker.admitted(tenant):
            await asker.ready_engine()
            parts = self.write(asker.events(asked, tenant))
            stream = StreamingResponse(parts, media_type=STREAM, headers=KEPT_ALIVE)
            await stream(scope, receive, send)


class Routes:
    """What the routes of /v1 do."""

    def __init__(self, settings: Settings, asker: Asker) -> None:
        self.settings = settings
        self.asker = asker
        self.searching = 0

    async def read(self, name: str, *words: Any, **named: Any) -> Any:
        """One call of the retriever within the deadline, if there is room for it."""
        if self.searching >= self.settings.concurrent_searches:
            raise Problem(
                429,
                "Too many requests at once",
                f"{self.searching} searches are under way.",
                "Try again in a moment.",
                {"Retry-After": "1"},
            )
        self.searching += 1
        try:
            async with asyncio.timeout(self.settings.search_deadline_s):
                return await getattr(retriever_handle(), name).remote(*words, **named)
        finally:
            self.searching -= 1

    def bounded(self, *, chars: str, k: int) -> None:
        """Raises Problem 422 for what this server's settings do not allow."""
        settings = self.settings
        if len(chars) > settings.max_question_chars:
            raise too_much(f"{len(chars):,} characters; {settings.max_question_chars:,} are the most.")
        if k > settings.max_k:
            raise too_much(f"k: {k}; {settings.max_k} leaves are the most.")

    async def search(self, asked: bodies.SearchRequest, tenant: Tenant) -> dict[str, Any]:
        self.bounded(chars=asked.query, k=asked.k)
        began = time.perf_counter()
        snapshot, passages = await self.read(
            "search",
            asked.query,
            k=asked.k,
            mode=asked.mode,
            doc=asked.doc,
            where=tenant.narrowed(asked.where),
            snapshot=asked.snapshot,
            request_id=REQUEST_ID.get(),
        )
        seconds = round(time.perf_counter() - began, 6)
        return {"snapshot": snapshot, "passages": list(map(asdict, passages)), "seconds": seconds}

    async def ask(self, asked: bodies.AskRequest, tenant: Tenant) -> Response:
        self.bounded(chars=asked.question, k=asked.k)
        with self.asker.admitted(tenant):
            return JSONResponse(await self.asker.ask(asked, tenant, None))

    def stream(self, asked: bodies.AskRequest, tenant: Tenant, write: Writing = written_all) -> Response:
        self.bounded(chars=asked.question, k=asked.k)
        return QuestionStream(self.asker, asked, tenant, write)

    async def chat(self, asked: bodies.ChatRequest, tenant: Tenant) -> Response:
        model = model_id(self.settings)
        question = chat.question_of(asked, model)
        if not asked.stream:
            self.bounded(chars=question.question, k=question.k)
            with self.asker.admitted(tenant):
                outcome = await self.asker.ask(question, tenant, None)
            return JSONResponse(chat.completion(outcome, model))
        with_usage = asked.stream_options is not None and asked.stream_options.include_usage
        write = partial(chat.chunks, model=model, include_usage=with_usage)
        return self.stream(question, tenant, write)


def add_evidence(api: FastAPI, rooms: Routes) -> None:
    @api.post("/v1/search", response_model=bodies.SearchReply, **WITH_KEY)
    async def search(asked: bodies.SearchRequest, tenant: Who) -> Any:
        """Evidence for a query: passages of whole leaves with exact spans. No LLM is asked."""
        return JSONResponse(await rooms.search(asked, tenant))

    @api.get("/v1/documents/{doc_id:path}", response_model=bodies.DocumentBody, **WITH_KEY)
    async def read_document(doc_id: str, tenant: Who) -> Any:
        """A document's text as it was indexed, and the spans of its leaves."""
        return JSONResponse(await rooms.read("document", doc_id, where=tenant.where, snapshot=None))

    @api.get("/v1/trees/{doc_id:path}", response_model=bodies.TreeBody, **WITH_KEY)
    async def read_tree(doc_id: str, tenant: Who, query: str = "") -> Any:
        """A document's sprout tree; with a query the beam's path through it."""
        rooms.bounded(chars=query, k=1)
        named = {"query": query, "where": tenant.where, "snapshot": None}
        return JSONResponse(await rooms.read("tree", doc_id, **named))

    @api.get("/v1/snapshots", response_model=bodies.SnapshotsBody, **WITH_KEY)
    async def list_snapshots(tenant: Who) -> Any:
        """The snapshots of the index that are kept, the newest first."""
        return await rooms.read("snapshots", counted=tenant.where is None)


def add_questions(api: FastAPI, rooms: Routes) -> None:
    streams: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "The outcome; with `Accept: text/event-stream` server-sent events: start, node, "
            "evidence, answer, and at the end done or error.",
            "content": {STREAM: {"schema": {"type": "object", "required": ["data"]}}},
        }
    }
    with_key = WITH_KEY | {"responses": PROBLEMS | streams}

    @api.post("/v1/ask", response_model=bodies.AskReply, **with_key)
    async def ask(asked: bodies.AskRequest, tenant: Who, accept: Annotated[str, Header()] = "") -> Any:
        """Answer a question: reuse, retrieve or decompose, with citations that the stored text proves."""
        return rooms.stream(asked, tenant) if STREAM in accept else await rooms.ask(asked, tenant)

    @api.post("/v1/chat/completions", response_model=bodies.ChatReply, **with_key)
    async def complete_chat(asked: bodies.ChatRequest, tenant: Who) -> Any:
        """OpenAI's chat completions: the last user message, answered from the index, with its sources."""
        return await rooms.chat(asked, tenant)

    @api.get("/v1/models", response_model=bodies.ModelsBody, **WITH_KEY)
    async def list_models(tenant: Who) -> Any:
        """What chat completions take as `model`."""
        names = dict.fromkeys([chat.NAME, model_id(rooms.settings)])
        return bodies.ModelsBody(
            data=[bodies.ModelBody(id=name, created=0, owned_by="sproutrag") for name in names]
        )


def add_operations(api: FastAPI, probes: Probes) -> None:
    unready: dict[int | str, dict[str, Any]] = {503: {"model": bodies.ReadyBody}}

    @api.get("/healthz")
    async def live() -> dict[str, str]:
        """This replica is alive; nothing else is asked."""
        return {"status": "alive"}

    @api.get("/readyz", response_model=bodies.ReadyBody, responses=unready)
    async def ready() -> Response:
        """A real tiny search, and a token from the LLM; what was found is good for some seconds."""
        told = await probes.ready()
        return JSONResponse(told, 200 if told["ready"] else 503)

    @api.get("/metrics", response_class=PlainTextResponse, **WITH_KEY)
    async def metrics(tenant: Who) -> Response:
        """Prometheus text: what the processes of this node count for the endpoint."""
        if tenant.where is not None:
            raise Problem(404, "Not for this key", "/metrics counts all tenants.", "Ask the operator.")
        return PlainTextResponse(await scrape(), media_type="text/plain; version=0.0.4")


def add_page(api: FastAPI) -> None:
    @api.get("/", include_in_schema=False)
    async def page() -> Response:
        return page_file("index.html")

    @api.get("/page/{name}", include_in_schema=False)
    async def part_of_page(name: str) -> Response:
        return page_file(name)


def page_file(name: str) -> Response:
    found = {path.name: path for path in PAGE.iterdir()}.get(name)
    if found is None or found.suffix not in MEDIA_TYPES:
        raise Problem(404, "Not found", "The page has no such file.", "Open /.")
    headers = {"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "no-cache"}
    return FileResponse(found, media_type=MEDIA_TYPES[found.suffix], headers=headers)


def too_much(detail: str) -> Problem:
    return Problem(422, "More than this server allows", detail, "Ask for less.")


def deployed_ingress(settings: Settings, retriever: Any) -> serve.Application:
    replicas = {
        "min_replicas": settings.ingress_min_replicas,
        "max_replicas": settings.ingress_max_replicas,
        "target_ongoing_requests": settings.concurrent_questions,
    }
    deployment = serve.deployment(
        name="Ingress",
        autoscaling_config=replicas,
        max_ongoing_requests=4 * (settings.concurrent_searches + settings.concurrent_questions),
        health_check_period_s=settings.health_period_s,
        health_check_timeout_s=settings.health_timeout_s,
        graceful_shutdown_timeout_s=settings.deadline_s,
        ray_actor_options={"num_cpus": 0},
    )(serve.ingress()(Ingress))
    return deployment.bind(settings.model_dump(), retriever)
