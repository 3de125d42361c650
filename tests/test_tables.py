"""Rows of the two tables, and the filters that name them."""

import lance
import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sproutrag.tables import document_rows, node_rows, one_of, spans_of, tree_of, vectors_of
from sproutrag.tree import build_tree, progressive_embeddings
from tests.small_index import FINGERPRINT, encoded


def test_rows_hold_the_documents_and_their_trees():
    documents = [encoded("a", 1), encoded("b", 6), encoded("c", 3)]
    trees = [build_tree(e.affinity) for e in documents]
    rows = document_rows(documents, trees, fingerprint=FINGERPRINT).to_pylist()
    nodes = node_rows(documents, trees)
    for e, tree, row in zip(documents, trees, rows, strict=True):
        assert np.array_equal(spans_of(row), e.spans)
        read = tree_of(row)
        for name in ("merges", "affinity", "order", "slices"):
            assert np.array_equal(getattr(read, name), getattr(tree, name)), name
        assert row["leaf_order"] == tree.order.tolist()
        assert (row["n_leaves"], row["depth"], row["n_tokens"]) == (tree.n_leaves, tree.depth, e.n_tokens)
        rows_of_nodes = nodes.filter(pa.compute.equal(nodes["doc_id"], e.document.id))
        own = rows_of_nodes.to_pydict()
        assert own["node"] == list(range(tree.n_nodes))
        slices = np.column_stack([own["start"], np.add(own["start"], own["n_leaves"])])
        assert np.array_equal(slices, tree.slices)
        expected = progressive_embeddings(e.vectors, tree)
        assert np.array_equal(vectors_of(rows_of_nodes), expected)
        texts = [e.document.text[start:stop] for start, stop in e.spans]
        assert own["text"] == texts + [None] * (tree.n_leaves - 1)


def test_full_text_of_a_leaf_names_the_title():
    e = encoded("a", 2, title="Lease\u00ad Agreement")
    texts = node_rows([e], [build_tree(e.affinity)])["text"].to_pylist()
    assert texts[0] == "Lease Agreement\nfirst sentence 0 about a."


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
