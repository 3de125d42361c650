"""Which snapshots are being read: clean-up leaves their files alone for as long as their readers live.

Each reader holds one file under `<db>/readers/`; how such a claim ends with its process, leases.py says. A
reader that may not write to the index holds nothing, and clean-up does not know of it.
"""

import os
import posixpath
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from sproutrag.leases import Heartbeat, Holder, create_locked, is_silent, read_holder, this_process, try_lock
from sproutrag.snapshots import Snapshot, current_snapshot, list_snapshots, read_snapshot


@dataclass(frozen=True, slots=True)
class ReadLease:
    """A snapshot and the claim on its files, until `close`."""

    snapshot: Snapshot
    close: Callable[[], None]


def hold_snapshot(db: str, id: int | None = None, *, command: str = "read") -> ReadLease | None:
    """The numbered snapshot, or the current one; None where nothing was published yet.

    The claim comes first, then a second look: clean-up removes the record, then asks for claims, so one of
    the two sees the other.
    """
    while True:
        snapshot = current_snapshot(db) if id is None else read_snapshot(db, id)
        if snapshot is None:
            return None
        lease = ReadLease(snapshot, claim(db, snapshot, command))
        if snapshot.id in list_snapshots(db):
            return lease
        lease.close()


def claim(db: str, snapshot: Snapshot, command: str) -> Callable[[], None]:
    """Returns what lets go of it again."""
    files, folder = fsspec.url_to_fs(f"{db.rstrip('/')}/readers")
    holder = this_process(command, snapshot=snapshot.id, versions=snapshot.versions)
    path = f"{folder}/{uuid.uuid4().hex}.json"
    try:
        if isinstance(files, LocalFileSystem):
            return partial(release_file, path, create_locked(path, holder.record))
        files.pipe_file(path, holder.record)
    except OSError:  # a reader without the right to write
        return nothing_to_release
    return partial(release_beat, Heartbeat(files, path, holder.record))


def release_file(path: str, handle: int) -> None:
    if os.path.exists(path):
        os.unlink(path)
    os.close(handle)


def release_beat(beat: Heartbeat) -> None:
    beat.stop()
    beat.files.rm_file(beat.path)


def nothing_to_release() -> None:
    pass


def live_readers(db: str) -> list[Holder]:
    """Everybody who reads some snapshot now. What the dead left behind is removed."""
    files, folder = fsspec.url_to_fs(f"{db.rstrip('/')}/readers")
    files.invalidate_cache()
    paths = files.ls(folder, detail=False) if files.isdir(folder) else []
    live = live_file if isinstance(files, LocalFileSystem) else live_beat
    claims = [path for path in paths if posixpath.basename(path)[0] != "."]
    return [holder for path in sorted(claims) for holder in live(files, path)]


def live_file(files: AbstractFileSystem, path: str) -> Iterator[Holder]:
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:  # let go meanwhile
        return
    try:
        if try_lock(handle):
            os.unlink(path)
        elif holder := read_holder(os.pread(handle, os.fstat(handle).st_size, 0)):
            yield holder
    finally:
        os.close(handle)


def live_beat(files: AbstractFileSystem, path: str) -> Iterator[Holder]:
    try:
        if is_silent(files, path):
            files.rm_file(path)
        elif holder := read_holder(files.cat_file(path)):
            yield holder
    except FileNotFoundError:  # let go meanwhile
        return
