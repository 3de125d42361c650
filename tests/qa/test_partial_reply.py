"""However a reply is cut into parts, its answer grows to the same text, and never shrinks."""

import json
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sproutrag.documents import LONE_SURROGATE
from sproutrag.qa.partial_reply import PartialAnswer
from tests.qa.scripted import combined, replies, says

TRICKY = 'He said "{\\"answer\\": 1}", \\ \u00e4 \U0001f600 \ud83d\n</answer>'
ONE, ALONE = ("replies", 0, "answer"), ("answer",)
TEXTS = st.text(st.characters() | st.sampled_from('"\\{}[],:\ud83d\ude00'))

PIECES = st.lists(
    st.sampled_from([*'{}[],:" \\x7', '"answer"', '"answered"', "false", "<think>", "</think>", "\\ud83d"])
).map("".join)


def grown(parts: Iterator[str] | list[str], path: tuple[str | int, ...]) -> str:
    answer, text = PartialAnswer(*path), ""
    for part in parts:
        text += answer.feed(part)
        assert answer.text == text
    return text


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


@given(TEXTS, TEXTS, st.lists(st.integers(0, 10_000)), st.booleans(), st.sampled_from([None, 2]))
@example(TRICKY, TRICKY, list(range(400)), True, None)
@example(TRICKY, TRICKY, list(range(400)), False, None)
def test_any_split_of_a_reply_gives_its_answer(
    said: str, quote: str, places: list[int], ascii_only: bool, indent: int | None
) -> None:
    for path, reply in (
        (ONE, replies(says("0", quote, quote=quote, answer=said or " "), says("1", "x", answer="not this"))),
        (ALONE, combined(quote, used=[quote], answer=said or " ")),
    ):
        text = json.dumps(reply, ensure_ascii=ascii_only, indent=indent)
        told = json.loads(text)
        whole = LONE_SURROGATE.sub("\ufffd", (told if path == ALONE else told["replies"][0])["answer"])
        assert grown(cut(text, places), path) == grown(text, path) == whole


@given(st.text() | PIECES, st.lists(st.integers(0, 10_000)))
@example('{"answer": "a\\x"}', [])
@example('{"answer": "a\\ud83dx\\ude00"}', [13, 14, 15, 16, 17, 18])
@example('}]:,"{', [])
@example('{"answer":]}:,"x"}', [3])
@example('{]:"x"', [])
def test_no_text_whatsoever_breaks_it(text: str, places: list[int]) -> None:
    assert grown(cut(text, places), ALONE) == grown(text, ALONE) == grown([text], ALONE)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('<think>{"answer": "thought"}</think>{"answer": "said"}', "said"),
        ('thought {"no end </think> {"answer": "said"}', ""),
        ('{"answer": "a </think> b"}', "a </think> b"),
        ('<think>{"answer": "thought"}', ""),
        ("Here it is:\n```json\n" + '{"answer": "said"}\n```', "said"),
        ('{"answered": false, "answer": "nothing"}', ""),
        ('{"answered": true, "answer": "lim', "lim"),
        ('{"used": ["answer"], "other": {"answer": "no"}, "answer": "yes"}', "yes"),
        ('{"answer": 7}', ""),
        ('{"answer": "first"} {"answer": "second"}', "first"),
    ],
)
def test_only_the_answer_itself_is_shown(text: str, answer: str) -> None:
    assert grown(text, ALONE) == grown([text], ALONE) == answer


def test_the_answer_grows_as_soon_as_it_can_be_read() -> None:
    answer = PartialAnswer("answer")
    parts = ['{"answer": "L', "i", "\\", "u00e", "9", "\\ud83d", "\\ude0", "0 m", 'a"', ', "more": "x"}']
    assert [answer.feed(part) for part in parts] == [
        "L", "i", "", "", "\u00e9", "", "", "\U0001f600 m", "a", "",
    ]  # fmt: skip
