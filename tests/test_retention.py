"""Versions, rollback, clean-up and deletion on real tables."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sproutrag import retention
from sproutrag.commits import replace_rows
from sproutrag.lock import writer_lock
from sproutrag.readers import hold_snapshot
from sproutrag.retention import MAX_FRAGMENTS, delete_documents, prune, rollback, versions
from sproutrag.snapshots import (
    DocumentNotFound,
    IndexBusy,
    NoIndex,
    current_snapshot,
    list_snapshots,
    read_snapshot,
)
from sproutrag.storage import commit, publish, stored_hashes
from sproutrag.tables import open_table
from sproutrag.verification import verify
from tests.small_index import encoded, index, node_counts, write

ROOT = Path(__file__).parent.parent


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "db")


def files_of(db: str) -> dict[str, int]:
    """Lance's own files: path -> bytes."""
    folders = (walk for name in ("documents", "nodes") for walk in os.walk(f"{db}/{name}.lance"))
    paths = (os.path.join(folder, file) for folder, _, files in folders for file in files)
    return {path: os.path.getsize(path) for path in paths}


def found(db: str, words: str, version: int | None = None) -> set[str]:
    nodes = open_table(db, "nodes", version)
    hits = nodes.to_table(columns=["doc_id", "_score"], full_text_query=words, limit=99)
    return set(hits["doc_id"].to_pylist())


def documents_with(db: str, text: bytes) -> list[str]:
    """Files anywhere below the index whose bytes hold this text."""
    return [str(path) for path in Path(db).rglob("*") if path.is_file() and text in path.read_bytes()]


# --- versions and rollback


def test_versions_say_what_was_published_by_whom_and_who_reads_it(db):
    index(db, [encoded("a", 3)], "1")
    index(db, [encoded("b", 2)], "2", remove=("a",))
    lease = hold_snapshot(db, 1)
    second, first = versions(db)
    assert (first["id"], first["documents"], first["nodes"], first["current"]) == (1, 1, 5, False)
    assert (second["id"], second["documents"], second["nodes"], second["current"]) == (2, 1, 3, True)
    assert (first["readers"], second["readers"]) == (1, 0)
    assert "@" in first["by"] and first["run_id"] == "1"
    lease.close()
    with pytest.raises(NoIndex):
        versions(f"{db}-elsewhere")


def test_rollback_is_a_new_snapshot_on_which_later_runs_build(db):
    index(db, [encoded("a", 3), encoded("b", 5)], "1")
    hashes = stored_hashes(db)
    index(db, [encoded("b", 2, word="second"), encoded("c", 4)], "2", remove=("a",))
    back = rollback(db, 1)
    assert (back.id, back.command, back.counts["documents"]) == (3, "rollback 1", 2)
    assert current_snapshot(db) == back and node_counts(db) == {"a": 5, "b": 9}
    assert stored_hashes(db) == hashes
    later = index(db, [encoded("d", 2)], "4")
    assert node_counts(db) == {"a": 5, "b": 9, "d": 3} and later.id == 4
    assert found(db, "second") == set() and found(db, "first") == {"a", "b", "d"}
    assert verify(db).ok
    assert rollback(db, 2).counts["documents"] == 2 and node_counts(db) == {"b": 3, "c": 7}


def test_rollback_to_the_current_snapshot_changes_nothing_but_drops_unpublished_work(db):
    first = index(db, [encoded("a")], "1")
    assert rollback(db, 1) == first and list_snapshots(db) == [1]
    commit(db, [write(db, [encoded("b")])], run_id="2")
    assert rollback(db, 1).counts == first.counts and stored_hashes(db).keys() == {"a"}


@pytest.mark.parametrize("restored", [("nodes",), ("nodes", "documents")])
def test_a_rollback_that_is_killed_happened_whole_or_not_at_all(db, restored, monkeypatch):
    """Killed after restoring one table or both, before publishing."""
    index(db, [encoded("a", 3)], "1")
    index(db, [encoded("b", 2)], "2", remove=("a",))
    done, real = [], retention.restore

    def restore_then_die(db: str, name: str, *arguments: object) -> int:
        if name not in restored:
            raise KeyboardInterrupt
        done.append(name)
        return real(db, name, *arguments)

    monkeypatch.setattr(retention, "restore", restore_then_die)
    monkeypatch.setattr(retention, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        rollback(db, 1)
    monkeypatch.undo()
    assert tuple(done) == restored and current_snapshot(db).id == 2
    index(db, [encoded("c", 1)], "3")
    survivor = {"a": 5} if "documents" in restored else {"b": 3}
    assert node_counts(db) == survivor | {"c": 1}
    assert verify(db).ok


def test_a_rollback_over_half_a_run_takes_that_back_too(db):
    index(db, [encoded("a", 3)], "1")
    index(db, [encoded("b", 2)], "2")
    lost = write(db, [encoded("x", 2)])
    replace_rows(db, "nodes", lost.nodes, [], {"run_id": "3"})
    rollback(db, 1)
    assert node_counts(db) == {"a": 5} and verify(db).ok


# --- clean-up


def test_prune_keeps_what_was_asked_for_and_frees_the_rest(db):
    snapshots = [index(db, [encoded("a", 3 + i, word=f"night{i}")], str(i)) for i in range(6)]
    before = sum(files_of(db).values())
    freed = prune(db, keep=2)
    kept = list_snapshots(db)
    assert len(kept) == 2 and freed.kept == tuple(kept) and freed.held == ()
    assert set(freed.snapshots) >= {1, 2, 3, 4}
    assert before - sum(files_of(db).values()) >= freed.bytes * 0.9 > 0
    for id in kept:
        assert verify(db, snapshot=id).ok
    assert node_counts(db) == {"a": 2 * 8 - 1} and found(db, "night5") == {"a"}
    for gone in snapshots[:4]:
        with pytest.raises(ValueError, match="not found"):
            open_table(db, "nodes", gone.nodes_version)
    again = prune(db, keep=2)
    assert (again.snapshots, again.versions, again.bytes) == ((), 0, 0)


def test_clean_up_leaves_the_snapshot_of_a_live_reader_alone(db):
    first = index(db, [encoded("a", 3, word="old")], "1")
    index(db, [encoded("a", 2, word="new")], "2")
    index(db, [encoded("b", 2, word="newer")], "3")
    lease = hold_snapshot(db, 1, command="serve")
    nodes = open_table(db, "nodes", first.nodes_version)
    freed = prune(db, keep=1)
    assert freed.held and "`serve`" in freed.held[0] and 1 in list_snapshots(db)
    assert nodes.to_table(columns=["doc_id", "_score"], full_text_query="old").num_rows == 3
    assert node_counts(db, first.nodes_version) == {"a": 5} and verify(db, snapshot=1).ok
    lease.close()
    assert prune(db, keep=1).snapshots == (1,)


def test_the_snapshot_of_a_killed_reader_is_freed(db):
    index(db, [encoded("a", 3)], "1")
    index(db, [encoded("a", 2)], "2")
    code = (
        "import os, sys; from sproutrag.readers import hold_snapshot; "
        "hold_snapshot(sys.argv[1], 1); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, db], cwd=ROOT)
    assert len(os.listdir(f"{db}/readers")) == 1
    assert 1 in prune(db, keep=1).snapshots and os.listdir(f"{db}/readers") == []


def test_what_killed_runs_left_is_removed(db):
    index(db, [encoded("a", 3)], "1")
    clean = files_of(db).keys()
    write(db, [encoded("orphan", 9, word="orphan")])
    lost = write(db, [encoded("half", 5, word="half")])
    replace_rows(db, "nodes", lost.nodes, ["a"], {"run_id": "2"})
    prune(db, keep=1)
    data = {path for path in files_of(db) if "/data/" in path}
    assert data == {path for path in clean if "/data/" in path}
    assert not documents_with(db, b"orphan sentence") and not documents_with(db, b"half sentence")
    assert node_counts(db) == {"a": 5} and verify(db).ok


def test_finished_but_unpublished_work_survives_a_clean_up(db):
    index(db, [encoded("a", 3)], "1")
    commit(db, [write(db, [encoded("b", 2)])], run_id="2")
    prune(db, keep=1)
    assert node_counts(db) == {"a": 5, "b": 3} and current_snapshot(db).counts["documents"] == 2


def test_many_small_runs_are_compacted_to_the_size_of_a_clean_build(db, tmp_path):
    documents = {f"d{i}": encoded(f"d{i}", 2 + i % 5) for i in range(MAX_FRAGMENTS + 2)}
    for number, document in enumerate(documents.values()):
        publish(db, commit(db, [write(db, [document])], run_id=str(number)))
    freed = prune(db, keep=1)
    assert freed.compacted == ("compacted documents", "compacted nodes")
    assert [len(open_table(db, name).get_fragments()) for name in ("documents", "nodes")] == [1, 1]
    assert list_snapshots(db) == [len(documents) + 1] and verify(db).ok
    fresh = str(tmp_path / "fresh")
    index(fresh, list(documents.values()), "1")
    assert sum(files_of(db).values()) <= 1.5 * sum(files_of(fresh).values())
    assert node_counts(db) == node_counts(fresh)


def test_a_lancedb_user_cannot_clean_away_a_snapshot(db):
    """`optimize` of LanceDB removes versions that have no tag."""
    first = index(db, [encoded("a", 3)], "1")
    index(db, [encoded("a", 2)], "2")
    table = open_table(db, "nodes")
    assert set(table.tags.list()) == {"snapshot-000001", "snapshot-000002"}
    table.cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False)
    assert node_counts(db, first.nodes_version) == {"a": 5}
    prune(db, keep=1)
    assert set(open_table(db, "nodes").tags.list()) == {"snapshot-000002"}


def test_maintenance_waits_for_its_turn(db):
    index(db, [encoded("a", 3)], "1")
    with writer_lock(db, command="index corpus"):
        for refused in (
            lambda: prune(db),
            lambda: rollback(db, 1),
            lambda: delete_documents(db, ["a"], purge=True),
        ):
            with pytest.raises(IndexBusy, match="`index corpus`"):
                refused()
    assert node_counts(db) == {"a": 5}


# --- deletion


def test_deletion_comes_with_proof(db):
    index(db, [encoded("a", 3), encoded("it's", 4), encoded("c", 1)], "1")
    deleted = delete_documents(db, ["a", "it's", "a"])
    assert deleted.before == {"documents": 2, "nodes": 12} and deleted.after == {"documents": 0, "nodes": 0}
    assert (deleted.documents, deleted.snapshot, deleted.purged) == (1, 2, None)
    assert node_counts(db) == {"c": 1} and found(db, "sentence") == {"c"}
    assert current_snapshot(db).command == "delete 'a', \"it's\""
    assert rollback(db, 1).counts["documents"] == 3


def test_an_unknown_document_deletes_nothing(db):
    index(db, [encoded("a", 3)], "1")
    with pytest.raises(DocumentNotFound, match=r"no document 'b', 'x' in .*: nothing was deleted"):
        delete_documents(db, ["a", "x", "b"])
    assert node_counts(db) == {"a": 5} and list_snapshots(db) == [1]


def test_after_a_purge_the_text_is_nowhere_in_the_directory(db):
    index(db, [encoded("secret", 3, word="plutonium"), encoded("b", 2)], "1")
    index(db, [encoded("c", 2)], "2")
    write(db, [encoded("secret", 2, word="plutonium")])  # by a run that died
    assert documents_with(db, b"plutonium sentence")
    deleted = delete_documents(db, ["secret"], purge=True)
    assert deleted.after == {"documents": 0, "nodes": 0} and deleted.purged.kept == (deleted.snapshot,)
    assert documents_with(db, b"plutonium") == []
    assert found(db, "plutonium") == set() and found(db, "sentence") == {"b", "c"}
    assert node_counts(db) == {"b": 3, "c": 3} and verify(db).ok
    assert index(db, [encoded("secret", 1)], "3").counts["documents"] == 3


def test_the_last_document_can_be_purged(db):
    index(db, [encoded("secret", 3, word="plutonium")], "1")
    delete_documents(db, ["secret"], purge=True)
    assert documents_with(db, b"plutonium") == [] and verify(db).ok and found(db, "plutonium") == set()
    assert index(db, [encoded("b", 2)], "2").counts["documents"] == 1 and found(db, "sentence") == {"b"}


def test_a_document_deleted_long_ago_can_still_be_purged(db):
    index(db, [encoded("secret", 3, word="plutonium"), encoded("b", 2)], "1")
    delete_documents(db, ["secret"])
    assert documents_with(db, b"plutonium")
    purged = delete_documents(db, ["secret"], purge=True)
    assert purged.before == purged.after == {"documents": 0, "nodes": 0}
    assert documents_with(db, b"plutonium") == []
    with pytest.raises(DocumentNotFound):
        delete_documents(db, ["secret"], purge=True)


def test_a_purge_says_who_still_reads_the_text(db):
    index(db, [encoded("secret", 3, word="plutonium"), encoded("b", 2)], "1")
    lease = hold_snapshot(db, 1, command="serve")
    with pytest.raises(IndexBusy, match=r"deleted, but the text is still in storage for `serve`"):
        delete_documents(db, ["secret"], purge=True)
    assert node_counts(db) == {"b": 3} and node_counts(db, read_snapshot(db, 1).nodes_version)["secret"] == 5
    lease.close()
    delete_documents(db, ["secret"], purge=True)
    assert documents_with(db, b"plutonium") == []
