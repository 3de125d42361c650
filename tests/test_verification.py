"""Each kind of damage, done to real tables, makes exactly its own problem appear."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sproutrag.commits import replace_rows
from sproutrag.snapshots import BrokenIndex, NoIndex, current_snapshot, list_snapshots
from sproutrag.storage import commit, publish
from sproutrag.tables import open_table
from sproutrag.verification import verify
from tests.damage import damage_document, damage_nodes, point_snapshot_at_heads, with_column, with_vectors
from tests.small_index import encoded, index, write


@pytest.fixture
def db(tmp_path: Path) -> str:
    db = str(tmp_path / "db")
    index(db, [encoded("a", 3), encoded("b", 5, title="Roots"), encoded("c", 1)], "1")
    return db


def kinds(db: str) -> set[str]:
    return {problem.kind for problem in verify(db).problems}


def test_a_sound_index_has_no_problems(db):
    found = verify(db)
    assert found.ok and found.problems == () and (found.snapshot, found.documents) == (1, 3)
    index(db, [encoded("a", 2), encoded("d", 30)], "2", remove=("c",))
    assert verify(db).ok and verify(db, snapshot=1).ok
    index(db, [], "3", remove=("a", "b", "d"))
    assert verify(db).ok
    with pytest.raises(NoIndex, match="run `sproutrag index"):
        verify(f"{db}-elsewhere")


def test_every_problem_says_what_where_and_what_next(db):
    open_table(db, "nodes").delete("doc_id = 'b'")
    point_snapshot_at_heads(db)
    first = verify(db).problems[0]
    assert (first.kind, first.where) == ("holes", "'b'")
    assert first.what == "1 documents have no tree" and "verify --repair" in first.next


def test_holes(db):
    open_table(db, "nodes").delete("doc_id = 'b' AND node = 7")
    point_snapshot_at_heads(db)
    problems = verify(db).problems
    assert {p.kind for p in problems} == {"holes"}
    assert any(p.where == "document 'b'" and "[7]" in p.what for p in problems)


def test_orphans(db):
    open_table(db, "documents").delete("doc_id = 'b'")
    counts = {"documents": 2, "nodes": 6, "leaves": 4, "tokens": 28}
    point_snapshot_at_heads(db, counts=counts)
    assert kinds(db) == {"orphans"}


def test_duplicates(db):
    again = write(db, [encoded("b", 5, title="Roots")])
    replace_rows(db, "nodes", again.nodes, [], {"run_id": "2"})
    replace_rows(db, "documents", again.documents, [], {"run_id": "2"})
    open_table(db, "nodes").optimize.optimize_indices()
    point_snapshot_at_heads(db, counts={"documents": 4, "nodes": 24, "leaves": 14, "tokens": 98})
    assert kinds(db) == {"duplicates"}


def test_a_node_stored_twice(db):
    damage_nodes(db, "doc_id = 'b' AND node = 7", lambda rows: pa.concat_tables([rows, rows]))
    assert kinds(db) == {"duplicates"}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda v: np.where(np.arange(v.shape[1]) == 2, np.nan, v), "not finite"),
        (lambda v: np.where(np.arange(v.shape[1]) == 2, np.inf, v), "not finite"),
        (lambda v: v * 3, "not of length 1"),
        (lambda v: -v, "not the mean"),
    ],
)
def test_vectors(db, change, what):
    damage_nodes(db, "doc_id = 'b' AND node = 1", with_vectors(lambda v: change(v).astype(np.float32)))
    assert kinds(db) == {"vectors"} and what in verify(db).problems[0].what


def test_width(db):
    point_snapshot_at_heads(db, dimension=16)
    assert kinds(db) == {"width"}


def test_a_missing_vector(db):
    damage_nodes(db, "doc_id = 'b' AND node = 1", with_column("vector", lambda values: [None] * len(values)))
    assert kinds(db) == {"vectors"}


@pytest.mark.parametrize(
    "spans",
    [
        [0, 25, 26, 51, 52, 77, 78, 103, 104, 120],  # the end is missing
        [0, 25, 20, 51, 52, 77, 78, 103, 104, 129],  # overlapping
        [0, 25, 26, 51, 52, 77, 78, 103, 104, 999],  # outside
        [0, 25, 26, 51],  # too few
    ],
)
def test_coverage(db, spans):
    assert encoded("b", 5).spans.ravel().tolist() == [0, 25, 26, 51, 52, 77, 78, 103, 104, 129]
    damage_document(db, "b", spans=spans)
    assert kinds(db) == {"coverage"}


def test_text(db):
    damage_document(db, "b", text="first sentence 0 about B." + encoded("b", 5).document.text[25:])
    assert kinds(db) == {"text"}


@pytest.mark.parametrize(
    "change",
    [
        lambda row: {"merges": [*row["merges"][:-1], row["merges"][0]]},  # one node twice
        lambda row: {"merges": row["merges"][:-2]},  # one merge missing
        lambda row: {"merges": row["merges"][2:] + row["merges"][:2]},  # a node before it exists
        lambda row: {"affinity": row["affinity"][::-1]},  # rises
        lambda row: {"affinity": [float("nan"), *row["affinity"][1:]]},
        lambda row: {"leaf_order": row["leaf_order"][::-1]},
        lambda row: {"depth": row["depth"] + 1},
    ],
)
def test_tree(db, change):
    (row,) = open_table(db, "documents").to_table(filter="doc_id = 'b'").to_pylist()
    damage_document(db, "b", **change(row))
    assert kinds(db) == {"tree"}


def test_slices(db):
    damage_nodes(
        db, "doc_id = 'b' AND node = 2", with_column("start", lambda values: [v + 1 for v in values])
    )
    assert kinds(db) == {"slices"}


def test_full_text(db):
    damage_nodes(db, "doc_id = 'b' AND node = 2", with_column("text", lambda values: [None] * len(values)))
    assert kinds(db) == {"full_text"}


def test_an_index_that_lags_behind(db):
    publish(db, commit(db, [write(db, [encoded("d", 2)])], run_id="2"))
    assert kinds(db) == {"index"} and "3 rows are not indexed" in verify(db).problems[0].what


def test_an_index_that_is_not_there(db):
    open_table(db, "nodes").drop_index("text")
    point_snapshot_at_heads(db)
    assert kinds(db) == {"index"} and "no index over 15 rows" in verify(db).problems[0].what


def test_fingerprint(db):
    damage_document(db, "b", fingerprint="other@ffffffffffff")
    assert kinds(db) == {"fingerprint"}


def test_counts(db):
    point_snapshot_at_heads(db, counts=current_snapshot(db).counts | {"tokens": 1})
    assert kinds(db) == {"counts"}


@pytest.mark.parametrize("place", ["documents.lance/data", "nodes.lance/data", "nodes.lance/_indices"])
def test_files_that_are_gone_or_cut_off(db, place):
    files = list((Path(db) / place).rglob("*.lance"))
    for path in files:
        path.write_bytes(path.read_bytes()[:40])
    kind = "index" if place.endswith("_indices") else "files"
    assert kinds(db) == {kind}
    for path in files:
        path.unlink()
    assert kinds(db) == {kind}
    told = verify(db).problems[0]
    named = files[0].name if kind == "files" else files[0].parent.name
    assert named in told.what and "cannot be read" in told.what and "verify --repair" in told.next


def test_a_version_that_is_gone(db):
    point_snapshot_at_heads(db, nodes_version=99)
    point = Path(db) / "snapshots" / "000001.json"
    assert json.loads(point.read_text())["nodes_version"] == 99
    assert kinds(db) == {"unreadable"}


def test_the_quick_form_stands_before_every_publication(db):
    head = commit(db, [write(db, [encoded("d", 2)])], run_id="2")
    open_table(db, "nodes").delete("doc_id = 'a'")
    with pytest.raises(BrokenIndex, match=r"1 documents have no tree in 'a': nothing was published"):
        publish(db, dataclasses.replace(head, nodes_version=open_table(db, "nodes").version))
    assert list_snapshots(db) == [1]


def test_nodes_without_any_document(db):
    open_table(db, "nodes").delete("doc_id = 'b' AND node = 0")
    open_table(db, "documents").delete("doc_id = 'b'")
    point_snapshot_at_heads(db, counts={"documents": 2, "nodes": 6, "leaves": 4, "tokens": 28})
    assert kinds(db) == {"orphans"}
