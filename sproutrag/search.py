"""Search inside trees, as arrays: node scores, the beam, and evidence that never overlaps.

Knows nothing of words, tables or encoders; TreeRetriever feeds it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sproutrag.tree import Tree

# A word that a hyphen at the end of a line cut in two.
CUT_WORD = re.compile(r"(?<![^\W\d_])([^\W\d_]++)[-\u00ad\u2010][ \t]*+\r?\n[ \t]*+([^\W\d_]++)")
# Format characters that carry layout, not words: soft hyphen, U+061C and the bidirectional marks,
# ZWSP/ZWNJ/ZWJ, word joiner and invisible operators, BOM. Kept in stored text, ignored where words are
# compared.
INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")


@dataclass(frozen=True, slots=True)
class Passage:
    """A retrieved node: leaves of one document in document order. `text` joins `spans`."""

    doc_id: str
    title: str
    node: int
    leaves: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]  # half-open code-point offsets, adjacent ones merged
    text: str
    score: float
    reranked: bool = False  # the score is a cross-encoder's
    pages: tuple[int, ...] = ()  # of a PDF, from 1, as its readers count them
    sections: tuple[int, ...] = ()  # of an EPUB, from 1 in reading order


def visible(text: str) -> str:
    """`text` without invisible format characters, for matching words only: offsets are not kept."""
    return INVISIBLE.sub("", text)


def lexical_text(text: str, start: int, stop: int) -> str:
    """What full-text search sees of the leaf text[start:stop] (P019, P020).

    A word cut at a line end is there both ways, as `op-/posite` and `well-/known` look alike (P026).
    """
    leaf = text[start:stop]
    whole = [first + second for first, second in CUT_WORD.findall(leaf)] if "\n" in leaf else []
    return visible(" ".join([leaf, *whole]))


@dataclass(frozen=True, slots=True)
class Forest:
    """Trees end to end. N leaves and M nodes in all; those of one tree are consecutive and in its own order.

    order      (N,): leaf order in which every node is one slice
    slices     (M, 2): node -> [start, stop) in `order`
    children   (M, 2): earlier child first; -1 on leaves
    parent     (M,): -1 on roots
    tree       (M,): the tree a node belongs to
    leaf_node  (N,): the node of each leaf
    leaf_tree  (N,): the tree a leaf belongs to
    first_leaf, first_node (trees + 1,)
    """

    order: np.ndarray
    slices: np.ndarray
    children: np.ndarray
    parent: np.ndarray
    tree: np.ndarray
    leaf_node: np.ndarray
    leaf_tree: np.ndarray
    first_leaf: np.ndarray
    first_node: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """(M,) leaves below each node."""
        return self.slices[:, 1] - self.slices[:, 0]

    @property
    def roots(self) -> np.ndarray:
        return self.first_node[1:] - 1


def plant(trees: Sequence[Tree]) -> Forest:
    """Put trees side by side, O(nodes)."""
    n_leaves = np.array([tree.n_leaves for tree in trees])
    n_nodes = 2 * n_leaves - 1
    first_leaf = np.concatenate([[0], n_leaves.cumsum()])
    first_node = np.concatenate([[0], n_nodes.cumsum()])
    M = first_node[-1]
    tree = np.repeat(np.arange(len(trees)), n_nodes)
    leaf_tree = np.repeat(np.arange(len(trees)), n_leaves)
    leaf_node = np.arange(first_leaf[-1]) + (first_node - first_leaf)[leaf_tree]
    internal = np.ones(M, dtype=bool)
    internal[leaf_node] = False
    merges = np.concatenate([t.merges + first for t, first in zip(trees, first_node[:-1], strict=True)])
    children = np.full((M, 2), -1)
    children[internal] = merges
    parent = np.full(M, -1)
    parent[merges.T] = np.flatnonzero(internal)
    return Forest(
        order=np.concatenate([t.order for t in trees]) + first_leaf[leaf_tree],
        slices=np.concatenate([t.slices for t in trees]) + first_leaf[tree][:, None],
        children=children,
        parent=parent,
        tree=tree,
        leaf_node=leaf_node,
        leaf_tree=leaf_tree,
        first_leaf=first_leaf,
        first_node=first_node,
    )


# --- from leaves to nodes


def node_sums(forest: Forest, values: np.ndarray) -> np.ndarray:
    """(..., N) values of leaves -> (..., M): the sum below each node, from one running sum."""
    running = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values[..., forest.order], axis=-1, out=running[..., 1:])
    return running[..., forest.slices[:, 1]] - running[..., forest.slices[:, 0]]


def node_scores(forest: Forest, leaf_scores: np.ndarray, *, size_prior: float) -> np.ndarray:
    """(N,) -> (M,): mean of a node's leaves plus size_prior times the log of their number."""
    sizes = forest.sizes
    return node_sums(forest, leaf_scores) / sizes + size_prior * np.log(sizes)


def best_below(forest: Forest, leaf_scores: np.ndarray) -> np.ndarray:
    """(N,) -> (M,): the best leaf score below each node; O(N log N) whatever the shape of the trees.

    A table of maxima over slices whose length is a power of two; two of them cover any node.
    """
    maxima = leaf_scores[forest.order]
    level = np.frexp(forest.sizes)[1] - 1
    best = np.empty(len(forest.sizes))
    for power in range(int(level.max()) + 1):
        at = np.flatnonzero(level == power)
        start, stop = forest.slices[at].T
        best[at] = np.maximum(maxima[start], maxima[stop - (1 << power)])
        maxima = np.maximum(maxima[: -(1 << power)], maxima[1 << power :])
    return best


# --- the beam


def beam_search(
    forest: Forest,
    scores: np.ndarray,
    *,
    beam_width: int,
    threshold: float = -np.inf,
    promise: np.ndarray | None = None,
) -> np.ndarray:
    """Descend from every root at once, keeping each tree's `beam_width` best nodes per depth (eq. 6-9).

    scores, promise (M,); `promise` decides who is kept and is `scores` in the paper. Returns all nodes scored
    on the way whose score is finite and >= threshold, best first, ties in document order; a root only where
    it is the only leaf. One step per depth: a chain of thousands of leaves costs thousands of short steps.
    """
    promise = scores if promise is None else promise
    promise = np.where(np.isfinite(promise), promise, -np.inf)
    alone = forest.children[forest.roots, 0] < 0
    visited = [forest.roots[alone]]
    frontier = forest.roots[~alone]
    while len(frontier):
        reached = np.sort(forest.children[frontier].ravel())
        visited.append(reached)
        kept = best_of_each(forest.tree[reached], promise[reached], beam_width)
        frontier = reached[kept]
        frontier = frontier[forest.children[frontier, 0] >= 0]
    nodes = np.sort(np.concatenate(visited))
    nodes = nodes[np.isfinite(scores[nodes]) & (scores[nodes] >= threshold)]
    return nodes[np.argsort(-scores[nodes], kind="stable")]


def best_of_each(group: np.ndarray, values: np.ndarray, width: int) -> np.ndarray:
    """Indices of the `width` largest values of each group; `group` ascends, ties go to the earlier one."""
    if len(group) <= width:
        return np.arange(len(group))
    ranking = np.lexsort((-values, group))
    starts = np.searchsorted(group, group)  # where the group of each place begins
    return ranking[np.arange(len(group)) - starts < width]


# --- evidence


def select_evidence(
    forest: Forest, candidates: np.ndarray, leaf_scores: np.ndarray, k: int
) -> Iterator[tuple[int, np.ndarray]]:
    """(node, its leaves in document order) down the ranking until k leaves are out, no leaf twice.

    A candidate that shares a leaf with an earlier one is passed over; of a node with more leaves than are
    still wanted, the best leaves are taken.
    """
    taken: set[int] = set()
    for node in candidates.tolist():
        wanted = k - len(taken)
        if wanted <= 0:
            return
        leaves = forest.order[slice(*forest.slices[node])]
        if taken.isdisjoint(leaves.tolist()):
            best = leaves[np.argsort(-leaf_scores[leaves], kind="stable")[:wanted]]
            taken.update(best.tolist())
            yield node, np.sort(best)


def merged_spans(text: str, spans: np.ndarray) -> tuple[tuple[int, int], ...]:
    """(n, 2) ascending spans, those with only space between them joined."""
    merged: list[tuple[int, int]] = []
    for start, stop in spans.tolist():
        if merged and not text[merged[-1][1] : start].strip():
            start = merged.pop()[0]
        merged.append((start, stop))
    return tuple(merged)
