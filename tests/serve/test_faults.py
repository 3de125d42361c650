"""What goes wrong under load: replicas that die, clients that leave, snapshots that move, hostile senders.

The server is `sproutrag serve` itself, with two retriever replicas; its processes are found and killed.
"""

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pipelines.llm_simulator import simulator_process
from pipelines.serve_process import family, serving
from sproutrag.documents import Document
from sproutrag.encoder import SentenceEncoder
from sproutrag.storage import commit, publish, write_documents
from tests.qa.oracle import OURS
from tests.qa.real_index import real_index
from tests.serve.endpoint import GOLD, documents, wait_until_ready

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
RECOVERY_S = 40.0  # a health check finds the dead, Ray starts a process, torch is loaded


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    real_index(folder, documents())
    return folder


@pytest.fixture(scope="module")
def slow_engine() -> Iterator[str]:
    with simulator_process("tests.serve.talker:of_plans", str(OURS), output_token_s=0.02) as url:
        yield url


@pytest.fixture(scope="module")
def running(home: Path, slow_engine: str) -> Iterator[tuple[str, int]]:
    """Two retriever replicas, so that one is left when the other dies."""
    settings = {
        "snapshot_poll_s": 0.5,
        "retriever_min_replicas": 2,
        "retriever_max_replicas": 2,
        "retriever_cpus": 0.5,
        "health_period_s": 1,
        "concurrent_per_key": 64,
    }
    with serving(str(home / "db"), encoder=str(home / "tiny"), llm=slow_engine, **settings) as (url, pid):
        wait_until_ready(url)
        yield url, pid


class Load:
    """Searchers that go on until the block ends; what each got."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.failures: list[tuple[float, str]] = []
        self.snapshots: set[int] = set()


@contextmanager
def load(url: str, searchers: int = 6) -> Iterator[Load]:
    seen, over = Load(), threading.Event()

    def searcher(number: int) -> None:
        with httpx2.Client(base_url=url, timeout=60) as client:
            turn = 0
            while not over.is_set():
                turn += 1
                try:
                    reply = client.post("/v1/search", json={"query": f"vault {number} {turn}", "k": 2})
                except httpx2.HTTPError as error:
                    seen.failures.append((time.monotonic(), type(error).__name__))
                    continue
                seen.statuses.append(reply.status_code)
                if reply.status_code == 200:
                    seen.snapshots.add(reply.json()["snapshot"])
                else:
                    seen.failures.append((time.monotonic(), reply.text[:200]))

    threads = [threading.Thread(target=searcher, args=(n,)) for n in range(searchers)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        over.set()
        for thread in threads:
            thread.join()


def replicas(pid: int, name: str) -> list[int]:
    """Processes of a deployment, by the name that Ray gives them."""
    title = f"ServeReplica:sproutrag:{name}"
    return [member for member in family(pid) if title in Path(f"/proc/{member}/cmdline").read_text("latin-1")]


def until(condition: Callable[[], Any], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.2)
    return found


def test_a_killed_retriever_costs_at_most_what_it_was_answering_and_is_replaced(running: Any) -> None:
    url, pid = running
    with load(url) as seen:
        time.sleep(2)
        [victim, _] = until(lambda: found if len(found := replicas(pid, "Retriever")) == 2 else None, 30)
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(set(replicas(pid, "Retriever")) - {victim}) == 2, RECOVERY_S)
        time.sleep(2)
        before = len(seen.failures)
        time.sleep(3)
    assert len(seen.statuses) > 50
    assert len(seen.failures) <= 6, seen.failures
    assert len(seen.failures) == before, "no failure after it recovered"


def test_a_killed_ingress_is_replaced_and_costs_at_most_what_it_was_answering(running: Any) -> None:
    url, pid = running
    with load(url) as seen:
        time.sleep(1)
        [victim] = replicas(pid, "Ingress")
        os.kill(victim, signal.SIGKILL)
        until(lambda: set(replicas(pid, "Ingress")) - {victim}, RECOVERY_S)
        wait_until_ready(url)
        before = len(seen.failures)
        time.sleep(3)
    assert len(seen.failures) == before, "no failure after it recovered"
    refused = [text for _, text in seen.failures if "unavailable" not in text.lower()]
    assert len(refused) <= 6, seen.failures
    told = httpx2.post(f"{url}/v1/ask", json={"question": GOLD[0].question}, timeout=120).json()
    assert told["answered"], "the crew came back with the ingress"


def test_a_snapshot_published_under_load_costs_no_request(running: Any, home: Path) -> None:
    url, _ = running
    encoder = SentenceEncoder.from_pretrained(str(home / "tiny"))
    with load(url) as seen:
        time.sleep(1)
        for number in range(3):
            new = Document(f"news-{number}", f"The vault of number {number} was opened today.", title="News")
            written = write_documents(
                str(home / "db"), encoder.encode([new]), fingerprint=encoder.fingerprint
            )
            publish(str(home / "db"), commit(str(home / "db"), [written], run_id=f"news {number}"))
            time.sleep(2)
    assert not seen.failures, seen.failures
    assert len(seen.snapshots) >= 3, "searches moved on with the index"
    assert httpx2.get(f"{url}/v1/snapshots").json()["current"] == max(seen.snapshots)


def test_clients_that_leave_take_their_llm_calls_with_them(running: Any, slow_engine: str) -> None:
    """Within two seconds no call is open, and the gauges are back at zero."""
    url, _ = running
    rng = random.Random(5)

    def leave() -> None:
        body = {"question": GOLD[rng.randrange(len(GOLD))].question}
        accept = {"Accept": "text/event-stream"}
        with (
            httpx2.Client(timeout=60) as client,
            client.stream("POST", f"{url}/v1/ask", json=body, headers=accept) as s,
        ):
            assert s.status_code == 200
            gone = time.monotonic() + rng.uniform(0.3, 1.5)
            for _ in s.iter_lines():
                if time.monotonic() > gone:
                    return

    threads = [threading.Thread(target=leave) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log_of = lambda: httpx2.get(slow_engine.removesuffix("/v1") + "/log").json()  # noqa: E731
    until(lambda: log_of()["at_once"] == 0, 2.0)
    asked = log_of()["calls"]
    time.sleep(1)
    assert log_of()["calls"] == asked, "nobody asks on for who has left"
    until(lambda: open_gauges(url) == {0.0}, 30.0)


def open_gauges(url: str) -> set[float]:
    lines = httpx2.get(f"{url}/metrics", timeout=30).text.splitlines()
    names = ("ray_sproutrag_open_questions{", "ray_sproutrag_open_llm_calls{")
    return {float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names)}


def test_hostile_senders_are_refused_cheaply_while_others_are_served(running: Any) -> None:
    url, _ = running
    host, port = url.removeprefix("http://").split(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(100)]
    for number, connection in enumerate(slow):
        connection.sendall(b"POST /v1/search HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        if number % 2:
            connection.sendall(b"1\r\nContent-Length: 1000\r\n\r\n{")
    with load(url, searchers=2) as seen:
        big = b'{"query": "' + b"x" * 50_000_000 + b'"}'
        try:
            reply = httpx2.post(f"{url}/v1/search", content=big, timeout=60)
            assert reply.status_code == 413
        except httpx2.WriteError:
            pass  # the server closed before all of it was sent, which is as good
        for body in (b"\xff" * 1000, b"[" * 100_000, b'{"a":' * 50_000):
            assert httpx2.post(f"{url}/v1/search", content=body, timeout=60).status_code in (400, 422)
        time.sleep(2)
    for connection in slow:
        connection.close()
    assert len(seen.statuses) > 20 and not seen.failures, seen.failures[:5]
