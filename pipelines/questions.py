"""A file of questions: one JSON object per line with query_id and question; other keys are left alone."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sproutrag.documents import LONE_SURROGATE


class WrongQuestions(Exception):
    """The file as a whole cannot be worked on; the message says where and what to do."""

    exit_status = 2  # wrong usage


@dataclass(frozen=True, slots=True)
class Question:
    query_id: str
    text: str
    place: str  # FILE:LINE


@dataclass(frozen=True, slots=True)
class SetAside:
    """A line or a question without an answer. query_id is empty where the line has none."""

    query_id: str
    place: str
    reason: str
    hint: str


FIX_LINE = 'Write {"query_id": "...", "question": "..."} on one line'


def read_questions(path: str) -> tuple[list[Question], list[SetAside]]:
    """Questions in file order, and lines that hold none. A query_id that comes twice is refused."""
    questions: list[Question] = []
    rejected: list[SetAside] = []
    for place, line in lines_of(path):
        read = read_line(line, place)
        questions += [read] if type(read) is Question else []
        rejected += [read] if type(read) is SetAside else []
    refuse_duplicates(questions)
    return questions, rejected


def lines_of(path: str) -> list[tuple[str, bytes]]:
    """Place and content of every line that is not blank."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise WrongQuestions(f"{path}: {error.strerror}; name a jsonl file of questions") from error
    lines = enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1)
    return [(f"{path}:{number}", line) for number, line in lines if line.strip()]


def read_line(line: bytes, place: str) -> Question | SetAside:
    try:
        row: Any = json.loads(line.decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        return SetAside("", place, f"no JSON object: {error}", FIX_LINE)
    fields = row if type(row) is dict else {}
    id, text = fields.get("query_id"), fields.get("question")
    id = str(id) if type(id) is int else id
    if type(id) is not str or not id.strip():
        return SetAside("", place, "no query_id", FIX_LINE)
    if type(text) is not str or not text.strip():
        return SetAside(id, place, "no question", FIX_LINE)
    return Question(LONE_SURROGATE.sub("\ufffd", id), LONE_SURROGATE.sub("\ufffd", text).strip(), place)


def refuse_duplicates(questions: Sequence[Question]) -> None:
    seen: dict[str, str] = {}
    for question in questions:
        first = seen.setdefault(question.query_id, question.place)
        if first != question.place:
            raise WrongQuestions(
                f"query_id {question.query_id!r} is at {first} and again at {question.place}: answers are "
                f"joined by it, so give each question its own"
            )
