"""The recursion on small worlds: the three strategies, fan-out, waiting, limits, cancellation."""

import asyncio
import time
from typing import Any

import pytest

from sproutrag.qa.answer import answer_question
from sproutrag.qa.budget import Limits
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.method import Method
from sproutrag.qa.question import QuestionNode, Strategy
from sproutrag.qa.trace import NOT_ANSWERED, outcome, total_usage
from tests.qa.scripted import (
    ScriptedLLM,
    WordIndex,
    combine_of,
    combined,
    corpus,
    external,
    lateral,
    plan_of,
    replies,
    says,
    vertical,
)

PERU = "Peru lies by the sea. Lima is the capital of Peru. Lima was founded in 1535."
WORLD = {"peru": PERU, "chile": "Santiago is the capital of Chile. Santiago was founded in 1541."}


def ask(
    question: str, script: dict[str, Any], *, index: WordIndex | None = None, llm: ScriptedLLM | None = None,
    method: Method | None = None, **limits: Any,
) -> tuple[QuestionNode, ScriptedLLM]:  # fmt: skip
    llm = llm or ScriptedLLM(script)
    index = index or corpus(**WORLD)
    asking = answer_question(
        question,
        dispatcher=Dispatcher(llm),
        retriever=index,
        sources=index,
        limits=Limits(**{"patience": 1e6} | limits),
        method=method,
    )
    root = asyncio.run(asking)
    assert total_usage(root).calls == len([1 for _ in llm.calls])
    return root, llm


def child(root: QuestionNode, id: str) -> QuestionNode:
    return next(node for node in root.walk() if node.id == id)


CAPITAL = {
    plan_of("What is the capital of Peru?"): external("capital Peru"),
    '<question id="0">What is the capital of Peru?': replies(says("0", "Lima", quote="Lima is the capital")),
}


def test_atomic_question_is_looked_up_answered_and_cited() -> None:
    root, llm = ask("What is the capital of Peru?", CAPITAL)
    assert root.strategy is Strategy.EXTERNAL
    assert root.answers == ["Lima"] and not root.partial
    [citation] = root.citations
    assert PERU[slice(*citation.spans[0])] == citation.quote == "Lima is the capital"
    assert len(llm.calls) == 2


AGE = "How old is the capital of Peru in 2035?"
CHAIN = {
    plan_of(AGE): vertical("What is the capital of Peru?", "When was <Q1> founded?", "Which city is <Q1>?"),
    plan_of("What is the capital of Peru?"): external(),
    plan_of("When was Lima founded?"): external("Lima founded"),
    plan_of("Which city is Lima?"): lateral(),
    '<question id="0.1">': replies(says("0.1", "Lima", quote="Lima is the capital of Peru")),
    '<question id="0.2">': replies(says("0.2", "1535", quote="founded in 1535")),
    combine_of("Which city is Lima?"): combined("Lima", used=["1"]),
    combine_of(AGE): combined("500", used=["2"], answer="It is 500 years old."),
}


def test_children_wait_for_what_they_refer_to_and_only_cite_what_they_used() -> None:
    root, _ = ask(AGE, CHAIN)
    assert [n.wave for n in root.children] == [0, 1, 1]
    assert [n.strategy for n in root.children] == [Strategy.EXTERNAL, Strategy.EXTERNAL, Strategy.LATERAL]
    assert child(root, "0.2").question == "When was Lima founded?"
    assert root.answer == "It is 500 years old."
    assert [c.quote for c in root.citations] == ["founded in 1535"]
    assert [c.quote for c in child(root, "0.3").citations] == ["Lima is the capital of Peru"]


def test_siblings_answers_that_do_not_suffice_after_all_lead_to_a_search() -> None:
    script = CHAIN | {
        combine_of("Which city is Lima?"): combined(),
        '<question id="0.3">': replies(says("0.3", "the capital", quote="Lima is the capital")),
    }
    root, _ = ask(AGE, script)
    assert child(root, "0.3").answers == ["the capital"]
    assert "did not suffice" in child(root, "0.3").notes[0]


def test_without_lateral_reuse_nothing_is_answered_from_siblings() -> None:
    script = CHAIN | {
        plan_of("Which city is Lima?"): external(),
        '<question id="0.3">': replies(says("0.3", "Lima")),
    }
    root, llm = ask(AGE, script, method=Method(lateral=False))
    assert Strategy.LATERAL not in {n.strategy for n in root.walk()}
    assert not llm.asked("Strategies allowed: external, lateral")


TWO = {
    plan_of("Which capitals?"): vertical("What is the capital of Peru?", "What is the capital of Chile?"),
    plan_of("What is the capital of Peru?"): external("capital Peru Chile"),
    plan_of("What is the capital of Chile?"): external("capital Peru Chile"),
    '<question id="0.1">What is the capital of Peru?</question>\n<question id="0.2">': replies(
        says("0.2", "Santiago"), says("0.1", "Lima")
    ),
    '<question id="0.1">': replies(says("0.1", "Lima")),
    '<question id="0.2">': replies(says("0.2", "Santiago")),
    combine_of("Which capitals?"): combined("Lima", "Santiago"),
}


def test_siblings_with_shared_evidence_are_answered_in_one_call_joined_by_id() -> None:
    root, llm = ask("Which capitals?", TWO)
    assert [n.answers for n in root.children] == [["Lima"], ["Santiago"]]
    assert [n.cluster for n in root.children] == [["0.1", "0.2"]] * 2
    assert llm.asked("<question id=") == 1
    unbatched, alone = ask("Which capitals?", TWO, method=Method(batching=False))
    assert alone.asked("<question id=") == 2
    assert unbatched.answers == root.answers


# --- fan-out

RIVERS = "Which rivers?"
FAN = {
    plan_of("How long is each?"): vertical(RIVERS, (1, "How long is <Q1>?")),
    plan_of(RIVERS): external(),
    '<question id="0.1">': replies(says("0.1", "Ash", "Brill", "ash", "Corran")),
    "Strategies": external(),
    "<question id": replies(says("0.2.1", "9 km"), says("0.2.2", "8 km"), says("0.2.3", "7 km")),
    combine_of("How long is each?"): combined("Ash: 9 km", "Brill: 8 km", "Corran: 7 km"),
}
NILE = corpus(a="The rivers Ash, Brill and Corran are long.")


def test_fan_out_asks_once_per_entity_without_a_call_to_plan_it() -> None:
    root, _ = ask("How long is each?", FAN, index=NILE)
    assert [n.asks for n in child(root, "0.2").children] == [
        f"How long is {r}?" for r in ("Ash", "Brill", "Corran")
    ]
    assert child(root, "0.2").answers == ["Ash: 9 km", "Brill: 8 km", "Corran: 7 km"]
    assert child(root, "0.2").bill.usage.calls == 0
    assert root.answers == ["Ash: 9 km", "Brill: 8 km", "Corran: 7 km"]


def test_fan_out_beyond_max_children_names_what_was_not_explored() -> None:
    root, _ = ask("How long is each?", FAN, index=NILE, max_children=2)
    assert child(root, "0.2").unexplored == ["How long is Corran?"]
    assert root.partial
    told = outcome(root, model="scripted")
    assert {"id": "0.2", "question": "How long is Corran?", "reason": "not explored"} in told["open"]


# --- waiting


class SlowPlans(ScriptedLLM):
    """Plans the slow question slowly; everything else takes 10 ms."""

    async def complete(self, messages: Any, **named: Any) -> Any:
        slow = plan_of("What is the slow capital of Chile?") in messages[-1].content
        self.delay_s = 0.6 if slow else 0.01
        return await super().complete(messages, **named)


@pytest.mark.parametrize(("patience", "waits"), [(1.0, False), (0.0, False), (1e6, True)])
def test_ready_question_does_not_idle_behind_a_slow_sibling(patience: float, waits: bool) -> None:
    slow = "What is the slow capital of Chile?"
    script = TWO | {
        plan_of("Which capitals?"): vertical("What is the capital of Peru?", slow),
        plan_of(slow): external("capital Peru Chile"),
    }
    root, _ = ask("Which capitals?", {}, llm=SlowPlans(script), patience=patience)
    first, second = root.children
    assert (first.ended - first.began > 0.5) == waits
    assert (first.cluster == second.cluster) == waits


# --- limits


@pytest.mark.parametrize(
    "limits",
    [{"max_calls": n} for n in range(1, 9)]
    + [{"max_nodes": 2}, {"max_prompt_tokens": 900}, {"max_completion_tokens": 900}, {"max_seconds": 1e-6}],
    ids=str,
)
def test_limit_ends_with_the_best_answer_from_what_is_there(limits: dict[str, Any]) -> None:
    root, _ = ask(AGE, CHAIN, **limits)
    usage = total_usage(root)
    assert usage.calls <= limits.get("max_calls", 99)
    assert usage.prompt_tokens <= limits.get("max_prompt_tokens", 1e9)
    assert root.partial or root.answer == "It is 500 years old."
    if any(n.answered for n in root.children):
        assert root.answered
    if root.partial:
        assert any("budget" in f"{n.failure}{n.notes}" or n.unexplored for n in root.walk())


def test_answers_that_can_no_longer_be_combined_are_listed() -> None:
    script = {k: v for k, v in TWO.items() if "capitals?" not in k or "Strategies" in k}
    root, _ = ask("Which capitals?", script | {combine_of("Which capitals?"): "no JSON"})
    assert root.answered and root.partial
    assert root.answers == ["Lima", "Santiago"]
    assert "What is the capital of Peru? Lima" in (root.answer or "")
    assert "combine: the reply holds no JSON object" in root.notes[0]


def test_nothing_known_is_said_so() -> None:
    script = {plan_of("What is the capital of Peru?"): external(), "<question id": replies(says("0"))}
    root, _ = ask(
        "What is the capital of Peru?", {**script, **{k: replies(says("0")) for k in CAPITAL if "id=" in k}}
    )
    told = outcome(root, model="scripted")
    assert (told["answer"], told["answered"], told["partial"]) == (NOT_ANSWERED, False, False)


def test_cancelled_question_closes_its_calls_at_once() -> None:
    llm = ScriptedLLM(TWO, delay_s=30)

    async def cancel() -> float:
        index = corpus(**WORLD)
        task = asyncio.create_task(
            answer_question("Which capitals?", dispatcher=Dispatcher(llm), retriever=index, sources=index)
        )
        await asyncio.sleep(0.1)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    assert asyncio.run(cancel()) < 2
    assert (llm.in_flight, llm.cancelled) == (0, 1)
