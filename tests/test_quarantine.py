"""Which rows stay, which go; on a real table."""

from pathlib import Path

import lance
import pytest

from sproutrag import quarantine
from sproutrag.quarantine import Problem, Row, file_of, forget, hopeless, read_rows, updated, write_rows
from sproutrag.retention import delete_documents
from tests.small_index import encoded, index

FAILED = Problem("a.jsonl:3", "d3", "the encoder failed", "look at it", content_hash="h3")
UNREADABLE = Problem("b.jsonl:7", "", "not JSON", "mend it")


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "db")


def after(rows: list[Row], *problems: Problem, **seen: object) -> list[Row]:
    nothing = {"code": "1", "held": {}, "indexed": frozenset(), "read": frozenset()}
    return updated(rows, problems, **nothing | seen)  # type: ignore[arg-type]


def test_rows_are_written_once_and_versions_do_not_pile_up(db: str) -> None:
    assert read_rows(db) == []
    rows: list[Row] = []
    for night in range(1, 6):
        rows = after(rows, FAILED, UNREADABLE)
        write_rows(db, rows)
        assert [row.attempts for row in read_rows(db)] == [night, night]
    assert {row.problem for row in read_rows(db)} == {FAILED, UNREADABLE}
    table = lance.dataset(f"{db}/quarantine.lance")
    version = table.version
    write_rows(db, rows)
    assert len(table.versions()) == 2 and lance.dataset(f"{db}/quarantine.lance").version == version


def test_a_row_leaves_when_its_input_was_indexed_or_its_file_no_longer_holds_it() -> None:
    rows = after([], FAILED, UNREADABLE)
    assert [row.problem for row in after(rows, indexed={"d3"})] == [UNREADABLE]
    assert [row.problem for row in after(rows, read={"b.jsonl"})] == [FAILED]
    assert after(rows, read={"other.jsonl"}) == rows, "files that were not read tell nothing"
    assert after(rows, whole=True) == []
    [held] = after(rows, read={"a.jsonl", "b.jsonl"}, held={"d3": "a.jsonl:4"})
    assert (held.problem.source, held.attempts) == ("a.jsonl:4", 1)


def test_only_the_same_text_under_the_same_code_is_hopeless() -> None:
    rows = after([], FAILED, UNREADABLE)
    assert hopeless(rows, code="1") == {"d3": FAILED}
    assert hopeless(rows, code="2") == {} == hopeless(rows, code="1", retried={"d3"})


def test_a_file_may_be_named_like_a_line() -> None:
    assert file_of("notes.jsonl:12") == "notes.jsonl" and file_of("s3://b/x.md") == "s3://b/x.md"
    assert file_of("talk:12", {"talk:12"}) == "talk:12" and file_of("C:x") == "C:x"


def test_deletion_takes_the_row_along_with_its_older_versions(db: str) -> None:
    index(db, [encoded("d3"), encoded("d4")], "1")
    write_rows(db, after([], FAILED, UNREADABLE))
    delete_documents(db, ["d3"])
    assert [row.problem for row in read_rows(db)] == [UNREADABLE]
    files = [path for path in Path(db, "quarantine.lance").rglob("*") if path.is_file()]
    assert not [path for path in files if b"the encoder failed" in path.read_bytes()]
    forget(db, ["d3"])
    assert quarantine.read_rows(db)
