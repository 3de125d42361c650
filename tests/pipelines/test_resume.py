"""Runs that die and the runs after them: the driver's side, a real encoder in this process, no Ray."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines import index as job
from pipelines.actors import IndexDocuments
from pipelines.index import forecast, main
from pipelines.reports import Report
from sproutrag import journal, storage
from sproutrag.documents import Document
from sproutrag.ingest import list_pieces, read_piece
from sproutrag.options import IndexOptions
from sproutrag.retention import delete_documents, prune
from sproutrag.snapshots import current_snapshot
from sproutrag.storage import stored_hashes
from sproutrag.verification import verify
from tests.small_index import node_counts

Writer = Callable[..., str]
Records = Callable[[int], list[dict]]


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "db")


@pytest.fixture
def finish(worker: IndexDocuments, db: str) -> Callable[..., None]:
    """Encode what a source holds, in parcels of three documents, as a run that dies before its commit."""

    def work(source: str, first: int = 0, last: int = 1000) -> None:
        worker.db = db
        documents = [one for piece in list_pieces([source]) for one in read_piece(piece)][first:last]
        assert all(type(one) is Document for one in documents)
        for start in range(0, len(documents), 3):
            worker.index(documents[start : start + 3], size=0)

    return work


@pytest.fixture
def index(db: str, tiny_encoder: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    """The job, which must not encode anything: Ray is not to be had."""
    monkeypatch.setattr(job, "share_out", lambda *_, **__: pytest.fail("something was encoded again"))

    def run(*sources: str, **options: object) -> Report:
        return main(IndexOptions(**{"sources": sources, "db": db, "encoder": tiny_encoder} | options))

    return run


def whole(db: str, records: list[dict]) -> None:
    """The index holds exactly these, is sound, and nothing waits in the journal."""
    assert stored_hashes(db).keys() == node_counts(db).keys() == {record["doc_id"] for record in records}
    assert verify(db).problems == ()
    assert not journal.is_pending(db) and not Path(db, "journal").exists()


def test_what_a_dead_run_finished_is_not_encoded_again(
    index: Callable[..., Report],
    finish: Callable[..., None],
    write_corpus: Writer,
    records: Records,
    db: str,
    tiny_encoder: str,
) -> None:
    source = write_corpus(records(10))
    finish(source)
    foreseen = forecast(IndexOptions(sources=(source,), db=db, encoder=tiny_encoder))
    assert (foreseen.new, foreseen.resumed, foreseen.estimate.documents) == (10, 10, 0)
    report = index(source)
    assert (report.inputs, report.indexed, report.resumed, report.workers) == (10, 10, 10, 0)
    whole(db, records(10))
    assert index(source).unchanged == 10


def test_documents_that_are_no_longer_wanted_are_left_out_of_what_is_taken_over(
    index: Callable[..., Report], finish: Callable[..., None], write_corpus: Writer, records: Records, db: str
) -> None:
    """Of each parcel one document is gone, and of one all are."""
    finish(write_corpus(records(9)))
    kept = [
        record
        for record in records(9)
        if record["doc_id"] not in ("doc-001", "doc-003", "doc-004", "doc-005")
    ]
    report = index(write_corpus(kept))
    assert (report.indexed, report.resumed, report.dropped) == (5, 5, [])
    whole(db, kept)


def test_a_document_finished_twice_is_taken_once(
    index: Callable[..., Report], finish: Callable[..., None], write_corpus: Writer, records: Records, db: str
) -> None:
    source = write_corpus(records(7))
    finish(source)
    finish(source, first=2, last=6)
    assert index(source).resumed == 7
    whole(db, records(7))


def die(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def die_at(n: int, real: Callable) -> Callable:
    """The n-th call dies."""
    calls = []

    def call(*arguments: object, **named: object) -> object:
        calls.append(1)
        return real(*arguments, **named) if len(calls) != n else die()

    return call


@pytest.mark.parametrize(
    "moment", ["before nodes", "between the tables", "before publishing", "in the record", "before emptying"]
)
def test_killed_at_any_moment_the_next_run_ends_the_work(
    index: Callable[..., Report],
    finish: Callable[..., None],
    write_corpus: Writer,
    records: Records,
    db: str,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """A first snapshot of four documents; then one changes, one goes and four come, and the run dies."""
    first = write_corpus(records(4), "first.jsonl")
    finish(first)
    index(first)
    corpus = records(8)[1:]
    corpus[0]["text"] = "Entirely new. The old clause is gone."
    source = write_corpus(corpus)
    finish(source, last=1)
    finish(source, first=3)
    place, name, fake = {
        "before nodes": (storage, "replace_rows", die),
        "between the tables": (storage, "replace_rows", die_at(2, storage.replace_rows)),
        "before publishing": (job, "publish", die),
        "in the record": (storage, "write_snapshot", die),
        "before emptying": (journal, "empty", die),
    }[moment]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(place, name, fake)
        index(source, delete_missing=True)
    assert verify(db).problems == (), "readers stay on the last snapshot"
    assert current_snapshot(db).counts["documents"] == (7 if moment == "before emptying" else 4)
    prune(db, keep=1)  # what the next run needs survives it
    report = index(source, delete_missing=True)
    assert report.inputs == 7 and report.dropped == []
    whole(db, corpus)
    prune(db, keep=1)
    index(source, delete_missing=True)
    whole(db, corpus)


def test_work_of_another_encoder_or_a_torn_file_is_dropped_and_reported(
    finish: Callable[..., None], write_corpus: Writer, records: Records, db: str, tiny_encoder: str
) -> None:
    source = write_corpus(records(9))
    finish(source)
    foreign, torn, short = sorted(Path(db, "journal").glob("*.json"))
    foreign.write_text(foreign.read_text().replace('"fingerprint": "tiny', '"fingerprint": "other'))
    torn.write_text(torn.read_text()[:50])
    name = json.loads(json.loads(short.read_text())["written"]["nodes"][0])["files"][0]["path"]
    file = Path(db, "nodes.lance", "data", name)
    file.write_bytes(file.read_bytes()[:-1])
    asked = IndexOptions(sources=(source,), db=db, encoder=tiny_encoder)
    with job.ray_on_demand() as start_ray:
        work = job.look(job.prepare(asked, ""), start_ray=start_ray, progress=job.Progress())
    assert work.finished.doc_ids == frozenset()
    assert [next(word for word in ("encoder", "gone or not whole", "Unterminated") if word in reason)
            for reason in sorted(work.finished.dropped)] != []  # fmt: skip
    assert len(work.finished.dropped) == 3


def test_clean_up_keeps_what_waits_for_the_next_run_and_purge_does_not(
    index: Callable[..., Report], finish: Callable[..., None], write_corpus: Writer, records: Records, db: str
) -> None:
    source = write_corpus(records(3), "first.jsonl")
    finish(source)
    index(source)
    more = write_corpus(records(6), "more.jsonl")
    finish(more, first=3)
    prune(db, keep=1)
    assert index(more).resumed == 3
    secret = write_corpus([{"doc_id": "s", "text": "Zanzibarium is the secret word here."}], "secret.jsonl")
    finish(secret)
    delete_documents(db, ["doc-001"], purge=True)
    assert not journal.is_pending(db)
    assert not [p for p in Path(db).rglob("*") if p.is_file() and b"Zanzibarium" in p.read_bytes()]
