"""Errors as RFC 9457 problem documents: what went wrong, where, and what to do next. Never what is secret."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from serve.engines import NotReady
from serve.logs import REQUEST_ID, log
from sproutrag.documents import LONE_SURROGATE
from sproutrag.snapshots import DocumentNotFound, IndexProblem, NoIndex, NoSnapshot
from sproutrag.where import WhereError

MEDIA_TYPE = "application/problem+json"
READ_THE_DOCS = "See /openapi.json for what this server takes, with examples."
LATER_S = 5  # Retry-After of what is being started


@dataclass(eq=False)
class Problem(Exception):
    """Ends a request. `detail`: what and where; `next_step`: what to do."""

    status: int
    title: str
    detail: str
    next_step: str
    headers: Mapping[str, str] = field(default_factory=dict)


def told(problem: Problem) -> dict[str, Any]:
    """The document; `error` is what OpenAI's clients look for."""
    detail = LONE_SURROGATE.sub("\ufffd", problem.detail)
    return {
        "type": "about:blank",
        "title": problem.title,
        "status": problem.status,
        "detail": detail,
        "next": problem.next_step,
        "request_id": REQUEST_ID.get(),
        "error": {"message": f"{problem.title}: {detail} {problem.next_step}", "code": problem.status},
    }


def response_of(problem: Problem) -> Response:
    body = json.dumps(told(problem), ensure_ascii=False).encode()
    return Response(body, problem.status, dict(problem.headers), MEDIA_TYPE)


def problem_of(error: Exception) -> Problem:
    """What a caller is told of any failure; the unexpected goes to the log, with the request's id."""
    if isinstance(error, Problem):
        return error
    for kinds, make in KNOWN:
        if isinstance(error, kinds):
            return make(error)
    log("failed", level=40, error=f"{type(error).__name__}: {str(error)[:500]}")
    return Problem(
        500,
        "The server failed",
        "This request met a fault of the server.",
        "Try again; if it stays, tell the operator the request_id: the log has the cause under it.",
    )


def not_found(error: Exception) -> Problem:
    """The same words whether it was never there or is another tenant's."""
    return Problem(
        404, "No such document", "This snapshot has no document of that id.", "Take the id from a search."
    )


def bad_filter(error: Exception) -> Problem:
    return Problem(422, "The filter cannot be read", plain(error), "Correct it: year >= 2020 AND x = 'y'.")


def no_index(error: Exception) -> Problem:
    """Where the index lies is the operator's business: it is in the log, and on /readyz."""
    log("no index", level=30, error=plain(error))
    return Problem(
        503,
        "There is no index yet",
        "The server has no published snapshot.",
        "Try again when the first indexing run has ended.",
        {"Retry-After": "30"},
    )


def index_trouble(error: Exception) -> Problem:
    log("index trouble", level=40, error=plain(error))
    return Problem(
        503,
        "The index cannot be read",
        "What is stored contradicts itself, or is gone.",
        "Tell the operator the request_id; `sproutrag verify` finds what is broken.",
        {"Retry-After": "30"},
    )


def no_snapshot(error: Exception) -> Problem:
    return Problem(
        404, "No such snapshot", "It was never there or is gone.", "Take one of /v1/snapshots, or none."
    )


def no_engine(error: Exception) -> Problem:
    return Problem(
        503,
        "The language model is not ready",
        plain(error),
        "Search works already; ask again in a moment. /readyz tells when.",
        {"Retry-After": str(LATER_S)},
    )


def out_of_time(error: Exception) -> Problem:
    return Problem(504, "No answer in time", "The deadline passed.", "Try again, or ask for less.")


def plain(error: Exception) -> str:
    """The first line that the library wrote; Ray puts a traceback around errors of other processes."""
    cause = getattr(error, "cause", error) or error
    return str(cause).strip().split("\nTraceback")[0][:1000]


KNOWN: list[tuple[Any, Any]] = [
    (DocumentNotFound, not_found),
    (NoSnapshot, no_snapshot),
    (NoIndex, no_index),
    (IndexProblem, index_trouble),
    (WhereError, bad_filter),
    (NotReady, no_engine),
    (TimeoutError, out_of_time),
]


# --- what FastAPI raises


async def on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = "; ".join(fault_of(fault) for fault in error.errors()[:5])
    return response_of(Problem(422, "The request does not fit", faults, READ_THE_DOCS))


def fault_of(fault: Mapping[str, Any]) -> str:
    """Which field and why, without what was sent."""
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"


async def on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    detail = f"{request.method} {request.url.path[:200]}: {error.detail}"
    problem = Problem(error.status_code, phrase, detail, READ_THE_DOCS, error.headers or {})
    return response_of(problem)
