"""Figures of `sproutrag bench search`: a whole search beside one bare vector query, and what routing costs.

The corpus is synthetic, since encoding a hundred thousand leaves would take an hour here and would measure the
encoder: documents have topics, leaves scatter around their document's topic, words follow Zipf's law.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from pipelines.benchmark import Figure
from pipelines.index_benchmark import band
from sproutrag.documents import Document
from sproutrag.encoder import EncodedDocument, SentenceEncoder
from sproutrag.index import TreeIndex
from sproutrag.indices import build_indices
from sproutrag.models import find_encoder
from sproutrag.options import BenchOptions
from sproutrag.search import Passage
from sproutrag.storage import commit, publish, write_fragments
from sproutrag.tables import document_rows, node_rows
from sproutrag.tree import build_tree

DOCUMENTS, LEAVES = 1_020, 100  # 202,980 nodes
DIMENSION = 384
WORDS, WORDS_PER_LEAF, WORDS_PER_QUERY, ZIPF = 30_000, 25, 8, 1.3
TOPIC_SHARE = 0.7  # of a leaf's direction that comes from its document
QUERIES, WARM_UP, K = 200, 20, 5
PARCEL = 60  # documents written at a time
FINGERPRINT = "synthetic@000000000000"


class KnownQueries:
    """Stands in the encoder's place: query i is the text of a leaf, shortened, and a vector near that leaf."""

    fingerprint = FINGERPRINT
    dimension = DIMENSION

    def __init__(self) -> None:
        self.vectors: dict[str, np.ndarray] = {}

    def encode_queries(self, queries: list[str]) -> np.ndarray:
        return np.stack([self.vectors[query] for query in queries])


def synthetic_documents(rng: np.random.Generator) -> Iterator[EncodedDocument]:
    for number in range(DOCUMENTS):
        words = rng.zipf(ZIPF, (LEAVES, WORDS_PER_LEAF)) % WORDS
        leaves = [" ".join(f"w{word}" for word in row) + "." for row in words.tolist()]
        stops = np.cumsum([len(leaf) + 1 for leaf in leaves]) - 1
        spans = np.column_stack([np.concatenate([[0], stops[:-1] + 1]), stops]).astype(np.int32)
        document = Document(id=f"d{number}", text=" ".join(leaves), title=f"topic w{words[0, 0]}", language="en")
        topic = rng.standard_normal(DIMENSION)
        vectors = unit(TOPIC_SHARE * topic + (1 - TOPIC_SHARE) * rng.standard_normal((LEAVES, DIMENSION)))
        yield EncodedDocument(document, spans, vectors, band(LEAVES, seed=number), WORDS_PER_LEAF * LEAVES)


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


@contextmanager
def synthetic_index(rng: np.random.Generator) -> Iterator[tuple[TreeIndex, list[str]]]:
    """An index over the synthetic corpus, built by the product's own functions, and its queries."""
    known, queries, written = KnownQueries(), [], []
    with tempfile.TemporaryDirectory() as db:
        parcel: list[EncodedDocument] = []
        for encoded in synthetic_documents(rng):
            parcel.append(encoded)
            if len(queries) < QUERIES + WARM_UP:
                leaf = int(rng.integers(LEAVES))
                start, stop = encoded.spans[leaf]
                words = encoded.document.text[start : stop - 1].split()
                query = " ".join(rng.choice(words, WORDS_PER_QUERY, replace=False))
                noise = unit(rng.standard_normal(DIMENSION))
                known.vectors[query] = unit(encoded.vectors[leaf] + 0.5 * noise)
                queries.append(query)
            if len(parcel) == PARCEL:
                written.append(write(db, parcel))
                parcel = []
        head = commit(db, written, run_id="bench")
        build_indices(db)
        publish(db, head)
        yield TreeIndex.open(db, encoder=known), queries  # type: ignore[arg-type]


def write(db: str, encoded: list[EncodedDocument]):
    trees = [build_tree(one.affinity) for one in encoded]
    return write_fragments(db, document_rows(encoded, trees, fingerprint=FINGERPRINT), node_rows(encoded, trees))
