import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from sproutrag.cli import DONE, FAILED, WRONG_USAGE, is_ours, report_failure, run, terminal
from sproutrag.snapshots import NoIndex
from sproutrag.tables import tables_exist
from sproutrag.where import WhereError
from tests.small_index import encoded, index

ROOT = Path(__file__).parent.parent


def sproutrag(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "from sproutrag.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env=os.environ | {"PYTHONPATH": str(ROOT), "SPROUTRAG_DEBUG": ""} | environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "command",
    [
        "index",
        "search",
        "ask",
        "show",
        "stats",
        "versions",
        "rollback",
        "verify",
        "delete",
        "models",
        "bench",
        "evaluate",
    ],
)
def test_every_command_takes_json_and_explains_its_options(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        run([command, "--help"])
    assert exit.value.code == DONE
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["index", "corpus.jsonl"],
        ["index", "corpus.jsonl", "--db", "x", "--wrokers", "2"],
        ["index", "corpus.jsonl", "--db", "x", "--workers", "two"],
        ["search", "--db", "x"],
        ["search", "query", "--db", "x", "--mode", "magic"],
    ],
)
def test_wrong_usage_exits_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        run(words)
    assert exit.value.code == WRONG_USAGE


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["index", "--db", "x"], "nothing to index"),
        (["index", "corpus.jsonl", "--db", "x", "--workers", "-1"], "--workers -1"),
        (["search", "query", "--db", "x", "-k", "0"], "-k 0"),
        (["models", "get"], "say which one"),
        (["versions", "--db", "x", "--keep", "0"], "--keep 0"),
        (["delete", "--db", "x"], "nothing to delete"),
    ],
)
def test_a_senseless_value_is_wrong_usage_and_says_what_to_write(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == WRONG_USAGE
    printed = capsys.readouterr()
    assert expected in printed.err
    assert not printed.out


def test_a_failure_is_one_message_on_standard_error_without_a_traceback(tmp_path: Path) -> None:
    done = sproutrag("search", "query", "--db", str(tmp_path / "nowhere"), "--json")
    assert done.returncode == FAILED
    assert not done.stdout
    assert "Traceback" not in done.stderr
    assert "nowhere" in done.stderr and "sproutrag index" in done.stderr


def test_the_traceback_is_there_for_who_asks(tmp_path: Path) -> None:
    done = sproutrag("stats", "--db", str(tmp_path / "nowhere"), SPROUTRAG_DEBUG="1")
    assert done.returncode == FAILED
    assert "Traceback" in done.stderr


def test_a_source_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = sproutrag("index", str(tmp_path / "absent.jsonl"), "--db", str(tmp_path / "db"))
    assert done.returncode == FAILED
    assert "absent.jsonl" in done.stderr
    assert not (tmp_path / "db").exists()


def test_a_reader_that_stops_early_is_no_error() -> None:
    code = "from sproutrag.cli import main; main()"
    shell = f"{sys.executable} -c '{code}' models list --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", shell], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (DONE, "")


def test_models_are_listed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "list", "--json"]) == DONE
    names = {model["name"] for model in json.loads(capsys.readouterr().out)}
    assert "all-MiniLM-L6-v2" in names


def test_only_our_own_exceptions_speak_for_themselves() -> None:
    from sproutrag.cli import WrongUsage

    assert is_ours(WrongUsage("text"))
    assert not is_ours(KeyError("text"))


def test_a_filter_that_cannot_be_read_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_failure(WhereError("--where, character 7: expected a value")) == 2
    assert "character 7" in capsys.readouterr().err


def test_a_file_given_as_the_index_is_named(tmp_path: Path) -> None:
    file = tmp_path / "notes.md"
    file.write_text("not an index")
    with pytest.raises(NoIndex, match=r"notes\.md is a file"):
        tables_exist(str(file))


@pytest.mark.parametrize("words", [["index", "docs"], ["search", "query"], ["show", "a"], ["stats"]])
def test_an_empty_db_is_not_the_root_directory(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--db", ""]) == WRONG_USAGE
    assert "--db is empty" in capsys.readouterr().err


def test_a_terminal_whose_reader_has_gone_raises_what_the_command_line_answers() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone, pytest.raises(BrokenPipeError), redirect_stdout(gone):
        try:
            terminal().print(("x" * 70 + "\n") * 1500)  # rich takes minutes to wrap one long word
        finally:
            os.dup2(os.open(os.devnull, os.O_WRONLY), writing)


def test_output_that_cannot_carry_the_text_is_escaped_and_stays_json() -> None:
    code = "from sproutrag.cli import print_json; print_json(['é', '🦊', '\\udcff'])"
    for encoding in ("ascii", "latin-1", "utf-8"):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
        assert json.loads(done.stdout.decode(encoding)) == ["é", "🦊", "\udcff"]


def test_a_closed_standard_output_is_no_failure() -> None:
    code = "import sys; sys.stdout = None; from sproutrag.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "models", "list"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (DONE, "")


@pytest.mark.parametrize(
    ("db", "told"), [("s3:///", "names no place: write s3://BUCKET"), ("foo://x", "foo:// is not known")]
)
def test_a_place_that_is_none_is_told_in_our_words(
    db: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["stats", "--db", db]) == FAILED
    error = capsys.readouterr().err
    assert told in error and db in error and "Error:" not in error


def test_a_page_that_cannot_be_written_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = str(tmp_path / "db")
    index(db, [encoded("a", 3)], "1")
    assert run(["show", "a", "--db", db, "--html", "/nonexist/x.html"]) == WRONG_USAGE
    assert "--html /nonexist/x.html: no such file or directory" in capsys.readouterr().err


def test_a_query_as_long_as_a_document_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = str(tmp_path / "db")
    index(db, [encoded("a", 3)], "1")
    assert run(["search", "river " * 10_000, "--db", db]) == FAILED
    assert "60,000 characters" in capsys.readouterr().err


def test_the_module_runs_as_a_program() -> None:
    words = [sys.executable, "-m", "sproutrag.cli", "--help"]
    assert "verify" in subprocess.run(words, capture_output=True, text=True).stdout


def test_repair_is_of_the_newest_state_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--db", "my.db", "--repair", "--snapshot", "1"]) == WRONG_USAGE
    assert "roll back first" in capsys.readouterr().err
