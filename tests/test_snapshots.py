"""Records of snapshots: whole or not there, never overwritten, read across versions."""

import pytest

from sproutrag.snapshots import (
    ConcurrentWriter,
    NoIndex,
    Snapshot,
    current_snapshot,
    read_snapshot,
    write_snapshot,
)


@pytest.fixture
def db(tmp_path) -> str:
    return str(tmp_path / "db")


def test_a_snapshot_is_never_overwritten(db, tmp_path):
    for place in (db, "memory://snapshots-test/db"):
        write_snapshot(place, Snapshot(id=7, run_id="first"))
        with pytest.raises(ConcurrentWriter, match="snapshot 7"):
            write_snapshot(place, Snapshot(id=7, run_id="second"))
        assert current_snapshot(place) == Snapshot(id=7, run_id="first")
        with pytest.raises(NoIndex, match="snapshot 8"):
            read_snapshot(place, 8)
    assert [path.name for path in (tmp_path / "db" / "snapshots").iterdir()] == ["000007.json"]


def test_a_snapshot_of_a_newer_version_is_refused_and_of_an_older_one_read(db, tmp_path):
    folder = tmp_path / "db" / "snapshots"
    folder.mkdir(parents=True)
    (folder / "000001.json").write_text('{"format": 1, "id": 1, "documents_version": 4}')
    assert current_snapshot(db) == Snapshot(id=1, documents_version=4)
    (folder / "000002.json").write_text('{"format": 2, "id": 2, "novelty": true}')
    with pytest.raises(NoIndex, match="newer sproutrag"):
        current_snapshot(db)
