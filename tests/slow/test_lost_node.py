"""A node of the cluster disappears in the middle of a run: SIGKILL of its raylet, and its workers with it."""

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from pipelines.index import main
from pipelines.reports import Report
from sproutrag.index import TreeIndex
from sproutrag.options import IndexOptions
from sproutrag.verification import verify
from tests.slow.victims import family
from tests.tiny_models import tiny_bert

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCUMENTS = 1500
NODE = {"num_cpus": 2, "object_store_memory": 100 << 20}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """The head alone; pytest runs this in the main thread, as Ray wants it where nodes come and go."""
    os.environ.update(RAY_AUTH_MODE="disabled", PYTHONPATH=str(ROOT))
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def write_source(path: Path) -> str:
    words = ["rain", "river", "falls", "rises", "north", "south"]
    lines = [
        {"doc_id": f"doc-{i}", "text": " ".join(f"Line {j} of {i}: {words[(i + j) % 6]}." for j in range(12))}
        for i in range(DOCUMENTS)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def wait_until_it_works(raylet: int, db: str, run: "Future[Report]") -> None:
    """Until an encoder lives on this node and something is written."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        assert not run.done(), run.result()
        encodes = any("IndexDocuments" in process.command for process in family(raylet))
        if encodes and any(Path(db, "nodes.lance", "data").glob("*")):
            return
        time.sleep(0.05)
    raise TimeoutError("no encoder on the second node")


def test_a_node_that_is_lost_in_the_middle_costs_nothing_but_time(cluster: Cluster, tmp_path: Path) -> None:
    second = cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False)
    db, encoder = str(tmp_path / "db"), tiny_bert(tmp_path / "encoder", window=512)
    source = write_source(tmp_path / "corpus.jsonl")
    options = IndexOptions(sources=(source,), db=db, encoder=encoder, workers=2)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(main, options)
        wait_until_it_works(second.all_processes["raylet"][0].process.pid, db, run)
        cluster.remove_node(second, allow_graceful=False)
        report = run.result(timeout=400)
    assert (report.inputs, report.indexed, report.quarantined) == (DOCUMENTS, DOCUMENTS, 0), report
    assert report.coverage == 1.0 and report.documents == DOCUMENTS
    assert verify(db).ok
    ids = TreeIndex.open(db).documents.to_table(columns=["doc_id"])["doc_id"].to_pylist()
    assert sorted(ids) == sorted(f"doc-{i}" for i in range(DOCUMENTS))
