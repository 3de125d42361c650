"""What the workers of a run finished, so that the next run need not encode it again if this one dies.

One JSON file per parcel, `<db>/journal/<uuid>.json`, which appears whole once the parcel's fragments are
durable. A run empties the journal when it has published; one that ends before, however it ends, leaves it.
Killed between fragments and entry: files that nobody knows, which the next clean-up removes.
"""

import json
import os
import posixpath
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from lance.file import LanceFileReader

from sproutrag.quarantine import Problem
from sproutrag.snapshots import link_file, sync
from sproutrag.storage import Written, write_fragments
from sproutrag.tables import TABLES, table_uri

ENTRY_FORMAT = 1  # raise it when a field changes its meaning: an entry of another format is not used


class UnusableEntry(Exception):
    """Why a parcel's entry cannot be taken over; the parcel is encoded again."""


UNREADABLE = (UnusableEntry, OSError, ValueError, LookupError, TypeError)


@dataclass(frozen=True, slots=True)
class Entry:
    """What became of one parcel."""

    fingerprint: str  # of the encoder
    written: Written | None
    problems: Sequence[Problem]


@dataclass(frozen=True, slots=True)
class Finished:
    """What an earlier run left of the documents that are wanted now; no document twice.

    parcels: fragments, with the documents of them that count. dropped: why an entry is of no use.
    """

    parcels: tuple[tuple[Written, frozenset[str]], ...] = ()
    problems: tuple[Problem, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def doc_ids(self) -> frozenset[str]:
        failed = (problem.doc_id for problem in self.problems)
        return frozenset(chain(failed, *(ids for _, ids in self.parcels)))


# --- on the workers


def record(db: str, entry: Entry) -> None:
    """Note a finished parcel, after its fragments are on disk for good."""
    files, folder = fsspec.url_to_fs(folder_of(db))
    fields = {"format": ENTRY_FORMAT} | asdict(entry)
    content = json.dumps(fields, ensure_ascii=False).encode()
    path = f"{folder}/{uuid.uuid4().hex}.json"
    if not isinstance(files, LocalFileSystem):
        files.pipe_file(path, content)
        return
    for file, _ in data_files(db, entry.written):
        sync(file)
    for name in TABLES if entry.written else ():
        sync(f"{table_uri(db, name)}/data")
    link_file(path, content)


def data_files(db: str, written: Written | None) -> Iterator[tuple[str, int]]:
    """Path and size in bytes of each file of these fragments."""
    for name, file in fragment_files(written):
        yield f"{table_uri(db, name)}/data/{file['path']}", file["file_size_bytes"]


def fragment_files(written: Written | None) -> Iterator[tuple[str, dict]]:
    """Table and Lance's description of each file of these fragments."""
    for name in TABLES if written else ():
        for fragment in getattr(written, name):
            yield from ((name, file) for file in json.loads(fragment)["files"])


def folder_of(db: str) -> str:
    return f"{db.rstrip('/')}/journal"


# --- on the driver


def finished(db: str, *, fingerprint: str, wanted: Mapping[str, str]) -> Finished:
    """What of the wanted documents (doc_id -> content hash) need not be encoded again."""
    left = dict(wanted)
    parcels, problems, dropped = [], [], []
    for path, read in entries(db):
        try:
            entry = read()
            refuse_foreign(entry, fingerprint)
            failed = [one for one in entry.problems if left.get(one.doc_id) == one.content_hash]
            kept = documents_of(entry.written, left)
            refuse_damaged(db, entry.written if kept else None)
        except UNREADABLE as error:
            dropped.append(f"{posixpath.basename(path)}: {error}")
            continue
        problems += failed
        if entry.written and kept:
            parcels.append((entry.written, kept))
        for id in (*kept, *(one.doc_id for one in failed)):
            del left[id]
    return Finished(tuple(parcels), tuple(problems), tuple(dropped))


def documents_of(written: Written | None, wanted: Mapping[str, str]) -> frozenset[str]:
    """The documents of these fragments that have the wanted content."""
    if written is None:
        return frozenset()
    pairs = zip(written.doc_ids, written.hashes, strict=True)
    return frozenset(id for id, digest in pairs if wanted.get(id) == digest)


def refuse_foreign(entry: Entry, fingerprint: str) -> None:
    if entry.fingerprint != fingerprint:
        raise UnusableEntry(f"made by encoder {entry.fingerprint!r}, this run uses {fingerprint!r}")


def refuse_damaged(db: str, written: Written | None) -> None:
    for path, size in data_files(db, written):
        files, inner = fsspec.url_to_fs(path)
        if not files.exists(inner) or files.size(inner) != size:
            raise UnusableEntry(f"{path} is gone or not whole")


def take_over(db: str, left: Finished, *, rebuild: bool = False) -> tuple[list[Written], list[str]]:
    """Fragments to commit, none of them with a document that does not count, and why others are of no use."""
    taken, dropped = [], []
    for written, ids in left.parcels:
        try:
            whole = len(ids) == len(written.doc_ids)
            taken.append(written if whole else salvage(db, written, ids, rebuild=rebuild))
        except (pa.ArrowException, ValueError) as error:  # not OSError: a full disk ends the run
            dropped.append(f"fragments of {len(ids)} documents: {error}")
    return taken, dropped


def salvage(db: str, written: Written, ids: Collection[str], *, rebuild: bool) -> Written:
    """The rows of some documents as fragments of their own: read back and filtered, nothing is encoded."""
    rows = {name: rows_of(db, name, written, ids) for name in TABLES}
    return write_fragments(db, rows["documents"], rows["nodes"], rebuild=rebuild)


def rows_of(db: str, name: str, written: Written, ids: Collection[str]) -> pa.Table:
    files = [file["path"] for table, file in fragment_files(written) if table == name]
    paths = [f"{table_uri(db, name)}/data/{file}" for file in files]
    rows = pa.concat_tables([LanceFileReader(path).read_all().to_table() for path in paths])
    return rows.filter(pc.is_in(rows["doc_id"], pa.array(sorted(ids), pa.string())))


# --- its files


def entries(db: str) -> Iterator[tuple[str, Callable[[], Entry]]]:
    """Path of each entry, and what reads it."""
    files, folder = fsspec.url_to_fs(folder_of(db))
    for path in entry_paths(files, folder):
        yield path, partial(read_entry, files, path)


def entry_paths(files: AbstractFileSystem, folder: str) -> list[str]:
    files.invalidate_cache()
    paths = files.ls(folder, detail=False) if files.isdir(folder) else []
    return sorted(path for path in paths if path.endswith(".json"))


def read_entry(files: AbstractFileSystem, path: str) -> Entry:
    fields = json.loads(files.cat_file(path))
    if fields["format"] != ENTRY_FORMAT:
        raise UnusableEntry(f"written by another sproutrag (format {fields['format']})")
    written = Written(**fields["written"]) if fields["written"] else None
    return Entry(fields["fingerprint"], written, [Problem(**one) for one in fields["problems"]])


def is_pending(db: str) -> bool:
    return bool(entry_paths(*fsspec.url_to_fs(folder_of(db))))


def pending_files(db: str) -> dict[str, set[str]]:
    """Table -> names of the data files that clean-up must leave alone for the next run."""
    pending: dict[str, set[str]] = {name: set() for name in TABLES}
    for entry in readable_entries(db):
        for name, file in fragment_files(entry.written):
            pending[name].add(file["path"])
    return pending


def keep_young(db: str) -> None:
    """Lance's clean-up spares files of nobody for seven days: what waits longer is made to look new."""
    for entry in readable_entries(db):
        for path, _ in data_files(db, entry.written):
            files, inner = fsspec.url_to_fs(path)
            if isinstance(files, LocalFileSystem) and files.exists(inner):
                os.utime(inner)


def documents_kept(db: str) -> int:
    """How many documents are finished and wait for the next run."""
    return len({id for entry in readable_entries(db) if entry.written for id in entry.written.doc_ids})


def readable_entries(db: str) -> Iterator[Entry]:
    """Without those that are not: the next run says why it does not use them."""
    for _, read in entries(db):
        with suppress(*UNREADABLE):
            yield read()


def empty(db: str) -> None:
    """Forget everything, once it is published or not wanted any more."""
    files, folder = fsspec.url_to_fs(folder_of(db))
    if files.isdir(folder):
        files.rm(folder, recursive=True)
