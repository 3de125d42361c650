"""The commands around a run, from words to exit status, with the job in this process."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines import maintenance
from pipelines.reports import Report
from sproutrag.cli import DONE, FAILED, SET_ASIDE, WRONG_USAGE, run

Writer = Callable[..., str]
Records = Callable[[int], list[dict]]
Job = Callable[..., Report]


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "db")


def test_a_run_its_dry_run_and_its_quarantine_as_commands(
    index_here: Job,
    write_corpus: Writer,
    records: Records,
    db: str,
    tiny_encoder: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["index", write_corpus(records(4)), "--db", db, "--encoder", tiny_encoder]
    source = Path(words[1])
    source.write_text(source.read_text() + "[1]\n")
    assert run([*words, "--dry-run"]) == DONE and not Path(db).exists()
    told = capsys.readouterr().out
    assert "new" in told and "default rates" in told and "tokens" in told
    assert run([*words, "--dry-run", "--json"]) == DONE
    foreseen = json.loads(capsys.readouterr().out)
    assert (foreseen["in"], foreseen["new"], foreseen["quarantined"]) == (5, 4, 1)
    assert run([*words, "--keep", "2"]) == SET_ASIDE
    told = capsys.readouterr()
    assert "set aside" in told.err and "estimated" in told.out and "resumed" in told.out
    assert run(["quarantine", "list", "--db", db, "--json"]) == DONE
    [row] = json.loads(capsys.readouterr().out)
    assert row["attempts"] == 1 and row["source"].endswith(":5") and row["reason"] and row["code"]
    assert run(["quarantine", "retry", "--db", db, "--json"]) == SET_ASIDE
    retried = json.loads(capsys.readouterr().out)
    assert retried["report"]["unchanged"] == 4 and retried["not_retryable"] == []
    source.unlink()
    assert run(["quarantine", "retry", "--db", db]) == SET_ASIDE
    assert "not retryable" in capsys.readouterr().err
    assert run(["quarantine", "retry", "nobody", "--db", db]) == FAILED
    assert "quarantine list" in capsys.readouterr().err


def test_failing_maintenance_is_exit_status_1_with_the_report_on_standard_output(
    index_here: Job,
    write_corpus: Writer,
    records: Records,
    db: str,
    tiny_encoder: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> list[str]:
        raise RuntimeError("no memory for an index")

    monkeypatch.setattr(maintenance, "build_indices", fail)
    words = ["index", write_corpus(records(3)), "--db", db, "--encoder", tiny_encoder, "--json"]
    assert run(words) == FAILED
    told = capsys.readouterr()
    assert json.loads(told.out)["indexed"] == 3 and json.loads(told.out)["maintenance"][0]["failure"]
    assert "no memory for an index" in told.err and "documents are published" in told.err


def test_keep_zero_is_refused(db: str) -> None:
    assert run(["index", "x", "--db", db, "--keep", "0"]) == WRONG_USAGE
