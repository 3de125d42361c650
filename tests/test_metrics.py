"""Fractions worked out by hand, and ir_measures as the second opinion."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sproutrag.metrics import (
    CUTOFFS,
    information_efficiency,
    paired_difference,
    recall_and_precision,
    token_f1,
)


def at_cutoffs(ranked: list[str]) -> dict[int, list[str]]:
    return {k: ranked[:k] for k in CUTOFFS}


def test_information_efficiency_by_hand() -> None:
    # One gold leaf, found first: 1*1, 1*1/3, 1*1/5.
    assert information_efficiency(at_cutoffs(list("abcde")), {"a"}) == pytest.approx((1 + 1 / 3 + 1 / 5) / 3)
    # Two gold leaves at ranks 2 and 5: 0, 1/2*1/3, 2/2*2/5.
    assert information_efficiency(at_cutoffs(list("xaxyb")), {"a", "b"}) == pytest.approx((1 / 6 + 2 / 5) / 3)
    assert information_efficiency(at_cutoffs([]), {"a"}) == 0


def test_a_short_list_is_not_forgiven() -> None:
    assert information_efficiency({5: ["a"]}, {"a"}) == pytest.approx(1 / 5)


@given(st.permutations(list("abcdefg")), st.sets(st.sampled_from("abcdefg"), min_size=1))
def test_the_product_of_recall_and_precision_of_ir_measures(ranked: list[str], relevant: set[str]) -> None:
    means = recall_and_precision({"q": ranked}, {"q": relevant})
    expected = np.mean([means[f"R@{k}"] * means[f"P@{k}"] for k in CUTOFFS])
    assert information_efficiency(at_cutoffs(ranked), relevant) == pytest.approx(expected)


def test_a_paired_difference_and_its_interval() -> None:
    rng = np.random.default_rng(0)
    theirs = rng.random(400)
    found = paired_difference(theirs + 0.1, theirs, rng=rng)
    assert (found.mean, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))
    noise = paired_difference(theirs, theirs[::-1], rng=rng)
    assert noise.low < 0 < noise.high


def test_token_f1_by_hand() -> None:
    assert token_f1(["the Old mill"], ["old mill"]) == 1
    assert token_f1(["in 1788"], ["in May 1788"]) == pytest.approx(2 * 2 / 5)
    assert token_f1(["Graz", "Linz"], ["Linz", "Graz"]) == 1  # a list in any order
    assert token_f1(["五天"], ["五天"]) == 1
    assert token_f1([], []) == 1 and token_f1(["x"], []) == 0 and token_f1([], ["x"]) == 0
