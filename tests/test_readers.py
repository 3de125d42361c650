"""Claims of readers, held by this process, by others, and by others that were killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sproutrag import leases
from sproutrag.readers import hold_snapshot, live_readers
from sproutrag.snapshots import NoIndex, Snapshot, remove_snapshot, write_snapshot

ROOT = Path(__file__).parent.parent
HOLD = """
import sys, time
from sproutrag.readers import hold_snapshot
lease = hold_snapshot(sys.argv[1], 1, command="serve")
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def db(tmp_path: Path) -> str:
    db = str(tmp_path / "db")
    write_snapshot(db, Snapshot(id=1, documents_version=3, nodes_version=5))
    write_snapshot(db, Snapshot(id=2, documents_version=4, nodes_version=7))
    return db


def test_a_reader_is_known_until_it_closes(db):
    assert live_readers(db) == []
    first, second = hold_snapshot(db, 1, command="search"), hold_snapshot(db)
    assert second.snapshot.id == 2
    found = live_readers(db)
    assert sorted((r.snapshot, r.versions, r.pid) for r in found) == [
        (1, (3, 5), os.getpid()),
        (2, (4, 7), os.getpid()),
    ]
    first.close()
    assert [reader.snapshot for reader in live_readers(db)] == [2]
    second.close()
    assert live_readers(db) == [] and os.listdir(f"{db}/readers") == []


def test_the_claim_of_a_killed_reader_ends_with_it(db):
    process = subprocess.Popen([sys.executable, "-c", HOLD, db], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout and process.stdout.readline() == "held\n"
        assert [(r.command, r.pid) for r in live_readers(db)] == [("serve", process.pid)]
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert live_readers(db) == [] and os.listdir(f"{db}/readers") == []
    finally:
        process.kill()
        process.wait()


def test_a_snapshot_that_goes_while_it_is_opened_is_not_read(db):
    remove_snapshot(db, 1)
    with pytest.raises(NoIndex, match="snapshot 1"):
        hold_snapshot(db, 1)
    assert live_readers(db) == []


def test_where_nothing_is_published_nothing_is_held(tmp_path):
    assert hold_snapshot(str(tmp_path / "nothing")) is None
    assert not (tmp_path / "nothing").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_reader_without_the_right_to_write_may_read(db):
    os.chmod(db, 0o555)
    try:
        lease = hold_snapshot(db)
        assert lease.snapshot.id == 2 and live_readers(db) == []
        lease.close()
    finally:
        os.chmod(db, 0o755)


def test_in_an_object_store_the_claim_beats_and_expires(monkeypatch):
    monkeypatch.setattr(leases, "BEAT_S", 0.05)
    monkeypatch.setattr(leases, "EXPIRY_S", 1.0)
    db = "memory://readers-test/db"
    write_snapshot(db, Snapshot(id=1, documents_version=3, nodes_version=5))
    closed, dead = hold_snapshot(db), hold_snapshot(db)
    time.sleep(1.3)
    assert len(live_readers(db)) == 2
    closed.close()
    assert len(live_readers(db)) == 1
    dead.close.args[0].stop()
    time.sleep(1.2)
    assert live_readers(db) == []
