"""Files of questions: what is read, what is set aside with its place, what is refused."""

import json
from pathlib import Path

import pytest

from pipelines.questions import WrongQuestions, read_questions


def written(folder: Path, *lines: str | bytes) -> str:
    path = folder / "q.jsonl"
    path.write_bytes(b"\n".join(line.encode() if type(line) is str else bytes(line) for line in lines))
    return str(path)


def row(id: object, question: object) -> str:
    return json.dumps({"query_id": id, "question": question, "answers": ["x"]})


def test_questions_keep_their_order_and_place(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeff" + row("b", " Who? "), "", row(7, "Où ça ?\u2028Là"), "")
    questions, rejected = read_questions(path)
    assert [(q.query_id, q.text) for q in questions] == [("b", "Who?"), ("7", "Où ça ?\u2028Là")]
    assert [q.place for q in questions] == [f"{path}:1", f"{path}:3"] and rejected == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "no JSON object"),
        (b'{"query_id": "\xff"}', "no JSON object"),
        ("[" * 100_000, "no JSON object"),
        ("[1]", "no query_id"),
        (row(None, "Who?"), "no query_id"),
        (row(" ", "Who?"), "no query_id"),
        (row(True, "Who?"), "no query_id"),
        (row("a", ""), "no question"),
        (row("a", ["Who?"]), "no question"),
    ],
)
def test_bad_line_is_set_aside_with_its_place(line: str | bytes, reason: str, tmp_path: Path) -> None:
    path = written(tmp_path, row("first", "Who?"), line, row("last", "When?"))
    questions, [bad] = read_questions(path)
    assert [q.query_id for q in questions] == ["first", "last"]
    assert bad.place == f"{path}:2" and bad.reason.startswith(reason)


def test_half_a_character_is_replaced(tmp_path: Path) -> None:
    [question], _ = read_questions(written(tmp_path, '{"query_id": "\\ud800", "question": "a\\udc80b?"}'))
    assert (question.query_id, question.text) == ("\ufffd", "a\ufffdb?")


def test_duplicate_id_is_refused_with_both_places(tmp_path: Path) -> None:
    path = written(tmp_path, row("a", "Who?"), row("b", "Who?"), row("a", "When?"))
    with pytest.raises(WrongQuestions, match=rf"'a' is at {path}:1 and again at {path}:3"):
        read_questions(path)


def test_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(WrongQuestions, match=r"none\.jsonl: No such file"):
        read_questions(str(tmp_path / "none.jsonl"))
