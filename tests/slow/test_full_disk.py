"""A disk that fills up during a run: a small tmpfs with real Lance on it, the job in this process."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines import index as job
from pipelines.actors import IndexDocuments
from pipelines.reports import Report
from sproutrag import journal
from sproutrag.disk import DiskFull
from sproutrag.readers import hold_snapshot
from sproutrag.retention import prune, versions
from sproutrag.storage import stored_hashes
from sproutrag.verification import verify
from tests.pipelines.conftest import index_here, records, tiny_encoder, worker, write_corpus  # noqa: F401

pytestmark = pytest.mark.slow

SIZE = 24 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)])
    if mounted.returncode:
        pytest.skip("this user may not mount a tmpfs")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, *, leave: int) -> Path:
    """A file that takes all room but `leave` bytes."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        try:
            while True:
                file.write(b"x" * 65536)
                file.flush()
        except OSError:
            pass
    with filler.open("ab") as file:
        file.truncate(max(0, filler.stat().st_size - leave))
    return filler


def test_a_run_on_a_full_disk_ends_with_one_message_and_the_next_one_continues(
    index_here: Callable[..., Report],  # noqa: F811
    worker: IndexDocuments,  # noqa: F811
    write_corpus: Callable[..., str],  # noqa: F811
    records: Callable[[int], list[dict]],  # noqa: F811
    disk: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    db = worker.db = str(disk / "db")
    index_here(write_corpus(records(10)), db=db)
    filler = fill(disk, leave=400_000)
    source = write_corpus(records(120))
    with pytest.raises(DiskFull, match=r"free disk space.*nothing was encoded"):
        index_here(source, db=db)
    monkeypatch.setattr(job, "require_room", lambda *_: None)  # others write to the disk after the look
    with pytest.raises(DiskFull, match=r"the disk is full.*finished documents are kept.*run again"):
        index_here(source, db=db)
    kept = journal.documents_kept(db)
    assert 0 < kept < 110
    assert verify(db).ok and verify(db).documents == 10
    with pytest.raises(DiskFull):
        index_here(source, db=db)
    freed = prune(db, keep=1)
    assert freed.kept and versions(db)[0]["documents"] == 10
    lease = hold_snapshot(db)
    assert lease
    lease.close()
    filler.unlink()
    report = index_here(source, db=db)
    assert (report.inputs, report.unchanged, report.indexed) == (120, 10, 110)
    assert report.resumed >= kept > 0 and report.failures == []
    assert len(stored_hashes(db)) == 120 and verify(db).ok


@pytest.mark.parametrize("leave", [0, 8_000, 30_000, 60_000, 120_000])
def test_a_disk_that_fills_up_in_any_step_after_encoding_loses_nothing(
    index_here: Callable[..., Report],  # noqa: F811
    worker: IndexDocuments,  # noqa: F811
    write_corpus: Callable[..., str],  # noqa: F811
    records: Callable[[int], list[dict]],  # noqa: F811
    disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    leave: int,
) -> None:
    """Commit, indices, quarantine and publication get `leave` bytes: either it is enough, or all is kept."""
    db = worker.db = str(disk / "db")
    index_here(write_corpus(records(10)), db=db)
    source, real, filled = write_corpus(records(40)), job.account, []

    def fill_then_account(*arguments: object, **named: object) -> object:
        filled.append(fill(disk, leave=leave))
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(job, "account", fill_then_account)
        try:
            done = index_here(source, db=db)
            assert done.documents == 40
        except DiskFull:
            assert verify(db).documents == 10 and journal.documents_kept(db) == 30
    prune(db, keep=1)
    filled[0].unlink()
    report = index_here(source, db=db)
    assert report.inputs == 40 and report.resumed + report.unchanged == 40
    assert verify(db).ok and not journal.is_pending(db)
