import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sproutrag.datasets import Evidence, Query, leaves_over, read_queries, relevant_leaves

SPANS = np.array([[0, 4], [5, 9], [11, 17]])


@given(st.integers(0, 20), st.integers(1, 20))
def test_a_leaf_is_relevant_when_it_shares_a_character(start: int, length: int) -> None:
    gold = set(range(start, start + length))
    expected = [i for i, (a, b) in enumerate(SPANS.tolist()) if gold & set(range(a, b))]
    assert list(leaves_over(SPANS, start, start + length)) == expected


def test_gold_in_several_documents_and_outside_the_corpus() -> None:
    query = Query("q", "?", (Evidence("a", 3, 6), Evidence("b", 12, 13), Evidence("gone", 0, 9)))
    assert relevant_leaves(query, {"a": SPANS, "b": SPANS}) == {("a", 0), ("a", 1), ("b", 2)}


def test_queries_without_evidence_are_left_out(tmp_path) -> None:
    records = [
        {"query_id": "1", "question": "Who?", "evidence": [{"doc_id": "a", "start": 1, "end": 2}]},
        {"query_id": "2", "question": "Nobody?", "evidence": []},
    ]
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    assert read_queries(tmp_path) == [Query("1", "Who?", (Evidence("a", 1, 2),))]
