"""What a run does for the index beside its documents: each step timed, reported, never worth a document."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sproutrag.indices import build_indices
from sproutrag.retention import compact, remove_unused
from sproutrag.tables import TABLES, open_table, tables_exist

NEXT = {
    "compaction": "searches get slower with many small files; the next run tries again",
    "indices": "new rows are searched without index, exactly but slower; the next run tries again",
    "clean-up": "old snapshots still take space; `sproutrag versions --db DIR --keep N` tries again",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One step of maintenance. failure: why it was not done, or ""; next: what that means and what to do."""

    name: str
    what: tuple[str, ...]
    seconds: float
    bytes_freed: int = 0
    failure: str = ""
    next: str = ""


def compaction(db: str) -> Iterator[Step]:
    yield from attempted("compaction", lambda: (compacted(db), 0))


def compacted(db: str) -> list[str]:
    names = TABLES if tables_exist(db) else ()
    return [f"merged small fragments of {name}" for name in names if compact(open_table(db, name))]


def indices(db: str) -> Iterator[Step]:
    yield from attempted("indices", lambda: (build_indices(db), 0))


def clean_up(db: str, *, keep: int | None) -> Iterator[Step]:
    """Remove old snapshots after publication, where the run was told how many to keep."""
    if keep is not None and tables_exist(db):
        yield from attempted("clean-up", lambda: removed(db, keep))


def removed(db: str, keep: int) -> tuple[list[str], int]:
    freed = remove_unused(db, keep=keep)
    held = [f"kept what {reader}" for reader in freed.held]
    done = [f"removed {len(freed.snapshots)} snapshots, {freed.versions} versions"] if freed.bytes else []
    return [*done, *held], freed.bytes


def attempted(name: str, work: Callable[[], tuple[list[str], int]]) -> Iterator[Step]:
    """Nothing where nothing was to do. work: returns what was done and the bytes that it freed."""
    started = time.monotonic()
    try:
        done, freed = work()
    except Exception as error:  # the boundary: the documents are committed and will be published
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:500]
        yield Step(name, (), round(time.monotonic() - started, 3), failure=reason, next=NEXT[name])
        return
    if done:
        yield Step(name, tuple(done), round(time.monotonic() - started, 3), freed)
