"""Each kind of damage, done to a real index of a real encoder: repaired, sound, all else untouched."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipelines.actors import IndexDocuments
from pipelines.repair import Repair, main
from sproutrag.commits import replace_rows
from sproutrag.documents import Document
from sproutrag.index import TreeIndex
from sproutrag.indices import build_indices
from sproutrag.options import VerifyOptions
from sproutrag.snapshots import current_snapshot, list_snapshots
from sproutrag.storage import commit, publish
from sproutrag.tables import open_table
from sproutrag.verification import verify
from tests.damage import damage_document, damage_nodes, point_snapshot_at_heads, with_column, with_vectors

WORDS = {"a": "anchor", "b": "bellows", "c": "copper", "d": "dovetail"}


def document(id: str) -> Document:
    sentences = [f"The {WORDS[id]} number {i} was seen by the river at night." for i in range(9)]
    return Document(id, " ".join(sentences), title=f"On {WORDS[id]}", source=f"notes/{id}.md")


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: str) -> IndexDocuments:
    return IndexDocuments(
        db=str(tmp_path_factory.mktemp("sound") / "db"), encoder=tiny_encoder, threads=1, rebuild=True
    )


@pytest.fixture(scope="module")
def sound(worker: IndexDocuments, tiny_encoder: str) -> str:
    """Two runs, so that there are two files per table: a, b and then c, d."""
    for run, ids in enumerate(("ab", "cd")):
        outcome = worker.index([document(id) for id in ids], size=0)
        assert outcome.written
        head = commit(worker.db, [outcome.written], run_id=str(run), encoder=tiny_encoder, sources=["notes"])
        build_indices(worker.db)
        publish(worker.db, head)
    return worker.db


@pytest.fixture
def db(sound: str, tmp_path: Path) -> str:
    return shutil.copytree(sound, str(tmp_path / "db"))


def repair(db: str) -> Repair:
    return main(VerifyOptions(db=db, repair=True))


def rows(db: str, *, but: str = "") -> list[list[dict]]:
    """All rows of the current snapshot, but those of one document."""
    snapshot = current_snapshot(db)
    assert snapshot
    tables = zip(("documents", "nodes"), snapshot.versions, strict=True)
    found = [open_table(db, name, version).to_table(filter=f"doc_id != '{but}'") for name, version in tables]
    return [sorted(t.to_pylist(), key=lambda row: (row["doc_id"], row.get("node", 0))) for t in found]


def drop_nodes(condition: str) -> Callable[[str], None]:
    def damage(db: str) -> None:
        open_table(db, "nodes").delete(condition)
        point_snapshot_at_heads(db)

    return damage


def change_row(**changes: object) -> Callable[[str], None]:
    return lambda db: damage_document(db, "b", **changes)


def change_nodes(change: Callable[[pa.Table], pa.Table], node: int = 1) -> Callable[[str], None]:
    return lambda db: damage_nodes(db, f"doc_id = 'b' AND node = {node}", change)


def vectors(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[str], None]:
    return change_nodes(with_vectors(lambda v: change(v).astype(np.float32)))


def store_twice(db: str) -> None:
    """As a foreign tool that appends without looking."""
    for name in ("nodes", "documents"):
        table = open_table(db, name)
        table.insert(table.to_table(filter="doc_id = 'b'"))
    open_table(db, "nodes").optimize.optimize_indices()
    point_snapshot_at_heads(db)


BROKEN_ROWS = {
    "a hole": drop_nodes("doc_id = 'b' AND node = 2"),
    "no tree at all": drop_nodes("doc_id = 'b'"),
    "a node twice": change_nodes(lambda found: pa.concat_tables([found, found])),
    "a document twice": store_twice,
    "spans": change_row(spans=[0, 5]),
    "merges": change_row(merges=[0, 0]),
    "columns of nothing": change_row(merges=None, spans=None, n_leaves=None, coverage=None),
    "affinity": change_row(affinity=[float("nan")] * 4),
    "depth": change_row(depth=77),
    "another encoder's": change_row(fingerprint="other@ffffffffffff"),
    "slices": change_nodes(with_column("start", lambda values: [v + 1 for v in values])),
    "full text": change_nodes(with_column("text", lambda values: [None] * len(values))),
    "no vector": change_nodes(with_column("vector", lambda values: [None] * len(values))),
    "vectors not finite": vectors(lambda v: np.full_like(v, np.nan)),
    "vectors not of length 1": vectors(lambda v: v * 3),
    "vectors that are not the mean": vectors(lambda v: -v),
}


ALIKE = {"a node twice", "affinity", "depth", "no vector", "vectors not of length 1", "columns of nothing"}


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(damage, id=name, marks=[pytest.mark.slow] if name in ALIKE else [])
        for name, damage in BROKEN_ROWS.items()
    ],
)
def test_a_broken_document_is_encoded_again_and_no_other_is_touched(
    db: str, damage: Callable[[str], None]
) -> None:
    was, others = rows(db), rows(db, but="b")
    damage(db)
    assert not verify(db).ok
    done = repair(db)
    assert done.ok and done.problems == () and done.left == () and done.documents == 4
    assert [one.where for one in done.repaired if "encoded again" in one.what] == ["document 'b'"]
    assert list_snapshots(db) == [1, 2, 3], "one new snapshot"
    assert rows(db, but="b") == others
    documents, nodes = rows(db)
    assert [row["content_hash"] for row in documents] == [row["content_hash"] for row in was[0]]
    np.testing.assert_allclose([row["vector"] for row in nodes], [row["vector"] for row in was[1]], atol=1e-5)
    assert_all_found(db, "abcd")


def assert_all_found(db: str, ids: str) -> None:
    index = TreeIndex.open(db)
    for id in ids:
        assert index.search(f"{WORDS[id]} number 4", k=1)[0].doc_id == id
    index.close()


def test_a_sound_index_is_left_alone(db: str) -> None:
    done = repair(db)
    assert done.ok and (done.snapshot, done.documents, done.repaired, done.left) == (2, 4, (), ())
    assert list_snapshots(db) == [1, 2]


def test_nodes_of_no_document_are_removed(db: str) -> None:
    open_table(db, "documents").delete("doc_id = 'b'")
    point_snapshot_at_heads(db)
    others = rows(db, but="b")
    done = repair(db)
    assert done.ok and done.documents == 3 and rows(db) == others
    assert "belong to no document" in done.repaired[0].what and done.left == ()


def test_a_damaged_text_is_removed_and_listed_with_what_brings_it_back(db: str) -> None:
    others = rows(db, but="b")
    damage_document(db, "b", text="Something else altogether.")
    done = repair(db)
    assert done.ok and done.documents == 3 and rows(db) == others
    [left] = done.left
    assert left.where == "document 'b'" and "notes/b.md" in left.what
    assert f"sproutrag index notes/b.md --db {db}" in left.next
    assert_all_found(db, "acd")


def test_a_document_stored_twice_with_one_damaged_text_keeps_the_other(db: str) -> None:
    table = open_table(db, "documents")
    row = table.to_table(filter="doc_id = 'b'")
    at = row.schema.get_field_index("text")
    table.insert(row.set_column(at, row.schema.field("text"), pa.array(["Not this."], pa.large_string())))
    point_snapshot_at_heads(db)
    done = repair(db)
    assert done.ok and done.documents == 4 and done.left == ()
    assert TreeIndex.open(db).document("b").document.text == document("b").text


@pytest.mark.parametrize("cut", [True, False], ids=["cut off", "gone"])
def test_a_file_of_nodes_that_cannot_be_read_is_made_again_from_the_documents(db: str, cut: bool) -> None:
    lose(db, "nodes", cut=cut)
    done = repair(db)
    assert done.ok and done.documents == 4 and done.left == ()
    assert sum("encoded again" in one.what for one in done.repaired) == 2
    assert_all_found(db, "abcd")


@pytest.mark.parametrize("cut", [True, False], ids=["cut off", "gone"])
def test_a_file_of_documents_that_cannot_be_read_is_listed_document_by_document(db: str, cut: bool) -> None:
    lost = lose(db, "documents", cut=cut)
    done = repair(db)
    assert done.ok and done.documents == 2
    assert [one.where for one in done.left] == [f"document {id!r}" for id in lost]
    assert all(f"sproutrag index notes --db {db}" in one.next for one in done.left)
    assert_all_found(db, "".join(sorted(set("abcd") - set(lost))))


def lose(db: str, name: str, *, cut: bool) -> list[str]:
    """Spoil the first data file of a table; the ids that it held."""
    fragment = open_table(db, name).get_fragments()[0]
    held = fragment.to_table(columns=["doc_id"])["doc_id"].unique().to_pylist()
    path = Path(db) / f"{name}.lance" / "data" / fragment.data_files()[0].path
    if cut:
        path.write_bytes(path.read_bytes()[:40])
    else:
        path.unlink()
    assert {problem.kind for problem in verify(db).problems} == {"files"}
    return sorted(held)


@pytest.mark.parametrize("cut", [True, False], ids=["cut off", "gone"])
def test_an_index_that_cannot_be_read_is_built_again(db: str, cut: bool) -> None:
    was = rows(db)
    for path in (Path(db) / "nodes.lance" / "_indices").rglob("*.lance"):
        if cut:
            path.write_bytes(path.read_bytes()[:40])
        else:
            path.unlink()
    assert {problem.kind for problem in verify(db).problems} == {"index"}
    done = repair(db)
    assert done.ok and done.left == () and rows(db) == was
    assert_all_found(db, "abcd")


def test_an_index_that_is_missing_is_built(db: str) -> None:
    open_table(db, "nodes").drop_index("text")
    point_snapshot_at_heads(db)
    done = repair(db)
    assert done.ok and any("built nodes.text" in one.what for one in done.repaired)


def test_an_index_that_lags_behind_is_extended(db: str, worker: IndexDocuments) -> None:
    table = open_table(db, "nodes")
    b = table.to_table(filter="doc_id = 'b'")
    table.delete("doc_id = 'b'")
    open_table(db, "nodes").insert(b)
    point_snapshot_at_heads(db)
    assert {problem.kind for problem in verify(db).problems} == {"index"}
    done = repair(db)
    assert done.ok and any("extended nodes.text" in one.what for one in done.repaired)


@pytest.mark.parametrize("wrong", [{"counts": {"documents": 9}}, {"dimension": 5}, {"nodes_version": 99}])
def test_a_wrong_record_is_published_right(db: str, wrong: dict) -> None:
    was = rows(db)
    point_snapshot_at_heads(db, **wrong)
    assert not verify(db).ok
    done = repair(db)
    assert done.ok and done.snapshot == 3 and rows(db) == was


def test_what_a_dead_run_left_half_done_is_taken_back_first(db: str) -> None:
    replace_rows(db, "nodes", [], ["c"], {"run_id": "died"})
    damage_document(db, "b", depth=77)
    point_snapshot_at_heads(db, nodes_version=current_snapshot(db).nodes_version - 1)  # type: ignore[union-attr]
    done = repair(db)
    assert done.ok and done.documents == 4
    assert_all_found(db, "abcd")
