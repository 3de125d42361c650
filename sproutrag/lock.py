"""The writer lock: one writer to an index at a time, in whatever process, on whatever machine.

What the lock promises where is said at the top of leases.py. Readers need no lock.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from sproutrag.leases import Heartbeat, Holder, is_same_file, is_silent, read_holder, this_process, try_lock
from sproutrag.snapshots import ConcurrentWriter, IndexBusy, list_numbered

POLL_S = 0.2
RECORD_BYTES = 1 << 16  # of the lock file that are read: more than a record has


class WriterLock(Protocol):
    def require(self) -> None:
        """Refuse to go on if the lock was lost; asked before everything that cannot be taken back."""

    def release(self) -> None: ...


Take = Callable[[AbstractFileSystem, str, Holder], WriterLock | Holder | None]  # the lock, or who has it


@contextmanager
def writer_lock(db: str, *, command: str, wait_s: float = 0.0) -> Iterator[WriterLock]:
    """Hold the index for writing, waiting up to `wait_s` for who holds it now.

    IndexBusy names the holder. `command` is what others will read about us. Not reentrant.
    """
    lock = acquire(db, this_process(command), wait_s=wait_s)
    try:
        yield lock
    finally:
        lock.release()


def acquire(db: str, holder: Holder, *, wait_s: float) -> WriterLock:
    files, root = fsspec.url_to_fs(db.rstrip("/"))
    take: Take = take_file if isinstance(files, LocalFileSystem) else take_lease
    deadline = time.monotonic() + wait_s
    while True:
        taken = take(files, root, holder)
        if not isinstance(taken, Holder | None):
            return taken
        if time.monotonic() >= deadline:
            raise IndexBusy(
                f"{db} is being written by {taken or 'another process'}: let it finish, then run again "
                "(what is unchanged costs nothing)"
            )
        time.sleep(POLL_S)


# --- file systems: one file, locked by the kernel; its holder removes it, so who locks it looks again


@dataclass(frozen=True, slots=True)
class FileLock:
    path: str
    handle: int
    created: bool  # the folder came with the lock

    def require(self) -> None:
        if not is_same_file(self.handle, self.path):
            raise lost(self.path)

    def release(self) -> None:
        """Leave nothing behind, not even the folder if it came with the lock and nothing was written."""
        if is_same_file(self.handle, self.path):
            os.unlink(self.path)
            if self.created:
                with suppress(OSError):  # something was written, or somebody waits in there
                    os.rmdir(os.path.dirname(self.path))
        os.close(self.handle)


def take_file(files: AbstractFileSystem, root: str, holder: Holder) -> FileLock | Holder | None:
    """The lock, or who has it."""
    path = os.path.join(root, "writer.lock")
    created = not os.path.isdir(root)
    os.makedirs(root, exist_ok=True)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except FileNotFoundError:  # its last holder took the empty folder away
        return None
    if not try_lock(handle) or not is_same_file(handle, path):
        other = read_holder(os.pread(handle, RECORD_BYTES, 0))
        os.close(handle)
        return other
    os.ftruncate(handle, 0)
    with suppress(
        OSError
    ):  # a full disk: the lock holds without the name, and clean-up must be able to begin
        os.pwrite(handle, holder.record, 0)
    return FileLock(path, handle, created)


# --- object stores: numbered leases, each taken by a conditional create; the newest one counts


@dataclass(frozen=True, slots=True)
class StoreLease:
    """Numbers only ever grow: a writer that wakes up late can never be taken for a newer one."""

    files: AbstractFileSystem
    folder: str
    number: int
    beat: Heartbeat

    def require(self) -> None:
        if not self.beat.is_fresh or list_numbered(self.files, self.folder)[-1:] != [self.number]:
            raise lost(lease_path(self.folder, self.number))

    def release(self) -> None:
        self.beat.stop()
        self.files.pipe_file(lease_path(self.folder, self.number), b"")


def take_lease(files: AbstractFileSystem, root: str, holder: Holder) -> StoreLease | Holder | None:
    """The lock, or who has it. An empty lease was released; a silent one belongs to the dead."""
    folder = f"{root}/writers"
    numbers = list_numbered(files, folder)
    newest = numbers[-1] if numbers else 0
    if newest:
        path = lease_path(folder, newest)
        record = files.cat_file(path)
        if record and not is_silent(files, path):
            return read_holder(record)
    path = lease_path(folder, newest + 1)
    try:
        files.pipe_file(path, holder.record, mode="create")
    except FileExistsError:  # somebody was faster; who, the next attempt will read
        return None
    for number in numbers:
        files.rm_file(lease_path(folder, number))
    return StoreLease(files, folder, newest + 1, Heartbeat(files, path, holder.record))


def lease_path(folder: str, number: int) -> str:
    return f"{folder}/{number:06d}.json"


def lost(path: str) -> ConcurrentWriter:
    return ConcurrentWriter(
        f"{path} is no longer ours: it was removed, or this process was cut off for too long. "
        "Nothing was published; run again (what is unchanged costs nothing)"
    )
