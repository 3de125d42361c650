"""A file of questions on real Ray, against an engine that takes time: nothing lost, nothing asked twice."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.llm_simulator import Reply, simulator_thread
from pipelines.plan_player import PlanPlayer
from sproutrag.cli import DONE, INTERRUPTED, SET_ASIDE, WRONG_USAGE, run
from sproutrag.qa.trace import read_trace
from tests.qa.oracle import OURS, read_documents, read_jsonl
from tests.qa.real_index import real_index

ROOT = Path(__file__).parents[2]
GOLD = {row["query_id"]: row for row in read_jsonl(OURS / "queries.jsonl")}
ODD = {"query_id": "odd/../1", "question": "Who broke the engine?"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answer")
    real_index(folder, read_documents(OURS))
    return folder


@pytest.fixture
def engine() -> Iterator[tuple[str, Any]]:
    """Plays the gold plans; a question about the engine gets a 400 every time."""
    player = PlanPlayer(str(OURS))

    def speak(body: dict[str, Any]) -> Reply:
        odd = ODD["question"] in body["messages"][-1]["content"]
        return Reply("", "400") if odd else player.speak(body)

    with simulator_thread(speak, prompt_token_s=0, output_token_s=0.004) as served:
        yield served


def questions(path: Path, *rows: dict[str, Any] | str) -> str:
    lines = [row if type(row) is str else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines))
    return str(path)


def words(folder: Path, asked: str, out: Path, url: str, *more: str) -> list[str]:
    index = ["--db", str(folder / "db"), "--encoder", str(folder / "tiny")]
    return ["answer", asked, *index, "--out", str(out), "--llm", url, "--json", *more]


def started(command: list[str], log: Path) -> subprocess.Popen:
    code = "from sproutrag.cli import main; main()"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    with open(log, "w") as errors:
        return subprocess.Popen(
            [sys.executable, "-c", code, *command], env=environment, stdout=errors, stderr=errors
        )


def wait_for_lines(out: Path, count: int, child: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 240
    while not out.exists() or out.read_bytes().count(b"\n") < count:
        assert child.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def calls_once_quiet(log: Any) -> int:
    """Workers of a killed driver notice its death within seconds."""
    deadline, seen = time.monotonic() + 60, -1
    while seen != log.calls and time.monotonic() < deadline:
        seen = log.calls
        time.sleep(3)
    return seen


def report_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def is_gold(row: dict[str, Any]) -> bool:
    gold = GOLD[row["query_id"]]
    return row["question"] == gold["question"] and row["answers"] == gold["answers"]


@pytest.mark.slow
def test_killed_run_is_continued_without_asking_again_and_a_failing_question_stops_no_other(
    folder: Path, engine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, log = engine
    out, traces = tmp_path / "out.jsonl", tmp_path / "traces"
    asked = questions(tmp_path / "q.jsonl", *GOLD.values(), ODD, "{torn")
    command = words(folder, asked, out, url, "--in-flight", "2", "--traces", str(traces))
    child = started(command, tmp_path / "log")
    try:
        wait_for_lines(out, 3, child, tmp_path / "log")
    finally:
        child.kill()
        child.wait()
    before = [json.loads(line) for line in out.read_bytes().split(b"\n")[:-1]]
    with open(out, "ab") as handle:
        handle.write(b'{"query_id": "plan-1", "ans')
    seen = calls_once_quiet(log)
    paid = log.finished

    assert run([*command, "--dry-run"]) == DONE
    forecast = report_of(capsys)
    assert (forecast["in"], forecast["set_aside"], forecast["to_do"]) == (10, 1, 9 - len(before))
    assert forecast["estimate"]["measured"] >= 3 and log.calls == seen

    assert run(command) == SET_ASIDE
    report = report_of(capsys)
    assert (report["in"], report["answered"], report["partial"], report["set_aside"]) == (10, 8, 0, 2)
    assert report["resumed"] == len([row for row in before if "failure" not in row])
    rows = {row["query_id"]: row for row in read_jsonl(out)}
    assert len(rows) == len(read_jsonl(out)) == 9 and set(rows) == {*GOLD, ODD["query_id"]}
    assert all(is_gold(row) for row in rows.values() if row["query_id"] in GOLD)
    assert all(rows[row["query_id"]] == row for row in before if "failure" not in row)
    assert report["cost"]["calls"] == log.finished - paid, "what is billed is what the engine did"
    assert {(p["query_id"], p["place"]) for p in report["problems"]} == {
        ("", f"{asked}:10"),
        (ODD["query_id"], f"{asked}:9"),
    }
    assert "400" in rows[ODD["query_id"]]["failure"]
    assert {path.parent for path in map(Path, (row["trace"] for row in rows.values()))} == {traces}
    assert read_trace(rows["plan-4"]["trace"])["trace"]["snapshot"] == 1


@pytest.mark.slow
def test_lost_worker_loses_no_question_and_ctrl_c_ends_the_run_with_whole_lines(
    folder: Path, engine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, log = engine
    asked = questions(tmp_path / "q.jsonl", *GOLD.values())
    out = tmp_path / "out.jsonl"
    child = started(words(folder, asked, out, url, "--in-flight", "2"), tmp_path / "log")
    wait_for_lines(out, 1, child, tmp_path / "log")
    child.send_signal(signal.SIGINT)
    pressed = time.monotonic()
    assert child.wait(60) == INTERRUPTED, (tmp_path / "log").read_text()
    assert time.monotonic() - pressed < 30
    calls = log.calls
    assert all(is_gold(row) for row in read_jsonl(out))
    time.sleep(1)
    assert log.calls == calls, "calls go on after Ctrl-C"

    killer = threading.Thread(target=kill_a_worker, args=(out, len(read_jsonl(out)) + 1))
    killer.start()
    assert run(words(folder, asked, out, url, "--in-flight", "2")) == DONE
    killer.join()
    report = report_of(capsys)
    assert report["in"] == report["answered"] == 8
    assert sorted(row["query_id"] for row in read_jsonl(out)) == sorted(GOLD)
    assert all(is_gold(row) for row in read_jsonl(out))


def kill_a_worker(out: Path, lines: int) -> None:
    """As soon as the file has so many lines: the process that answers, below this one."""
    deadline = time.monotonic() + 240
    while out.read_bytes().count(b"\n") < lines and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in descendants(os.getpid()):
        if "ray::" in name_of(pid) and "Answer" in name_of(pid):
            os.kill(pid, signal.SIGKILL)
            return
    raise AssertionError("no worker to kill")


def descendants(pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for above in found:
        found += [child for child, parent in parents.items() if parent == above]
    return found[1:]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_estimate_before_asks_nothing_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = questions(tmp_path / "q.jsonl", *GOLD.values())
    out = tmp_path / "out.jsonl"
    assert run(words(tmp_path, asked, out, "http://127.0.0.1:9/v1", "--dry-run")) == DONE
    forecast = report_of(capsys)
    assert forecast["to_do"] == forecast["estimate"]["questions"] == 8
    assert forecast["estimate"]["calls"] > 8 and not out.exists()


def test_questions_as_file_of_answers_and_duplicate_ids_are_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = questions(tmp_path / "q.jsonl", *GOLD.values())
    assert run(words(tmp_path, asked, Path(asked), "http://127.0.0.1:9/v1")) == WRONG_USAGE
    assert "q.jsonl:1 is no answer" in capsys.readouterr().err
    twice = questions(tmp_path / "twice.jsonl", ODD, ODD)
    assert run(words(tmp_path, twice, tmp_path / "out", "http://127.0.0.1:9/v1")) == WRONG_USAGE
    assert "twice.jsonl:1 and again at" in capsys.readouterr().err


def test_engine_that_does_not_answer_fails_before_ray_starts(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = questions(tmp_path / "q.jsonl", ODD)
    assert run(words(folder, asked, tmp_path / "out.jsonl", "http://127.0.0.1:9/v1")) == 1
    assert "is the server up?" in capsys.readouterr().err
