"""Small real indices without an encoder: numbered sentences with random vectors and affinities."""

import json
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from sproutrag.documents import Document
from sproutrag.indices import build_indices
from sproutrag.snapshots import Snapshot
from sproutrag.storage import Written, commit, publish, write_documents
from sproutrag.tables import open_table

FINGERPRINT = "tiny@0123456789ab"


@dataclass(frozen=True)
class Encoded:
    """What the encoder returns, without one."""

    document: Document
    spans: np.ndarray
    vectors: np.ndarray
    affinity: csr_array
    n_tokens: int

    @property
    def language(self) -> str:
        return self.document.language


def encoded(id: str, n: int = 4, *, word: str = "first", dimension: int = 8, title: str = "") -> Encoded:
    rng = np.random.default_rng(n)
    leaves = [f"{word} sentence {i} about {id}." for i in range(n)]
    ends = np.cumsum([len(leaf) + 1 for leaf in leaves])
    spans = np.column_stack([ends - [len(leaf) + 1 for leaf in leaves], ends - 1]).astype(np.int32)
    vectors = rng.normal(size=(n, dimension)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    affinity = rng.random((n, n)).astype(np.float32)
    affinity = affinity + affinity.T
    np.fill_diagonal(affinity, 0)
    document = Document(
        id=id, text=" ".join(leaves), title=title, language="en", metadata=json.dumps({"n": n})
    )
    return Encoded(document, spans, vectors, csr_array(affinity), 7 * n)


def write(db: str, documents: list[Encoded], *, fingerprint: str = FINGERPRINT) -> Written:
    return write_documents(db, documents, fingerprint=fingerprint)  # type: ignore[arg-type]


def index(db: str, documents: list[Encoded], run_id: str, remove: tuple[str, ...] = ()) -> Snapshot:
    written = [write(db, documents)] if documents else []
    snapshot = commit(db, written, run_id=run_id, remove=remove)
    build_indices(db)
    return publish(db, snapshot)


def node_counts(db: str, version: int | None = None) -> dict[str, int]:
    ids = open_table(db, "nodes", version).to_table(columns=["doc_id"])["doc_id"].to_pylist()
    return {id: ids.count(id) for id in sorted(set(ids))}
