"""Documents a search has opened, kept ready in memory: text, tree, leaf vectors and words."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

import lance
import numpy as np
import pyarrow as pa

from sproutrag.documents import Spans
from sproutrag.lexical import Postings, postings
from sproutrag.tables import one_of, tree_of
from sproutrag.tree import Tree, progressive_embeddings

DOCUMENT_COLUMNS = ["doc_id", "title", "text", "spans", "merges", "affinity"]
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

    @property
    def nbytes(self) -> int:
        arrays = (
            self.spans,
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

    def leaf_texts(self) -> list[str]:
        return [self.text[start:stop] for start, stop in self.spans.tolist()]


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
        self._lock = Lock()

    def take(self, doc_ids: Sequence[str]) -> list[OpenDocument]:
        """The documents in the order asked for, without those that do not exist or have no leaf."""
        with self._lock:
            found = {id: self._open[id] for id in doc_ids if id in self._open}
            for id in found:
                self._open.move_to_end(id)
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
        leaves = nodes.to_table(columns=["doc_id", "node", "vector"], filter=f"{these} AND n_leaves = 1")
        vectors = leaf_vectors(leaves)
        for row in rows.to_pylist():
            yield self.opened(row, vectors[row["doc_id"]])

    def opened(self, row: dict, vectors: np.ndarray) -> OpenDocument:
        spans = np.asarray(row["spans"], dtype=np.int32).reshape(-1, 2)
        words = postings(row["title"], [row["text"][start:stop] for start, stop in spans.tolist()])
        document = OpenDocument(
            row["doc_id"], row["title"] or "", row["text"], spans, tree_of(row), vectors, words
        )
        if self.regrow is None:
            return document
        return OpenDocument(**{**vars(document), "tree": self.regrow(document)})


def leaf_vectors(leaves: pa.Table) -> dict[str, np.ndarray]:
    """doc_id -> (n, d) in document order."""
    leaves = leaves.sort_by([("doc_id", "ascending"), ("node", "ascending")]).combine_chunks()
    column = leaves["vector"].combine_chunks()
    vectors = column.flatten().to_numpy().reshape(len(column), -1) if len(column) else np.empty((0, 0))
    ids = leaves["doc_id"].to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1])) if len(ids) else np.empty(0, dtype=int)
    stops = np.append(starts[1:], len(ids))
    return {ids[start]: vectors[start:stop] for start, stop in zip(starts, stops, strict=True)}
