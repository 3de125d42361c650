"""The whole job on real Ray with a real but tiny encoder; one Ray for all, as starting it costs seconds."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
import ray
from ray.cluster_utils import Cluster

from pipelines import encoding, plan
from pipelines import index as job
from pipelines.actors import IndexDocuments, read_parcels, unseal
from pipelines.index import main
from pipelines.plan import plan_run, reading_list, scan
from pipelines.progress import Progress
from pipelines.reports import Report
from sproutrag.documents import Document
from sproutrag.ingest import list_pieces
from sproutrag.options import IndexOptions
from sproutrag.snapshots import EncoderMismatch, current_snapshot
from sproutrag.storage import commit, publish

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
Writer = Callable[..., str]
Records = Callable[[int], list[dict]]


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[str]:
    """Two Ray nodes on this machine; a job that finds Ray running uses it and leaves it running."""
    os.environ.update(RAY_AUTH_MODE="disabled", PYTHONPATH=str(ROOT))
    node = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "db")


@pytest.fixture
def index(two_nodes: str, db: str, tiny_encoder: str) -> Callable[..., Report]:
    def run(*sources: str, **options: object) -> Report:
        return main(IndexOptions(**{"sources": sources, "db": db, "encoder": tiny_encoder} | options))

    return run


def rows(db: str, table: str, *, drop: tuple[str, ...] = ()) -> list[dict]:
    """Rows of the current snapshot in an order of their own."""
    snapshot = current_snapshot(db)
    assert snapshot
    version = snapshot.documents_version if table == "documents" else snapshot.nodes_version
    found = lance.dataset(f"{db}/{table}.lance", version=version).to_table().to_pylist()
    kept = [{name: value for name, value in row.items() if name not in drop} for row in found]
    return sorted(kept, key=lambda row: (row["doc_id"], row.get("node", 0)))


def index_in_process(source: str, *, db: str, encoder: str) -> None:
    """What the job does, as one loop without Ray: the oracle."""
    pieces = list_pieces([source])
    found = scan(pieces, start_ray=lambda: None, progress=Progress())
    planned = plan_run(found, {}, delete_missing=False)
    worker = IndexDocuments(db=db, encoder=encoder, threads=1)
    readings = reading_list(pieces, planned.wanted, size=1 << 20)
    parcels = pa.concat_tables(t for reading in readings for t in read_parcels(reading, parcel_size=1 << 20))
    outcomes = [worker.index(unseal(parcel), size=0) for parcel in parcels["documents"].to_pylist()]
    publish(db, commit(db, [one.written for one in outcomes if one.written], run_id="loop"))


def test_two_workers_on_two_nodes_write_what_one_process_writes(
    index: Callable[..., Report],
    write_corpus: Writer,
    records: Records,
    tmp_path: Path,
    db: str,
    tiny_encoder: str,
) -> None:
    source = write_corpus(records(40))
    report = index(source, workers=2)
    assert (report.inputs, report.indexed, report.quarantined, report.coverage) == (40, 40, 0, 1.0)
    assert report.snapshot == 1 and report.workers == 2
    alone = str(tmp_path / "alone")
    index_in_process(source, db=alone, encoder=tiny_encoder)
    assert rows(db, "documents", drop=("indexed_at", "affinity")) == rows(
        alone, "documents", drop=("indexed_at", "affinity")
    )
    assert rows(db, "nodes", drop=("vector",)) == rows(alone, "nodes", drop=("vector",))
    ours, theirs = ([row["vector"] for row in rows(place, "nodes")] for place in (db, alone))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_second_run_encodes_nothing_and_changes_nothing(
    index: Callable[..., Report], write_corpus: Writer, records: Records, db: str
) -> None:
    source = write_corpus(records(12))
    index(source)
    before = sorted((path, path.stat().st_mtime_ns) for path in Path(db).rglob("*") if path.is_file())
    report = index(source)
    assert (report.inputs, report.unchanged, report.tokens, report.workers) == (12, 12, 0, 0)
    assert report.snapshot == 1 and report.coverage == 1.0
    assert before == sorted((path, path.stat().st_mtime_ns) for path in Path(db).rglob("*") if path.is_file())


def test_changed_documents_replace_themselves_and_missing_ones_go_when_asked(
    index: Callable[..., Report], write_corpus: Writer, records: Records, db: str
) -> None:
    corpus = records(12)
    index(write_corpus(corpus))
    corpus[3]["text"] = "Entirely new. The old clause is gone."
    corpus[12:] = [{"doc_id": "extra", "text": "One more document."}]
    report = index(write_corpus(corpus[1:]), delete_missing=True)
    counted = (report.inputs, report.indexed, report.replaced, report.unchanged, report.deleted)
    assert counted == (12, 1, 1, 10, 1)
    stored = {row["doc_id"]: row["text"] for row in rows(db, "documents")}
    assert stored == {record["doc_id"]: record["text"] for record in corpus[1:]}
    assert {row["doc_id"] for row in rows(db, "nodes")} == stored.keys()


def test_bad_lines_are_set_aside_with_place_and_reason_and_the_rest_is_indexed(
    index: Callable[..., Report], tmp_path: Path, records: Records
) -> None:
    lines = [json.dumps(record) for record in records(9)]
    lines[4] = '["a", "b"]'
    source = tmp_path / "bad.jsonl"
    source.write_text("\n".join(lines))
    report = index(str(source))
    assert (report.inputs, report.indexed, report.quarantined) == (9, 8, 1)
    [problem] = report.problems
    assert problem.source.endswith("bad.jsonl:5") and problem.reason and problem.hint


def test_documents_of_every_size_are_indexed(
    index: Callable[..., Report], write_corpus: Writer, records: Records, db: str
) -> None:
    """One document is a thousand times larger than the others."""
    corpus = records(30)
    corpus[7]["text"] = " ".join(f"Sentence number {i} of the long one." for i in range(3000))
    report = index(write_corpus(corpus), workers=2)
    assert (report.indexed, report.coverage) == (30, 1.0)
    assert {row["doc_id"] for row in rows(db, "documents")} == {record["doc_id"] for record in corpus}


def test_another_encoder_is_refused_before_anything_is_read(
    index: Callable[..., Report], write_corpus: Writer, records: Records, db: str
) -> None:
    source = write_corpus(records(3))
    report = index(source)
    with pytest.raises(EncoderMismatch, match=report.encoder):
        index(source, encoder="all-MiniLM-L6-v2")
    assert index(source, encoder=None).unchanged == 3, "without --encoder the index knows its own"


class DeadlyForOneDocument(IndexDocuments):
    """Loses its whole process on one document, as native code can."""

    def encode(self, documents: Sequence[Document]) -> tuple[list, list]:
        if any("deadly" in document.text for document in documents):
            os._exit(1)
        return super().encode(documents)


def test_a_document_that_kills_its_worker_is_set_aside_and_the_rest_is_indexed(
    index: Callable[..., Report], write_corpus: Writer, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(encoding, "IndexDocuments", DeadlyForOneDocument)
    corpus = records(20)
    corpus[11]["text"] = "A deadly sentence."
    report = index(write_corpus(corpus))
    assert (report.indexed, report.quarantined) == (19, 1)
    assert report.problems[0].doc_id == "doc-011" and "worker" in report.problems[0].reason
    again = index(write_corpus(corpus))
    assert (again.unchanged, again.quarantined, again.workers) == (19, 1, 0), (
        "it kills one run's workers only"
    )


def test_a_long_scan_goes_on_in_parallel_and_finds_the_same(
    two_nodes: str, write_corpus: Writer, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = records(60)
    pieces = list_pieces([write_corpus(corpus[i::4], f"{i}.jsonl") for i in range(4)])
    here = scan(pieces, start_ray=lambda: None, progress=Progress())
    monkeypatch.setattr(plan, "SCAN_SECONDS", -1.0)
    on_ray = scan(pieces, start_ray=lambda: None, progress=Progress())
    assert on_ray.sort_by("doc_id").equals(here.sort_by("doc_id"))


def command(*words: str, **environment: str) -> subprocess.Popen[str]:
    code = "from sproutrag.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env=os.environ | {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": ""} | environment,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_command_joins_the_cluster_of_ray_address(
    two_nodes: str, write_corpus: Writer, records: Records, db: str, tiny_encoder: str
) -> None:
    words = ["index", write_corpus(records(5)), "--db", db, "--encoder", tiny_encoder, "--json"]
    run = command(*words, RAY_ADDRESS=two_nodes)
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    report = json.loads(out)
    assert report["in"] == report["indexed"] == 5
    assert len(ray.nodes()) == 2, "the cluster goes on without the job"


def test_an_interrupted_run_leaves_the_index_alone(
    write_corpus: Writer, records: Records, db: str, tiny_encoder: str
) -> None:
    """Ctrl-C in the middle of a run in a process of its own."""
    run = command("index", write_corpus(records(4000)), "--db", db, "--encoder", tiny_encoder)
    assert run.stderr
    while "encode" not in run.stderr.readline():
        assert run.poll() is None
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    assert "Traceback" not in err and not out
    assert current_snapshot(db) is None


def test_a_worker_that_cannot_load_the_encoder_fails_the_run_with_one_line(
    index: Callable[..., Report],
    write_corpus: Writer,
    records: Records,
    db: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job, "fingerprint_of", lambda path: "another@000000000000")
    with pytest.raises(encoding.WorkersFailed, match=r"another@000000000000.*on every node") as failure:
        index(write_corpus(records(3)))
    assert len(str(failure.value).splitlines()) == 2
    assert current_snapshot(db) is None
