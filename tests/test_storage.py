"""Real Lance tables."""

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sproutrag.commits import replace_rows
from sproutrag.indices import build_indices
from sproutrag.snapshots import (
    BrokenIndex,
    ConcurrentWriter,
    EncoderMismatch,
    Unstorable,
    current_snapshot,
    list_snapshots,
    read_snapshot,
)
from sproutrag.storage import (
    Written,
    commit,
    publish,
    require_fingerprint,
    stored_hashes,
)
from sproutrag.tables import open_table, tables_exist
from tests.small_index import FINGERPRINT, encoded, index, node_counts, write


@pytest.fixture
def db(tmp_path) -> str:
    return str(tmp_path / "db")


def test_written_travels_as_json_and_is_invisible_until_committed(db):
    written = write(db, [encoded("a"), encoded("b")])
    assert stored_hashes(db) == {} and node_counts(db) == {} and current_snapshot(db) is None
    copy = Written(**json.loads(json.dumps(dataclasses.asdict(written))))
    assert copy == written
    snapshot = commit(db, [copy], run_id="1", sources=["corpus"], encoder="/models/tiny")
    assert current_snapshot(db) is None
    published = publish(db, snapshot)
    assert current_snapshot(db) == published == read_snapshot(db, 1)
    assert published.counts == {"documents": 2, "nodes": 14, "leaves": 8, "tokens": 56}
    assert (published.fingerprint, published.dimension, published.coverage) == (FINGERPRINT, 8, 1.0)
    assert (published.run_id, published.sources, published.encoder) == ("1", ("corpus",), "/models/tiny")


def test_a_document_is_replaced_whole_and_readers_keep_their_version(db):
    first = index(db, [encoded("a", 3), encoded("b", 5), encoded("c", 2)], "1")
    hashes = stored_hashes(db)
    second = index(db, [encoded("b", 2, word="second"), encoded("d", 4)], "2", remove=("c", "ghost"))
    assert node_counts(db) == {"a": 5, "b": 3, "d": 7}
    assert node_counts(db, first.nodes_version) == {"a": 5, "b": 9, "c": 3}
    assert stored_hashes(db).keys() == {"a", "b", "d"}
    assert stored_hashes(db)["a"] == hashes["a"] and stored_hashes(db)["b"] != hashes["b"]
    texts = open_table(db, "nodes").to_table(columns=["doc_id", "text"]).to_pylist()
    assert not [t for t in texts if t["doc_id"] == "b" and t["text"] and "first" in t["text"]]
    assert second.id == 2 and second.counts["documents"] == 3


def test_many_workers_one_transaction_per_table(db):
    written = [write(db, [encoded(f"{worker}-{i}", i + 1) for i in range(3)]) for worker in range(4)]
    commit(db, written, run_id="1")
    assert [open_table(db, name).version for name in ("documents", "nodes")] == [2, 2]
    assert open_table(db, "documents").count_rows() == 12


def test_committing_again_changes_nothing(db):
    written = [write(db, [encoded("a"), encoded("b")])]
    first = commit(db, written, run_id="1")
    assert commit(db, written, run_id="1") == first
    build_indices(db)
    published = publish(db, first)
    assert commit(db, written, run_id="1").versions == published.versions
    assert node_counts(db) == {"a": 7, "b": 7}


def test_a_run_with_nothing_to_do_changes_nothing(db):
    published = index(db, [encoded("a")], "1")
    again = index(db, [], "2", remove=("ghost",))
    assert again == published and list_snapshots(db) == [1]
    assert build_indices(db) == []


def test_nothing_at_all_is_not_an_index(db):
    snapshot = publish(db, commit(db, [], run_id="1", remove=("ghost",)))
    assert snapshot.id == 0 and snapshot.counts["documents"] == 0
    assert not tables_exist(db) and build_indices(db) == [] and stored_hashes(db) == {}


def test_every_document_may_leave(db):
    index(db, [encoded("a"), encoded("b", 1)], "1")
    empty = index(db, [], "2", remove=("a", "b"))
    assert (empty.id, empty.counts["documents"], node_counts(db)) == (2, 0, {})
    assert index(db, [encoded("a", 2)], "3").counts["nodes"] == 3


def test_half_a_run_is_taken_back_by_the_next(db):
    """Killed between the commit of nodes and that of documents."""
    index(db, [encoded("a", 3), encoded("b", 2)], "1")
    lost = write(db, [encoded("a", 5, word="lost"), encoded("x", 2)])
    replace_rows(db, "nodes", lost.nodes, ["a"], {"run_id": "2"})
    published = index(db, [encoded("c", 2)], "3")
    assert node_counts(db) == {"a": 5, "b": 3, "c": 3}
    assert published.counts["nodes"] == 11
    # the lost run may come back later and is then a run like any other
    publish(db, commit(db, [lost], run_id="2"))
    assert node_counts(db) == {"a": 9, "b": 3, "c": 3, "x": 3}


def test_half_a_run_is_taken_back_by_a_run_with_nothing_to_do(db):
    published = index(db, [encoded("a", 3)], "1")
    replace_rows(db, "nodes", [], ["a"], {"run_id": "2"})
    assert index(db, [], "3").counts == published.counts
    assert node_counts(db) == {"a": 5}


def test_half_a_run_is_finished_by_itself(db):
    index(db, [encoded("a", 3)], "1")
    written = write(db, [encoded("a", 5), encoded("b", 2)])
    replace_rows(db, "nodes", written.nodes, ["a"], {"run_id": "2"})
    publish(db, commit(db, [written], run_id="2"))
    assert node_counts(db) == {"a": 9, "b": 3}


def test_committed_but_unpublished_work_is_kept(db):
    commit(db, [write(db, [encoded("a")])], run_id="1")
    assert stored_hashes(db).keys() == {"a"}
    published = index(db, [encoded("b")], "2")
    assert published.id == 1 and published.counts["documents"] == 2


def test_vectors_of_two_encoders_are_refused_naming_both(db):
    index(db, [encoded("a")], "1")
    for refused in (
        lambda: write(db, [encoded("b")], fingerprint="other@ffffffffffff"),
        lambda: require_fingerprint(db, "other@ffffffffffff"),
    ):
        with pytest.raises(EncoderMismatch, match=r"'tiny@0123456789ab'.*'other@ffffffffffff'.*--db"):
            refused()
    require_fingerprint(db, FINGERPRINT)
    assert node_counts(db) == {"a": 7}


def test_two_encoders_in_one_first_run_are_refused(db):
    written = [write(db, [encoded("a")]), write(db, [encoded("b")], fingerprint="other@ffffffffffff")]
    with pytest.raises(EncoderMismatch, match="other@"):
        commit(db, written, run_id="1")
    assert stored_hashes(db) == {}


def test_non_finite_vectors_are_refused_on_write(db):
    good, bad = encoded("good"), encoded("bad", 3)
    bad.vectors[1, 2] = np.nan
    with pytest.raises(Unstorable, match="'bad'"):
        write(db, [good, bad])
    assert not tables_exist(db)


def test_a_document_twice_in_one_run_is_refused(db):
    written = [write(db, [encoded("a")]), write(db, [encoded("a", 2)])]
    with pytest.raises(Unstorable, match="'a'"):
        commit(db, written, run_id="1")
    assert node_counts(db) == {}


def test_contradicting_tables_are_not_published(db):
    first = index(db, [encoded("a", 3)], "1")
    lost = write(db, [encoded("x", 2)])
    replace_rows(db, "nodes", lost.nodes, [], {"run_id": "2"})
    with pytest.raises(BrokenIndex, match="nothing was published"):
        publish(db, dataclasses.replace(first, nodes_version=open_table(db, "nodes").version))
    assert list_snapshots(db) == [1]


def test_a_commit_of_somebody_else_is_not_published_under_our_name(db):
    index(db, [encoded("a")], "1")
    ours = commit(db, [write(db, [encoded("b")])], run_id="2")
    commit(db, [write(db, [encoded("c")])], run_id="3")
    with pytest.raises(ConcurrentWriter, match="run 3"):
        publish(db, ours)


def test_workers_that_create_the_tables_at_once_lose_nothing(db):
    with ThreadPoolExecutor(4) as workers:
        written = list(workers.map(lambda i: write(db, [encoded(f"d{i}")]), range(8)))
    commit(db, written, run_id="1")
    assert node_counts(db) == {f"d{i}": 7 for i in range(8)}


NASTY = [
    "it's.txt",
    "x' OR '1'='1",
    'a"b',
    "c%_d",
    "🌱/ключ",
    "back\\slash",
    "\\'",
    "''",
    "a\nb",
    "--",
    "x) OR (1=1",
    "",
]


def test_each_nasty_id_replaces_and_removes_exactly_itself(db):
    index(db, [encoded(id, 2) for id in NASTY], "1")
    expected = dict.fromkeys(sorted(NASTY), 3)
    assert node_counts(db) == expected
    for id in NASTY:
        index(db, [encoded(id, 3)], f"replace {id}")
        expected[id] = 5
        assert node_counts(db) == expected
    for id in NASTY:
        index(db, [], f"remove {id}", remove=(id,))
        del expected[id]
        assert node_counts(db) == expected


RUNS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4), max_size=3),  # doc_id -> leaves
        st.sets(st.sampled_from("abcd"), max_size=2),  # removed
        st.sampled_from(["whole", "killed before documents", "killed before publishing"]),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs=RUNS)
def test_any_sequence_of_runs_leaves_what_a_dictionary_would(tmp_path_factory, runs):
    db = str(tmp_path_factory.mktemp("runs") / "db")
    oracle: dict[str, int] = {}
    for number, (added, removed, fate) in enumerate(runs):
        removed -= added.keys()
        written = [write(db, [encoded(id, n) for id, n in added.items()])] if added else []
        if fate == "killed before documents":
            if tables_exist(db):
                fragments = [f for w in written for f in w.nodes]
                replace_rows(db, "nodes", fragments, [*added, *removed], {"run_id": str(number)})
            continue
        snapshot = commit(db, written, run_id=str(number), remove=sorted(removed))
        oracle = {id: n for id, n in oracle.items() if id not in removed} | added
        if fate == "whole":
            build_indices(db)
            published = publish(db, snapshot)
            assert published.counts["documents"] == len(oracle)
            counts = node_counts(db, published.nodes_version) if oracle else {}
            assert counts == {id: 2 * n - 1 for id, n in sorted(oracle.items())}
        assert sorted(stored_hashes(db)) == sorted(oracle)
