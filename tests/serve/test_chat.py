import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from serve.bodies import ChatRequest
from serve.chat import chunks, left_to_say, question_of
from serve.problems import Problem

OUTCOME: dict[str, Any] = {
    "answer": "In 1854.",
    "citations": [{"doc_id": "a.txt", "quote": "lit in 1854", "spans": [[0, 11]]}],
    "answered": True,
    "partial": False,
    "open": [],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2},
}


def asked(*messages: tuple[str, Any], model: str = "sproutrag") -> ChatRequest:
    return ChatRequest(model=model, messages=[{"role": role, "content": text} for role, text in messages])  # type: ignore[list-item]


def test_the_last_user_message_is_the_question_in_either_shape() -> None:
    parts = [{"type": "text", "text": "who"}, {"type": "image_url"}, {"type": "text", "text": "lit it?"}]
    assert question_of(asked(("user", "x"), ("assistant", "y"), ("user", "z?")), "m").question == "z?"
    assert question_of(asked(("user", parts), model="m"), "m").question == "who\n\nlit it?"


@pytest.mark.parametrize(
    "messages", [[("system", "be brief")], [("user", "  ")], [("user", None)], [("user", [])]]
)
def test_a_chat_without_a_question_is_refused(messages: list[tuple[str, Any]]) -> None:
    with pytest.raises(Problem):
        question_of(asked(*messages), "m")


def streamed(*events: Any) -> list[str]:
    async def source() -> AsyncIterator[Any]:
        for event in events:
            yield event

    async def read() -> list[str]:
        return [part async for part in chunks(source(), "m", include_usage=True)]

    return asyncio.run(read())


def contents(parts: list[str]) -> str:
    told = [json.loads(p.removeprefix("data: ")) for p in parts if p.startswith("data: {")]
    return "".join(choice["delta"].get("content", "") for each in told for choice in each["choices"])


def test_a_stream_says_the_answer_once_whatever_of_it_came_early() -> None:
    for early in ([], ["In 1854."], ["In ", "18"]):
        parts = streamed(None, *(("answer", {"delta": delta}) for delta in early), ("done", OUTCOME))
        assert contents(parts) == "In 1854.\n\nSources:\n[1] a.txt: “lit in 1854”"
        assert parts[-1] == "data: [DONE]\n\n" and parts[1] == ": keep-alive\n\n"


def test_a_reply_begun_anew_is_not_mixed_with_the_first() -> None:
    first, anew = ("answer", {"delta": "It was"}), ("answer", {"delta": "", "replace": "In "})
    parts = streamed(first, anew, ("answer", {"delta": "1854."}), ("done", OUTCOME))
    assert contents(parts).startswith("It was\n\nCorrected: In 1854.\n\nSources:")


def test_a_stream_that_fails_ends_with_an_error_and_no_end_marker_of_success() -> None:
    parts = streamed(("error", {"error": {"message": "gone", "code": 503}}))
    assert json.loads(parts[-1].removeprefix("data: ")) == {"error": {"message": "gone", "code": 503}}


def test_an_answer_that_came_out_differently_is_said_again() -> None:
    assert left_to_say("In 1855", "In 1854.") == "\n\nCorrected: In 1854."
