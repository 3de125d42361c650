"""A server that speaks the endpoint's API from a script: the subject of its tests is the page.

What a question does is told by a word in it: hold, cut, error, refuse, partial, hostile, crowd.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse

from tests.serve.page_script import DOCUMENTS, QUOTES, Json, events_of, leaves_of, passage, path_to, tree_of

PAGE = Path(__file__).parents[2] / "serve" / "page"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


@dataclass
class Scene:
    """What the tests set, and what they look at afterwards."""

    documents: int = len(DOCUMENTS)
    model_ready: bool = True
    key: str = ""
    pause: float = 0.0  # seconds between events
    left: threading.Event = field(default_factory=threading.Event)  # the client went before the end
    asked: list[str] = field(default_factory=list)


def problem(status: int, title: str, detail: str, next_step: str) -> JSONResponse:
    told = {
        "type": "about:blank",
        "title": title,
        "status": status,
        "detail": detail,
        "next": next_step,
        "request_id": "r-9",
    }
    return JSONResponse(told, status, media_type="application/problem+json")


def written(name: str, value: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


async def stream(question: str, scene: Scene) -> AsyncIterator[bytes]:
    """The events in pieces that heed neither lines nor characters."""
    ended = False
    try:
        yield b": keep-alive\n\n"
        for name, value in events_of(question):
            if name == "done" and "cut" in question:
                break
            if name == "answer" and "error" in question:
                yield written(
                    "error",
                    {
                        "title": "The model went away",
                        "status": 502,
                        "detail": "LLMServer: connection reset.",
                        "next": "Ask again; search still works.",
                        "request_id": "r-9",
                    },
                )
                break
            whole = written(name, value)
            for at in range(0, len(whole), 997):
                yield whole[at : at + 997]
            await asyncio.sleep(scene.pause)
            while name == "answer" and "hold" in question:
                await asyncio.sleep(0.02)
        ended = True
    finally:
        if not ended:
            scene.left.set()


def build(scene: Scene) -> FastAPI:
    app = FastAPI(openapi_url=None)
    app.middleware("http")(lambda request, onward: guarded(scene, request, onward))
    app.get("/")(lambda: page_file("index.html"))
    app.get("/page/{name}")(page_file)
    app.get("/readyz")(lambda: readiness(scene))
    app.get("/v1/snapshots")(
        lambda: {
            "current": 7,
            "snapshots": [
                {"id": 7, "published": "2026-11-30T02:00:00Z", "documents": scene.documents, "nodes": 99}
            ],
        }
    )
    app.get("/v1/documents/{doc_id:path}")(read_document)
    app.get("/v1/trees/{doc_id:path}")(read_tree)

    @app.post("/v1/search")
    async def search(request: Request) -> Json:
        query = (await request.json())["query"]
        quotes = [] if "nothing" in query else QUOTES.values()
        return {"snapshot": 7, "passages": [passage(*quote) for quote in quotes], "seconds": 0.0123}

    @app.post("/v1/ask")
    async def ask(request: Request) -> Response:
        question = (await request.json())["question"]
        scene.asked.append(question)
        if not scene.model_ready:
            return problem(
                503,
                "The model is still loading",
                "LLMServer: 40 % of the weights.",
                "Search works already; ask again in a minute.",
            )
        if "refuse" in question:
            return problem(
                429, "Too many questions at once", "This key may ask 8 at a time.", "Wait for one to end."
            )
        return StreamingResponse(stream(question, scene), media_type="text/event-stream")

    return app


async def guarded(scene: Scene, request: Request, onward: Any) -> Response:
    free = (
        not request.url.path.startswith("/v1/")
        or request.headers.get("authorization") == f"Bearer {scene.key}"
    )
    if scene.key and not free:
        return problem(401, "No valid key", "This server wants an API key.", "Enter the key you were given.")
    response = await onward(request)
    response.headers["Content-Security-Policy"] = CSP
    return response


def page_file(name: str) -> FileResponse:
    return FileResponse(PAGE / Path(name).name, media_type=KINDS[name.rpartition(".")[2]])


def readiness(scene: Scene) -> JSONResponse:
    llm = {"ready": scene.model_ready, "detail": "" if scene.model_ready else "loading weights"}
    ready = {"ready": scene.model_ready, "retriever": {"ready": True, "detail": ""}, "llm": llm}
    return JSONResponse(ready, 200 if scene.model_ready else 503)


def read_document(doc_id: str) -> Any:
    if doc_id not in DOCUMENTS:
        return problem(
            404, "No such document", f"{doc_id} is not in snapshot 7.", "It may have been deleted since."
        )
    title, text = DOCUMENTS[doc_id]
    return {
        "doc_id": doc_id,
        "title": title,
        "text": text,
        "metadata": {},
        "snapshot": 7,
        "leaves": leaves_of(text),
    }


def read_tree(doc_id: str, query: str = "") -> Json:
    leaves = leaves_of(DOCUMENTS[doc_id][1])
    nodes, goal = tree_of(len(leaves)), min(2, len(leaves) - 1)
    beam = {"path": path_to(nodes, goal), "evidence": [goal]} if query else {}
    return {
        "doc_id": doc_id,
        "snapshot": 7,
        "leaves": leaves,
        "order": list(range(len(leaves))),
        "nodes": nodes,
        "root": nodes[-1]["node"],
        **beam,
    }


@contextmanager
def serving(scene: Scene) -> Iterator[str]:
    """The address, on loopback, while the block runs."""
    server = uvicorn.Server(
        uvicorn.Config(build(scene), port=0, log_level="critical", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(10)
