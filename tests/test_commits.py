"""A rebuild in the tables: another encoder's vectors replace all rows by one commit per table."""

from pathlib import Path

import pytest

from sproutrag.commits import replace_rows, settle
from sproutrag.indices import build_indices
from sproutrag.retention import prune, rollback
from sproutrag.snapshots import Snapshot, Unstorable, current_snapshot
from sproutrag.storage import commit, encoder_of, publish, stored_hashes, write_documents
from sproutrag.tables import nodes_schema, open_table
from sproutrag.verification import verify
from tests.small_index import encoded, index, node_counts

WIDE = "wide@ffffffffffff"


@pytest.fixture
def db(tmp_path: Path) -> str:
    db = str(tmp_path / "db")
    index(db, [encoded("a", 3), encoded("b", 5)], "1")
    return db


def rebuilt(db: str, ids: str = "ab", run_id: str = "2", remove: tuple[str, ...] = ()) -> Snapshot:
    wide = [encoded(id, 4, dimension=16) for id in ids]
    written = write_documents(db, wide, fingerprint=WIDE, rebuild=True)  # type: ignore[arg-type]
    return commit(db, [written], run_id=run_id, encoder="wide", remove=remove, rebuild=True)


def finish(db: str, head: Snapshot) -> Snapshot:
    build_indices(db)
    return publish(db, head)


def width(db: str, version: int | None = None) -> int:
    return open_table(db, "nodes", version).schema.field("vector").type.list_size


def test_readers_of_the_old_version_keep_it_until_and_after_the_swap(db: str) -> None:
    old = current_snapshot(db)
    assert old
    head = rebuilt(db)
    assert current_snapshot(db) == old and verify(db).ok, "nothing is seen before it is published"
    new = finish(db, head)
    assert (new.dimension, new.fingerprint, new.encoder) == (16, WIDE, "wide")
    assert verify(db).ok and verify(db, snapshot=1).ok
    assert (width(db, old.nodes_version), width(db)) == (8, 16)
    assert node_counts(db, old.nodes_version) == {"a": 5, "b": 9} and node_counts(db) == {"a": 7, "b": 7}


def test_a_rollback_brings_the_old_encoder_back_and_a_run_goes_on_from_there(db: str) -> None:
    finish(db, rebuilt(db))
    assert rollback(db, 1).dimension == 8
    assert encoder_of(db) == "" and width(db) == 8 and verify(db).ok
    index(db, [encoded("c", 2)], "3")
    assert verify(db).ok and stored_hashes(db).keys() == {"a", "b", "c"}


def test_a_rebuild_that_would_lose_a_document_is_refused(db: str) -> None:
    before = current_snapshot(db)
    with pytest.raises(Unstorable, match="would lose 'b': nothing was changed"):
        rebuilt(db, "a")
    assert current_snapshot(db) == before and width(db) == 8
    finish(db, rebuilt(db, "a", remove=("b",)))
    assert stored_hashes(db).keys() == {"a"} and verify(db).ok


def test_a_rebuild_that_died_between_the_tables_is_taken_back(db: str) -> None:
    wide = [encoded("a", 4, dimension=16), encoded("b", 4, dimension=16)]
    written = write_documents(db, wide, fingerprint=WIDE, rebuild=True)  # type: ignore[arg-type]
    replace_rows(db, "nodes", written.nodes, [], {"run_id": "died"}, schema=nodes_schema(16))
    assert width(db) == 16 and verify(db).ok
    settle(db, run_id="3")
    index(db, [encoded("c", 2)], "3")
    assert width(db) == 8 and verify(db).ok and node_counts(db) == {"a": 5, "b": 9, "c": 3}


def test_a_rebuild_that_died_before_it_was_published_is_published_by_the_next_run(db: str) -> None:
    rebuilt(db)
    assert current_snapshot(db).encoder == "" and encoder_of(db) == "wide"  # type: ignore[union-attr]
    snapshot = finish(db, commit(db, [], run_id="3"))
    assert (snapshot.encoder, snapshot.dimension) == ("wide", 16) and verify(db).ok


def test_nothing_of_the_old_encoder_stays_after_a_clean_up(db: str) -> None:
    """P098: no version, no record, no file names or holds what it made."""
    finish(db, rebuilt(db))
    prune(db, keep=1)
    assert verify(db).ok
    files = [path for path in Path(db).rglob("*") if path.is_file()]
    assert not [path for path in files if b"0123456789ab" in path.read_bytes()]
