"""From a query to evidence: route to documents, score their leaves, run the beam in their trees, select.

Two reads of the nodes table per search (words, vector); documents come from a shelf in memory once they were
opened. Knows the tables by their columns; what an index is (snapshots, fingerprints) is TreeIndex's business.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from lance.query import MatchQuery

from sproutrag import lexical
from sproutrag.documents import LONE_SURROGATE
from sproutrag.indices import VECTOR_METRIC
from sproutrag.pages import pages_of
from sproutrag.rerank import CrossEncoder
from sproutrag.scoring import (
    Matches,
    Weights,
    Yardstick,
    document_scores,
    fuse,
    leaf_shares,
    match,
    path_shares,
    read_weights,
    yardstick,
)
from sproutrag.search import (
    Forest,
    Passage,
    beam_search,
    best_below,
    merged_spans,
    node_scores,
    plant,
    select_evidence,
    visible,
)
from sproutrag.shelf import OpenDocument, Shelf
from sproutrag.snapshots import UnverifiedPassage
from sproutrag.tables import one_of
from sproutrag.tree import Tree

if TYPE_CHECKING:
    from sproutrag.index import TreeIndex

MODES = ("tree", "leaves", "hybrid")
N_DOCUMENTS = 32  # whose trees are searched
LEAVES_BY_WORDS, NODES_BY_VECTOR = 256, 64  # read from the table to choose them
RANK_OFFSET = 60  # of reciprocal rank fusion; hardly matters
PROBES = 32  # of the vector index; see indices.py. No refinement: which documents come near is enough here
BEAM_WIDTH = 5
MAX_QUERY = 10_000  # characters, some 1,500 words: an encoder reads a few hundred, full-text search each one
RERANKED = 32  # candidates that a cross-encoder reads
SHELF_BYTES = 1 << 30
QUERIES_REMEMBERED = 4096  # vectors of earlier queries


class QueryTooLong(Exception):
    """A whole document where a query is expected."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a search saw: documents, their forest, scores of leaves (N,) and nodes (M,), nodes best first."""

    documents: list[OpenDocument]
    forest: Forest
    leaf_scores: np.ndarray
    node_scores: np.ndarray
    candidates: np.ndarray
    reranked: bool = False


class TreeRetriever:
    """Searches one opened index. Safe to share between threads."""

    def __init__(
        self,
        index: "TreeIndex",
        *,
        weights: Weights | None = None,
        reranker: CrossEncoder | None = None,
        beam_width: int = BEAM_WIDTH,
        shelf_bytes: int = SHELF_BYTES,
        regrow: Callable[[OpenDocument], Tree] | None = None,
    ) -> None:
        """weights: those that `calibrate` stored with the index, or the defaults."""
        self.index = index
        self.weights = weights or read_weights(index.db, fingerprint=index.snapshot.fingerprint)
        self.reranker = reranker
        self.beam_width = beam_width
        self.reader = ThreadPoolExecutor(thread_name_prefix="sproutrag-words")
        self.encode = lru_cache(maxsize=QUERIES_REMEMBERED)(self.vector_of)
        self.shelf = Shelf(index.documents, index.nodes, max_bytes=shelf_bytes, regrow=regrow)

    def search(
        self,
        query: str,
        *,
        k: int = 5,
        mode: str = "hybrid",
        doc: str | None = None,
        where: str | None = None,
        n_documents: int = N_DOCUMENTS,
        vector: np.ndarray | None = None,
    ) -> list[Passage]:
        """At most k leaves as passages, best first, no leaf twice. No letter or digit asked, none found.

        mode: `tree` scores nodes by cosine alone, as the paper does; `leaves` has no trees.
        """
        if mode not in MODES:
            raise ValueError(f"mode {mode!r}: choose one of {', '.join(MODES)}")
        query = asked(query)
        if not any(map(str.isalnum, query)):
            return []
        among = self.allowed(doc, where)
        ranking = self.rank(query, mode=mode, among=among, n_documents=n_documents, vector=vector)
        return self.passages(ranking, k) if ranking else []

    def allowed(self, doc: str | None, where: str | None) -> frozenset[str] | None:
        """doc_ids that may be searched; None: all. An unknown `doc` raises DocumentNotFound."""
        ids = self.index.matching_documents(where) if where is not None else None
        if doc is None:
            return ids
        if not self.index.documents.count_rows(one_of("doc_id", [doc])):
            self.index.document(doc)
        return frozenset([doc]) if ids is None else ids & {doc}

    def rank(
        self,
        query: str,
        *,
        mode: str,
        among: frozenset[str] | None,
        n_documents: int = N_DOCUMENTS,
        vector: np.ndarray | None = None,
    ) -> Ranking | None:
        """Route and score; None where there is no document to search."""
        vector = self.encode(query) if vector is None else vector
        routed = self.route(query, vector, mode=mode, among=among, n_documents=n_documents)
        documents = self.shelf.take(routed)
        if not documents:
            return None
        if mode == "tree":
            return rank_by_cosine(documents, vector, self.beam_width, self.index.encoder.settings.threshold)
        ranking = self.rank_by_evidence(query, vector, documents, with_trees=mode == "hybrid")
        return rerank(query, ranking, self.reranker) if self.reranker else ranking

    def vector_of(self, text: str) -> np.ndarray:
        return self.index.encoder.encode_queries([text])[0]

    # --- which documents

    def route(
        self,
        query: str,
        vector: np.ndarray,
        *,
        mode: str,
        among: frozenset[str] | None,
        n_documents: int,
    ) -> list[str]:
        """doc_ids, best first: by the best leaf in full-text search and the best node in vector search."""
        if among is not None and len(among) <= n_documents:
            return sorted(among)
        where = one_of("doc_id", sorted(among)) if among is not None else None
        if mode == "tree":
            return self.by_vector(vector, where, n_documents)[:n_documents]
        words = self.reader.submit(self.by_words, query, where, n_documents)  # Lance works outside the GIL
        return fuse_ranks([self.by_vector(vector, where, n_documents), words.result()])[:n_documents]

    def by_words(self, query: str, where: str | None, n_documents: int) -> list[str]:
        """Documents in the order of their best leaf. A MatchQuery has no syntax that a query could break."""
        wanted = lexical.naming(query) or visible(query)
        hits = self.index.nodes.scanner(
            columns=["doc_id", "_score"],
            full_text_query=MatchQuery(wanted, "text"),
            filter=where,
            prefilter=where is not None,
            limit=max(LEAVES_BY_WORDS, 4 * n_documents),
        ).to_table()
        return first_seen(hits["doc_id"].to_pylist())

    def by_vector(self, vector: np.ndarray, where: str | None, n_documents: int) -> list[str]:
        nearest = {
            "column": "vector",
            "q": pa.array(vector),
            "k": max(NODES_BY_VECTOR, 4 * n_documents),
            "metric": VECTOR_METRIC,
            "nprobes": PROBES,
        }
        scanner = self.index.nodes.scanner(
            columns=["doc_id", "_distance"], nearest=nearest, filter=where, prefilter=where is not None
        )
        return first_seen(scanner.to_table()["doc_id"].to_pylist())

    # --- which of their nodes

    def rank_by_evidence(
        self,
        query: str,
        vector: np.ndarray,
        documents: list[OpenDocument],
        *,
        with_trees: bool,
        usual: Yardstick | None = None,
    ) -> Ranking:
        """Fused scores. What the best document's title says is taken out of the query, words and vector.

        usual: what the query's words are worth; by default as these documents have it.
        """
        forest, found = self.matches(query, documents)
        usual = usual or yardstick(found, forest)
        document = document_scores(found, forest, usual)
        vector = (vector + self.encode_rest(query, vector, documents[int(document.argmax())])) / 2
        leaf_scores = fuse(
            self.weights,
            leaf=leaf_shares(found, forest, usual),
            document=document[forest.leaf_tree],
            dense=np.concatenate([d.vectors @ vector for d in documents]),
            path=path_shares(found, forest, usual) if with_trees else np.zeros(1),
        )
        scores = node_scores(forest, leaf_scores, size_prior=self.weights.size_prior)
        if with_trees:
            promise = best_below(forest, leaf_scores)
            candidates = beam_search(forest, scores, beam_width=self.beam_width, promise=promise)
        else:
            candidates = forest.leaf_node[np.argsort(-leaf_scores, kind="stable")]
        return Ranking(documents, forest, leaf_scores, scores, candidates)

    def matches(self, query: str, documents: list[OpenDocument]) -> tuple[Forest, Matches]:
        forest = plant([d.tree for d in documents])
        return forest, match(lexical.terms(query), [d.postings for d in documents])

    def encode_rest(self, query: str, vector: np.ndarray, document: OpenDocument) -> np.ndarray:
        """Vector of the query less the words of the title; the query's own where that changes nothing."""
        if not np.isin(lexical.terms(query), document.postings.title).any():
            return vector
        rest = lexical.without(query, document.postings.title)
        return self.encode(rest) if any(map(str.isalnum, rest)) else vector

    # --- what is returned

    def passages(self, ranking: Ranking, k: int) -> list[Passage]:
        chosen = select_evidence(ranking.forest, ranking.candidates, ranking.leaf_scores, k)
        return [passage(ranking, node, leaves) for node, leaves in chosen]

    def trace(self, query: str, doc: str) -> tuple[np.ndarray, np.ndarray]:
        """Scores (2n-1,) of one document's nodes, and the nodes that the beam visits, best first."""
        ranking = self.rank(asked(query), mode="hybrid", among=self.allowed(doc, None))
        assert ranking is not None, doc
        return ranking.node_scores, ranking.candidates


def asked(query: str) -> str:
    """The query as it is searched for."""
    if len(query) > MAX_QUERY:
        raise QueryTooLong(
            f"the query has {len(query):,} characters, {MAX_QUERY:,} are the most: ask with a part of it"
        )
    return LONE_SURROGATE.sub("\ufffd", query)


def rank_by_cosine(
    documents: list[OpenDocument], vector: np.ndarray, beam_width: int, threshold: float
) -> Ranking:
    """The paper's search: cosine of progressive embeddings decides the way and the result (eq. 6-9)."""
    forest = plant([d.tree for d in documents])
    scores = np.concatenate([d.node_cosines(vector) for d in documents])
    candidates = beam_search(forest, scores, beam_width=beam_width, threshold=threshold)
    return Ranking(documents, forest, scores[forest.leaf_node], scores, candidates)


def rerank(query: str, ranking: Ranking, reranker: CrossEncoder) -> Ranking:
    """Let the cross-encoder reorder the first candidates; only these remain."""
    nodes = ranking.candidates[:RERANKED]
    scores = np.full_like(ranking.node_scores, -np.inf)
    scores[nodes] = reranker.scores(query, [node_text(ranking, node) for node in nodes.tolist()])
    return replace(ranking, node_scores=scores, candidates=best_first(nodes, scores), reranked=True)


def best_first(nodes: np.ndarray, scores: np.ndarray) -> np.ndarray:
    nodes = nodes[np.isfinite(scores[nodes])]
    return nodes[np.argsort(-scores[nodes], kind="stable")]


def passage(ranking: Ranking, node: int, rows: np.ndarray) -> Passage:
    """The passage of these leaves (rows of the forest); refused where storage contradicts itself."""
    forest = ranking.forest
    at = int(forest.tree[node])
    document = ranking.documents[at]
    leaves = rows - forest.first_leaf[at]
    spans = merged_spans(document.text, document.spans[leaves])
    text = "".join(document.text[start:stop] for start, stop in spans)
    if not document.sound[leaves].all():
        raise UnverifiedPassage(
            f"document {document.doc_id!r}, leaves {leaves.tolist()}: the text at {spans} is not what they "
            "were indexed with; see `sproutrag verify`, then delete the document and index it again"
        )
    return Passage(
        doc_id=document.doc_id,
        title=document.title,
        node=int(node - forest.first_node[at]),
        leaves=tuple(leaves.tolist()),
        spans=spans,
        text=text,
        score=float(ranking.node_scores[node]),
        reranked=ranking.reranked,
        pages=pages_of(document.page_starts, spans),
        sections=pages_of(document.section_starts, spans),
    )


def node_text(ranking: Ranking, node: int) -> str:
    forest = ranking.forest
    return passage(ranking, node, np.sort(forest.order[slice(*forest.slices[node])])).text


def first_seen(ids: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(ids))


def fuse_ranks(rankings: Sequence[Sequence[str]]) -> list[str]:
    """Reciprocal rank fusion, best first; who is nowhere worse than another is not behind it (P091)."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, item in enumerate(ranking):
            scores[item] = scores.get(item, 0.0) + 1 / (RANK_OFFSET + rank)
    return sorted(scores, key=lambda item: -scores[item])
