"""Snapshot records: which version of each table a reader sees. Knows nothing of what is inside the tables.

One JSON file per snapshot, `<db>/snapshots/000001.json`; the largest id is current. A record appears whole or
not at all and is never overwritten, so readers need no lock.
"""

import json
import os
import posixpath
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

TAG = "snapshot-"
RECORD_FORMAT = 1  # raise it when a field changes its meaning; added fields need no new number


class IndexProblem(Exception):
    """Something about an index on disk that its user has to know; the message says what, where and next.

    IndexProblem
    ├── NoIndex             nothing to read at this place, or no place
    │   └── NoSnapshot      no snapshot of that number, or no longer
    ├── EncoderMismatch     stored vectors and the encoder at hand belong to different models or settings
    ├── Unstorable          a document that must not be written (non-finite vectors, the same id twice)
    ├── BrokenIndex         the tables contradict each other
    ├── ConcurrentWriter    somebody else wrote to this index meanwhile
    ├── IndexBusy           somebody holds what this command needs, and is named
    ├── DocumentNotFound    no document of this id in this snapshot
    ├── ForkedReader        an index used in a process that was forked from one that had opened it
    └── UnverifiedPassage   a stored span does not hold the text that its leaf was indexed with
    """


class NoIndex(IndexProblem):
    pass


class NoSnapshot(NoIndex):
    pass


class EncoderMismatch(IndexProblem):
    pass


class Unstorable(IndexProblem):
    pass


class BrokenIndex(IndexProblem):
    pass


class ConcurrentWriter(IndexProblem):
    pass


class IndexBusy(IndexProblem):
    pass


class UnverifiedPassage(IndexProblem):
    pass


class ForkedReader(IndexProblem):
    pass


class DocumentNotFound(IndexProblem, KeyError):
    __str__ = Exception.__str__  # KeyError would print the message in quotes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the last run that encoded something cost: from it the next run's cost is estimated."""

    text_bytes: int  # UTF-8
    tokens: int
    encode_seconds: float  # of all workers together, without their start
    workers: int
    disk_bytes: int  # data and indices that came with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One version of each table, published together. id 0: not published; version 0: no such table yet.

    counts: documents, nodes, leaves, tokens. coverage: mean over documents, 1.0 only when all are 1.0.
    """

    id: int = 0
    documents_version: int = 0
    nodes_version: int = 0
    fingerprint: str = ""
    encoder: str = ""  # name or directory that the fingerprint was taken of
    dimension: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    coverage: float = 1.0
    run_id: str = ""
    created_at: str = ""  # ISO 8601, UTC
    sources: tuple[str, ...] = ()
    by: str = ""  # user@host
    command: str = ""  # what made it, in words; "" for a run that did not say
    rates: Rates | None = None  # None for a snapshot of a version that did not measure

    @property
    def versions(self) -> tuple[int, int]:
        return self.documents_version, self.nodes_version


def refuse_mixture(db: str, fingerprints: Iterable[str]) -> None:
    """Vectors of two encoders do not compare. The index's own fingerprint first; digests count, not names."""
    by_digest: dict[str, str] = {}
    for fingerprint in fingerprints:
        by_digest.setdefault(fingerprint.rpartition("@")[2], fingerprint)
    built_with, *others = by_digest.values() or [""]
    if others:
        raise EncoderMismatch(
            f"{db} was built with encoder {built_with!r} but {others[0]!r} was given: "
            "pass the encoder it was built with, or let all documents be encoded anew with "
            f"`sproutrag index SOURCE... --db {db} --rebuild --encoder NEW`"
        )


def require_openable(db: str) -> None:
    """Refuse a URI that names no place, or one of a kind that this installation cannot open."""
    scheme, _, place = db.partition("://")
    if not place.strip("/") and scheme != "file":
        raise NoIndex(f"--db {db} names no place: write {scheme}://BUCKET/PATH")
    try:
        fsspec.url_to_fs(db)
    except ImportError as error:
        raise NoIndex(f"--db {db} cannot be opened here: {error}") from error
    except ValueError as error:
        raise NoIndex(f"--db {db}: {scheme}:// is not known: give a directory, s3:// or gs://") from error


def list_snapshots(db: str) -> list[int]:
    """Ids on disk, ascending; empty where there is no index."""
    return list_numbered(*fsspec.url_to_fs(f"{db.rstrip('/')}/snapshots"))


def list_numbered(files: AbstractFileSystem, folder: str) -> list[int]:
    """Numbers of the files 000001.json, 000002.json, ... that lie there, ascending."""
    files.invalidate_cache()
    paths = files.ls(folder, detail=False) if files.isdir(folder) else []
    names = map(posixpath.basename, paths)
    return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit())


def current_snapshot(db: str) -> Snapshot | None:
    """The newest snapshot, or None where nothing was published yet."""
    ids = list_snapshots(db)
    return read_snapshot(db, ids[-1]) if ids else None


def read_snapshot(db: str, id: int) -> Snapshot:
    files, path = fsspec.url_to_fs(snapshot_path(db, id))
    if not files.exists(path):
        known = list_snapshots(db)
        kept = f"snapshots {known[0]} to {known[-1]} are there" if known else "there are no snapshots"
        raise NoSnapshot(f"snapshot {id} is not in {db}: {kept}")
    record = json.loads(files.cat_file(path))
    if record.pop("format") > RECORD_FORMAT:
        raise NoIndex(f"{snapshot_path(db, id)} was written by a newer sproutrag: update this installation")
    known_fields = {name: record[name] for name in Snapshot.__dataclass_fields__ if name in record}
    rates = Rates(**record["rates"]) if record.get("rates") else None
    return Snapshot(**known_fields | {"sources": tuple(record.get("sources", ())), "rates": rates})


def write_snapshot(db: str, snapshot: Snapshot) -> None:
    """Put one record there, atomically, once all that it refers to is durable; refuses a taken id."""
    record = json.dumps({"format": RECORD_FORMAT} | asdict(snapshot), ensure_ascii=False, indent=1).encode()
    files, path = fsspec.url_to_fs(snapshot_path(db, snapshot.id))
    try:
        if isinstance(files, LocalFileSystem):
            os.sync()  # Lance 14 syncs nothing itself; one call costs less than an fsync of each file
            link_file(path, record)
        else:  # object stores: a conditional put (If-None-Match)
            files.pipe_file(path, record, mode="create")
    except FileExistsError:
        raise ConcurrentWriter(
            f"snapshot {snapshot.id} of {db} was published by another run meanwhile: "
            "let one writer finish, then run again (what is unchanged costs nothing)"
        ) from None


def remove_snapshot(db: str, id: int) -> None:
    files, path = fsspec.url_to_fs(snapshot_path(db, id))
    files.rm_file(path)


def link_file(path: str, content: bytes) -> None:
    """Write beside, sync, then link: unlike a rename, a link never replaces an existing file."""
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    draft = os.path.join(folder, f".{uuid.uuid4().hex}")
    try:
        with open(draft, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    finally:
        if os.path.exists(draft):
            os.unlink(draft)
    sync(folder)


def sync(path: str) -> None:
    """Wait until a file, or which names a folder holds, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def snapshot_path(db: str, id: int) -> str:
    return f"{db.rstrip('/')}/snapshots/{id:06d}.json"


def tag_of(id: int) -> str:
    """Name of the Lance tags that keep a snapshot's versions from the clean-up of other tools."""
    return f"{TAG}{id:06d}"


def is_tag(name: str) -> bool:
    return name.startswith(TAG)


def name_some(ids: Sequence[str], limit: int = 5) -> str:
    more = f" and {len(ids) - limit} more" if len(ids) > limit else ""
    return ", ".join(repr(id) for id in ids[:limit]) + more
