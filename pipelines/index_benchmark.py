"""Figures of `sproutrag bench index`: cost over a plain forward pass, Ray's overhead, growth."""

import gc
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_array

from pipelines.actors import IndexDocuments, Outcome, pack
from pipelines.benchmark import (
    Figure,
    alternate,
    documents_of,
    median_ratio,
    prose,
    read_documents,
    timed,
    write_jsonl,
)
from pipelines.cluster import Workers, share_out
from pipelines.encoding import encode, parcel_size
from pipelines.plan import plan_run, scan
from pipelines.progress import Progress
from sproutrag.documents import Document
from sproutrag.encoder import SentenceEncoder
from sproutrag.ingest import list_pieces
from sproutrag.models import find_encoder
from sproutrag.options import BenchOptions
from sproutrag.private_ray import ray_on_demand
from sproutrag.tree import build_tree, progressive_embeddings

TYPICAL = 6_000  # characters of a document
CHUNK = 12  # documents that are measured at a time on both sides
ROUNDS = 9
OVERHEAD_CHARACTERS = 1_000_000  # gives the 2,000 windows that the claim needs; the figure says how many
OVERHEAD_WINDOW = 128  # tokens: short windows make Ray's share larger, and the figure quicker
TREE_LEAVES = (12_500, 25_000, 50_000, 100_000)
TEXT_CHARACTERS = (250_000, 500_000, 1_000_000, 2_000_000)
NEIGHBOURS = 12  # leaves that share a window with one leaf
MOST_PER_DOUBLING, MOST_MEMORY_GIB = 2.3, 2.5
GIB = 1 << 20  # in KiB, as getrusage counts


def cost_over_floor(options: BenchOptions) -> list[Figure]:
    """Everything that indexing does, against the stock model's forward pass over the very same batches."""
    sentences = prose(options.source)
    chunks = [list(documents_of(sentences, [TYPICAL] * CHUNK, seed=seed)) for seed in range(ROUNDS + 1)]
    with in_process(options) as worker:
        files = [
            write_jsonl(Path(worker.db).with_suffix(f".{i}.jsonl"), chunk) for i, chunk in enumerate(chunks)
        ]
        windows = [worker.encoder.windows(chunk) for chunk in chunks]

        def index(round_: int) -> None:
            worker.index(read_documents(files[round_]), size=0)

        def forward(round_: int) -> None:
            worker.encoder.plain_forward(windows[round_])

        index(ROUNDS)  # the last chunk warms both sides up
        forward(ROUNDS)
        ours, floor = alternate(ROUNDS, index, forward)
    ratio = median_ratio(ours, floor)
    counts = {"rounds": ROUNDS, "windows": sum(len(chunk.ranges) for chunk in windows[:ROUNDS])}
    name, detail = "index: cost over a plain forward pass", {**settings(options), **counts}
    return [Figure(name, ratio, "<= 1.10", ratio <= 1.10, sum(ours), sum(floor), "s", detail)]


@contextmanager
def in_process(options: BenchOptions) -> Iterator[IndexDocuments]:
    """The class that Ray's workers run, in this process and on an index of its own."""
    with tempfile.TemporaryDirectory() as folder:
        yield IndexDocuments(
            db=f"{folder}/db", encoder=find_encoder(options.encoder), threads=torch.get_num_threads()
        )


def settings(options: BenchOptions) -> dict[str, str | int]:
    return {"encoder": options.encoder, "threads": torch.get_num_threads(), "source": options.source}


# --- Ray's overhead and the second worker


def ray_overhead(options: BenchOptions) -> list[Figure]:
    """Tokens per second of the pipeline against the loop, and of two workers against one, when all runs.

    The first parcel of each side is not counted: until it is done, processes start and load the model.
    """
    documents = list(
        documents_of(prose(options.source), [TYPICAL] * (OVERHEAD_CHARACTERS // TYPICAL), seed=7)
    )
    with tempfile.TemporaryDirectory() as folder, ray_on_demand() as start_ray:
        short = replace(options, encoder=with_window(options.encoder, OVERHEAD_WINDOW, f"{folder}/encoder"))
        file = write_jsonl(Path(folder) / "corpus.jsonl", documents)
        start_ray()
        workers = share_out(1)
        one_thread = replace(workers, threads=1)
        halves = replace(workers, count=2, cpus=workers.cpus / 2, threads=1)
        with in_process(short) as worker:
            windows = len(worker.encoder.windows(documents).ranges)
            loop = steady_rate(run_loop(worker, documents, workers))
        full = steady_rate(run_on_ray(file, f"{folder}/full", short, workers))
        single = steady_rate(run_on_ray(file, f"{folder}/one", short, one_thread))
        double = steady_rate(run_on_ray(file, f"{folder}/two", short, halves))
    counted = {
        **settings(options),
        "windows": windows,
        "window": OVERHEAD_WINDOW,
        "documents": len(documents),
    }
    return [
        Figure("index: Ray's overhead over the loop, one process per core as by default", loop / double,
               "<= 1.25", loop / double <= 1.25, double, loop, "tokens/s", counted),
        Figure("index: Ray's overhead over the loop, one process with all threads", loop / full,
               "reported", True, full, loop, "tokens/s", counted),
        Figure("index: two workers over one, one thread each", double / single,
               "reported", True, double, single, "tokens/s", counted),
    ]  # fmt: skip


def with_window(encoder: str, window: int, path: str) -> str:
    """A copy of the encoder that reads windows of so many tokens."""
    SentenceEncoder.from_pretrained(encoder, window=window).save(path)
    return path


def run_loop(worker: IndexDocuments, documents: list[Document], workers: Workers) -> Iterator[Outcome]:
    size = parcel_size(sum(len(document.text.encode()) for document in documents), workers)
    for parcel, weight in pack(documents, size=size):
        yield worker.index(parcel, size=weight)


def run_on_ray(file: str, db: str, options: BenchOptions, workers: Workers) -> Iterator[Outcome]:
    pieces = list_pieces([file])
    found = scan(pieces, start_ray=lambda: None, progress=Progress())
    plan = plan_run(found, {}, delete_missing=False)
    return encode(plan.wanted, pieces, db=db, encoder=find_encoder(options.encoder), workers=workers)


def steady_rate(outcomes: Iterable[Outcome]) -> float:
    """Tokens per second after the first parcel."""
    arrived = [(time.perf_counter(), outcome.written) for outcome in outcomes]
    tokens = sum(written.counts["tokens"] for _, written in arrived[1:] if written)
    return tokens / (arrived[-1][0] - arrived[0][0])


# --- growth


def growth_of_trees(_: BenchOptions) -> list[Figure]:
    """Building the tree and its embeddings alone, on the graph that overlapping windows leave behind."""

    def build(n: int) -> Callable[[int], None]:
        affinity, vectors = band(n), np.ones((n, 16), dtype=np.float32)
        return lambda _: (progressive_embeddings(vectors, build_tree(affinity)), None)[1]

    seconds = [min(side) for side in alternate(7, *map(build, TREE_LEAVES))]
    return [doubling("tree", seconds, {"leaves": TREE_LEAVES})]


def band(n: int, *, seed: int = 5) -> csr_array:
    """(n, n) affinity in which each leaf is linked to the next NEIGHBOURS leaves."""
    rng = np.random.default_rng(seed)
    row = np.repeat(np.arange(n), NEIGHBOURS)
    col = row + np.tile(np.arange(1, NEIGHBOURS + 1), n)
    row, col = row[col < n], col[col < n]
    upper = csr_array((rng.random(len(row), dtype=np.float32), (row, col)), shape=(n, n))
    return csr_array(upper + upper.T)


def doubling(what: str, seconds: list[float], settings: dict) -> Figure:
    ratios = [later / earlier for earlier, later in pairwise(seconds)]
    worst, target = max(ratios), f"<= {MOST_PER_DOUBLING}"
    detail = {**settings, "seconds": seconds, "ratios": ratios}
    return Figure(f"growth: time of the {what} per doubling", worst, target, worst <= MOST_PER_DOUBLING,
                  seconds[-1], seconds[-2], "s", detail)  # fmt: skip


def growth_of_documents(options: BenchOptions) -> list[Figure]:
    """One document of 1, 2, 4 and 8 times the length through everything, and the memory of the longest."""
    sentences = prose(options.source)
    documents = [next(documents_of(sentences, [size], seed=size)) for size in TEXT_CHARACTERS]
    with in_process(options) as worker:
        worker.index(list(documents_of(sentences, [TYPICAL] * CHUNK, seed=3)), size=0)  # warm up
        gc.collect()
        loaded = resident_kib()
        seconds = [
            timed(lambda number: worker.index([documents[number]], size=0), i) for i in range(len(documents))
        ]
        grown = (peak_kib() - loaded) / GIB
    lengths = {**settings(options), "characters": [len(document.text) for document in documents]}
    return [
        doubling("document", seconds, lengths),
        Figure("growth: peak memory of the longest document over the loaded process", grown, "<= 2.5 GiB",
               grown <= MOST_MEMORY_GIB, peak_kib() / GIB, loaded / GIB, "GiB", lengths),
    ]  # fmt: skip


def resident_kib() -> int:
    """Resident memory now, KiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def peak_kib() -> int:
    """Highest resident memory of this process so far, KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


FIGURES: dict[str, Callable[[BenchOptions], list[Figure]]] = {
    "trees": growth_of_trees,
    "documents": growth_of_documents,
    "cost": cost_over_floor,
    "ray": ray_overhead,
}
