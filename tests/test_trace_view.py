"""The drawn trace: every question once, quotes lit in their evidence, and no text that escapes."""

import base64
import hashlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sproutrag.qa.answer import answer_question
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.prompts import ANSWER, PLAN
from sproutrag.qa.trace import outcome, read_trace, write_trace
from sproutrag.trace_view import draw_trace, page_data, walk, write_trace_page
from tests.qa.scripted import (
    ScriptedLLM,
    WordIndex,
    combine_of,
    combined,
    corpus,
    external,
    plan_of,
    replies,
    run,
    says,
    vertical,
)
from tests.test_show import HOSTILE, Page

QUESTION = "Who runs the mill and the forge?"
TEXTS = {"mill": "The mill 🏭 is run by Ada Reed.", "forge": "The forge is run by Otto Lamm."}


def told_of(
    index: WordIndex, *, question: str = QUESTION, mill: str = "Ada Reed", quote: str = ""
) -> dict[str, Any]:
    """Two sub-questions that share no evidence, one answered; the other has no reply that can be read."""
    shown = question.replace("<", "\u2039").replace(">", "\u203a")
    llm = ScriptedLLM(
        {
            plan_of(shown): vertical("Who runs the mill?", "Who runs the forge?"),
            plan_of("Who runs the mill?"): external("mill"),
            plan_of("Who runs the forge?"): external("forge"),
            '<question id="0.1">': replies(says("0.1", mill, quote=quote or TEXTS["mill"])),
            '<question id="0.2">': "no json",
            combine_of(shown): combined(mill),
        }
    )
    root = run(answer_question(question, dispatcher=Dispatcher(llm), retriever=index, sources=index))
    return outcome(root, model="scripted", snapshot=7)


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return told_of(corpus(**TEXTS))


def drawn(told: dict[str, Any], width: int = 100) -> str:
    file = io.StringIO()
    draw_trace(Console(file=file, width=width), told)
    return file.getvalue()


def page_of(told: dict[str, Any], folder: Path) -> Page:
    write_trace_page(folder / "trace.html", told)
    return Page(folder / "trace.html")


def test_terminal_shows_every_question_with_its_strategy_answer_or_failure_and_cost(told: dict) -> None:
    text = drawn(told)
    for node, _, _ in walk(told["trace"]["root"]):
        assert f"{node['id']} {node['strategy']} {node['question']}" in text
    assert "→ Ada Reed" in text and "✗ answer: answer: " in text
    assert re.search(r"2 calls · \d+ tokens · \d+\.\d s · wave 0", text)
    assert f"[1] mill [0:{len(TEXTS['mill'])}]" in text and TEXTS["mill"] in text
    assert "snapshot 7" in text and ANSWER.label in text and PLAN.label in text


def test_what_steers_a_terminal_does_not_reach_it() -> None:
    text = drawn(told_of(corpus(**TEXTS), mill="\u202eevil\x1b[31m [bold red]markup[/]"))
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    assert "[bold red]markup[/]" in text


def test_endless_word_does_not_stop_the_terminal() -> None:
    assert "xx…" in drawn(told_of(corpus(**TEXTS), mill="x" * 200_000)).replace("\n", "")


def test_page_lights_up_the_quote_where_characters_are_wide(told: dict) -> None:
    rows = {row["id"]: row for row in page_data(told)["nodes"]}
    [passage] = [one for one in rows["0.1"]["evidence"] if one["doc_id"] == "mill"]
    assert passage["pieces"][1] == TEXTS["mill"] and "".join(passage["pieces"]) == TEXTS["mill"]
    assert rows["0"]["citations"][0]["held"] == 1, "a citation of the answer leads to its evidence"
    assert [row["parent"] for row in rows.values()] == [-1, 0, 0]


def test_calls_lie_within_the_time_of_their_question(told: dict) -> None:
    for row in page_data(told)["nodes"]:
        assert row["to"] >= row["from"] >= 0
        for call in row["calls"]:
            assert row["from"] - 0.01 <= call["from"] <= call["to"] <= row["to"] + 0.01


def test_hostile_documents_questions_and_answers_add_no_tag_to_the_page(told: dict, tmp_path: Path) -> None:
    plain = page_of(told, tmp_path)
    for text in HOSTILE[:3]:
        index = corpus(mill=f"mill {text}", forge="The forge is run by Otto Lamm.")
        hostile = told_of(index, question=f"Who {text}?", mill=text, quote=f"mill {text}")
        page = page_of(hostile, tmp_path)
        assert page.tags == plain.tags
        assert [tag for tag, _ in page.inline] == ["style", "script", "script"]
        assert text in str(page.data), "shown as text"


def test_the_page_requests_nothing_and_runs_only_its_own_script(told: dict, tmp_path: Path) -> None:
    page = page_of(told, tmp_path)
    attributes = [pair for _, found in page.tags for pair in found.items()]
    [policy] = [
        value or "" for name, value in attributes if name == "content" and "default-src" in str(value)
    ]
    style, _, script = (source for _, source in page.inline)
    for directive, source in (("style-src", style), ("script-src", script)):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert [value for name, value in attributes if name in ("src", "href")] == ["data:,"]
    assert not [name for name, _ in attributes if name.startswith("on") or name == "style"]
    assert not re.search(r"(inner|outer)HTML|insertAdjacent|document\.write|eval\(|fetch\(|https?:", script)


def test_trace_file_with_half_characters_and_without_numbers_is_drawn(tmp_path: Path) -> None:
    told = told_of(corpus(**TEXTS), mill="Ada \ud83d Reed")
    told["trace"]["root"]["children"][0]["evidence"][0]["score"] = float("nan")
    write_trace(tmp_path / "t.json", told)
    again = read_trace(tmp_path / "t.json")
    assert drawn(again) and page_of(again, tmp_path).data["question"] == QUESTION
