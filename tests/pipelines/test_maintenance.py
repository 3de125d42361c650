"""What a run does beside its documents: compaction, indices, clean-up, and what it foresees of its cost."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from pipelines import costs, maintenance
from pipelines.costs import DEFAULT_RATES, START_SECONDS, estimate
from pipelines.index import forecast
from pipelines.plan import DOCUMENT_OVERHEAD, FOUND
from pipelines.reports import Report
from sproutrag import retention
from sproutrag.options import IndexOptions
from sproutrag.quarantine import read_rows
from sproutrag.snapshots import current_snapshot, list_snapshots
from sproutrag.tables import open_table
from sproutrag.verification import verify
from tests.small_index import encoded, write

Writer = Callable[..., str]
Records = Callable[[int], list[dict]]
Job = Callable[..., Report]


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "db")


@pytest.fixture
def small_runs_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "ENOUGH_TO_MEASURE", 1)


def test_compaction_indices_and_clean_up_come_with_the_run_in_one_snapshot(
    index_here: Job, write_corpus: Writer, records: Records, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MAX_FRAGMENTS", 3)
    report = index_here(write_corpus(records(20)))
    assert len(open_table(db, "nodes").get_fragments()) == 1
    assert list_snapshots(db) == [1] and {step.name for step in report.maintenance} == {
        "compaction",
        "indices",
    }
    corpus = records(20)
    for night in range(3):
        corpus[night]["text"] = f"Changed in night {night}. Nothing else is new."
        report = index_here(write_corpus(corpus), keep=2)
    assert list_snapshots(db) == [3, 4] and report.snapshot == 4
    [freed] = [step for step in report.maintenance if step.name == "clean-up"]
    assert freed.bytes_freed > 0 and "removed 1 snapshots" in freed.what[0]
    assert verify(db).ok and report.exit_status == 0


@pytest.mark.parametrize("step", ["compact", "build_indices", "remove_unused"])
def test_maintenance_that_fails_is_reported_and_loses_no_document(
    index_here: Job,
    write_corpus: Writer,
    records: Records,
    db: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    step: str,
) -> None:
    """P074: maintenance that raises always."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the index files are locked")

    monkeypatch.setattr(maintenance, step, fail)
    corpus = records(4)
    for night in range(3):
        corpus[0]["text"] = f"Night {night}."
        report = index_here(write_corpus(corpus), keep=1)
        assert report.exit_status == 1 and report.snapshot == night + 1
        assert current_snapshot(db).counts["documents"] == 4
        [failure] = report.failures
        assert "the index files are locked" in failure.failure and "tries again" in failure.next
    report.show(None, quiet=True)
    told = capsys.readouterr().err
    assert "maintenance failed" in told and "the documents are published" in told
    monkeypatch.undo()


@pytest.mark.usefixtures("small_runs_measure")
def test_a_dry_run_says_what_would_be_done_and_writes_nothing(
    index_here: Job, write_corpus: Writer, records: Records, db: str, tiny_encoder: str
) -> None:
    corpus = records(12)
    source = write_corpus(corpus)
    asked = IndexOptions(sources=(source,), db=db, encoder=tiny_encoder)
    first = forecast(asked)
    assert not Path(db).exists()
    assert (first.inputs, first.new, first.estimate.documents, first.estimate.measured) == (12, 12, 12, False)
    report = index_here(source)
    assert asdict(report.estimate) == asdict(first.estimate) | {"workers": report.estimate.workers}
    corpus[2]["text"] = "Changed."
    write_corpus([*corpus[:10], {"doc_id": "new", "text": "New."}])
    before = sorted((path, path.stat().st_mtime_ns) for path in Path(db).rglob("*") if path.is_file())
    second = forecast(asked)
    assert (second.new, second.changed, second.unchanged, second.missing) == (1, 1, 9, 2)
    assert second.estimate.measured
    assert before == sorted((path, path.stat().st_mtime_ns) for path in Path(db).rglob("*") if path.is_file())
    assert second.as_json()["tokens"] == second.estimate.tokens > 0


def test_a_small_night_does_not_make_the_next_big_one_look_too_large_for_the_disk(
    index_here: Job, write_corpus: Writer, records: Records, db: str
) -> None:
    """Of two short documents a file's own overhead is all there is: 100 bytes on disk for one of text."""
    index_here(write_corpus(records(2)))
    assert current_snapshot(db).rates is None
    assert not index_here(write_corpus(records(40))).estimate.measured


@pytest.mark.usefixtures("small_runs_measure")
def test_the_estimate_for_as_much_again_is_what_the_first_run_cost(
    index_here: Job, write_corpus: Writer, records: Records, db: str
) -> None:
    first = index_here(write_corpus(records(40)))
    again = [record | {"doc_id": f"again-{record['doc_id']}"} for record in records(40)]
    second = index_here(write_corpus([*records(40), *again]))
    assert second.estimate.tokens == pytest.approx(first.tokens, rel=0.01) == pytest.approx(second.tokens)
    assert second.estimate.bytes == pytest.approx(second.bytes, rel=0.5)
    rates = current_snapshot(db).rates
    assert rates and rates.tokens == second.tokens and rates.encode_seconds > 0
    idle = index_here(write_corpus([*records(40), *again]))
    assert idle.estimate.seconds == 0 and current_snapshot(db).rates == rates


def test_an_estimate_is_in_proportion_to_the_text_and_to_the_workers() -> None:
    size = DEFAULT_RATES.text_bytes + DOCUMENT_OVERHEAD
    rest = FOUND.empty_table().from_pylist([{"doc_id": "a", "size": size}], schema=FOUND)
    one, two = (estimate(rest, rates=None, workers=n, useful=9) for n in (1, 2))
    assert (one.tokens, one.bytes) == (DEFAULT_RATES.tokens, DEFAULT_RATES.disk_bytes)
    assert one.seconds - START_SECONDS == pytest.approx(2 * (two.seconds - START_SECONDS))


def test_empty_tables_that_another_encoder_left_are_not_in_the_way(
    index_here: Job, write_corpus: Writer, records: Records, db: str
) -> None:
    """The first run ever died; its vectors had another width."""
    write(db, [encoded("x", 3)])
    report = index_here(write_corpus(records(4)))
    assert report.indexed == 4 and verify(db).ok and not read_rows(db)


@pytest.mark.usefixtures("small_runs_measure")
def test_an_index_of_the_previous_version_is_read_and_continued(
    index_here: Job, write_corpus: Writer, records: Records, db: str, tiny_encoder: str
) -> None:
    """P065: its records know no rates, and there is neither journal nor quarantine."""
    index_here(write_corpus(records(5)))
    path = Path(db, "snapshots", "000001.json")
    record = json.loads(path.read_text())
    del record["rates"]
    path.write_text(json.dumps(record))
    source = write_corpus(records(7))
    asked = IndexOptions(sources=(source,), db=db, encoder=tiny_encoder)
    assert (forecast(asked).new, forecast(asked).estimate.measured) == (2, False)
    report = index_here(source)
    assert (report.unchanged, report.indexed, report.snapshot) == (5, 2, 2)
    assert verify(db).ok and verify(db, snapshot=1).ok and current_snapshot(db).rates
