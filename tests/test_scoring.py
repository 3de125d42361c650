"""How evidence adds up, on documents small enough to see it."""

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sproutrag.lexical import postings, terms
from sproutrag.scoring import (
    Weights,
    document_scores,
    fuse,
    leaf_shares,
    match,
    path_shares,
    read_weights,
    write_weights,
    yardstick,
)
from sproutrag.search import plant
from sproutrag.tree import Tree

CONTRACT = [
    "Oak Street lease between Ann and Bob",
    "The roof is repaired by the owner",
    "Rent is due monthly",
]
POLICY = ["Visitors sign in", "The roof terrace closes at ten", "Dogs stay outside"]


def tree(*merges: tuple[int, int]) -> Tree:
    return Tree.from_merges(np.array(merges, dtype=np.int32).reshape(-1, 2), np.zeros(len(merges)))


FOREST = plant([tree((1, 2), (0, 3)), tree((0, 1), (2, 3))])
DOCUMENTS = [postings("Lease Oak Street", CONTRACT), postings("House rules", POLICY)]


def test_the_document_that_a_query_names_is_the_best() -> None:
    found = match(terms("Oak Street lease: who repairs the roof?"), DOCUMENTS)
    scores = document_scores(found, FOREST, yardstick(found, FOREST))
    assert scores[0] == 1 and 0 < scores[1] < 1


def test_inside_a_document_the_words_of_its_title_count_nothing() -> None:
    found = match(terms("Oak Street lease: who repairs the roof?"), DOCUMENTS)
    shares = leaf_shares(found, FOREST, yardstick(found, FOREST))
    assert shares[0] == 0 and shares[1] > 0.3 and int(shares.argmax()) == 1
    without_titles = match(
        terms("Oak Street lease: who repairs the roof?"), [postings("", CONTRACT), DOCUMENTS[1]]
    )
    assert int(leaf_shares(without_titles, FOREST, yardstick(without_titles, FOREST)).argmax()) == 0


def test_a_leaf_is_known_by_the_company_it_keeps() -> None:
    found = match(terms("roof repaired monthly"), DOCUMENTS)
    path = path_shares(found, FOREST, yardstick(found, FOREST))
    assert path[2] > path[0], "rent shares a parent with the roof, the heading does not"


def test_a_query_without_a_match_scores_nothing() -> None:
    found = match(terms("zebra"), DOCUMENTS)
    assert document_scores(found, FOREST, yardstick(found, FOREST)).tolist() == [0, 0]
    assert (
        leaf_shares(found, FOREST, yardstick(found, FOREST)).tolist()
        == path_shares(found, FOREST, yardstick(found, FOREST)).tolist()
        == [0] * 6
    )
    nothing = match([], DOCUMENTS)
    assert (
        document_scores(nothing, FOREST, yardstick(nothing, FOREST)).tolist() == [0, 0]
        and leaf_shares(nothing, FOREST, yardstick(nothing, FOREST)).sum() == 0
    )


PARTS = st.lists(st.floats(0, 1), min_size=4, max_size=4)


@given(PARTS, PARTS)
def test_fusion_is_monotone(one: list[float], more: list[float]) -> None:
    names = ("leaf", "document", "dense", "path")
    low = {name: np.array([value]) for name, value in zip(names, one, strict=True)}
    high = {name: low[name] + extra for name, extra in zip(names, more, strict=True)}
    assert fuse(Weights(), **high)[0] >= fuse(Weights(), **low)[0]


def test_what_is_not_finite_is_no_evidence() -> None:
    zero, bad = np.zeros(3), np.array([np.nan, np.inf, -np.inf])
    assert fuse(Weights(), leaf=zero, document=zero, dense=bad, path=bad).tolist() == [0, 0, 0]


def test_weights_are_kept_beside_the_index(tmp_path) -> None:
    db = str(tmp_path)
    assert read_weights(db, fingerprint="a@1") == Weights()
    write_weights(db, Weights(dense=0.25), fingerprint="a@1")
    assert read_weights(db, fingerprint="a@1") == Weights(dense=0.25)
    assert read_weights(db, fingerprint="b@2") == Weights()  # after a rebuild with another encoder
    assert astuple(Weights()) == pytest.approx((1.0, 0.5, 0.25, 0.02))
