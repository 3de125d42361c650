"""Clusters against brute force, against networkx, and against their own promises."""

import time
from collections.abc import Callable, Iterator, Sequence

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sproutrag.qa.clustering import cluster_by_evidence, conflict_matrix

EVIDENCE = st.lists(st.frozensets(st.integers(0, 11), max_size=5), min_size=1, max_size=12)
UNBOUNDED = 10**9


def no_tokens(group: Sequence[int]) -> int:
    return 0


def joint_tokens(evidence: Sequence[frozenset], each: int = 10) -> Callable[[Sequence[int]], int]:
    """`each` tokens per leaf, shared leaves once, and three per question."""
    return lambda group: each * len(frozenset().union(*(evidence[i] for i in group))) + 3 * len(group)


@settings(deadline=None)
@given(EVIDENCE, st.sampled_from([0.0, 0.2, 0.5]), st.integers(1, 200))
def test_clusters_are_a_partition_of_compatible_questions_within_the_budget(
    evidence: list[frozenset], min_overlap: float, max_tokens: int
) -> None:
    tokens = joint_tokens(evidence)
    groups = cluster_by_evidence(evidence, tokens, min_overlap=min_overlap, max_tokens=max_tokens)
    assert sorted(i for group in groups for i in group) == list(range(len(evidence)))
    conflicts = conflict_matrix(evidence, min_overlap)
    for group in groups:
        assert not conflicts[np.ix_(group, group)].any()
        assert len(group) == 1 or tokens(group) <= max_tokens


@settings(deadline=None)
@given(EVIDENCE, st.sampled_from([0.0, 0.2, 0.5]))
def test_without_a_tight_budget_it_is_largest_first_colouring(
    evidence: list[frozenset], min_overlap: float
) -> None:
    groups = cluster_by_evidence(evidence, no_tokens, min_overlap=min_overlap, max_tokens=UNBOUNDED)
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(evidence)))
    graph.add_edges_from(np.argwhere(conflict_matrix(evidence, min_overlap)).tolist())
    colours = networkx.greedy_color(graph, "largest_first")
    expected: dict[int, list[int]] = {}
    for i in range(len(evidence)):
        expected.setdefault(colours[i], []).append(i)
    assert sorted(groups) == sorted(expected.values())


@settings(deadline=None)
@given(EVIDENCE)
def test_conflicts_are_the_pairs_without_enough_overlap(evidence: list[frozenset]) -> None:
    conflicts = conflict_matrix(evidence, 0.25)
    for i, one in enumerate(evidence):
        for j, other in enumerate(evidence):
            overlap = len(one & other) / max(len(one | other), 1)
            assert conflicts[i, j] == (i != j and overlap <= 0.25)


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        for g in range(len(rest)):
            yield [*rest[:g], [items[0], *rest[g]], *rest[g + 1 :]]
        yield [[items[0]], *rest]


def optimum(evidence: Sequence[frozenset], tokens: Callable[[Sequence[int]], int], max_tokens: int) -> int:
    """The fewest groups of any partition that keeps the promises."""
    conflicts = conflict_matrix(evidence, 0.0)

    def fits(group: list[int]) -> bool:
        return len(group) == 1 or (not conflicts[np.ix_(group, group)].any() and tokens(group) <= max_tokens)

    return min(len(p) for p in partitions(list(range(len(evidence)))) if all(map(fits, p)))


@pytest.mark.parametrize("max_tokens", [UNBOUNDED, 90])
def test_nearly_always_as_few_clusters_as_possible(max_tokens: int) -> None:
    rng = np.random.default_rng(7)
    found = []
    for _ in range(100):
        n = int(rng.integers(2, 7))
        evidence = [frozenset(rng.choice(10, size=int(rng.integers(1, 5))).tolist()) for _ in range(n)]
        tokens = joint_tokens(evidence)
        groups = cluster_by_evidence(evidence, tokens, min_overlap=0.0, max_tokens=max_tokens)
        found.append(len(groups) == optimum(evidence, tokens, max_tokens))
    assert np.mean(found) >= 0.95, f"optimal in {np.mean(found):.1%} of cases"


def test_five_hundred_siblings_are_coloured_in_fifty_milliseconds() -> None:
    rng = np.random.default_rng(3)
    evidence = [frozenset(("doc", int(leaf)) for leaf in rng.integers(0, 400, 20)) for _ in range(500)]
    tokens = joint_tokens(evidence)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        cluster_by_evidence(evidence, tokens, min_overlap=0.0, max_tokens=50_000)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.05


def test_question_that_is_too_long_by_itself_stays_alone() -> None:
    evidence = [frozenset(range(30)), frozenset({1}), frozenset({1, 2})]
    groups = cluster_by_evidence(evidence, joint_tokens(evidence), min_overlap=0.0, max_tokens=100)
    assert sorted(groups) == [[0], [1, 2]]


def test_questions_without_evidence_are_not_put_together() -> None:
    assert cluster_by_evidence([frozenset(), frozenset()], no_tokens, min_overlap=0.0, max_tokens=9) == [
        [0],
        [1],
    ]
