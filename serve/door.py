"""What every request passes first: an id, a key, a body of bounded size; and what is counted of it.

Ray Serve gives each request its X-Request-Id, or takes the client's, and sends it back.

Pure ASGI, before FastAPI reads anything, so that a refusal costs next to nothing.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.keys import Keyring
from serve.logs import REQUEST_ID, log
from serve.metrics import change, count, observe
from serve.problems import Problem, problem_of, response_of
from serve.settings import Settings

SANE_ID = re.compile(r"[\w.:-]{1,64}")
OPEN_PATHS = re.compile(r"/|/healthz|/readyz|/openapi\.json|/page/[^/]*")  # without a key
SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
ROUTES = re.compile(r"/v1/(?:ask|search|models|snapshots|chat/completions|documents|trees)")


class Door:
    """Middleware; the tenant lands in scope["state"]["tenant"]."""

    def __init__(self, app: ASGIApp, settings: Settings, keys: Keyring) -> None:
        self.app = app
        self.settings = settings
        self.keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        REQUEST_ID.set(sane_id(headers.get("x-request-id", "")))
        visit = Visit(route_of(scope["path"]), send)
        change("sproutrag_open_requests", +1, route=visit.route)
        try:
            await self.let_in(scope, headers, receive, visit)
        except Exception as error:
            if visit.status:  # too late for another answer; the client misses the end
                raise
            await response_of(self.refusal(error))(scope, receive, visit.send)
        finally:
            change("sproutrag_open_requests", -1, route=visit.route)
            visit.leave()

    async def let_in(self, scope: Scope, headers: Headers, receive: Receive, visit: "Visit") -> None:
        state = scope.setdefault("state", {})
        if not OPEN_PATHS.fullmatch(scope["path"]):
            state["tenant"] = self.keys.who(headers.get("authorization", ""))
            visit.tenant = state["tenant"].name
        if scope["method"] in ("POST", "PUT", "PATCH"):
            receive = replayed(await self.body(headers, receive), receive)
        await self.app(scope, receive, visit.send)

    async def body(self, headers: Headers, receive: Receive) -> bytes:
        """All of it, or a Problem as soon as it is clear that it is too much or too slow."""
        limit = self.settings.max_body_bytes
        if headers.get("content-length", "").isdecimal() and int(headers["content-length"]) > limit:
            raise too_large(limit)
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.settings.body_timeout_s):
                async for part in parts_of(receive):
                    size += len(part)
                    if size > limit:
                        raise too_large(limit)
                    parts.append(part)
        except TimeoutError:
            raise Problem(
                408,
                "The body did not come",
                f"{size} bytes came within {self.settings.body_timeout_s:g} s.",
                "Send the whole body at once.",
                {"Connection": "close"},
            ) from None
        return b"".join(parts)

    def refusal(self, error: Exception) -> Problem:
        problem = problem_of(error)
        if problem.status < 500:
            count("sproutrag_rejected_total", reason=str(problem.status))
        return problem


class Visit:
    """One request: what was answered, and when."""

    def __init__(self, route: str, send: Send) -> None:
        self.route = route
        self.tenant = ""
        self.status = 0
        self.began = time.perf_counter()
        self.onward = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in SAFE.items():
                headers.setdefault(name, value)
        await self.onward(message)

    def leave(self) -> None:
        seconds = time.perf_counter() - self.began
        status = str(self.status or 499)  # the client left first
        count("sproutrag_requests_total", route=self.route, status=status)
        observe("sproutrag_request_seconds", seconds, route=self.route)
        log("request", route=self.route, status=int(status), seconds=round(seconds, 4), tenant=self.tenant)


def sane_id(given: str) -> str:
    return given if SANE_ID.fullmatch(given) else uuid4().hex


def route_of(path: str) -> str:
    """Few names, whatever is asked for: each is a series of every metric."""
    if known := ROUTES.match(path):
        return known[0]
    return path if OPEN_PATHS.fullmatch(path) and "/page/" not in path else "other"


async def parts_of(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "The client left", "The body was not sent to its end.", "Send all of it.")
        yield message.get("body", b"")
        if not message.get("more_body"):
            return


def replayed(body: bytes, receive: Receive) -> Any:
    """The body in one piece, then what the client does next."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_message


def too_large(limit: int) -> Problem:
    return Problem(
        413,
        "The body is too large",
        f"This server takes {limit:,} bytes.",
        "Send less.",
        {"Connection": "close"},
    )
