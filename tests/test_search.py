"""Laws of the search inside trees, on trees and scores of any kind."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sproutrag.search import (
    Forest,
    beam_search,
    best_below,
    best_of_each,
    lexical_text,
    merged_spans,
    node_scores,
    node_sums,
    plant,
    select_evidence,
)
from sproutrag.tree import Tree

SCORES = st.floats(-1, 1, width=32)


@st.composite
def trees(draw, max_leaves: int = 12) -> Tree:
    n = draw(st.integers(1, max_leaves))
    active, merges = list(range(n)), []
    while len(active) > 1:
        first, second = sorted(draw(st.permutations(range(len(active))))[:2])
        merges.append((active[first], active.pop(second)))
        active[first] = n + len(merges) - 1
    return Tree.from_merges(np.array(merges, dtype=np.int32).reshape(-1, 2), np.zeros(n - 1))


@st.composite
def scored_forests(draw) -> tuple[Forest, np.ndarray]:
    """A forest and one score per leaf."""
    forest = plant(draw(st.lists(trees(), min_size=1, max_size=4)))
    n = len(forest.order)
    return forest, np.array(draw(st.lists(SCORES, min_size=n, max_size=n)))


def leaves_below(forest: Forest, node: int) -> set[int]:
    """By walking the children: the oracle for slices."""
    left, right = forest.children[node].tolist()
    if left < 0:
        return set(np.flatnonzero(forest.leaf_node == node).tolist())
    return leaves_below(forest, left) | leaves_below(forest, right)


def chain(n: int) -> Tree:
    """A tree that is one path: leaf k joins all leaves before it."""
    merges = [(0, 1), *((n + k - 2, k) for k in range(2, n))]
    return Tree.from_merges(np.array(merges, dtype=np.int32), np.zeros(n - 1))


@given(st.lists(trees(), min_size=1, max_size=4))
def test_a_forest_keeps_every_tree(grown: list[Tree]) -> None:
    forest = plant(grown)
    for number, tree in enumerate(grown):
        leaf, node = forest.first_leaf[number], forest.first_node[number]
        for v in range(tree.n_nodes):
            assert leaves_below(forest, node + v) == {leaf + i for i in tree.leaves(v).tolist()}
            assert forest.tree[node + v] == number
        assert forest.roots[number] == node + tree.root and forest.parent[node + tree.root] == -1
    inner = np.flatnonzero(forest.children[:, 0] >= 0)
    assert all((forest.parent[forest.children[v]] == v).all() for v in inner)


@given(scored_forests(), st.floats(0, 1))
def test_node_scores_equal_a_plain_loop(grown: tuple[Forest, np.ndarray], size_prior: float) -> None:
    forest, leaf_scores = grown
    scores = node_scores(forest, leaf_scores, size_prior=size_prior)
    best = best_below(forest, leaf_scores)
    for node, score in enumerate(scores):
        below = [leaf_scores[leaf] for leaf in leaves_below(forest, node)]
        assert score == pytest.approx(np.mean(below) + size_prior * np.log(len(below)), abs=1e-6)
        assert best[node] == max(below)
    two_rows = node_sums(forest, np.stack([leaf_scores, np.ones_like(leaf_scores)]))
    assert two_rows[1] == pytest.approx(forest.sizes)


@given(trees(), st.data())
def test_a_beam_as_wide_as_the_tree_visits_every_node_below_the_root(tree: Tree, data: st.DataObject) -> None:
    forest = plant([tree])
    scores = np.array(data.draw(st.lists(SCORES, min_size=tree.n_nodes, max_size=tree.n_nodes)))
    visited = beam_search(forest, scores, beam_width=tree.n_leaves)
    assert set(visited.tolist()) == ({0} if tree.n_leaves == 1 else set(range(tree.n_nodes - 1)))
    assert (np.diff(scores[visited]) <= 0).all()


@given(scored_forests(), st.integers(1, 5))
def test_the_beam_reaches_the_best_leaves_when_promise_is_the_best_leaf_below(grown, width: int) -> None:
    forest, leaf_scores = grown
    scores = node_scores(forest, leaf_scores, size_prior=0)
    visited = set(
        beam_search(forest, scores, beam_width=width, promise=best_below(forest, leaf_scores)).tolist()
    )
    for number in range(len(forest.roots)):
        rows = np.arange(*forest.first_leaf[number : number + 2])
        worst_kept = np.sort(leaf_scores[rows])[-width:].min()
        sure = rows[leaf_scores[rows] > worst_kept]
        assert visited.issuperset(forest.leaf_node[sure].tolist())


@given(scored_forests(), st.integers(1, 4), SCORES)
def test_one_beam_over_many_trees_equals_a_beam_in_each(grown, width: int, threshold: float) -> None:
    forest, leaf_scores = grown
    scores = node_scores(forest, leaf_scores, size_prior=0.1)
    together = beam_search(forest, scores, beam_width=width, threshold=threshold)
    assert sorted(together.tolist()) == sorted(plain_beam(forest, scores, width, threshold))


def plain_beam(forest: Forest, scores: np.ndarray, width: int, threshold: float) -> list[int]:
    """Eq. 6-9 as a loop over depths of one tree after the other."""
    visited: list[int] = []
    for root in forest.roots.tolist():
        if forest.children[root, 0] < 0:
            visited.append(root)
        frontier = [root]
        while frontier:
            reached = sorted(c for node in frontier for c in forest.children[node].tolist() if c >= 0)
            visited += reached
            frontier = sorted(reached, key=lambda node: -scores[node])[:width]
    return [node for node in visited if scores[node] >= threshold]


def test_scores_that_are_not_finite_are_never_returned() -> None:
    forest = plant([chain(4)])
    scores = np.array([0.1, np.nan, np.inf, -np.inf, 0.5, np.nan, 0.9])
    assert beam_search(forest, scores, beam_width=9).tolist() == [4, 0]


def test_a_chain_of_thousands_of_leaves_is_searched_in_bounded_time() -> None:
    forest = plant([chain(5000)])
    leaf_scores = np.zeros(5000)
    leaf_scores[[3, 4999]] = 1, 2
    scores = node_scores(forest, leaf_scores, size_prior=0)
    visited = beam_search(forest, scores, beam_width=5, promise=best_below(forest, leaf_scores))
    assert visited[:2].tolist() == [4999, 3]


@given(scored_forests(), st.integers(1, 9), st.floats(0, 0.5))
def test_evidence_has_k_leaves_and_none_twice(grown, k: int, size_prior: float) -> None:
    forest, leaf_scores = grown
    scores = node_scores(forest, leaf_scores, size_prior=size_prior)
    candidates = beam_search(forest, scores, beam_width=len(forest.order))
    chosen = list(select_evidence(forest, candidates, leaf_scores, k))
    leaves = [leaf for _, rows in chosen for leaf in rows.tolist()]
    assert len(leaves) == len(set(leaves)) == min(k, len(forest.order))
    for node, rows in chosen:
        assert set(rows.tolist()) <= leaves_below(forest, node) and (np.diff(rows) > 0).all()
        assert len(set(forest.leaf_tree[rows].tolist())) == 1
    values = [scores[node] for node, _ in chosen]
    assert values == sorted(values, reverse=True)


@given(scored_forests())
def test_no_node_is_returned_beside_its_own_descendant(grown) -> None:
    forest, leaf_scores = grown
    candidates = beam_search(forest, node_scores(forest, leaf_scores, size_prior=0.2), beam_width=5)
    chosen = [node for node, _ in select_evidence(forest, candidates, leaf_scores, 100)]
    for i, node in enumerate(chosen):
        assert all(
            leaves_below(forest, node).isdisjoint(leaves_below(forest, other)) for other in chosen[i + 1 :]
        )


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-3, 3)), max_size=20), st.integers(1, 4))
def test_best_of_each_group(pairs: list[tuple[int, int]], width: int) -> None:
    pairs.sort(key=lambda pair: pair[0])
    group, values = np.array(pairs, dtype=int).reshape(-1, 2).T
    kept = sorted(best_of_each(group, values, width).tolist())
    ranked = sorted(range(len(pairs)), key=lambda i: (group[i], -values[i], i))
    expected = [
        i for place, i in enumerate(ranked) if place < width or group[ranked[place - width]] != group[i]
    ]
    assert kept == (sorted(expected) if len(pairs) > width else list(range(len(pairs))))


def test_spans_are_joined_across_space_only() -> None:
    text = "One. Two.\n\nThree. Four."
    spans = np.array([[0, 4], [5, 9], [11, 17], [18, 23]])
    assert merged_spans(text, spans) == ((0, 23),)
    assert merged_spans(text, spans[[0, 2]]) == ((0, 4), (11, 17))


def test_invisible_characters_are_not_lexical() -> None:
    text = "a\u200bb c\u00add \u061cم"
    assert lexical_text(text, 0, len(text)) == "ab cd م"
    assert lexical_text(text, 2, 3) == "b"


def test_a_word_hyphenated_at_the_end_of_a_line_is_also_found_whole() -> None:
    text = "the op-\nposite currentdirection with-\r\n  in a day. Ver\u00ad\ntrag 3-\n4 self-made"
    added = lexical_text(text, 0, len(text)).removeprefix(text.replace("\u00ad", ""))
    assert added == " opposite within Vertrag"
