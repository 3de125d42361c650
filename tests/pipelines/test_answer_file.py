"""The file of answers: what a dead run leaves is whole or cut off, and the last line of an id counts."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.answer_file import WrongAnswers, open_answers, read_answers
from pipelines.answer_reports import estimate
from pipelines.questions import Question


def answer(id: str, text: str = "42", **more: Any) -> dict[str, Any]:
    usage = {"calls": 3, "prompt_tokens": 100, "completion_tokens": 10}
    fixed = {"query_id": id, "question": f"{id}?", "answer": text, "usage": usage, "method": "apt-rag"}
    return fixed | {"seconds": 2.0} | more


def asked(id: str, text: str = "") -> Question:
    return Question(id, text or f"{id}?", "q.jsonl:1")


@pytest.fixture
def out(tmp_path: Path) -> str:
    path = str(tmp_path / "out.jsonl")
    with open_answers(path) as file:
        for id in ("a", "b", "ü"):
            file.append(answer(id))
    return path


def rows(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def test_cut_at_any_byte_keeps_every_whole_line_and_takes_new_ones(out: str) -> None:
    whole = Path(out).read_bytes()
    for size in range(len(whole) + 1):
        Path(out).write_bytes(whole[:size])
        expected = [
            json.loads(line)["query_id"] for line in whole[:size].split(b"\n")[: whole[:size].count(b"\n")]
        ]
        assert list(read_answers(out).answers) == expected
        assert Path(out).stat().st_size == size, "reading changes nothing"
        with open_answers(out) as file:
            assert list(file.answers) == expected
            file.append(answer("new"))
        assert [row["query_id"] for row in rows(out)] == [*expected, "new"]


def test_answer_is_on_disk_while_the_run_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "out.jsonl")
    with open_answers(path) as file:
        file.append(answer("a"))
        assert [row["query_id"] for row in rows(path)] == ["a"]


def test_finished_is_what_was_answered_as_it_is_asked_now(out: str) -> None:
    with open_answers(out) as file:
        file.append(answer("broken", failure="the engine died"))
        assert file.finished(asked("a"), "apt-rag")
        assert not file.finished(asked("a", "another text?"), "apt-rag")
        assert not file.finished(asked("a"), "naive-rag")
        assert not file.finished(asked("broken"), "apt-rag")
        assert not file.finished(asked("unknown"), "apt-rag")


def test_run_that_ends_in_order_leaves_one_line_per_id(out: str) -> None:
    with open_answers(out) as file:
        file.append(answer("a", "43"))
    assert [(row["query_id"], row["answer"]) for row in rows(out)] == [("a", "43"), ("b", "42"), ("ü", "42")]


def test_run_that_fails_loses_nothing(out: str) -> None:
    with pytest.raises(RuntimeError), open_answers(out) as file:
        file.append(answer("a", "43"))
        raise RuntimeError
    assert read_answers(out).answers["a"]["answer"] == "43" and len(rows(out)) == 4


def test_two_runs_do_not_write_to_one_file(out: str) -> None:
    with open_answers(out), pytest.raises(WrongAnswers, match="another run writes to"), open_answers(out):
        pass


@pytest.mark.parametrize("line", ['{"query_id": "a", "question": "a?"}', "{torn", "[]"])
def test_file_that_holds_something_else_is_left_as_it_is(line: str, tmp_path: Path) -> None:
    """As when --out names the file of questions."""
    path = tmp_path / "q.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(WrongAnswers, match=r"q\.jsonl:1 is no answer"), open_answers(str(path)):
        pass
    assert path.read_text() == line + "\n"


def test_estimate_follows_the_answers_that_are_there(out: str) -> None:
    measured = estimate(read_answers(out), 10, method="apt-rag", in_flight=4)
    assert (measured.calls, measured.prompt_tokens, measured.completion_tokens) == (30, 1000, 100)
    assert (measured.seconds, measured.measured) == (5.0, 3)
    default = estimate(read_answers(out), 10, method="llm-only", in_flight=4)
    assert (default.calls, default.measured) == (10, 0)
    assert estimate(read_answers(out), 0, method="apt-rag", in_flight=4).calls == 0
