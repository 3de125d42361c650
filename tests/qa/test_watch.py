"""Who watches a question hears every change, parents before children, and at the end what the tree says."""

import asyncio
import json
from typing import Any

import pytest

from sproutrag.qa.answer import answer_question
from sproutrag.qa.baselines import SYSTEMS
from sproutrag.qa.budget import Limits
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.llm import Completion, Unreachable
from sproutrag.qa.question import QuestionNode
from sproutrag.qa.trace import outcome
from sproutrag.qa.watch import Audience, State, told_node, told_passage
from tests.qa.oracle import OURS, WIDE, Gold, Oracle, read_documents, read_gold
from tests.qa.scripted import ScriptedLLM, WordIndex, combined, corpus, external, plan_of, replies, says

GOLDS = {gold.id: gold for gold in read_gold(OURS)}
Heard = list[tuple[str, dict[str, Any]]]
WORLD = corpus(peru="Peru lies by the sea. Lima is the capital of Peru.")
CAPITAL = {
    plan_of("Capital of Peru?"): external("capital Peru"),
    '<question id="0">': replies(says("0", "Lima", quote="Lima is the capital", answer="It is Lima.")),
}


def watched(gold: Gold, system: str = "apt-rag", **limits: Any) -> tuple[QuestionNode, Heard]:
    index = WordIndex(read_documents(OURS))
    asked = {"dispatcher": Dispatcher(Oracle(gold)), "retriever": index, "sources": index}
    heard: Heard = []
    given = Limits(**limits) if limits else WIDE
    root = asyncio.run(
        SYSTEMS[system](gold.question, **asked, limits=given, watch=lambda *told: heard.append(told))
    )
    return root, heard


def of_node(heard: Heard, id: str) -> list[dict[str, Any]]:
    return [told for event, told in heard if event == "node" and told["id"] == id]


def end_of(node: QuestionNode) -> dict[str, Any]:
    return told_node(node, State.FAILED if node.failure else State.DONE)


def check(root: QuestionNode, heard: Heard) -> None:
    """The laws that hold for every question."""
    json.dumps(heard)
    known: set[str | None] = {None}
    for event, told in heard:
        if event == "node":
            assert told["parent"] in known, f"{told['id']} is told before its parent"
            known.add(told["id"])
    assert known - {None} == {node.id for node in root.walk()}
    for node in root.walk():
        assert of_node(heard, node.id)[-1] == end_of(node)
        found = [told["passages"] for event, told in heard if event == "evidence" and told["id"] == node.id]
        assert (found[-1] if found else []) == [told_passage(passage) for passage in node.evidence]
    assert read(heard) == outcome(root, model="scripted")["answer"]


def read(heard: Heard) -> str:
    text = ""
    for event, told in heard:
        if event == "answer":
            text = told.get("replace", text + told["delta"])
    return text


@pytest.mark.parametrize("id", sorted(GOLDS))
def test_every_gold_plan_is_told_as_it_grows(id: str) -> None:
    root, heard = watched(GOLDS[id])
    check(root, heard)
    assert any(len(told["cluster"]) > 1 for event, told in heard if event == "node") == any(
        len(node.cluster) > 1 for node in root.walk()
    )


@pytest.mark.parametrize("limits", [{"max_calls": 5}, {"max_nodes": 3}, {"max_seconds": 1e-6}])
def test_a_question_that_a_limit_ends_is_told_to_its_end(limits: dict[str, Any]) -> None:
    check(*watched(GOLDS["plan-4"], **limits))


@pytest.mark.parametrize("system", sorted(SYSTEMS.keys() - {"llm-only"}))
def test_every_system_can_be_watched(system: str) -> None:
    check(*watched(GOLDS["plan-7"], system))


def capital(script: dict[str, Any], system: str = "apt-rag") -> tuple[QuestionNode, Heard]:
    heard: Heard = []
    asked = {"dispatcher": Dispatcher(ScriptedLLM(script)), "retriever": WORLD, "sources": WORLD}
    asking = SYSTEMS[system]("Capital of Peru?", **asked, watch=lambda *told: heard.append(told))
    root = asyncio.run(asking)
    check(root, heard)
    return root, heard


def test_states_of_one_looked_up_question() -> None:
    _, heard = capital(CAPITAL)
    states = [told["state"] for told in of_node(heard, "0")]
    assert states == ["waiting", "planning", "retrieving", "waiting", "answering", "done"]
    [evidence] = [told for event, told in heard if event == "evidence"]
    assert {passage["doc_id"] for passage in evidence["passages"]} == {"peru"}


def test_a_failed_call_is_told_as_the_failure_it_is() -> None:
    root, heard = capital(CAPITAL | {'<question id="0">': Unreachable("gone")})
    last = of_node(heard, "0")[-1]
    assert last["state"] == "failed" and "gone" in last["failure"] == root.failure


def test_llm_only_is_told_too() -> None:
    _, heard = capital({"<question>": combined("Lima")}, "llm-only")
    assert [told["state"] for told in of_node(heard, "0")] == ["answering", "done"]


def test_nothing_is_made_up_for_a_question_that_nobody_watches() -> None:
    audience = Audience(None)
    audience.finish(QuestionNode("0", "?"))
    assert audience.latest == {} and audience.answer == ""
    index = WordIndex(read_documents(OURS))
    gold = GOLDS["plan-7"]
    asked = {"dispatcher": Dispatcher(Oracle(gold)), "retriever": index, "sources": index}
    assert asyncio.run(answer_question(gold.question, **asked, limits=WIDE)).answers == gold.answers


def test_what_was_lost_on_the_way_is_told_at_the_end() -> None:
    root, heard = watched(GOLDS["plan-4"])
    late: Heard = []
    audience = Audience(lambda *told: late.append(told))
    for event, told in heard[: len(heard) // 2]:
        audience.hear(event, told)
    audience.finish(root)
    check(root, late)


# --- the answer, while it is written


def told_answer(heard: Heard) -> Heard:
    return [(event, told) for event, told in heard if event == "answer"]


def test_the_roots_answer_is_heard_while_it_is_written() -> None:
    _, heard = capital(CAPITAL)
    deltas = [told["delta"] for _, told in told_answer(heard)]
    assert len(deltas) > 2 and "".join(deltas) == "It is Lima."
    assert heard.index(("answer", {"delta": deltas[0]})) < len(heard) - len(deltas)


def test_an_answer_combined_for_the_root_is_heard_and_no_childs() -> None:
    _, heard = watched(GOLDS["plan-4"])
    assert len(told_answer(heard)) > 1
    assert not any("replace" in told for _, told in told_answer(heard))


UNREADABLE = '{"replies": [{"id": "0", "quotes": 0, "answered": true, "answers": [], "answer": "It was'


@pytest.mark.parametrize("first", [UNREADABLE, Completion(UNREADABLE, finish="length")], ids=["bad", "cut"])
def test_a_reply_begun_anew_takes_the_place_of_the_first(first: Any) -> None:
    good = CAPITAL['<question id="0">']
    _, heard = capital(CAPITAL | {'<question id="0">': [first, good]})
    replaced = [told for _, told in told_answer(heard) if "replace" in told]
    assert len(replaced) == 1 and replaced[0]["delta"] == ""


@pytest.mark.parametrize(
    "reply",
    [
        replies(says("0")),
        replies(says("0", "Lima", answer="Lima [1]")),
        replies(says("0", "Lima", answer="[1]")),
        UNREADABLE,
        Unreachable("gone"),
    ],
    ids=["not answered", "marked", "only a marker", "never readable", "unreachable"],
)
def test_whatever_was_written_the_reader_ends_with_the_outcomes_answer(reply: Any) -> None:
    capital(CAPITAL | {'<question id="0">': reply})
