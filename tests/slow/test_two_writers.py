"""Two real runs into one index at the same time, as two cron jobs that overlap."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sproutrag.retention import versions
from sproutrag.verification import verify
from tests.tiny_models import tiny_bert

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    encoder = tiny_bert(tmp_path / "encoder", window=512)

    def run(name: str, *flags: str) -> subprocess.Popen[str]:
        source = tmp_path / f"{name}.jsonl"
        rows = [
            {"doc_id": f"{name}-{i}", "text": f"Rain falls on {name} {i}. Roots grow."} for i in range(40)
        ]
        source.write_text("\n".join(map(json.dumps, rows)))
        words = ["index", str(source), "--db", str(tmp_path / "db"), "--encoder", encoder, "--workers", "1"]
        return subprocess.Popen(
            [sys.executable, "-c", "from sproutrag.cli import main; main()", *words, "--json", *flags],
            env=os.environ | {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": "", "RAY_AUTH_MODE": "disabled"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


def ends(runs: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """(status, out, err) of each, the successful first."""
    texts = [run.communicate(timeout=300) for run in runs]
    return sorted((run.returncode, out, err) for run, (out, err) in zip(runs, texts, strict=True))


def test_of_two_runs_at_once_one_waits_or_is_told_who_writes(start: Start, tmp_path: Path) -> None:
    db = str(tmp_path / "db")
    (done, out, err), (status, nothing, refused) = ends([start("left"), start("right")])
    assert done == 0, (err, refused)
    assert json.loads(out)["indexed"] == 40
    assert status == 1 and not nothing
    assert "is being written by `index" in refused and "process" in refused and "run again" in refused
    (_, first, _), (status, second, err) = ends(
        [start("left", "--wait", "200"), start("right", "--wait", "200")]
    )
    assert status == 0, err
    counted = [json.loads(text) for text in (first, second)]
    assert sorted(report["indexed"] + report["unchanged"] for report in counted) == [40, 40]
    assert sorted(report["documents"] for report in counted)[-1] == 80
    assert verify(db).ok and len(versions(db)) == 2
