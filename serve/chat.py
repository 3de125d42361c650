"""OpenAI's chat completions over a grounded answer: the answer, then numbered sources."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from serve.asking import Event
from serve.bodies import AskRequest, ChatRequest
from serve.problems import Problem

NAME = "sproutrag"  # a model name that every server takes


def question_of(request: ChatRequest, served: str) -> AskRequest:
    """The last user message as the question; earlier ones are context for nobody."""
    if request.model not in (NAME, served):
        raise Problem(
            404,
            "No such model",
            f"This server has {NAME!r} and {served!r}.",
            "Ask /v1/models, and send one of these as `model`.",
        )
    said = [message for message in request.messages if message.role == "user"]
    content = said[-1].content if said else ""
    parts = content if isinstance(content, list) else []
    text = content if isinstance(content, str) else "\n".join(part.text for part in parts)
    if not text.strip():
        raise Problem(
            422, "Nothing is asked", "messages: the last user message has no text.", "Send a question."
        )
    return AskRequest(question=text)


def sources_of(outcome: dict[str, Any]) -> str:
    """The citations as numbered lines, each a quote of the stored text."""
    lines = [f"[{n}] {c['doc_id']}: “{c['quote']}”" for n, c in enumerate(outcome["citations"], 1)]
    return "\n\nSources:\n" + "\n".join(lines) if lines else ""


def usage_of(outcome: dict[str, Any]) -> dict[str, int]:
    used = outcome["usage"]
    prompt, completion = used["prompt_tokens"], used["completion_tokens"]
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def grounding(outcome: dict[str, Any]) -> dict[str, Any]:
    """What OpenAI's shapes have no place for."""
    return {name: outcome[name] for name in ("citations", "answered", "partial", "open", "usage")}


def completion(outcome: dict[str, Any], model: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": outcome["answer"] + sources_of(outcome)}
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage_of(outcome),
        "sproutrag": grounding(outcome),
    }


async def chunks(events: AsyncIterator[Event], model: str, *, include_usage: bool) -> AsyncIterator[str]:
    """The answer as it is written, its sources, [DONE]; or an `error` chunk, and the stream ends."""
    shape: dict[str, Any] = {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": "chat.completion.chunk",
        "model": model,
    }
    shape["created"] = int(time.time())

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return sse(shape | {"choices": [choice]} | more)

    yield chunk({"role": "assistant", "content": ""})
    said, begun_anew = "", False
    async for event in events:
        if event is None:
            yield ": keep-alive\n\n"
            continue
        name, data = event
        if name == "answer" and (delta := data["delta"]) and not begun_anew:
            said += delta
            yield chunk({"content": delta})
        elif name == "answer":  # what a client has read cannot be taken back: the end says it
            begun_anew = begun_anew or "replace" in data
        elif name == "error":
            yield sse({"error": data["error"]})
            return
        elif name == "done":
            yield chunk({"content": left_to_say(said, data["answer"]) + sources_of(data)})
            yield chunk({}, "stop", sproutrag=grounding(data))
            if include_usage:
                yield sse(shape | {"choices": [], "usage": usage_of(data)})
            yield "data: [DONE]\n\n"


def left_to_say(said: str, answer: str) -> str:
    """The rest of the answer; where it came out differently from what was streamed, all of it once more."""
    if answer.startswith(said):
        return answer[len(said) :]
    return f"\n\nCorrected: {answer}"


def sse(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
