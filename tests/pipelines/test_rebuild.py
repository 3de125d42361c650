"""A rebuild with another encoder on real Ray: beside the live index, nothing lost."""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
import ray

from pipelines import encoding, maintenance
from pipelines.actors import IndexDocuments, problem_with
from pipelines.index import main
from pipelines.rebuild import RebuildRefused
from pipelines.reports import Report
from sproutrag.commits import replace_rows
from sproutrag.documents import Document
from sproutrag.index import TreeIndex
from sproutrag.options import IndexOptions
from sproutrag.retention import prune, rollback
from sproutrag.snapshots import EncoderMismatch, current_snapshot, list_snapshots, read_snapshot
from sproutrag.storage import encoder_of, stored_hashes
from sproutrag.tables import nodes_schema, open_table
from sproutrag.verification import verify
from tests.tiny_models import tiny_qwen3

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
Writer = Callable[..., str]
Records = Callable[[int], list[dict]]


@pytest.fixture(scope="module", autouse=True)
def ray_here() -> Iterator[None]:
    os.environ.update(RAY_AUTH_MODE="disabled", PYTHONPATH=str(ROOT))
    here = {"address": "local", "num_cpus": 2, "object_store_memory": 100 << 20}
    ray.init(**here, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def wide_encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Another family, twice as wide."""
    return tiny_qwen3(tmp_path_factory.mktemp("encoder") / "tiny-qwen3", width=64)


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "db")


@pytest.fixture
def index(db: str, tiny_encoder: str, index_first: Callable[[IndexOptions], Report]) -> Callable[..., Report]:
    """Rebuilds on Ray; what comes before and after them in this process, which is faster."""

    def run(*sources: str, **options: object) -> Report:
        wanted = IndexOptions(**{"sources": sources, "db": db, "encoder": tiny_encoder} | options)
        return main(wanted) if wanted.rebuild else index_first(wanted)

    return run


def test_another_encoder_is_refused_by_both_names_until_a_rebuild_is_asked_for(
    index: Callable[..., Report],
    write_corpus: Writer,
    records: Records,
    db: str,
    tiny_encoder: str,
    wide_encoder: str,
) -> None:
    source = write_corpus(records(8))
    narrow = index(source)
    with pytest.raises(EncoderMismatch, match=f"{narrow.encoder}.*qwen3.*--rebuild"):
        index(source, encoder=wide_encoder)
    kept = TreeIndex.open(db)
    report = index(source, encoder=wide_encoder, rebuild=True)
    assert (report.inputs, report.replaced, report.unchanged, report.snapshot) == (8, 8, 0, 2)
    assert report.encoder != narrow.encoder and report.documents == 8
    assert verify(db).ok and verify(db, snapshot=1).ok
    assert current_snapshot(db).dimension != read_snapshot(db, 1).dimension
    assert kept.search("Clause 3.1 bell", k=2) == TreeIndex.open(db, snapshot=1).search(
        "Clause 3.1 bell", k=2
    )
    assert TreeIndex.open(db).encoder.fingerprint == report.encoder
    assert index(source, encoder=None).unchanged == 8, "the next run knows the new encoder"
    with pytest.raises(EncoderMismatch):
        index(source, encoder=tiny_encoder)
    assert rollback(db, 1).fingerprint == narrow.encoder
    assert TreeIndex.open(db).encoder.fingerprint == narrow.encoder
    assert verify(db).ok and index(source).unchanged == 8


def test_documents_that_only_the_index_holds_are_taken_along(
    index: Callable[..., Report], write_corpus: Writer, records: Records, db: str, wide_encoder: str
) -> None:
    corpus = records(12)
    index(write_corpus(corpus))
    before = stored_hashes(db)
    rest = write_corpus(corpus[:5])
    report = index(rest, encoder=wide_encoder, rebuild=True)
    assert (report.inputs, report.replaced, report.deleted, report.documents) == (12, 12, 0, 12)
    assert stored_hashes(db) == before, "the next run finds nothing changed"
    assert index(write_corpus(corpus), encoder=wide_encoder).unchanged == 12
    report = index(write_corpus(corpus[:5]), encoder=wide_encoder, rebuild=True, delete_missing=True)
    assert (report.replaced, report.deleted, report.documents) == (5, 7, 5)
    assert verify(db).ok


class FailsOnRain(IndexDocuments):
    def encode(self, documents: Sequence[Document]) -> tuple[list, list]:
        good = [one for one in documents if "rain" not in one.text]
        bad = [problem_with(one, "the encoder failed") for one in documents if "rain" in one.text]
        encoded, problems = super().encode(good) if good else ([], [])
        return encoded, problems + bad


def test_a_rebuild_whose_encoder_fails_leaves_the_live_index_serving(
    index: Callable[..., Report],
    write_corpus: Writer,
    records: Records,
    db: str,
    wide_encoder: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P070: on all documents or on one; the message says which and why."""
    corpus = records(6)
    source = write_corpus(corpus)
    index(source)
    found = TreeIndex.open(db).search("Clause 3.1", k=1)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(encoding, "IndexDocuments", FailsOnRain)
    with pytest.raises(RebuildRefused, match=r"would lose 'doc-00.*the encoder failed.*sproutrag delete"):
        index(source, encoder=wide_encoder, rebuild=True)
    assert list_snapshots(db) == [1] and stored_hashes(db).keys() == {one["doc_id"] for one in corpus}
    assert TreeIndex.open(db).search("Clause 3.1", k=1) == found and verify(db).ok


def test_a_source_that_cannot_be_read_this_time_is_encoded_from_its_stored_text(
    index: Callable[..., Report], write_corpus: Writer, records: Records, db: str, wide_encoder: str
) -> None:
    corpus = records(6)
    index(write_corpus(corpus))
    corpus[2]["text"] = ""
    report = index(write_corpus(corpus), encoder=wide_encoder, rebuild=True, delete_missing=True)
    assert (report.quarantined, report.replaced, report.documents) == (1, 6, 6) and verify(db).ok


def test_queries_during_a_rebuild_are_answered_from_one_version(
    index: Callable[..., Report], write_corpus: Writer, records: Records, db: str, wide_encoder: str
) -> None:
    """P071: no error, no empty answer, each as one of the two versions answers it."""
    source = write_corpus(records(60))
    index(source)
    query, answers, stop = "Clause 8.1 north bell", [], threading.Event()

    def ask() -> None:
        while not stop.is_set():
            reader = TreeIndex.open(db)
            answers.append((reader.snapshot.id, json.dumps([asdict(p) for p in reader.search(query, k=3)])))
            reader.close()

    asking = threading.Thread(target=ask)
    asking.start()
    index(source, encoder=wide_encoder, rebuild=True)
    stop.set()
    asking.join()
    expected = {
        id: json.dumps([asdict(p) for p in TreeIndex.open(db, snapshot=id).search(query, k=3)])
        for id in (1, 2)
    }
    assert answers and all(found == expected[id] for id, found in answers)


def test_a_rebuild_killed_before_it_was_published_is_finished_by_the_next_run(
    index: Callable[..., Report],
    write_corpus: Writer,
    records: Records,
    db: str,
    tiny_encoder: str,
    wide_encoder: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = write_corpus(records(6))
    index(source)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(maintenance, "build_indices", killed)
        with pytest.raises(KeyboardInterrupt):
            index(source, encoder=wide_encoder, rebuild=True)
    assert TreeIndex.open(db).snapshot.encoder == tiny_encoder and encoder_of(db) == wide_encoder
    report = index(source, encoder=None)
    assert (report.unchanged, report.snapshot) == (6, 2) and verify(db).ok
    assert current_snapshot(db).encoder == wide_encoder


def test_a_rebuild_killed_between_the_tables_never_happened(
    index: Callable[..., Report], write_corpus: Writer, records: Records, db: str, wide_encoder: str
) -> None:
    source = write_corpus(records(6))
    index(source)
    worker = IndexDocuments(db=db, encoder=wide_encoder, threads=1, rebuild=True)
    written = worker.index([Document("doc-000", "Another text.", language="en")], size=0).written
    assert written and written.dimension != open_table(db, "nodes").schema.field("vector").type.list_size
    schema = nodes_schema(written.dimension)
    replace_rows(db, "nodes", written.nodes, [], {"run_id": "killed"}, schema=schema)
    assert verify(db).ok and index(source).unchanged == 6
    changed = records(6)
    changed[0]["text"] = "Changed since."
    assert index(write_corpus(changed)).replaced == 1 and verify(db).ok


def test_nothing_of_the_old_model_stays_after_a_clean_up(
    index: Callable[..., Report], write_corpus: Writer, records: Records, db: str, wide_encoder: str
) -> None:
    """P098: no version, no record, no file names or holds what the old encoder made."""
    source = write_corpus(records(6))
    old = index(source).encoder
    report = index(source, encoder=wide_encoder, rebuild=True)
    prune(db, keep=1)
    assert list_snapshots(db)[0] >= report.snapshot and verify(db).ok
    files = [path for path in Path(db).rglob("*") if path.is_file()]
    assert not [path for path in files if old.rpartition("@")[2].encode() in path.read_bytes()]


def test_the_same_encoder_again(
    index: Callable[..., Report], write_corpus: Writer, records: Records, db: str
) -> None:
    source = write_corpus(records(5))
    index(source)
    report = index(source, rebuild=True)
    assert (report.replaced, report.snapshot) == (5, 2) and verify(db).ok
    assert index(source, rebuild=False).unchanged == 5
