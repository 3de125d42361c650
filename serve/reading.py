"""The index as a server reads it: the newest snapshot, and those that questions under way still hold.

Every read may name its snapshot; a question asks all its reads of the one that it began with. Knows no Ray.
"""

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from sproutrag.encoder import SentenceEncoder
from sproutrag.index import StoredDocument, TreeIndex
from sproutrag.retriever import asked
from sproutrag.search import Passage
from sproutrag.snapshots import DocumentNotFound, NoIndex, list_snapshots, read_snapshot
from sproutrag.tree import Tree

HELD = 3  # snapshots open at once: the newest, and older ones that were read last
PROBE = "readiness"  # what a check of health looks for
OLD_SHARE = 8  # part of the memory for documents that an older snapshot keeps


@dataclass(frozen=True, slots=True)
class Encoded:
    """A query's vector (d,), and whose: after a rebuild an older snapshot needs another one."""

    fingerprint: str
    vector: np.ndarray


class Reading:
    """Safe to share between threads."""

    def __init__(self, db: str, *, encoder: str | None, cache_bytes: int) -> None:
        self.db = db
        self.encoder = encoder
        self.cache_bytes = cache_bytes
        self.open: OrderedDict[int, TreeIndex] = OrderedDict()
        self.lock = threading.Lock()
        self.newest = 0
        self.gone = (0, 0)  # hits and misses of snapshots that were let go

    def move_on(self) -> bool:
        """Open what was published since the last look; whether there was anything. Raises NoIndex."""
        with self.lock:
            before = self.open.get(self.newest)
            index = before.latest() if before else self.opened(None)
            if index is before:
                return False
            index.encoder.encode_queries(["loaded before the first request needs it"])
            if before:
                before.retriever.shelf.max_bytes = self.cache_bytes // OLD_SHARE
            self.keep(index)
            self.newest = index.snapshot.id
            return True

    def at(self, snapshot: int | None) -> TreeIndex:
        """The numbered snapshot, opened again if need be; without a number the newest."""
        with self.lock:
            number = snapshot or self.newest
            if not number:
                raise NoIndex(f"{self.db} holds no index yet: run `sproutrag index SOURCE... --db {self.db}`")
            if number not in self.open:
                self.keep(self.opened(number))
            self.open.move_to_end(number)
            return self.open[number]

    def opened(self, snapshot: int | None) -> TreeIndex:
        """With the encoder that is loaded already, where it is the same."""
        encoder: str | SentenceEncoder | None = self.encoder
        newest = self.open.get(self.newest)
        if snapshot and newest:
            same = read_snapshot(self.db, snapshot).fingerprint in ("", newest.snapshot.fingerprint)
            encoder = newest.encoder if same else None
        return TreeIndex.open(self.db, encoder=encoder, snapshot=snapshot, shelf_bytes=self.cache_bytes)

    def keep(self, index: TreeIndex) -> None:
        self.open[index.snapshot.id] = index
        while len(self.open) > HELD:
            oldest = next(number for number in self.open if number != self.newest)
            shelf = self.open.pop(oldest).retriever.shelf  # its files are let go with the last read of it
            self.gone = self.gone[0] + shelf.hits, self.gone[1] + shelf.misses

    def published(self) -> float:
        """When the newest snapshot was, in seconds since 1970."""
        return datetime.fromisoformat(self.at(None).snapshot.created_at).timestamp()

    def shelf_counts(self) -> tuple[int, int]:
        """Documents found open and read from storage, since the start; never falls."""
        with self.lock:
            shelves = [index.retriever.shelf for index in self.open.values()]
            hits = self.gone[0] + sum(shelf.hits for shelf in shelves)
            return hits, self.gone[1] + sum(shelf.misses for shelf in shelves)

    def encode(self, queries: list[str]) -> list[Encoded]:
        """Together, by the newest snapshot's encoder."""
        index = self.at(None)
        vectors = index.encoder.encode_queries(list(map(asked, queries)))
        return [Encoded(index.snapshot.fingerprint, vector) for vector in vectors]

    def probe(self) -> int:
        """A search that goes all the way, past every memory of earlier ones; the snapshot searched."""
        index = self.at(None)
        index.search(PROBE, k=1, vector=index.encoder.encode_queries([PROBE])[0])
        return index.snapshot.id

    # --- what is read

    def search(
        self,
        query: str,
        encoded: Encoded | None,
        *,
        k: int,
        mode: str,
        doc: str | None,
        where: str | None,
        snapshot: int | None,
    ) -> tuple[int, list[Passage]]:
        index = self.at(snapshot)
        if doc is not None and where is not None:
            refuse_hidden(index, doc, where)
        fits = encoded is not None and encoded.fingerprint == index.snapshot.fingerprint
        vector = encoded.vector if encoded and fits else None
        found = index.search(query, k=k, mode=mode, doc=doc, where=where, vector=vector)
        return index.snapshot.id, found

    def stored(self, doc_id: str, *, where: str | None, snapshot: int | None) -> tuple[int, StoredDocument]:
        """Raises DocumentNotFound, also for a document that `where` hides, in the same words."""
        index = self.at(snapshot)
        if where is not None:
            refuse_hidden(index, doc_id, where)
        return index.snapshot.id, index.document(doc_id)

    def document(self, doc_id: str, *, where: str | None, snapshot: int | None) -> dict[str, Any]:
        number, stored = self.stored(doc_id, where=where, snapshot=snapshot)
        document = stored.document
        return {
            "doc_id": document.id,
            "title": document.title or "",
            "text": document.text,
            "metadata": json.loads(document.metadata),
            "snapshot": number,
            "leaves": stored.spans.tolist(),
        }

    def text(self, doc_id: str, *, where: str | None, snapshot: int | None) -> str | None:
        try:
            return self.stored(doc_id, where=where, snapshot=snapshot)[1].document.text
        except DocumentNotFound:
            return None

    def tree(self, doc_id: str, *, query: str, where: str | None, snapshot: int | None) -> dict[str, Any]:
        """Nodes as slices of one leaf order, as they are stored: linear in the leaves, whatever the shape."""
        number, stored = self.stored(doc_id, where=where, snapshot=snapshot)
        told: dict[str, Any] = {"doc_id": doc_id, "snapshot": number, "leaves": stored.spans.tolist()}
        if not len(stored.spans):
            return told | {"order": [], "nodes": [], "root": None}
        told |= {
            "order": stored.tree.order.tolist(),
            "nodes": nodes_of(stored.tree),
            "root": stored.tree.root,
        }
        if any(map(str.isalnum, query)):
            told |= self.beam(doc_id, stored.tree, query, where=where, snapshot=number)
        return told

    def beam(
        self, doc_id: str, tree: Tree, query: str, *, where: str | None, snapshot: int
    ) -> dict[str, Any]:
        """Each node that the beam scored, whether it went on from there, and the evidence."""
        index = self.at(snapshot)
        scores, visited = index.retriever.trace(query, doc_id)
        found = index.search(query, k=5, doc=doc_id, where=where)
        seen, depths = set(visited.tolist()), tree.depths
        evidence = [passage.node for passage in found]
        went_on = {
            n for n in seen if n >= tree.n_leaves and seen & set(tree.merges[n - tree.n_leaves].tolist())
        }
        path = [
            {
                "node": node,
                "depth": int(depths[node]),
                "score": round(float(scores[node]), 6),
                "kept": node in went_on or node in evidence,
            }
            for node in sorted(seen, key=lambda node: (depths[node], node))
        ]
        return {"path": path, "evidence": evidence}

    def snapshots(self, *, counted: bool) -> dict[str, Any]:
        """Newest first. counted: false keeps how much there is from who may see a part of it only."""
        newest = self.at(None).snapshot.id
        records = [read_snapshot(self.db, number) for number in list_snapshots(self.db)]
        return {
            "current": newest,
            "snapshots": [
                {
                    "id": record.id,
                    "published": record.created_at,
                    "documents": record.counts.get("documents", 0) if counted else None,
                    "nodes": record.counts.get("nodes", 0) if counted else None,
                }
                for record in reversed(records)
            ],
        }


def refuse_hidden(index: TreeIndex, doc_id: str, where: str) -> None:
    """As if it were not there."""
    if doc_id not in index.matching_documents(where):
        raise DocumentNotFound(doc_id)


def nodes_of(tree: Tree) -> list[dict[str, Any]]:
    n = tree.n_leaves
    children = [[] for _ in range(n)] + tree.merges.tolist()
    height = [0.0] * n + [round(float(affinity), 6) for affinity in tree.affinity]
    slices = tree.slices.tolist()
    return [
        {"node": node, "children": below, "slice": at, "height": up}
        for node, (below, at, up) in enumerate(zip(children, slices, height, strict=True))
    ]
