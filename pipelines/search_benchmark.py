"""Figures of `sproutrag bench search`: a whole search beside one bare vector query, and what routing costs.

The corpus is synthetic, since encoding a hundred thousand leaves would take an hour here and would measure
the encoder: documents have topics, leaves scatter around their document's topic, words follow Zipf's law.
"""

import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

import lancedb
import numpy as np

from pipelines.benchmark import Figure, alternate
from pipelines.index_benchmark import band
from sproutrag.affinity import unit
from sproutrag.baselines import leaves_of
from sproutrag.documents import Document
from sproutrag.encoder import EncodedDocument, SentenceEncoder
from sproutrag.index import TreeIndex
from sproutrag.indices import build_indices
from sproutrag.options import BenchOptions
from sproutrag.retriever import N_DOCUMENTS
from sproutrag.scoring import yardstick
from sproutrag.search import Passage
from sproutrag.storage import Written, commit, publish, write_documents

DOCUMENTS, LEAVES = 1_020, 100  # 202,980 nodes
DIMENSION = 384
WORDS, WORDS_PER_LEAF, WORDS_PER_QUERY, ZIPF = 30_000, 25, 8, 1.3
TOPIC_SHARE = 0.7  # of a leaf's direction that comes from its document
QUERIES, K = 200, 5
MOST_TIMES_BARE = 3.0
DOCUMENTS_AT_ONCE = 60  # in one write
FINGERPRINT = "synthetic@000000000000"


class KnownQueries:
    """Stands in the encoder's place: text of a query -> its vector, noted before."""

    fingerprint = FINGERPRINT
    dimension = DIMENSION

    def __init__(self) -> None:
        self.vectors: dict[str, np.ndarray] = {}

    def encode_queries(self, queries: list[str]) -> np.ndarray:
        return np.stack([self.vectors[query] for query in queries])


def synthetic_document(number: int, rng: np.random.Generator) -> EncodedDocument:
    words = rng.zipf(ZIPF, (LEAVES, WORDS_PER_LEAF)) % WORDS
    leaves = [" ".join(f"w{word}" for word in row) + "." for row in words.tolist()]
    stops = np.cumsum([len(leaf) + 1 for leaf in leaves]) - 1
    spans = np.column_stack([np.concatenate([[0], stops[:-1] + 1]), stops]).astype(np.int32)
    document = Document(id=f"d{number}", text=" ".join(leaves), title=f"paper {number}", language="en")
    topic = rng.standard_normal(DIMENSION)
    vectors = unit(TOPIC_SHARE * topic + (1 - TOPIC_SHARE) * rng.standard_normal((LEAVES, DIMENSION)))
    affinity, tokens = band(LEAVES, seed=number), WORDS_PER_LEAF * LEAVES
    return EncodedDocument(document, spans, vectors, affinity, tokens, language="en")


def query_about(encoded: EncodedDocument, rng: np.random.Generator) -> tuple[str, np.ndarray]:
    """Some words of one leaf, and a vector near that leaf's."""
    leaf = int(rng.integers(LEAVES))
    start, stop = encoded.spans[leaf]
    words = encoded.document.text[start : stop - 1].split()
    query = " ".join(rng.choice(words, WORDS_PER_QUERY, replace=False))
    return query, unit(encoded.vectors[leaf] + 0.5 * unit(rng.standard_normal(DIMENSION)))


def write_in_batches(db: str, documents: Iterable[EncodedDocument]) -> list[Written]:
    """As many workers would write them, a batch at a time in memory."""
    stream = iter(documents)
    batches = iter(lambda: list(islice(stream, DOCUMENTS_AT_ONCE)), [])
    return [write_documents(db, batch, fingerprint=FINGERPRINT) for batch in batches]


@contextmanager
def synthetic_index(rng: np.random.Generator) -> Iterator[tuple[TreeIndex, list[str]]]:
    """An index over the synthetic corpus, built by the product's own functions, and its queries."""
    known = KnownQueries()

    def documents() -> Iterator[EncodedDocument]:
        for number in range(DOCUMENTS):
            encoded = synthetic_document(number, rng)
            if len(known.vectors) < QUERIES:
                known.vectors.update([query_about(encoded, rng)])
            yield encoded

    with tempfile.TemporaryDirectory() as db:
        head = commit(db, write_in_batches(db, documents()), run_id="bench")
        build_indices(db)
        publish(db, head)
        yield TreeIndex.open(db, encoder=known), list(known.vectors)  # type: ignore[arg-type]


def search_figures(options: BenchOptions) -> list[Figure]:
    """The whole search beside one bare LanceDB vector query, and agreement with a search of every tree."""
    with synthetic_index(np.random.default_rng(11)) as (index, queries):
        table = lancedb.connect(index.db).open_table("nodes")
        table.checkout(index.snapshot.nodes_version)

        def search(number: int) -> list[Passage]:
            return index.search(queries[number], k=K)

        def bare(number: int) -> None:
            vector = index.encoder.encode_queries([queries[number]])[0]
            table.search(vector).distance_type("cosine").limit(K).select(
                ["doc_id", "node", "_distance"]
            ).to_arrow()

        cold = alternate(len(queries), search, bare)  # opens the documents that a server has open by then
        warm = alternate(len(queries), search, bare)
        agree = agreement(index, queries)
        nodes = index.snapshot.counts["nodes"]
    settings = {"nodes": nodes, "queries": len(queries), "k": K, "documents_routed": N_DOCUMENTS}
    return [
        *latencies(cold, {**settings, "shelf": "empty at first"}, target=None),
        *latencies(warm, {**settings, "shelf": "warm"}, target=MOST_TIMES_BARE),
        encoding(options, warm, settings),
        *agreements(agree, settings),
    ]


def latencies(sides: list[list[float]], settings: dict, *, target: float | None) -> Iterator[Figure]:
    """Milliseconds of a search whose query vector is at hand, at the median and at the 95th percentile."""
    for name, share, most in (("median", 0.5, target), ("p95", 0.95, None)):
        ours, theirs = (1000 * float(np.quantile(side, share)) for side in sides)
        aim, met = (f"<= {most:g}", ours / theirs <= most) if most else ("reported", True)
        label = f"search: {name} over one bare vector query, shelf {settings['shelf']}"
        yield Figure(label, ours / theirs, aim, met, ours, theirs, "ms", settings)


def encoding(options: BenchOptions, sides: list[list[float]], settings: dict) -> Figure:
    """The same with the time that a real encoder takes for the text of one query on either side."""
    encoder = SentenceEncoder.from_pretrained(options.encoder)
    sentences = [f"Which party may end the agreement after {n} days of notice?" for n in range(30)]
    (seconds,) = alternate(len(sentences), lambda n: encoder.encode_queries([sentences[n]]))
    extra = statistics.median(seconds)
    ours, theirs = (1000 * (statistics.median(side) + extra) for side in sides)
    detail = {**settings, "encoder": options.encoder, "encode_ms": 1000 * extra}
    name = "search: median, encoding the query on both sides"
    return Figure(name, ours / theirs, "reported", True, ours, theirs, "ms", detail)


def agreement(index: TreeIndex, queries: list[str]) -> dict[str, list[bool]]:
    """Per query: are the leaves of the default search those of a search that scores every tree?

    "same": every tree is scored by the query's own yardstick, so that only routing differs. "own": the
    yardstick is taken from every tree as well, which asks another question: words are then worth what they
    are worth in the whole corpus, not among the documents that could answer.
    """
    retriever = index.retriever
    everything = retriever.shelf.take([f"d{number}" for number in range(DOCUMENTS)])
    agree: dict[str, list[bool]] = {"same": [], "own": []}
    for query in queries:
        ours = set(leaves_of(index.search(query, k=K)))
        vector = retriever.encode(query)
        routed = retriever.route(query, vector, mode="hybrid", among=None, n_documents=N_DOCUMENTS)
        forest, found = retriever.matches(query, retriever.shelf.take(routed))
        for name, usual in (("same", yardstick(found, forest)), ("own", None)):
            ranking = retriever.rank_by_evidence(query, vector, everything, with_trees=True, usual=usual)
            agree[name].append(ours == set(leaves_of(retriever.passages(ranking, K))))
    return agree


def agreements(agree: dict[str, list[bool]], settings: dict) -> Iterator[Figure]:
    for name, least in (("same", 0.95), ("own", 0.0)):
        share = statistics.mean(agree[name])
        label = f"search: top {K} equal to a search of every tree, {name} yardstick"
        aim = f">= {least}" if least else "reported"
        yield Figure(
            label, share, aim, share >= least, sum(agree[name]), len(agree[name]), "queries", settings
        )


FIGURES: dict[str, Callable[[BenchOptions], list[Figure]]] = {"search": search_figures}
