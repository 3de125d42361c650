"""Real processes on a real file system, and fsspec's in-memory store for the leases."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import fsspec
import pytest

from sproutrag import leases
from sproutrag.leases import this_process
from sproutrag.lock import acquire, writer_lock
from sproutrag.snapshots import ConcurrentWriter, IndexBusy

ROOT = Path(__file__).parent.parent
HOLD = """
import sys, time
from sproutrag.lock import writer_lock
with writer_lock(sys.argv[1], command="index nightly"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "db")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    monkeypatch.setattr(leases, "BEAT_S", 0.05)
    monkeypatch.setattr(leases, "EXPIRY_S", 1.0)
    return f"memory://{request.node.name}/db"


def hold_elsewhere(db: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, db], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "held\n"
    return process


def test_the_second_writer_is_told_who_holds_the_lock(db):
    with writer_lock(db, command="index corpus"), pytest.raises(IndexBusy) as busy:
        acquire(db, this_process("delete a"), wait_s=0)
    assert f"`index corpus` (process {os.getpid()} on " in str(busy.value)
    with writer_lock(db, command="delete a") as lock:
        lock.require()


def test_another_process_holds_it_until_it_is_killed(db):
    holder = hold_elsewhere(db)
    try:
        with pytest.raises(IndexBusy, match=rf"`index nightly` \(process {holder.pid} on"):
            acquire(db, this_process("index"), wait_s=0.3)
        holder.send_signal(signal.SIGKILL)
        with writer_lock(db, command="index", wait_s=5) as lock:
            lock.require()
    finally:
        holder.kill()
        holder.wait()


def test_who_waits_gets_it_when_it_is_free(db):
    lock = acquire(db, this_process("first"), wait_s=0)
    threading.Timer(0.3, lock.release).start()
    with writer_lock(db, command="second", wait_s=5):
        pass


def test_never_two_at_once(db):
    inside, most, turns = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, turns
        for _ in range(5):
            with writer_lock(db, command="work", wait_s=60):
                inside += 1
                most = max(most, inside)
                time.sleep(0.002)
                inside -= 1
                turns += 1

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, turns) == (1, 15)


def test_a_lock_file_removed_by_hand_is_noticed_before_anything_is_published(db):
    with writer_lock(db, command="index") as lock:
        os.unlink(f"{db}/writer.lock")
        with pytest.raises(ConcurrentWriter, match="no longer ours"):
            lock.require()


def test_a_crash_inside_lets_go(db):
    with pytest.raises(ZeroDivisionError), writer_lock(db, command="index"):
        _ = 1 / 0
    acquire(db, this_process("index"), wait_s=0).release()


def test_a_run_that_writes_nothing_leaves_nothing(db):
    with writer_lock(db, command="index"):
        pass
    assert not os.path.exists(db)
    os.mkdir(db)
    with writer_lock(db, command="index"):
        pass
    assert os.listdir(db) == []


# --- leases


def test_a_lease_refuses_the_second_and_ends_with_its_holder(store):
    with writer_lock(store, command="index corpus") as lock:
        time.sleep(1.3)  # longer than the expiry: the heartbeat keeps it
        lock.require()
        with pytest.raises(IndexBusy, match="`index corpus`"):
            acquire(store, this_process("delete"), wait_s=0)
    with writer_lock(store, command="delete") as lock:
        lock.require()


def test_the_lease_of_a_dead_writer_expires_and_the_dead_may_not_go_on(store):
    dead = acquire(store, this_process("index"), wait_s=0)
    dead.beat.stop()
    with pytest.raises(IndexBusy):
        acquire(store, this_process("index"), wait_s=0)
    with writer_lock(store, command="index", wait_s=5) as lock:
        lock.require()
        with pytest.raises(ConcurrentWriter, match="no longer ours"):
            dead.require()


def test_a_writer_that_was_cut_off_stops_before_others_may_take_over(store):
    lock = acquire(store, this_process("index"), wait_s=0)
    lock.beat.stop()
    time.sleep(0.6)  # half the expiry
    with pytest.raises(ConcurrentWriter):
        lock.require()


def test_a_late_heartbeat_brings_nothing_back(store):
    late = acquire(store, this_process("late"), wait_s=0)
    late.beat.stop()
    with writer_lock(store, command="next", wait_s=5):
        late.beat.files.pipe_file(late.beat.path, late.beat.content)
    with pytest.raises(ConcurrentWriter):
        late.require()
    with writer_lock(store, command="third") as lock:
        lock.require()


def test_the_clock_of_this_machine_does_not_matter(store, monkeypatch):
    """Ours runs an hour ahead; the store judges by its own."""
    with writer_lock(store, command="index"):
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 3600)
        with pytest.raises(IndexBusy):
            acquire(store, this_process("index"), wait_s=0)


def test_a_store_keeps_one_small_file_per_index(store):
    for turn in range(3):
        with writer_lock(store, command=f"turn {turn}"):
            pass
    files, folder = fsspec.url_to_fs(f"{store}/writers")
    assert [path.rsplit("/", 1)[1] for path in files.ls(folder, detail=False)] == ["000003.json"]
