"""A published index as its reader holds it: one snapshot, opened once, the same answers until it is closed.

Failures are IndexProblem and its children, drawn at the top of snapshots.py.
"""

import difflib
import weakref
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import lance
import numpy as np

from sproutrag.documents import Document, Spans
from sproutrag.encoder import SentenceEncoder
from sproutrag.indices import index_freshness
from sproutrag.models import find_encoder, fingerprint_of
from sproutrag.readers import ReadLease, hold_snapshot
from sproutrag.retriever import SHELF_BYTES, TreeRetriever
from sproutrag.search import Passage
from sproutrag.snapshots import (
    DocumentNotFound,
    NoIndex,
    Snapshot,
    list_snapshots,
    refuse_mixture,
)
from sproutrag.tables import (
    TABLES,
    document_of,
    one_of,
    open_table,
    refuse_fork,
    size_of_table,
    spans_of,
    tables_exist,
    tree_of,
)
from sproutrag.tree import Tree
from sproutrag.where import matching_documents

FILTERS_REMEMBERED = 64  # whose matching doc_ids are kept
MAX_IDS_COMPARED = 20_000  # when looking for ids like a mistyped one: 0.2 s


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """One document as it was indexed; `document.text[start:end]` is leaf i for spans[i]."""

    document: Document
    spans: Spans
    tree: Tree
    n_tokens: int
    coverage: float
    indexed_at: str


class TreeIndex:
    """Two Lance tables pinned to one snapshot. Reads only; safe to share between threads.

    Clean-up leaves the snapshot's files alone until `close`, or until the handle or its process is gone.
    """

    def __init__(
        self, db: str, lease: ReadLease, encoder: str | SentenceEncoder, shelf_bytes: int = SHELF_BYTES
    ) -> None:
        self.db = db
        self.close = weakref.finalize(self, lease.close)
        self.snapshot: Snapshot = lease.snapshot
        self.documents: lance.LanceDataset = open_table(db, "documents", self.snapshot.documents_version)
        self.nodes: lance.LanceDataset = open_table(db, "nodes", self.snapshot.nodes_version)
        self._encoder = encoder
        self.shelf_bytes = shelf_bytes
        self.matching_documents = lru_cache(maxsize=FILTERS_REMEMBERED)(
            partial(matching_documents, self.documents)
        )

    @classmethod
    def open(
        cls,
        db: str,
        *,
        encoder: str | SentenceEncoder | None = None,
        snapshot: int | None = None,
        shelf_bytes: int = SHELF_BYTES,
    ) -> "TreeIndex":
        """The current snapshot, or the numbered one, with the encoder it was built with, loaded on need.

        Another `encoder` (a name, a directory, a loaded one) has to have the same fingerprint. shelf_bytes:
        memory for opened documents.
        """
        lease = hold_snapshot(db, snapshot)
        if lease is None:
            state = "an index that no run has finished" if tables_exist(db) else "no index"
            raise NoIndex(f"{db} holds {state}: run `sproutrag index SOURCE... --db {db}`")
        record = lease.snapshot
        wanted = encoder or record.encoder or record.fingerprint.split("@")[0]
        index = cls(db, lease, wanted, shelf_bytes)
        if encoder is not None:
            index.require_encoder()
        return index

    def latest(self) -> "TreeIndex":
        """The newest snapshot, for who serves for long: this handle while nothing newer was published.

        Costs one listing of a small folder; a loaded encoder is handed on. Searches under way here go on, and
        what only this snapshot needs is let go with the last reference to it, or by `close`.
        """
        if list_snapshots(self.db)[-1:] == [self.snapshot.id]:
            return self
        newer = TreeIndex.open(self.db, shelf_bytes=self.shelf_bytes)
        if newer.snapshot.fingerprint in ("", self.snapshot.fingerprint):
            newer._encoder = vars(self).get("encoder", self._encoder)
        return newer

    @cached_property
    def encoder(self) -> SentenceEncoder:
        self.require_encoder()
        given = self._encoder
        return SentenceEncoder.from_pretrained(given) if isinstance(given, str) else given

    def require_encoder(self) -> None:
        """Refuse an encoder whose vectors would not be comparable with the stored ones; loads no weights."""
        given = self._encoder
        fingerprint = fingerprint_of(find_encoder(given)) if isinstance(given, str) else given.fingerprint
        refuse_mixture(self.db, [self.snapshot.fingerprint, fingerprint])

    @cached_property
    def retriever(self) -> TreeRetriever:
        return TreeRetriever(self, shelf_bytes=self.shelf_bytes)

    def search(
        self,
        query: str,
        *,
        k: int = 5,
        mode: str = "hybrid",
        doc: str | None = None,
        where: str | None = None,
        vector: np.ndarray | None = None,
    ) -> list[Passage]:
        """Evidence for the query, best first: at most k leaves, none twice, each with its exact spans.

        vector: (d,) of the query by this index's encoder, for who encodes many queries together.
        """
        refuse_fork()
        if where is not None:
            self.matching_documents(where)  # a filter that cannot be read fails before a model is loaded
        return self.retriever.search(query, k=k, mode=mode, doc=doc, where=where, vector=vector)

    def document(self, doc_id: str) -> StoredDocument:
        refuse_fork()
        rows = self.documents.to_table(filter=one_of("doc_id", [doc_id])).to_pylist()
        if not rows:
            raise DocumentNotFound(f"no document {doc_id!r} in {self.db}{self.similar_ids(doc_id)}")
        return stored_document(rows[0])

    def similar_ids(self, doc_id: str) -> str:
        """A hint for an id that is not there."""
        ids = self.documents.to_table(columns=["doc_id"], limit=MAX_IDS_COMPARED)["doc_id"].to_pylist()
        close = difflib.get_close_matches(doc_id, ids, n=3, cutoff=0.5)
        ending = [id for id in ids if id.endswith(doc_id)][:3]
        hints = list(dict.fromkeys(ending + close)) or ids[:3]
        return f": did you mean {', '.join(map(repr, hints))}?" if hints else ": it holds no documents"

    def stats(self) -> dict:
        """What the snapshot holds, how large it is, and how fresh its indices are."""
        columns = self.documents.to_table(columns=["language", "depth"])
        languages = Counter(columns["language"].to_pylist())
        depths = np.quantile(columns["depth"].to_numpy(), [0, 0.5, 1]) if columns.num_rows else np.zeros(3)
        return self.snapshot.counts | {
            "coverage": self.snapshot.coverage,
            "languages": dict(languages.most_common()),
            "depth": dict(zip(("min", "median", "max"), depths.tolist(), strict=True)),
            "bytes": {name: size_of_table(self.db, name) for name in TABLES},
            "indices": index_freshness(self.documents, "documents") + index_freshness(self.nodes, "nodes"),
            "snapshot": self.snapshot.id,
            "created_at": self.snapshot.created_at,
            "fingerprint": self.snapshot.fingerprint,
            "encoder": self.snapshot.encoder,
            "dimension": self.snapshot.dimension,
        }


def stored_document(row: dict) -> StoredDocument:
    """One row of `documents` as library types."""
    return StoredDocument(
        document=document_of(row),
        spans=spans_of(row),
        tree=tree_of(row),
        n_tokens=row["n_tokens"],
        coverage=row["coverage"],
        indexed_at=row["indexed_at"].isoformat(),
    )
