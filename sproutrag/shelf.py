"""Documents a search has opened, kept ready in memory: text, tree, leaf vectors and words."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

import lance
import numpy as np
import pyarrow as pa

from sproutrag.documents import Document, Spans
from sproutrag.lexical import Postings, postings
from sproutrag.pages import SECTION_STARTS, page_starts
from sproutrag.search import lexical_text
from sproutrag.tables import lexical_texts, one_of, spans_of, tree_of, vectors_of
from sproutrag.tree import Tree, progressive_embeddings

LEAF_COLUMNS = ["doc_id", "node", "vector", "text"]
DOCUMENT_COLUMNS = ["doc_id", "title", "text", "spans", "merges", "affinity", "metadata"]
PER_CHARACTER = 4  # bytes a Python string may take


@dataclass(frozen=True)
class OpenDocument:
    """One document of the index as a search needs it; text[start:end] is leaf i for spans[i]."""

    doc_id: str
    title: str
    text: str
    spans: Spans
    tree: Tree
    vectors: np.ndarray  # (n, d) of the leaves
    postings: Postings
    sound: np.ndarray  # (n,) bool: `text` at the span is what the leaf was indexed with
    page_starts: np.ndarray  # offsets into `text`
    section_starts: np.ndarray

    @property
    def nbytes(self) -> int:
        arrays = (
            self.spans,
            self.page_starts,
            self.section_starts,
            self.vectors,
            self.tree.merges,
            self.tree.order,
            self.tree.slices,
            self.tree.affinity,
        )
        return PER_CHARACTER * len(self.text) + sum(a.nbytes for a in arrays) + self.postings.nbytes

    @cached_property
    def node_norms(self) -> np.ndarray:
        """(2n-1,) lengths of the progressive embeddings."""
        return np.linalg.norm(progressive_embeddings(self.vectors, self.tree), axis=1)

    def node_cosines(self, query: np.ndarray) -> np.ndarray:
        """(d,) -> (2n-1,): cosine of each progressive embedding, which is linear in the leaf vectors."""
        along = progressive_embeddings((self.vectors @ query)[:, None], self.tree)[:, 0]
        return along / np.maximum(self.node_norms, 1e-12)


class Shelf:
    """What was used longest ago goes back beyond `max_bytes`. One snapshot: nothing on it goes stale."""

    def __init__(
        self,
        documents: lance.LanceDataset,
        nodes: lance.LanceDataset,
        *,
        max_bytes: int,
        regrow: Callable[[OpenDocument], Tree] | None = None,
    ) -> None:
        """`regrow` replaces each document's tree: the controls of an evaluation."""
        self.tables = documents, nodes
        self.max_bytes = max_bytes
        self.regrow = regrow
        self._open: OrderedDict[str, OpenDocument] = OrderedDict()
        self._bytes = 0
        self.hits = self.misses = 0  # documents found open; read from the tables
        self._lock = Lock()

    def take(self, doc_ids: Sequence[str]) -> list[OpenDocument]:
        """The documents in the order asked for, without those that do not exist or have no leaf."""
        with self._lock:
            found = {id: self._open[id] for id in doc_ids if id in self._open}
            for id in found:
                self._open.move_to_end(id)
            self.hits += len(found)
            self.misses += len(doc_ids) - len(found)
        for document in self.read([id for id in doc_ids if id not in found]):
            found[document.doc_id] = document
            self.keep(document)
        return [found[id] for id in doc_ids if id in found]

    def keep(self, document: OpenDocument) -> None:
        with self._lock:
            if document.doc_id not in self._open:
                self._open[document.doc_id] = document
                self._bytes += document.nbytes
            while self._bytes > self.max_bytes and len(self._open) > 1:
                self._bytes -= self._open.popitem(last=False)[1].nbytes

    def read(self, doc_ids: Sequence[str]) -> Iterator[OpenDocument]:
        """Two reads of the tables, however many documents."""
        if not doc_ids:
            return
        documents, nodes = self.tables
        these = one_of("doc_id", doc_ids)
        rows = documents.to_table(columns=DOCUMENT_COLUMNS, filter=f"{these} AND n_leaves > 0")
        leaves = nodes.to_table(columns=LEAF_COLUMNS, filter=f"{these} AND n_leaves = 1")
        indexed = indexed_leaves(leaves)
        for row in rows.to_pylist():
            yield self.opened(row, *indexed[row["doc_id"]])

    def opened(self, row: dict, vectors: np.ndarray, texts: list[str]) -> OpenDocument:
        spans = spans_of(row)
        words = postings(row["title"], [lexical_text(row["text"], *span) for span in spans.tolist()])
        document = OpenDocument(
            doc_id=row["doc_id"],
            title=row["title"] or "",
            text=row["text"],
            spans=spans,
            tree=tree_of(row),
            vectors=vectors,
            postings=words,
            sound=sound(row, spans, texts),
            page_starts=page_starts(row["metadata"]),
            section_starts=page_starts(row["metadata"], SECTION_STARTS),
        )
        if self.regrow is None:
            return document
        return OpenDocument(**{**vars(document), "tree": self.regrow(document)})


def sound(row: dict, spans: Spans, texts: list[str]) -> np.ndarray:
    """(n,) bool: does the document's text at each span give what the leaf's row in `nodes` says?

    Two tables, written apart: a span that was damaged in either cannot agree with the other by chance.
    """
    document = Document(row["doc_id"], row["text"], row["title"] or "")
    if len(texts) != len(spans):
        return np.zeros(len(spans), dtype=bool)
    return np.fromiter(map(str.__eq__, lexical_texts(document, spans), texts), dtype=bool, count=len(spans))


def indexed_leaves(leaves: pa.Table) -> dict[str, tuple[np.ndarray, list[str]]]:
    """doc_id -> vectors (n, d) and texts of its leaves, in document order."""
    leaves = leaves.sort_by([("doc_id", "ascending"), ("node", "ascending")])
    vectors = vectors_of(leaves)
    ids = leaves["doc_id"].to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1])) if len(ids) else np.empty(0, dtype=int)
    stops = np.append(starts[1:], len(ids))
    texts = leaves["text"].to_pylist()
    places = zip(starts, stops, strict=True)
    return {ids[start]: (vectors[start:stop], texts[start:stop]) for start, stop in places}
