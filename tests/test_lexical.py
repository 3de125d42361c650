"""Words of many scripts, and shares of a query's information worked out by hand."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sproutrag.lexical import (
    SATURATION,
    counts_of,
    naming,
    postings,
    rarity,
    saturated,
    shares,
    split,
    terms,
    without,
    words,
)

TEXTS = st.text(st.sampled_from("ab Zü農业s.-'\u200c\u061cلم1"), max_size=30)


def test_words_of_many_scripts() -> None:
    assert words("Fair-use of 3 cups") == ["fair", "use", "of", "3", "cups"]
    assert words("Größe, résumé; foo_bar") == ["grösse", "résumé", "foo", "bar"]
    assert words("农业公司 2021年") == ["农业", "业公", "公司", "2021", "年"]
    assert words("हिन्दी भाषा") == ["हिन्दी", "भाषा"]
    assert words("") == words("?! …") == []


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ("\u061cيدفع\u200f الإيجار", "يدفع الإيجار"),
        ("کتاب\u200cها", "کتابها"),
        ("agree\u00adment", "agreement"),
    ],
)
def test_invisible_characters_do_not_change_a_word(marked: str, plain: str) -> None:
    assert terms(marked) == terms(plain)


def test_inflected_english_words_meet_and_function_words_vanish() -> None:
    assert terms("terminates") == terms("terminated") == terms("TERMINATING")
    assert terms("Which of the parties is it?") == terms("party")
    assert terms("welche und was sind 什么") == []


@given(st.lists(TEXTS, min_size=1, max_size=6), TEXTS)
def test_postings_count_every_word_of_every_leaf(leaves: list[str], title: str) -> None:
    found = postings(title, leaves)
    queried = np.unique(np.array([t for leaf in leaves for t in terms(leaf)], dtype=np.uint32))
    counts = counts_of(queried, [found])
    for i, leaf in enumerate(leaves):
        held = Counter(terms(leaf))
        assert counts[:, i].tolist() == [held[t] for t in queried.tolist()]
        assert found.lengths[i] == len(terms(leaf))
    assert set(found.title.tolist()) == set(terms(title))


def test_counts_of_several_documents_stand_side_by_side() -> None:
    documents = [postings("", ["red fox", "fox fox"]), postings("", ["blue"]), postings("", ["red"])]
    queried = np.sort(np.array(terms("red fox absent"), dtype=np.uint32))
    counts = dict(zip(queried.tolist(), counts_of(queried, documents).tolist(), strict=True))
    assert [counts[t] for t in terms("red fox absent")] == [[1, 0, 0, 1], [1, 2, 0, 0], [0, 0, 0, 0]]


def test_what_a_title_says_is_taken_out_of_a_query() -> None:
    title = postings("Lease - Oak Street 5", ["x"]).title
    assert (
        without("In the lease of Oak Street, who repairs the roof?", title)
        == "In the of , who repairs the roof?"
    )
    assert without("Oak Street", title) == ""
    assert naming("Who repairs the roof?") == "repairs roof"


@given(TEXTS)
def test_pieces_of_a_query_join_to_it(text: str) -> None:
    assert words("".join(split(text))) == words(text)
    assert terms(without(text, np.empty(0, dtype=np.uint32))) == terms(text)


def test_shares_by_hand() -> None:
    # Two terms, of three texts the first holds both once, the second one of them twice, the third none.
    counts = np.array([[1, 2, 0], [1, 0, 0]])
    held = saturated(counts, np.array([2, 2, 2]), usual=2, b=0.5)
    once, twice = 1 / (1 + SATURATION), 2 / (2 + SATURATION)
    assert held == pytest.approx(np.array([[once, twice, 0], [once, 0, 0]]))
    assert rarity(np.array([2, 1]), 3) == pytest.approx([math.log(1 + 1.5 / 2.5), math.log(1 + 2.5 / 1.5)])
    importance = np.array([[1.0], [3.0]])
    assert shares(held, np.repeat(importance, 3, axis=1)) == pytest.approx([once, twice / 4, 0])
    assert shares(held, np.zeros((2, 3))).tolist() == [0, 0, 0]
