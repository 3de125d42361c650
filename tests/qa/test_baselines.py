"""Every system answers through the same interface and differs in exactly what its name says."""

import asyncio
from typing import get_args, get_type_hints

import pytest

from sproutrag.qa.baselines import SYSTEMS
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.options import AskOptions
from sproutrag.qa.question import QuestionNode, Strategy
from sproutrag.qa.trace import total_usage
from tests.qa.oracle import OURS, Gold, Oracle, read_documents, read_gold
from tests.qa.scripted import (
    ScriptedLLM,
    WordIndex,
    combined,
    corpus,
    external,
    plan_of,
    replies,
    says,
    vertical,
)


def golds() -> dict[str, Gold]:
    return {gold.id: gold for gold in read_gold(OURS)}


def play(system: str, llm: ScriptedLLM, question: str, index: WordIndex) -> QuestionNode:
    asking = SYSTEMS[system](question, dispatcher=Dispatcher(llm), retriever=index, sources=index)
    root = asyncio.run(asking)
    assert total_usage(root).calls == len(llm.calls)
    return root


def test_the_command_offers_all_systems() -> None:
    assert set(get_args(get_type_hints(AskOptions)["method"])) == set(SYSTEMS)


@pytest.mark.parametrize("system", ["apt-rag", "no-lateral", "no-batching"])
def test_variants_reach_the_same_answer(system: str) -> None:
    gold = golds()["plan-7"]
    root = play(system, Oracle(gold), gold.question, WordIndex(read_documents(OURS)))
    assert root.answers == gold.answers
    clusters = {tuple(n.cluster) for n in root.walk() if n.cluster}
    assert any(len(cluster) > 1 for cluster in clusters) == (system != "no-batching")


def test_llm_only_retrieves_nothing_and_cites_nothing() -> None:
    index = corpus(a="Lima is the capital.")
    root = play("llm-only", ScriptedLLM({"<question>": combined("Lima")}), "Capital?", index)
    assert root.answers == ["Lima"] and root.citations == [] and index.queries == []


def test_naive_rag_makes_one_search_and_one_call() -> None:
    index = corpus(a="Lima is the capital.")
    llm = ScriptedLLM({"<question id": replies(says("0", "Lima", quote="Lima is the capital"))})
    root = play("naive-rag", llm, "Capital?", index)
    assert index.queries == ["Capital?"] and len(llm.calls) == 1
    assert [c.quote for c in root.citations] == ["Lima is the capital"]


@pytest.mark.parametrize("system", ["llm-only", "naive-rag"])
def test_baseline_whose_engine_fails_says_why(system: str) -> None:
    root = play(system, ScriptedLLM({"question": "rubbish"}), "Capital?", corpus(a="Lima is the capital."))
    assert "also after one repair" in (root.failure or "") and root.partial


def test_fixed_plan_plans_once_and_looks_every_child_up() -> None:
    gold = golds()["plan-4"]
    llm = Oracle(gold)
    root = play("fixed-plan", llm, gold.question, WordIndex(read_documents(OURS)))
    assert llm.asked("Strategies") == 1
    assert {n.strategy for n in root.children} == {Strategy.EXTERNAL}
    assert all(n.depth <= 1 for n in root.walk())


@pytest.mark.parametrize("width", [2, 6])
def test_fixed_width_asks_for_that_many_questions_and_takes_no_more(width: int) -> None:
    script = {
        plan_of("Capital?"): vertical(*(f"Is it so {n}?" for n in range(8))),
        "Strategies": external(),
        "<question id": replies(*(says(f"0.{n}", "yes") for n in range(1, 9))),
        "</known>": combined("yes"),
    }
    llm = ScriptedLLM(script)
    root = play(f"width-{width}", llm, "Capital?", corpus(a="It is so."))
    assert llm.asked(f"A decomposition has exactly {width} questions.")
    assert len(root.children) == width
