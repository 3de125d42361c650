"""What becomes of inputs that fail, run after run: remembered, not tried in vain, tried again when asked."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pipelines import actors
from pipelines.actors import IndexDocuments
from pipelines.index import forecast, retry
from pipelines.reports import Report
from sproutrag import quarantine
from sproutrag.documents import Document
from sproutrag.options import IndexOptions, QuarantineOptions
from sproutrag.quarantine import read_rows
from sproutrag.snapshots import DocumentNotFound, current_snapshot
from sproutrag.storage import stored_hashes
from sproutrag.verification import verify
from tests.small_index import node_counts

Writer = Callable[..., str]
Records = Callable[[int], list[dict]]
Job = Callable[..., Report]


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "db")


@pytest.fixture
def tried(worker: IndexDocuments, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An encoder that fails on texts with the word poison; the list says which documents it was given."""
    given: list[str] = []
    real = worker.encoder.encode

    def encode(documents: Sequence[Document]) -> list:
        given.extend(document.id for document in documents)
        if any("poison" in document.text for document in documents):
            raise RuntimeError("a poisoned text")
        return real(documents)

    monkeypatch.setattr(worker.encoder, "encode", encode)
    return given


def poisoned(records: list[dict], *which: int) -> list[dict]:
    for i in which:
        records[i]["text"] = f"A poison sentence, number {i}."
    return records


def attempts(db: str) -> dict[str, int]:
    return {row.problem.doc_id or row.problem.source[-1]: row.attempts for row in read_rows(db)}


def test_a_poison_document_is_tried_once_and_takes_no_neighbour_down(
    index_here: Job,
    tried: list[str],
    write_corpus: Writer,
    records: Records,
    db: str,
    tiny_encoder: str,
) -> None:
    """P007: fifty documents, one always fails, three nights."""
    source = write_corpus(poisoned(records(50), 20))
    first = index_here(source)
    assert (first.inputs, first.indexed, first.quarantined, first.exit_status) == (50, 49, 1, 3)
    del tried[:]
    for _ in range(2):
        again = index_here(source)
        assert (again.inputs, again.unchanged, again.quarantined, again.exit_status) == (50, 49, 1, 3)
        assert "a poisoned text" in again.problems[0].reason
    assert tried == [] and attempts(db) == {"doc-020": 1}
    [row] = read_rows(db)
    assert row.problem.hint and row.problem.source.endswith("corpus.jsonl:21") and row.first_seen
    assert forecast(IndexOptions(sources=(source,), db=db, encoder=tiny_encoder)).quarantined == 1


def test_it_is_tried_again_when_its_text_or_the_code_changed(
    index_here: Job,
    tried: list[str],
    write_corpus: Writer,
    records: Records,
    db: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    corpus = poisoned(records(4), 1, 2)
    index_here(write_corpus(corpus))
    corpus[1]["text"] = "Another poison."
    report = index_here(write_corpus(corpus))
    assert report.quarantined == 2 and attempts(db) == {"doc-001": 2, "doc-002": 1}
    corpus[1]["text"] = "A good text at last."
    assert index_here(write_corpus(corpus)).indexed == 1
    assert attempts(db) == {"doc-002": 1}
    monkeypatch.setattr(quarantine, "version", lambda name: "9.9")
    del tried[:]
    assert index_here(write_corpus(corpus)).quarantined == 1
    assert set(tried) == {"doc-002"} and attempts(db) == {"doc-002": 2}


def test_what_cannot_be_read_is_counted_each_night_and_leaves_when_it_is_mended(
    index_here: Job, write_corpus: Writer, records: Records, db: str, tmp_path: Path
) -> None:
    lines = [json.dumps(record) for record in records(4)]
    source, other = tmp_path / "bad.jsonl", tmp_path / "other.jsonl"
    source.write_text("\n".join([*lines, '["a", "b"]']))
    other.write_text("[1]\n")
    for night in (1, 2):
        assert index_here(str(source), str(other)).quarantined == 2
        assert sorted(attempts(db).values()) == [night, night]
    source.write_text("\n".join(lines))
    assert index_here(str(source)).quarantined == 0
    assert [row.problem.source for row in read_rows(db)] == [f"{other}:1"], "a file that was not read stays"


def test_the_older_version_of_a_document_stays_while_the_new_one_fails(
    index_here: Job, tried: list[str], write_corpus: Writer, records: Records, db: str
) -> None:
    """P061, P055: all of a document or nothing; what failed is not called indexed."""
    corpus = records(5)
    index_here(write_corpus(corpus))
    before, nodes = stored_hashes(db), node_counts(db)
    report = index_here(write_corpus(poisoned(corpus, 3)))
    assert (report.unchanged, report.replaced, report.quarantined) == (4, 0, 1)
    assert stored_hashes(db) == before and node_counts(db) == nodes and verify(db).ok
    assert index_here(write_corpus(records(5))).quarantined == 0
    assert attempts(db) == {}


def test_nothing_is_acknowledged_before_it_is_durable(
    index_here: Job,
    write_corpus: Writer,
    records: Records,
    db: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P068: the writer fails after the reader gave a parcel away; the next run has every document."""
    source, real, calls = write_corpus(records(12)), actors.write_documents, []

    def fail_once(*arguments: object, **named: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise OSError("the disk went away")
        return real(*arguments, **named)

    monkeypatch.setattr(actors, "write_documents", fail_once)
    with pytest.raises(OSError, match="went away"):
        index_here(source)
    assert current_snapshot(db) is None
    report = index_here(source)
    assert report.inputs == report.indexed == 12 and 0 < report.resumed < 12
    assert verify(db).ok and not read_rows(db)


def test_retry_reads_the_files_again_and_says_what_is_gone(
    index_here: Job, tried: list[str], write_corpus: Writer, records: Records, db: str, tmp_path: Path
) -> None:
    """P073: three ways to fail: the encoder, the reader, and a source that is gone by now."""
    source = write_corpus(poisoned(records(3), 1))
    lost = tmp_path / "lost.jsonl"
    lost.write_text("[1]\n")
    index_here(source, str(lost))
    lost.unlink()
    asked = QuarantineOptions(action="retry", db=db)
    again = retry(asked)
    assert again.report and again.report.quarantined == 1 and again.exit_status == 3
    assert [one.source for one in again.not_retryable] == [f"{lost}:1"]
    assert "not there" in again.not_retryable[0].reason
    assert attempts(db)["doc-001"] == 2, "a retry tries although nothing changed"
    write_corpus(records(3))
    healed = retry(QuarantineOptions(action="retry", db=db, docs=("doc-001",)))
    assert healed.report and healed.report.indexed == 1 and healed.exit_status == 0
    assert current_snapshot(db).sources == (source, str(lost)), "what the index is made of did not change"
    assert list(attempts(db)) == ["1"]
    with pytest.raises(DocumentNotFound, match="doc-001"):
        retry(QuarantineOptions(action="retry", db=db, docs=("doc-001",)))
