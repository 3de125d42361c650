"""Trees against SciPy's single linkage, and the laws of progressive embeddings."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage
from scipy.sparse import csr_array, random_array
from scipy.spatial.distance import squareform

from sproutrag.tree import build_tree, progressive_embeddings

seeds = st.integers(0, 2**32 - 1)


def dense_affinity(rng: np.random.Generator, n: int) -> np.ndarray:
    upper = np.triu(rng.random((n, n)), 1)
    return (upper + upper.T).astype(np.float32)


def window_affinity(n: int, width: int, rng: np.random.Generator) -> csr_array:
    """A band matrix: what overlapping windows leave behind."""
    row, col = np.triu_indices(width, 1)
    starts = np.arange(0, max(n - width, 0) + 1)[:, None]
    i, j = (starts + row).ravel() % n, (starts + col).ravel() % n
    keep = i < j
    weights = csr_array((rng.random(keep.sum()).astype(np.float32), (i[keep], j[keep])), shape=(n, n))
    return csr_array(weights + weights.T)


@given(seeds, st.integers(2, 40))
def test_merges_equal_scipy_single_linkage_where_the_matrix_is_dense(seed: int, n: int) -> None:
    affinity = dense_affinity(np.random.default_rng(seed), n)
    tree = build_tree(csr_array(affinity))
    expected = linkage(squareform(1.0 - affinity.astype(np.float64), checks=False), "single")
    assert [set(pair) for pair in tree.merges.tolist()] == [set(map(int, row[:2])) for row in expected]
    np.testing.assert_allclose(tree.affinity, 1.0 - expected[:, 2], atol=1e-6)


@given(seeds, st.integers(1, 60))
def test_every_node_is_a_slice_of_the_leaf_order(seed: int, n: int) -> None:
    tree = build_tree(csr_array(dense_affinity(np.random.default_rng(seed), n)))
    assert sorted(tree.order.tolist()) == list(range(n))
    assert (np.diff(tree.affinity) <= 0).all()
    for k, (left, right) in enumerate(tree.merges.tolist()):
        parts = set(tree.leaves(left).tolist()), set(tree.leaves(right).tolist())
        assert set(tree.leaves(n + k).tolist()) == parts[0] | parts[1] and not parts[0] & parts[1]
        assert min(parts[0]) < min(parts[1])
    assert tree.leaves(tree.root).tolist() == list(range(n))


@given(seeds, st.integers(1, 40))
def test_the_root_vector_weighs_each_leaf_by_its_depth(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    tree = build_tree(csr_array(dense_affinity(rng, n)))
    leaves = rng.standard_normal((n, 5)).astype(np.float32)
    vectors = progressive_embeddings(leaves, tree)
    weights = 0.5 ** tree.depths[:n]
    assert weights.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(vectors[tree.root], weights @ leaves, atol=1e-5)
    np.testing.assert_array_equal(vectors[:n], leaves)


def test_equal_attention_everywhere_gives_the_same_tree_each_time() -> None:
    equal = csr_array(np.ones((30, 30), dtype=np.float32))
    trees = [build_tree(equal) for _ in range(2)]
    np.testing.assert_array_equal(trees[0].merges, trees[1].merges)
    assert trees[0].merges[0].tolist() == [0, 1], "ties go to the pair that comes first in the document"


def test_an_affinity_of_zero_is_still_a_link() -> None:
    row, col = np.array([0, 1, 1, 2]), np.array([1, 0, 2, 1])
    tree = build_tree(csr_array((np.array([0.5, 0.5, 0.0, 0.0], np.float32), (row, col)), shape=(3, 3)))
    assert tree.merges.tolist() == [[0, 1], [3, 2]]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_smallest_documents_have_a_tree(n: int) -> None:
    tree = build_tree(csr_array(dense_affinity(np.random.default_rng(0), n)))
    assert (tree.n_nodes, tree.root) == (2 * n - 1, 2 * n - 2)
    assert tree.depth == n - 1


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(12, 80))
def test_a_sparse_graph_gives_the_same_tree_as_its_dense_form(seed: int, n: int) -> None:
    sparse = window_affinity(n, 8, np.random.default_rng(seed))
    np.testing.assert_array_equal(build_tree(sparse).merges, build_tree(csr_array(sparse.toarray())).merges)


def test_a_document_of_a_hundred_thousand_leaves_needs_memory_of_its_edges_only() -> None:
    affinity = window_affinity(100_000, 6, np.random.default_rng(1))
    tracemalloc.start()
    try:
        tree = build_tree(affinity)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert tree.n_leaves == 100_000 and peak < 100 * affinity.nnz, f"{peak / affinity.nnz:.0f} bytes per pair"


def test_unconnected_leaves_are_refused_with_the_number_of_parts() -> None:
    with pytest.raises(AssertionError, match="parts"):
        build_tree(csr_array(random_array((6, 6), density=0.0, dtype=np.float32)))
