"""Orchestration with an oracle: gold trees played through the whole recursion, our plans and shared ones."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sproutrag.qa.trace import total_usage
from tests.qa.oracle import OURS, SHARED, Gold, play, problems, read_documents, read_gold
from tests.qa.real_index import real_corpus
from tests.qa.scripted import WordIndex

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"shared data is not at {SHARED}")


@pytest.fixture(scope="module")
def ours() -> WordIndex:
    return WordIndex(read_documents(OURS))


@pytest.mark.parametrize("fan_out", [False, True], ids=["planned", "fan-out"])
@pytest.mark.parametrize("gold", read_gold(OURS), ids=lambda gold: gold.id)
def test_gold_tree_is_resolved_answered_and_cited(gold: Gold, fan_out: bool, ours: WordIndex) -> None:
    root, oracle = asyncio.run(play(gold, ours, fan_out=fan_out))
    assert problems(gold, root) == []
    assert total_usage(root).calls == len(oracle.calls)


def test_fan_out_needs_no_call_to_plan_its_entities(ours: WordIndex) -> None:
    gold = read_gold(OURS)[0]
    _, planned = asyncio.run(play(gold, ours))
    root, fanned = asyncio.run(play(gold, ours, fan_out=True))
    assert [len(node.children) for node in root.walk() if node.each] == [3]
    assert len(fanned.calls) < len(planned.calls)


def test_calls_waves_and_clusters_of_a_plan_are_what_its_tree_says(ours: WordIndex) -> None:
    gold = next(gold for gold in read_gold(OURS) if gold.id == "plan-7")
    root, oracle = asyncio.run(play(gold, ours))
    assert [node.wave for node in root.children] == [0, 1, 1, 1]
    assert (
        len({tuple(node.cluster) for node in root.children}) == 2
    )  # the list; its three dependents together
    kinds = [
        call.prompt.split("@")[0] for node in root.walk() for call in node.bill.calls if call.usage.calls
    ]
    assert sorted(kinds) == sorted(["plan"] * 5 + ["contextualize"] * 3 + ["answer"] * 2 + ["combine"]), (
        "one plan per node, three lists in questions, two clusters, one final answer"
    )
    assert len(oracle.calls) == 11


EMPTY_GOLD = "fanout-7b10fd58935f2b2d"  # one leaf's gold answer is "": that one stays open


def play_all(golds: Sequence[Gold], index: Any) -> dict[str, list[str]]:
    """Query id -> problems; every call is billed to a node."""
    wrong: dict[str, list[str]] = {}
    for gold in golds:
        root, oracle = asyncio.run(play(gold, index))
        assert total_usage(root).calls == len(oracle.calls)
        found = problems(gold, root)
        if gold.id == EMPTY_GOLD:
            assert [p for p in found if p.startswith("answers")] == []
        elif found:
            wrong[gold.id] = found
    return wrong


@needs_shared
def test_shared_plans_are_resolved_answered_and_cited() -> None:
    assert play_all(read_gold(SHARED)[::6], WordIndex(read_documents(SHARED))) == {}


@pytest.mark.slow
@needs_shared
def test_all_shared_plans_over_a_real_index_are_resolved_answered_and_cited(tmp_path: Path) -> None:
    golds = read_gold(SHARED)
    assert len(golds) == 186
    assert play_all(golds, real_corpus(tmp_path, read_documents(SHARED))) == {}


def test_our_plans_over_a_real_index_are_resolved_answered_and_cited(tmp_path: Path) -> None:
    assert play_all(read_gold(OURS), real_corpus(tmp_path, read_documents(OURS))) == {}
