"""Room on the disk that an index lies on. Object stores have no end that we could see; for them nothing here
has an effect.

DiskFull (an IndexProblem)    there is no room, or there would not be; says where and what to do
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import fsspec
from fsspec.implementations.local import LocalFileSystem

from sproutrag.snapshots import IndexProblem

RESERVE_BYTES = 8 << 20  # stays free beyond an estimate: manifests, the journal, what others write
FULL = ("no space left on device", "disk quota exceeded")  # as the system says it, in whatever it is wrapped


class DiskFull(IndexProblem):
    pass


def is_full(error: BaseException | None) -> bool:
    """Is this, or what led to it, a full disk or quota? Lance and Ray pass the system's word on as text."""
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(sign in str(error).lower() for sign in FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def free_bytes(db: str) -> int | None:
    """Bytes that may still be written there; None where that is not known."""
    files, path = fsspec.url_to_fs(db.rstrip("/"))
    if not isinstance(files, LocalFileSystem):
        return None
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return shutil.disk_usage(path).free


def require_room(db: str, needed: int) -> None:
    """Refuse before anything is encoded what will not fit."""
    free = free_bytes(db)
    if free is not None and needed + RESERVE_BYTES > free:
        raise DiskFull(
            f"{db} has {megabytes(free)} of free disk space and this run is estimated to need "
            f"{megabytes(needed)} ({megabytes(RESERVE_BYTES)} stay in reserve): nothing was encoded; free "
            f"space there (`sproutrag versions --db {db} --keep 1` removes old snapshots), then run again"
        )


@contextmanager
def full_disk_explained(db: str, *, kept: Callable[[str], int]) -> Iterator[None]:
    """Turn whatever a full disk makes Lance, Ray or the system say into one message.

    kept: how many documents are finished and wait for the next run.
    """
    try:
        yield
    except DiskFull:
        raise
    except Exception as error:
        if not is_full(error):
            raise
        free = free_bytes(db)
        raise DiskFull(
            f"the disk is full: {db} has {megabytes(free or 0)} left. Nothing was published, readers stay on "
            f"the last snapshot; {kept(db):,} finished documents are kept. Free space there, then run again: "
            "it continues with the others"
        ) from error


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
