"""Figures of `sproutrag bench serve`: what HTTP and Ray Serve cost, and how the endpoint bears load.

The client is this process, the server another, the engine a third; all on loopback. A query is asked once
only, so that neither side finds it in a memory of earlier ones.
"""

import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from pipelines.benchmark import Figure
from pipelines.llm_simulator import simulator_process
from pipelines.plan_player import read_rows
from pipelines.serve_process import resident_mib, serving
from sproutrag.documents import Document
from sproutrag.encoder import SentenceEncoder
from sproutrag.index import TreeIndex
from sproutrag.indices import build_indices
from sproutrag.options import BenchOptions
from sproutrag.storage import commit, publish, write_documents

SINGLE = 200  # searches one after the other
SEARCHERS, LOAD_S, DIRECT_S = 64, 60.0, 15.0
ASKERS, QUESTIONS = 16, 64
MOST_OVERHEAD_MS = 15.0
READY_S = 120.0
Search = Callable[[str], Awaitable[int]]  # the HTTP status


@contextmanager
def bench_index(options: BenchOptions) -> Iterator[TreeIndex]:
    """The corpus of the plans with the real encoder."""
    rows = read_rows(Path(options.plans, "corpus.jsonl"))
    encoder = SentenceEncoder.from_pretrained(options.encoder)
    documents = [Document(row["doc_id"], row["text"], title=row["title"]) for row in rows]
    with tempfile.TemporaryDirectory() as db:
        written = write_documents(db, encoder.encode(documents), fingerprint=encoder.fingerprint)
        head = commit(db, [written], run_id="bench")
        build_indices(db)
        publish(db, head)
        yield TreeIndex.open(db, encoder=encoder)


@contextmanager
def endpoint(options: BenchOptions) -> Iterator[tuple[TreeIndex, str, int]]:
    """Index, address and pid of a server whose engine is simulated."""
    with (
        bench_index(options) as index,
        simulator_process("pipelines.plan_player:speaker", options.plans) as engine,
        serving(index.db, encoder=options.encoder, llm=engine, concurrent_per_key=64) as (address, pid),
    ):
        deadline = time.monotonic() + READY_S
        while httpx2.get(f"{address}/readyz", timeout=30).status_code != 200:
            assert time.monotonic() < deadline, "the endpoint did not become ready"
            time.sleep(1)
        yield index, address, pid


def fresh_queries(index: TreeIndex) -> Callable[[], str]:
    """Words of the corpus, never the same twice, for whichever thread asks."""
    texts = [text.split() for text in index.documents.to_table(columns=["text"])["text"].to_pylist()]
    numbers = count()

    def query() -> str:
        number = next(numbers)
        words = texts[number % len(texts)]
        start = random.Random(number).randrange(max(len(words) - 8, 1))
        return " ".join([*words[start : start + 7], f"x{number}"])

    return query


# --- one at a time


def overhead_figures(options: BenchOptions) -> list[Figure]:
    """Searches in turn, over HTTP and in this process, when nothing else is asked."""
    with endpoint(options) as (index, address, _), httpx2.Client(base_url=address, timeout=60) as client:
        query = fresh_queries(index)

        def direct() -> None:
            index.search(query(), k=5)

        def over_http() -> None:
            client.post("/v1/search", json={"query": query(), "k": 5}).raise_for_status()

        for _ in range(SINGLE // 10):
            direct()
            over_http()
        seconds = [[stopwatch(side) for side in (direct, over_http)] for _ in range(SINGLE)]
    here, there = (1e3 * statistics.median(column) for column in zip(*seconds, strict=True))
    cost = there - here
    settings = {"searches": SINGLE, "direct_ms": round(here, 2), "http_ms": round(there, 2)}
    ratio, target = cost / MOST_OVERHEAD_MS, f"HTTP less direct <= {MOST_OVERHEAD_MS:g} ms"
    return [Figure("overhead", ratio, target, ratio <= 1, cost, MOST_OVERHEAD_MS, "ms", settings)]


def stopwatch(side: Callable[[], None]) -> float:
    began = time.perf_counter()
    side()
    return time.perf_counter() - began


# --- many at once


def load_figures(options: BenchOptions) -> list[Figure]:
    """64 searchers for a minute: errors, throughput and p95 beside searches in this process; memory."""
    with endpoint(options) as (index, address, pid):
        query = fresh_queries(index)
        direct = in_threads(lambda: index.search(query(), k=5), SEARCHERS, DIRECT_S)
        spans, errors, memory = asyncio.run(under_load(address, query, pid))
    settings = {"searchers": SEARCHERS, "seconds": LOAD_S, "errors": errors, "searches": len(spans)}
    rate, reference = len(spans) / LOAD_S, len(direct) / DIRECT_S
    slow, slow_direct = (1e3 * float(np.quantile(side, 0.95)) for side in (spans, direct))
    grown = memory[-1] / memory[0]
    return [
        Figure("load_errors", errors, "0", errors == 0, errors, len(spans), "requests", settings),
        Figure("load_throughput", rate / reference, "-", True, rate, reference, "searches/s", settings),
        Figure("load_p95", slow / slow_direct, "-", True, slow, slow_direct, "ms", settings),
        Figure("load_memory", grown, "<= 1.05", grown <= 1.05, memory[-1], memory[0], "MiB", settings),
    ]


def in_threads(search: Callable[[], Any], threads: int, seconds: float) -> list[float]:
    """Seconds of each search of as many threads as there are searchers."""
    deadline = time.monotonic() + seconds

    def searcher() -> list[float]:
        spans = []
        while time.monotonic() < deadline:
            spans.append(stopwatch(search))
        return spans

    with ThreadPoolExecutor(threads) as pool:
        parts = [pool.submit(searcher) for _ in range(threads)]
    return [span for part in parts for span in part.result()]


async def under_load(
    address: str, query: Callable[[], str], pid: int
) -> tuple[list[float], int, list[float]]:
    """Seconds of each search, how many failed, and the server's memory on the way (after a tenth, at the
    end)."""
    spans: list[float] = []
    failed: list[int] = []
    limits = httpx2.Limits(max_connections=SEARCHERS)
    async with httpx2.AsyncClient(base_url=address, timeout=60, limits=limits) as client:
        deadline = time.monotonic() + LOAD_S

        async def searcher() -> None:
            while time.monotonic() < deadline:
                began = time.perf_counter()
                reply = await client.post("/v1/search", json={"query": query(), "k": 5})
                spans.append(time.perf_counter() - began)
                if reply.status_code != 200:
                    failed.append(reply.status_code)

        searchers = [asyncio.create_task(searcher()) for _ in range(SEARCHERS)]
        await asyncio.sleep(LOAD_S / 3)
        memory = [await asyncio.to_thread(resident_mib, pid)]
        await asyncio.gather(*searchers)
    return spans, len(failed), [*memory, resident_mib(pid)]


def question_figures(options: BenchOptions) -> list[Figure]:
    """16 questions at once, streamed: each ends with `done` and an answer."""
    asked = [row["question"] for row in read_rows(Path(options.plans, "plan.jsonl"))]
    with endpoint(options) as (_, address, _):
        began = time.monotonic()
        ends = asyncio.run(stream_all(address, [asked[i % len(asked)] for i in range(QUESTIONS)]))
        seconds = time.monotonic() - began
    failed = sum(end != "done" for end in ends)
    settings = {"at_once": ASKERS, "questions": QUESTIONS, "seconds": round(seconds, 1)}
    return [Figure("questions_failed", failed, "0", failed == 0, failed, QUESTIONS, "streams", settings)]


async def stream_all(address: str, questions: list[str]) -> list[str]:
    """The last event of each stream, in order."""
    places = asyncio.Semaphore(ASKERS)
    async with httpx2.AsyncClient(base_url=address, timeout=300) as client:
        return await asyncio.gather(*(last_event(client, question, places) for question in questions))


async def last_event(client: httpx2.AsyncClient, question: str, places: asyncio.Semaphore) -> str:
    last, body = "nothing", {"question": question}
    async with places, client.stream("POST", "/v1/ask", json=body, headers=STREAMED) as stream:
        async for event in httpx2.EventSource(stream):
            last = event.event
            if last == "done" and not json.loads(event.data)["answered"]:
                last = "not answered"
    return last


STREAMED = {"Accept": "text/event-stream"}
FIGURES = {"overhead": overhead_figures, "load": load_figures, "questions": question_figures}
