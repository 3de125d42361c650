"""The file that answers go to: a JSON object per line, on disk before it counts; an id's last line is valid.

A run that dies leaves whole lines and at most a torn one at the end; the next run cuts that off and goes on.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from pipelines.questions import Question

Answer = dict[str, Any]
KEYS = frozenset({"query_id", "question", "answer", "usage"})  # what makes a line ours


class WrongAnswers(Exception):
    """The file cannot take answers; the message says where and what to do."""

    exit_status = 2  # wrong usage


@dataclass
class AnswerFile:
    """What is in the file, by query_id. `lines` counts those of the file, superseded ones too."""

    path: str
    answers: dict[str, Answer] = field(default_factory=dict)
    lines: int = 0
    handle: BinaryIO | None = None

    def finished(self, question: Question, method: str) -> bool:
        """It was answered as it is asked now; failures and answers to another text do not count."""
        known = self.answers.get(question.query_id)
        return known is not None and not known.get("failure") and known_as(known) == (question.text, method)

    def append(self, answer: Answer) -> None:
        """On disk for good when this returns."""
        assert self.handle is not None, "opened for reading only"
        self.handle.write(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
        self.handle.flush()
        os.fsync(self.handle.fileno())
        self.take(answer)

    def take(self, answer: Answer) -> None:
        self.answers[answer["query_id"]] = answer
        self.lines += 1

    def drop_superseded(self) -> None:
        """One line per id, by one atomic replacement."""
        if self.lines == len(self.answers):
            return
        beside = Path(f"{self.path}.new")
        with open(beside, "wb") as handle:
            for answer in self.answers.values():
                handle.write(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(beside, self.path)
        self.lines = len(self.answers)


def known_as(answer: Answer) -> tuple[str, str]:
    return answer["question"], answer.get("method", "")


def read_answers(path: str) -> AnswerFile:
    """What the file holds, a torn last line left out; nothing where there is no file."""
    file = AnswerFile(path)
    if os.path.exists(path):
        for answer in whole_lines(path)[0]:
            file.take(answer)
    return file


def whole_lines(path: str) -> tuple[list[Answer], int]:
    """Answers, and how many bytes of the file they take: what follows is a line that was cut."""
    content = Path(path).read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    numbered = enumerate(whole.split(b"\n"), start=1)
    return [answer_of(line, f"{path}:{number}") for number, line in numbered if line.strip()], len(whole)


def answer_of(line: bytes, place: str) -> Answer:
    try:
        read: Any = json.loads(line)
    except ValueError as error:
        raise WrongAnswers(f"{place} is no answer ({error}): {NEXT}") from error
    if type(read) is not dict or not read.keys() >= KEYS:
        raise WrongAnswers(f"{place} is no answer of this command: {NEXT}")
    return read


NEXT = "name another file for --out, or take the line out"


@contextmanager
def open_answers(path: str) -> Iterator[AnswerFile]:
    """The file for this run alone, repaired; when the run ends in order, one line per id."""
    handle = locked(path)
    try:
        answers, size = whole_lines(path)
        handle.truncate(size)
        file = AnswerFile(path, handle=handle)
        for answer in answers:
            file.take(answer)
        yield file
        file.drop_superseded()
    finally:
        handle.close()


def locked(path: str) -> BinaryIO:
    """Opened for appending. The name may point to another file by the time the lock is ours: look again."""
    while True:
        try:
            handle = open(path, "ab")  # noqa: SIM115  closed by who holds the lock
        except OSError as error:
            raise WrongAnswers(f"--out {path}: {error.strerror}; name a file that may be written") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.close()
            raise WrongAnswers(f"another run writes to {path}: wait for it or name another file") from error
        if os.path.exists(path) and os.stat(path).st_ino == os.fstat(handle.fileno()).st_ino:
            return handle
        handle.close()
