"""Claims that end with their holder. Knows nothing of what is claimed; lock.py and readers.py do.

On a file system a claim is an OS lock on a file: the kernel drops it the moment its process ends, however it
ends, and nobody can take it before (a forked child shares it). On a network file system this is as good as
that system's flock.

In an object store a claim is a file that its holder writes again every BEAT_S. Who has been silent for
EXPIRY_S, by the store's own clock, has lost it. A holder that was only cut off or asleep finds out before it
goes on (`require`). What it commits between that look and the commit is not fenced off; two that publish then
meet at the conditional put of the snapshot, where one of them is refused.
"""

import datetime as dt
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass

from fsspec import AbstractFileSystem

BEAT_S = 10.0
EXPIRY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who claims something, as its file says it. snapshot: what a reader reads; 0 for a writer."""

    host: str
    pid: int
    command: str
    since: str  # ISO 8601, UTC
    snapshot: int = 0
    versions: tuple[int, int] = (0, 0)  # of `documents` and `nodes`

    def __str__(self) -> str:
        return f"`{self.command}` (process {self.pid} on {self.host}, since {self.since})"

    @property
    def record(self) -> bytes:
        return json.dumps(asdict(self), ensure_ascii=False).encode()


def this_process(command: str, *, snapshot: int = 0, versions: tuple[int, int] = (0, 0)) -> Holder:
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    return Holder(
        host=socket.gethostname(),
        pid=os.getpid(),
        command=command,
        since=now,
        snapshot=snapshot,
        versions=versions,
    )


def read_holder(record: bytes) -> Holder | None:
    """None where nobody is named: the file is empty, or being written this moment."""
    try:
        fields = json.loads(record)
    except ValueError:
        return None
    known = {name: fields[name] for name in Holder.__dataclass_fields__ if name in fields}
    return Holder(**known | {"versions": tuple(fields.get("versions", (0, 0)))})


# --- file systems


def try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_same_file(handle: int, path: str) -> bool:
    """Is what was opened still what lies there?"""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def create_locked(path: str, content: bytes) -> int:
    """A new file that is locked and whole from the moment it has its name. Closing the handle lets go."""
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    draft = os.path.join(folder, f".{name}")
    handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    fcntl.flock(handle, fcntl.LOCK_EX)
    os.write(handle, content)
    os.rename(draft, path)
    return handle


# --- object stores


class Heartbeat:
    """Writes a file again and again from a thread, until `stop`; `is_fresh` while nobody can call it dead."""

    def __init__(self, files: AbstractFileSystem, path: str, content: bytes) -> None:
        self.files, self.path, self.content = files, path, content
        self._last = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat {path}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(BEAT_S):
            started = time.monotonic()
            try:
                self.files.pipe_file(self.path, self.content)
            except Exception:
                continue  # seen by its holder as a heartbeat that is no longer fresh
            self._last = started

    @property
    def is_fresh(self) -> bool:
        """With a margin: whoever asks wants to go on for a moment."""
        return time.monotonic() - self._last < EXPIRY_S / 2

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def is_silent(files: AbstractFileSystem, path: str) -> bool:
    """Was this file last written more than EXPIRY_S ago? Both times are the store's; ours may be wrong."""
    probe = f"{path.rsplit('/', 1)[0]}/.clock-{uuid.uuid4().hex}"
    files.pipe_file(probe, b"")
    files.invalidate_cache()
    try:
        return (files.modified(probe) - files.modified(path)).total_seconds() > EXPIRY_S
    finally:
        files.rm_file(probe)
