"""What the search is measured against: flat rankings of leaves, and other trees under the same scores.

Written for clarity: the flat ones score every leaf of the corpus for every query.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np
from lance.query import MatchQuery
from scipy.cluster.hierarchy import linkage

from sproutrag.index import TreeIndex
from sproutrag.metrics import CUTOFFS
from sproutrag.retriever import TreeRetriever
from sproutrag.search import Passage, visible
from sproutrag.shelf import OpenDocument
from sproutrag.tree import Tree

Leaf = tuple[str, int]  # doc_id, leaf
System = Callable[[str], dict[int, list[Leaf]]]  # query -> for each cut-off k, its k leaves


# --- flat rankings


class FlatLeaves:
    """All leaves of an index in memory, ranked by one exhaustive score."""

    def __init__(self, index: TreeIndex) -> None:
        self.index = index
        rows = index.nodes.to_table(
            columns=["doc_id", "node", "vector"], filter="n_leaves = 1", with_row_id=True
        ).combine_chunks()
        self.leaves: list[Leaf] = list(zip(rows["doc_id"].to_pylist(), rows["node"].to_pylist(), strict=True))
        column = rows["vector"].combine_chunks()
        self.vectors = column.flatten().to_numpy().reshape(len(column), -1)
        self.row_ids = rows["_rowid"].to_numpy()

    @cached_property
    def place(self) -> dict[int, int]:
        return {row: i for i, row in enumerate(self.row_ids.tolist())}

    def dense_scores(self, query: str) -> np.ndarray:
        return self.vectors @ self.index.encoder.encode_queries([query])[0]

    def word_scores(self, query: str) -> np.ndarray:
        """BM25 of Lance's full-text index over leaves with their titles; 0 where no word matches."""
        hits = self.index.nodes.scanner(
            columns=["_score"],
            full_text_query=MatchQuery(visible(query), "text"),
            limit=len(self.leaves),
            with_row_id=True,
        ).to_table()
        scores = np.zeros(len(self.leaves), dtype=np.float32)
        scores[[self.place[row] for row in hits["_rowid"].to_pylist()]] = hits["_score"].to_numpy()
        return scores

    def hybrid_scores(self, query: str) -> np.ndarray:
        """Both standardised over the corpus, equal weights."""
        return standardised(self.word_scores(query)) + standardised(self.dense_scores(query))

    def best(self, scores: np.ndarray) -> dict[int, list[Leaf]]:
        ranked = [self.leaves[i] for i in np.argsort(-scores, kind="stable")[: max(CUTOFFS)]]
        return {k: ranked[:k] for k in CUTOFFS}

    def systems(self) -> dict[str, System]:
        return {
            "flat dense leaves": lambda query: self.best(self.dense_scores(query)),
            "BM25 leaves": lambda query: self.best(self.word_scores(query)),
            "hybrid leaves": lambda query: self.best(self.hybrid_scores(query)),
        }


def standardised(scores: np.ndarray) -> np.ndarray:
    spread = scores.std()
    return (scores - scores.mean()) / spread if spread > 0 else np.zeros_like(scores)


# --- the product's search, and controls for its trees


def search_system(retriever: TreeRetriever, mode: str) -> System:
    """The search as its user meets it, once for each cut-off."""
    return lambda query: {k: leaves_of(retriever.search(query, k=k, mode=mode)) for k in CUTOFFS}


def ranked_system(retriever: TreeRetriever) -> System:
    """The same leaves as the default search, for many queries: ranks once and cuts at each k."""

    def found(query: str) -> dict[int, list[Leaf]]:
        ranking = retriever.rank(query, mode="hybrid", among=None)
        return {k: leaves_of(retriever.passages(ranking, k)) if ranking else [] for k in CUTOFFS}

    return found


def leaves_of(passages: list[Passage]) -> list[Leaf]:
    return [(passage.doc_id, leaf) for passage in passages for leaf in passage.leaves]


def random_tree(document: OpenDocument) -> Tree:
    """Joins pairs at random; the same document always gets the same tree."""
    rng = np.random.default_rng(len(document.text))
    active = list(range(document.tree.n_leaves))
    merges: list[tuple[int, int]] = []
    while len(active) > 1:
        first, second = sorted(rng.choice(len(active), size=2, replace=False).tolist())
        merges.append((active[first], active.pop(second)))
        active[first] = document.tree.n_leaves + len(merges) - 1
    return tree_from(merges)


def balanced_tree(document: OpenDocument) -> Tree:
    """Joins neighbours in the text, level by level."""
    level = list(range(document.tree.n_leaves))
    merges: list[tuple[int, int]] = []
    while len(level) > 1:
        pairs = list(zip(level[::2], level[1::2], strict=False))
        first = document.tree.n_leaves + len(merges)
        merges += pairs
        level = [*range(first, first + len(pairs)), *level[2 * len(pairs) :]]
    return tree_from(merges)


def embedding_tree(document: OpenDocument) -> Tree:
    """Joins the most similar leaf vectors (average linkage), wherever they stand in the text."""
    if document.tree.n_leaves < 2:
        return document.tree
    return tree_from(linkage(document.vectors.astype(np.float64), "average")[:, :2].astype(int).tolist())


def tree_from(merges: list) -> Tree:
    return Tree.from_merges(np.array(merges, dtype=np.int32).reshape(-1, 2), np.zeros(len(merges)))


CONTROLS = {"random tree": random_tree, "balanced tree": balanced_tree, "embedding tree": embedding_tree}
