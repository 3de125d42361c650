"""Real Lance tables; documents are made of numbered sentences with random vectors and affinities."""

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import lance
import lancedb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from sproutrag import indices
from sproutrag.documents import Document
from sproutrag.indices import build_indices, index_freshness
from sproutrag.snapshots import (
    BrokenIndex,
    ConcurrentWriter,
    EncoderMismatch,
    NoIndex,
    Snapshot,
    Unstorable,
    current_snapshot,
    list_snapshots,
    read_snapshot,
    write_snapshot,
)
from sproutrag.storage import (
    Written,
    commit,
    publish,
    replace_rows,
    require_fingerprint,
    stored_hashes,
    write_fragments,
)
from sproutrag.tables import document_rows, node_rows, one_of, open_table, tables_exist, tree_of
from sproutrag.tree import build_tree, progressive_embeddings

FINGERPRINT = "tiny@0123456789ab"


@dataclass(frozen=True)
class Encoded:
    """What the encoder returns, without one."""

    document: Document
    spans: np.ndarray
    vectors: np.ndarray
    affinity: csr_array
    n_tokens: int

    @property
    def language(self) -> str:
        return self.document.language


def encoded(id: str, n: int = 4, *, word: str = "first", dimension: int = 8, title: str = "") -> Encoded:
    rng = np.random.default_rng(n)
    leaves = [f"{word} sentence {i} about {id}." for i in range(n)]
    ends = np.cumsum([len(leaf) + 1 for leaf in leaves])
    spans = np.column_stack([ends - [len(leaf) + 1 for leaf in leaves], ends - 1]).astype(np.int32)
    vectors = rng.normal(size=(n, dimension)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    affinity = rng.random((n, n)).astype(np.float32)
    affinity = affinity + affinity.T
    np.fill_diagonal(affinity, 0)
    document = Document(
        id=id, text=" ".join(leaves), title=title, language="en", metadata=json.dumps({"n": n})
    )
    return Encoded(document, spans, vectors, csr_array(affinity), 7 * n)


def write(db: str, documents: list[Encoded], *, fingerprint: str = FINGERPRINT) -> Written:
    trees = [build_tree(e.affinity) for e in documents]
    rows = document_rows(documents, trees, fingerprint=fingerprint)
    return write_fragments(db, rows, node_rows(documents, trees))


def index(db: str, documents: list[Encoded], run_id: str, remove: tuple[str, ...] = ()) -> Snapshot:
    written = [write(db, documents)] if documents else []
    snapshot = commit(db, written, run_id=run_id, remove=remove)
    build_indices(db)
    return publish(db, snapshot)


def node_counts(db: str, version: int | None = None) -> dict[str, int]:
    ids = open_table(db, "nodes", version).to_table(columns=["doc_id"])["doc_id"].to_pylist()
    return {id: ids.count(id) for id in sorted(set(ids))}


@pytest.fixture
def db(tmp_path) -> str:
    return str(tmp_path / "db")


def test_rows_hold_the_documents_and_their_trees():
    documents = [encoded("a", 1), encoded("b", 6), encoded("c", 3)]
    trees = [build_tree(e.affinity) for e in documents]
    rows = document_rows(documents, trees, fingerprint=FINGERPRINT).to_pylist()
    nodes = node_rows(documents, trees)
    for e, tree, row in zip(documents, trees, rows, strict=True):
        assert np.array_equal(np.reshape(row["spans"], (-1, 2)), e.spans)
        read = tree_of(row)
        for name in ("merges", "affinity", "order", "slices"):
            assert np.array_equal(getattr(read, name), getattr(tree, name)), name
        assert row["leaf_order"] == tree.order.tolist()
        assert (row["n_leaves"], row["depth"], row["n_tokens"]) == (tree.n_leaves, tree.depth, e.n_tokens)
        own = nodes.filter(pa.compute.equal(nodes["doc_id"], e.document.id)).to_pydict()
        assert own["node"] == list(range(tree.n_nodes))
        slices = np.column_stack([own["start"], np.add(own["start"], own["n_leaves"])])
        assert np.array_equal(slices, tree.slices)
        expected = progressive_embeddings(e.vectors, tree)
        assert np.allclose(np.asarray(own["vector"]), expected, rtol=0, atol=0)
        texts = [e.document.text[start:stop] for start, stop in e.spans]
        assert own["text"] == texts + [None] * (tree.n_leaves - 1)


def test_full_text_of_a_leaf_names_the_title():
    e = encoded("a", 2, title="Lease\u00ad Agreement")
    texts = node_rows([e], [build_tree(e.affinity)])["text"].to_pylist()
    assert texts[0] == "Lease Agreement\nfirst sentence 0 about a."


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


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stored=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, unique=True),
    asked=st.lists(st.text(st.sampled_from("'\"\\%_ OR=1();-\n"), max_size=8), min_size=1),
)
def test_a_filter_matches_exactly_the_ids_it_names(tmp_path_factory, stored, asked):

    table = lance.write_dataset(
        pa.table({"doc_id": pa.array(stored, pa.string())}),
        str(tmp_path_factory.getbasetemp() / "ids"),
        mode="overwrite",
    )
    for ids in (stored[:2], asked):
        found = table.to_table(filter=one_of("doc_id", ids))["doc_id"].to_pylist()
        assert sorted(found) == sorted(set(ids) & set(stored))


def test_indices_are_built_when_it_pays_then_extended(db, monkeypatch):

    small = [dataclasses.replace(i, min_rows=min(i.min_rows, 60)) for i in indices.INDICES]
    monkeypatch.setattr(indices, "INDICES", small)
    monkeypatch.setattr(indices, "ROWS_PER_PARTITION", 40)
    index(db, [encoded("a", 3)], "1")
    assert [i["column"] for i in index_freshness(open_table(db, "nodes"), "nodes")] == ["text"]
    commit(db, [write(db, [encoded(f"b{i}", 5, title="Roots") for i in range(12)])], run_id="2")
    assert build_indices(db) == [
        "built nodes.doc_id over 113 rows",
        "extended nodes.text by 108 rows",
        "built nodes.vector over 113 rows",
    ]
    commit(db, [write(db, [encoded("c", 4, word="umbrella")])], run_id="3")
    assert [i["unindexed_rows"] for i in index_freshness(open_table(db, "nodes"), "nodes")] == [7, 7, 7]
    assert build_indices(db) == [f"extended nodes.{c} by 7 rows" for c in ("doc_id", "text", "vector")]
    assert {i["unindexed_rows"] for i in index_freshness(open_table(db, "nodes"), "nodes")} == {0}
    commit(db, [write(db, [encoded(f"d{i}", 30) for i in range(8)])], run_id="4")
    assert "trained nodes.vector again over 592 rows" in build_indices(db)
    nodes = open_table(db, "nodes")
    hits = nodes.to_table(columns=["doc_id"], full_text_query="umbrella", limit=9)["doc_id"].to_pylist()
    assert set(hits) == {"c"}
    near = {"column": "vector", "q": encoded("c", 4).vectors[2], "k": 3, "metric": "cosine"}
    assert nodes.to_table(columns=["doc_id"], nearest=near).num_rows == 3


def test_full_text_finds_many_languages(db):
    texts = {
        "zh": "合同终止后三十天内退还押金。",
        "de": "Die Verträge enden im März.",
        "ar": "ينتهي العقد بعد ثلاثين يوما.",
        "en": "The parties terminated the leases.",
    }
    documents = []
    for id, text in texts.items():
        e = encoded(id, 1)
        documents.append(
            dataclasses.replace(e, document=Document(id=id, text=text), spans=np.array([[0, len(text)]]))
        )
    index(db, documents, "1")
    nodes = open_table(db, "nodes")
    for id, query in {"zh": "押金", "de": "Vertrage", "ar": "العقد", "en": "lease terminate"}.items():
        found = nodes.to_table(columns=["doc_id"], full_text_query=query, limit=3)["doc_id"].to_pylist()
        assert found[:1] == [id], (query, found)


def test_lancedb_reads_what_pylance_built(db, monkeypatch):
    """The two packages embed different Lance cores; both are pinned."""
    small = [dataclasses.replace(i, min_rows=1) for i in indices.INDICES]
    monkeypatch.setattr(indices, "INDICES", small)
    index(db, [encoded(f"d{i}", 5, word=f"word{i}") for i in range(40)], "1")
    nodes = lancedb.connect(db).open_table("nodes")
    assert nodes.search("word7", query_type="fts").limit(9).to_arrow()["doc_id"].unique().to_pylist() == [
        "d7"
    ]
    query = open_table(db, "nodes").to_table(filter=one_of("doc_id", ["d9"])).to_pylist()[3]["vector"]
    near = nodes.search(query).distance_type("cosine").nprobes(9).refine_factor(2).where("node = 3").limit(1)
    assert near.to_arrow()["_distance"].to_pylist()[0] == pytest.approx(0, abs=1e-5)
    assert nodes.count_rows(one_of("doc_id", ["d9"])) == 9


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


def test_a_failing_index_build_is_raised(db, monkeypatch):

    commit(db, [write(db, [encoded("a")])], run_id="1")
    monkeypatch.setitem(indices.FULL_TEXT, "base_tokenizer", "no-such-tokenizer")
    with pytest.raises(Exception, match="no-such-tokenizer"):
        build_indices(db)
