"""Indices of real tables: when they are built, extended and trained again, and what they find."""

import dataclasses

import lancedb
import numpy as np
import pytest

from sproutrag import indices
from sproutrag.documents import Document
from sproutrag.indices import build_indices, index_freshness
from sproutrag.storage import commit
from sproutrag.tables import one_of, open_table
from tests.small_index import encoded, index, write


@pytest.fixture
def db(tmp_path) -> str:
    return str(tmp_path / "db")


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


def test_a_search_after_many_nights_opens_few_parts_of_the_vector_index(db, monkeypatch):
    """Each night's rows used to stay a part of their own, and every search opened all of them."""
    vectors = [dataclasses.replace(i, min_rows=1) for i in indices.INDICES if i.column == "vector"]
    monkeypatch.setattr(indices, "INDICES", vectors)
    index(db, [encoded(f"first-{i}", 20) for i in range(25)], "0")
    for night in range(1, 13):
        index(db, [encoded(f"night-{night}", 20)], str(night))
        parts = open_table(db, "nodes").stats.index_stats("vector")["num_indexed_rows_per_delta"]
        assert len(parts) <= 3 and sum(parts) == 39 * (25 + night), parts
    near = {"column": "vector", "q": encoded("night-7", 20).vectors[2], "k": 3, "metric": "cosine"}
    assert open_table(db, "nodes").to_table(nearest=near, columns=["doc_id"]).num_rows == 3


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


def test_a_failing_index_build_is_raised(db, monkeypatch):
    commit(db, [write(db, [encoded("a")])], run_id="1")
    monkeypatch.setitem(indices.FULL_TEXT, "base_tokenizer", "no-such-tokenizer")
    with pytest.raises(Exception, match="no-such-tokenizer"):
        build_indices(db)
