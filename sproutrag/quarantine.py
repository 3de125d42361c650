"""Inputs that could not be indexed, remembered from run to run: `<db>/quarantine.lance`, one row each.

A document that the encoder failed on is not tried again until it or the code changed. What cannot be read is
found again by every run, as reading is cheap. The table belongs to no snapshot and no rollback touches it.
"""

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version

import lance
import pyarrow as pa

from sproutrag.tables import open_table, table_exists, table_uri

TABLE = "quarantine"
ROWS = pa.schema(
    [
        ("source", pa.string()),
        ("doc_id", pa.string()),  # "" where it could not be read
        ("content_hash", pa.string()),  # "" for what was set aside while it was read
        ("reason", pa.string()),
        ("hint", pa.string()),
        ("attempts", pa.int32()),
        ("first_seen", pa.string()),  # ISO 8601, UTC
        ("last_seen", pa.string()),
        ("code", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One input that was set aside: where it is, what is wrong, what to do.

    content_hash: of the document, where trying it again can only end in the same way.
    """

    source: str
    doc_id: str
    reason: str
    hint: str
    content_hash: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """A document is known by its id wherever it lies; what is no document yet, by its place."""
        return (self.doc_id,) if self.content_hash else (self.source, self.doc_id)


@dataclass(frozen=True, slots=True)
class Row:
    """A problem that is remembered. code: what failed on it (`code_of`)."""

    problem: Problem
    attempts: int
    first_seen: str
    last_seen: str
    code: str

    def as_json(self) -> dict:
        facts = {"attempts": self.attempts, "first_seen": self.first_seen, "last_seen": self.last_seen}
        return asdict(self.problem) | facts | {"code": self.code}


def code_of(fingerprint: str) -> str:
    """What decides how a document fails: this program, by its version if it is installed, and the encoder."""
    try:
        return f"{version('sproutrag')} {fingerprint}"
    except PackageNotFoundError:
        return f"checkout {fingerprint}"


def read_rows(db: str) -> list[Row]:
    """All that is set aside, by place; empty where nothing ever was."""
    if not table_exists(db, TABLE):
        return []
    found = open_table(db, TABLE).to_table().to_pylist()
    return [row_of(fields) for fields in sorted(found, key=lambda row: (row["source"], row["doc_id"]))]


def row_of(fields: dict) -> Row:
    problem = {name: fields.pop(name) for name in Problem.__dataclass_fields__}
    return Row(Problem(**problem), **fields)


def hopeless(rows: Iterable[Row], *, code: str, retried: Collection[str] = ()) -> dict[str, Problem]:
    """doc_id -> what this very code already found wrong with it; `retried` gets another chance."""
    return {
        row.problem.doc_id: row.problem
        for row in rows
        if row.problem.content_hash and row.code == code and row.problem.doc_id not in retried
    }


def updated(
    rows: Sequence[Row],
    problems: Iterable[Problem],
    *,
    code: str,
    held: Mapping[str, str],
    indexed: Collection[str],
    read: Collection[str],
    whole: bool = False,
) -> list[Row]:
    """The rows after a run that met these problems.

    held: doc_id -> place of what was not tried again. A row leaves when its document was indexed, or when its
    file is among those `read` and no longer holds it, or when the sources are the `whole` corpus and lack it.
    """
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    before = {row.problem.key: row for row in rows}
    met = {problem.key: seen(problem, before.get(problem.key), code, now) for problem in problems}
    stay = {}
    for key, row in before.items():
        problem = row.problem
        if problem.content_hash and problem.doc_id in held:
            stay[key] = replace(row, problem=replace(problem, source=held[problem.doc_id]))
        elif problem.doc_id not in indexed and not whole and file_of(problem.source, read) not in read:
            stay[key] = row
    return sorted((stay | met).values(), key=lambda row: row.problem.key)


def seen(problem: Problem, before: Row | None, code: str, now: str) -> Row:
    first, attempts = (before.first_seen, before.attempts) if before else (now, 0)
    return Row(problem, attempts + 1, first, now, code)


def file_of(source: str, known: Collection[str] = ()) -> str:
    """The file of a place: "notes.jsonl:12" lies in notes.jsonl; a name that ends like that is its own."""
    path, colon, line = source.rpartition(":")
    return path if colon and line.isdigit() and source not in known else source


def write_rows(db: str, rows: Sequence[Row]) -> None:
    """Replace the table by one commit, keeping one version for who reads it at this moment."""
    if set(rows) == set(read_rows(db)):
        return
    table = pa.Table.from_pylist([row.as_json() for row in rows], schema=ROWS)
    mode = "overwrite" if table_exists(db, TABLE) else "create"
    written = lance.write_dataset(table, table_uri(db, TABLE), mode=mode)
    written.cleanup_old_versions(retain_versions=2, delete_unverified=True)


def forget(db: str, doc_ids: Collection[str]) -> None:
    """Leave no row of these documents, nor a version of the table that has one."""
    rows = read_rows(db)
    kept = [row for row in rows if row.problem.doc_id not in doc_ids]
    if len(kept) < len(rows):
        write_rows(db, kept)
        open_table(db, TABLE).cleanup_old_versions(retain_versions=1, delete_unverified=True)
