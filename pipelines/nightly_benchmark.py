"""Figures of `sproutrag bench nightly`: re-runs with nothing or little changed, and searches after ten.

A night runs in this process, as one loop over what the job does: neither Ray nor the model is started in it.
"""

import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from pipelines import maintenance
from pipelines.actors import IndexDocuments, pack
from pipelines.benchmark import Figure, alternate, documents_of, median_ratio, prose, timed, write_jsonl
from pipelines.index_benchmark import in_process, settings
from pipelines.plan import plan_run, read_all, scan
from pipelines.progress import Progress
from pipelines.search_benchmark import (
    K,
    KnownQueries,
    query_about,
    synthetic_document,
    write_in_batches,
)
from sproutrag import journal
from sproutrag.documents import Document
from sproutrag.encoder import EncodedDocument
from sproutrag.index import TreeIndex
from sproutrag.ingest import list_pieces
from sproutrag.options import BenchOptions
from sproutrag.search import Passage
from sproutrag.snapshots import Snapshot
from sproutrag.storage import commit, publish, stored_hashes

CHARACTERS, DOCUMENTS = 1_000, 200
ROUNDS, TURNS, PERCENT = 3, 3, (0, 1, 4)
LEAST_TIMES_FASTER, MOST_SHARE, MOST_TIMES_SLOWER = 50.0, 0.03, 1.3
PARCEL_BYTES = 64 << 10
KEPT = 7  # snapshots

NIGHTS, SEARCHED = 10, 400  # documents of the synthetic corpus: 79,600 nodes
REPLACED, JOINED = 3, 1  # documents a night; as many leave as join
QUERIES = 200


# --- what a night costs


def cost_of_a_night(options: BenchOptions) -> list[Figure]:
    """First builds, each followed by nights on which 0, 1 and 4 % of the documents changed, in turns."""
    sentences = prose(options.source)
    rounds = [cost_of_a_round(options, sentences, seed=seed) for seed in range(ROUNDS)]
    return cost_figures(rounds, {**settings(options), "documents": DOCUMENTS, "characters": CHARACTERS})


def cost_of_a_round(options: BenchOptions, sentences: Sequence[str], *, seed: int) -> dict[str, float]:
    """Seconds of the first build and of the median night, by percent of the documents that changed."""
    corpus = list(documents_of(sentences, [CHARACTERS] * DOCUMENTS, seed=seed))
    taken: dict[int, list[float]] = {percent: [] for percent in PERCENT}
    with in_process(options) as worker:
        nights = Nights(worker, sentences, corpus)
        worker.encoder.encode(list(documents_of(sentences, [CHARACTERS] * 8, seed=99)))  # warm up
        first = nights.spend(0)
        for turn in range(TURNS):
            for percent in PERCENT if turn % 2 else reversed(PERCENT):
                taken[percent].append(nights.spend(percent * DOCUMENTS // 100))
    return {"first": first} | {f"{percent} %": statistics.median(all) for percent, all in taken.items()}


class Nights:
    """A corpus of which some documents change before each night; preparing it is not timed."""

    def __init__(self, worker: IndexDocuments, sentences: Sequence[str], corpus: list[Document]) -> None:
        self.worker, self.sentences, self.corpus = worker, sentences, corpus
        self.rng = np.random.default_rng(3)
        self.number = 0
        self.file = Path(worker.db).with_suffix(".jsonl")

    def change(self, count: int) -> None:
        fresh = documents_of(self.sentences, [CHARACTERS] * count, seed=1000 + self.number)
        for place, document in zip(self.rng.permutation(len(self.corpus))[:count], fresh, strict=True):
            self.corpus[place] = replace(self.corpus[place], text=document.text)
        self.number += 1
        write_jsonl(self.file, self.corpus)

    def spend(self, changed: int) -> float:
        """Seconds of one night."""
        self.change(changed)
        return timed(lambda _: run_night(self.worker, str(self.file), run_id=str(self.number)), 0)


def run_night(worker: IndexDocuments, file: str, *, run_id: str) -> None:
    """What `sproutrag index --delete-missing --keep 7` does, with one worker and without Ray."""
    pieces = list_pieces([file])
    found = scan(pieces, start_ray=lambda: None, progress=Progress())
    plan = plan_run(found, stored_hashes(worker.db), delete_missing=True)
    wanted = frozenset(plan.wanted["doc_id"].to_pylist())
    documents = (item for piece in pieces if wanted for item in read_all(piece))
    changed = (item for item in documents if isinstance(item, Document) and item.id in wanted)
    outcomes = [worker.index(parcel, size=size) for parcel, size in pack(changed, size=PARCEL_BYTES)]
    written = [outcome.written for outcome in outcomes if outcome.written]
    head = commit(worker.db, written, run_id=run_id, remove=plan.missing)
    finish_night(worker.db, head)


def finish_night(db: str, head: Snapshot) -> None:
    """What the job does after its commit."""
    steps = [*maintenance.compaction(db), *maintenance.indices(db)]
    publish(db, head)
    journal.empty(db)
    steps += maintenance.clean_up(db, keep=KEPT)
    assert not [step for step in steps if step.failure], steps


def cost_figures(rounds: Sequence[dict[str, float]], detail: dict) -> list[Figure]:
    """Ratios within each round, then their median: on a shared machine the rounds drift apart."""
    none, little, more = (f"{percent} %" for percent in PERCENT)
    first = [one["first"] for one in rounds]
    marginal = [(one[more] - one[little]) / (PERCENT[2] - PERCENT[1]) for one in rounds]
    constant = [one[little] - slope * PERCENT[1] for one, slope in zip(rounds, marginal, strict=True)]
    faster = median_ratio(first, [one[none] for one in rounds])
    share, fixed = median_ratio(marginal, first), median_ratio(constant, first)
    build, nothing, slope, rest = map(
        statistics.median, (first, [one[none] for one in rounds], marginal, constant)
    )
    detail = {**detail, "seconds": list(rounds)}
    return [
        Figure("nightly: first build over a re-run with nothing changed", faster,
               f">= {LEAST_TIMES_FASTER:g}", faster >= LEAST_TIMES_FASTER, build, nothing, "s", detail),
        Figure("nightly: 1 % of the documents changed, over the first build", share,
               f"<= {MOST_SHARE:g}", share <= MOST_SHARE, slope, build, "s", detail),
        Figure("nightly: the constant of a night with changes, over the first build", fixed,
               "reported", True, rest, build, "s", detail),
    ]  # fmt: skip


# --- what ten nights leave behind for the searches


def search_after_nights(options: BenchOptions) -> list[Figure]:
    """Ten incremental nights beside one fresh build of the same final corpus: the same queries, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        final = build_in_nights(f"{folder}/nights")
        save(f"{folder}/fresh", final.values(), night=NIGHTS)
        queries = queries_about(list(final.values()))
        sides = [TreeIndex.open(f"{folder}/{name}", encoder=queries) for name in ("nights", "fresh")]  # type: ignore[arg-type]
        texts = list(queries.vectors)

        def searching(index: TreeIndex) -> Callable[[int], list[Passage]]:
            return lambda number: index.search(texts[number], k=K)

        cold = alternate(len(texts), *map(searching, sides))
        warm = alternate(len(texts), *map(searching, sides))
        nodes = sides[1].snapshot.counts["nodes"]
        fragments = [len(index.nodes.get_fragments()) for index in sides]
    detail = {"nodes": nodes, "nights": NIGHTS, "queries": len(texts), "k": K, "fragments": fragments}
    return [
        *latencies(cold, {**detail, "shelf": "empty at first"}),
        *latencies(warm, {**detail, "shelf": "warm"}),
    ]


def build_in_nights(db: str) -> dict[str, EncodedDocument]:
    """The corpus of the last night, doc_id -> document."""
    rng = np.random.default_rng(17)
    corpus = {one.document.id: one for one in map(partial(synthetic_document, rng=rng), range(SEARCHED))}
    save(db, corpus.values(), night=0)
    for night in range(1, NIGHTS + 1):
        ids = rng.permutation(list(corpus)).tolist()
        gone, replaced = ids[:JOINED], [int(id[1:]) for id in ids[JOINED : JOINED + REPLACED]]
        joined = range(SEARCHED + night * JOINED, SEARCHED + (night + 1) * JOINED)
        new = [synthetic_document(number, rng) for number in (*replaced, *joined)]
        corpus = {id: one for id, one in corpus.items() if id not in gone}
        corpus |= {one.document.id: one for one in new}
        save(db, new, night=night, gone=gone)
    return corpus


def save(db: str, documents: Iterable[EncodedDocument], *, night: int, gone: Sequence[str] = ()) -> None:
    head = commit(db, write_in_batches(db, documents), run_id=str(night), remove=gone)
    finish_night(db, head)


def queries_about(documents: Sequence[EncodedDocument]) -> KnownQueries:
    rng, known = np.random.default_rng(19), KnownQueries()
    known.vectors.update(query_about(documents[i], rng) for i in rng.integers(len(documents), size=QUERIES))
    return known


def latencies(sides: list[list[float]], detail: dict) -> Iterator[Figure]:
    for name, share in (("median", 0.5), ("p95", 0.95)):
        ours, fresh = (1000 * float(np.quantile(side, share)) for side in sides)
        is_target = name == "median"
        aim, met = (
            (f"<= {MOST_TIMES_SLOWER:g}", ours / fresh <= MOST_TIMES_SLOWER)
            if is_target
            else ("reported", True)
        )
        label = f"nightly: {name} search after {NIGHTS} nights over a fresh build, shelf {detail['shelf']}"
        yield Figure(label, ours / fresh, aim, met, ours, fresh, "ms", detail)


FIGURES: dict[str, Callable[[BenchOptions], list[Figure]]] = {
    "cost": cost_of_a_night,
    "search": search_after_nights,
}
