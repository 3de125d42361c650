"""Binary trees over the leaves of one document, as arrays. Knows nothing of text, encoders or storage.

Equation numbers are those of the SproutRAG paper.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree


@dataclass(frozen=True, slots=True)
class Tree:
    """Binary merge tree over n leaves, in SciPy's linkage numbering.

    merges    (n-1, 2) int32: row k joins two nodes into node n+k, the earlier first leaf first.
    affinity  (n-1,) float32: the affinity at which row k joined; never rises with k.
    order     (n,) int32: a permutation of the leaves in which every node is one slice.
    slices    (2n-1, 2) int32: node -> [start, stop) in `order`.

    Nodes 0..n-1 are the leaves in document order, 2n-2 is the root. A node's leaves need not be contiguous
    in the document. An empty document has no tree; a single leaf is its own root.
    """

    merges: np.ndarray
    affinity: np.ndarray
    order: np.ndarray
    slices: np.ndarray

    @classmethod
    def from_merges(cls, merges: np.ndarray, affinity: np.ndarray) -> "Tree":
        """Derive leaf order and slices from the merges, O(n)."""
        merges = np.asarray(merges, dtype=np.int32).reshape(-1, 2)
        slices = slices_of(merges)
        n = len(merges) + 1
        order = np.empty(n, dtype=np.int32)
        order[slices[:n, 0]] = np.arange(n, dtype=np.int32)
        return cls(merges, np.asarray(affinity, dtype=np.float32), order, slices)

    @property
    def n_leaves(self) -> int:
        return len(self.merges) + 1

    @property
    def n_nodes(self) -> int:
        return 2 * self.n_leaves - 1

    @property
    def root(self) -> int:
        return self.n_nodes - 1

    @property
    def depths(self) -> np.ndarray:
        """(2n-1,) int32: edges from the root to each node."""
        depths = [0] * self.n_nodes
        n = self.n_leaves
        left, right = columns(self.merges)
        for k in range(n - 2, -1, -1):
            depths[left[k]] = depths[right[k]] = depths[n + k] + 1
        return np.asarray(depths, dtype=np.int32)

    @property
    def depth(self) -> int:
        """Edges on the longest path from the root to a leaf."""
        return int(self.depths.max())

    def leaves(self, node: int) -> np.ndarray:
        """Leaf indices below `node`, in document order."""
        start, stop = self.slices[node]
        return np.sort(self.order[start:stop])


def slices_of(merges: np.ndarray) -> np.ndarray:
    """(n-1, 2) merges -> (2n-1, 2) slices of the leaf order, first child before second."""
    n = len(merges) + 1
    left, right = columns(merges)
    size = [1] * n
    for first, second in zip(left, right, strict=True):
        size.append(size[first] + size[second])
    start = [0] * (2 * n - 1)
    for k in range(n - 2, -1, -1):
        start[left[k]] = start[n + k]
        start[right[k]] = start[n + k] + size[left[k]]
    return np.column_stack([start, np.add(start, size)]).astype(np.int32)


def columns(pairs: np.ndarray) -> tuple[list[int], list[int]]:
    """(m, 2) as two flat lists. One list per pair would make the garbage collector walk all of them, again
    and again: at 25,000 leaves that cost more than the work itself.
    """
    return pairs[:, 0].tolist(), pairs[:, 1].tolist()


def build_tree(affinity: csr_array) -> Tree:
    """Join the most affine pair of nodes until one remains; a parent inherits the maximum (eq. 3-4).

    affinity (n, n) symmetric, >= 0, connected; its diagonal is ignored. Maximum linkage on affinity is single
    linkage on distance, so this is Kruskal on the maximum spanning tree of the sparse graph: O(E log E) for
    E stored pairs. Ties go to the pair of leaves that comes first in the document.
    """
    n = affinity.shape[0]
    assert affinity.shape == (n, n) and n > 0, affinity.shape
    edges, weights = strongest_edges(affinity)
    merges = np.empty((n - 1, 2), dtype=np.int32)
    parent = list(range(n))  # union-find over leaves; the representative is the first leaf of its node
    node = list(range(n))
    for k, (i, j) in enumerate(zip(*columns(edges), strict=True)):
        first, second = sorted((find(parent, i), find(parent, j)))
        merges[k] = node[first], node[second]
        parent[second] = first
        node[first] = n + k
    return Tree.from_merges(merges, weights)


def find(parent: list[int], leaf: int) -> int:
    """Representative of a leaf's set, halving the path on the way."""
    while parent[leaf] != leaf:
        parent[leaf] = leaf = parent[parent[leaf]]
    return leaf


def strongest_edges(affinity: csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Edges (n-1, 2) of the maximum spanning tree and their affinity (n-1,), strongest first.

    Weights are replaced by their rank before SciPy sees them, so the spanning tree is unique (ties by leaf
    index) and an affinity of 0 is still an edge.
    """
    n = affinity.shape[0]
    if n == 1:
        return np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.float32)
    pairs = affinity.sorted_indices().tocoo()  # row by row: a stable sort leaves ties in document order
    upper = pairs.row < pairs.col
    row, col, weight = pairs.row[upper], pairs.col[upper], pairs.data[upper]
    ranking = np.argsort(-weight, kind="stable")
    rank = np.empty(len(ranking), dtype=np.float64)
    rank[ranking] = np.arange(1, len(ranking) + 1)
    ranks = csr_array((rank, (row, col)), shape=(n, n))
    chosen = ranking[np.sort(minimum_spanning_tree(ranks).data).astype(np.int64) - 1]
    assert len(chosen) == n - 1, f"affinity has {connected_components(ranks)[0]} parts: windows must overlap"
    return np.column_stack([row[chosen], col[chosen]]), weight[chosen].astype(np.float32)


def progressive_embeddings(leaves: np.ndarray, tree: Tree) -> np.ndarray:
    """(n, d) leaf vectors -> (2n-1, d): a parent is the plain mean of its two children (eq. 5).

    Not re-normalised. Nodes of equal height are computed in one step.
    """
    n = tree.n_leaves
    assert len(leaves) == n, (len(leaves), n)
    vectors = np.empty((tree.n_nodes, leaves.shape[1]), dtype=np.float32)
    vectors[:n] = leaves
    for rows in merges_by_height(tree.merges):
        left, right = tree.merges[rows].T
        vectors[n + rows] = (vectors[left] + vectors[right]) * 0.5
    return vectors


def merges_by_height(merges: np.ndarray) -> list[np.ndarray]:
    """Rows of `merges`, grouped so that a group needs only earlier groups."""
    n = len(merges) + 1
    height = [0] * n
    for left, right in zip(*columns(merges), strict=True):
        height.append(max(height[left], height[right]) + 1)
    heights = np.asarray(height[n:], dtype=np.int64)
    by_height = np.argsort(heights, kind="stable")
    return np.split(by_height, np.flatnonzero(np.diff(heights[by_height])) + 1) if len(heights) else []
