"""Citations are slices of the stored text, or they are not there."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sproutrag.qa.evidence import Citation, bare, distinct, fitting, joint, leaf_set, passage_tokens, verified
from sproutrag.qa.prompts import Cited, escape
from sproutrag.search import Passage
from tests.qa.scripted import WORD, corpus

TEXT = "It is important. A. It is important. B. The “Old Mill” – built\nin 1788 – burnt <twice>."


def passage(*spans: tuple[int, int], doc: str = "d", leaves: tuple[int, ...] = (0,)) -> Passage:
    text = "".join(TEXT[start:end] for start, end in spans)
    return Passage(doc, "", 0, leaves, spans, text, 1.0)


def check(*cited: Cited, passages: list[Passage], text: str = TEXT) -> tuple[list[Citation], list[str]]:
    return asyncio.run(verified(cited, passages, corpus(d=text)))


@settings(deadline=None)
@given(st.data())
def test_any_words_of_a_passage_are_cited_with_their_own_offsets(data: st.DataObject) -> None:
    gap = data.draw(st.integers(0, 20))
    found = passage((0, 19), (20 + gap, len(TEXT)))
    words = list(WORD.finditer(found.text))
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    quote = escape(found.text[words[first].start() : words[last].end()]).upper().replace("\n", "  ")
    [citation], dropped = check(Cited(1, quote), passages=[found])
    assert dropped == []
    assert "".join(TEXT[start:end] for start, end in citation.spans) == citation.quote
    assert citation.quote.casefold().split() == quote.replace("\u2039", "<").casefold().split()


def test_second_occurrence_is_cited_where_the_passage_stands() -> None:
    [citation], _ = check(Cited(1, "It is important."), passages=[passage((20, 39))])
    assert citation.spans == ((20, 36),)


def test_quotes_with_other_dashes_quotation_marks_and_line_breaks_are_found() -> None:
    [citation], _ = check(
        Cited(1, '"The "Old Mill" - built in 1788..."'), passages=[passage((40, len(TEXT)))]
    )
    assert citation.quote == "The “Old Mill” – built\nin 1788"


def test_quote_over_the_edge_of_a_passage_is_cited_where_its_document_says_it() -> None:
    [citation], dropped = check(Cited(1, 'important. B. The "old mill'), passages=[passage((20, 39))])
    assert dropped == [] and citation.quote == "important. B. The “Old Mill"


@pytest.mark.parametrize("quote", ["It is unimportant.", "", "...", "port", "It is important. B. The end"])
def test_quote_that_is_not_there_is_dropped_and_reported(quote: str) -> None:
    kept, dropped = check(Cited(1, quote), passages=[passage((0, 40))])
    assert kept == []
    assert len(dropped) == 1 and "citation dropped" in dropped[0]


def test_quote_that_a_small_model_rewrote_becomes_the_sentence_it_came_from() -> None:
    text = "Ilse came with a goat. She painted the door yellow, so that the supply boat could find it in fog."
    found = [Passage("d", "", 0, (0,), ((0, len(text)),), text, 1.0)]
    rewritten = "The door was painted yellow, so that the supply boat could find the landing in fog."
    [citation], [remark] = check(Cited(1, rewritten), passages=found, text=text)
    assert citation.quote == text[23:] and "citation mended" in remark
    for other in ("She painted the door yellow in 1788, for the boat in fog.", "A boat came to the landing."):
        kept, [remark] = check(Cited(1, other), passages=found, text=text)
        assert kept == [] and "dropped" in remark


@pytest.mark.parametrize("number", [0, -3, 7, 2])
def test_wrong_passage_number_does_not_lose_a_true_quote(number: int) -> None:
    [citation], dropped = check(
        Cited(number, "built in 1788"), passages=[passage((40, len(TEXT))), passage((0, 19), leaves=(1,))]
    )
    assert citation.quote == "built\nin 1788" and dropped == []


def test_text_that_changed_in_the_store_is_no_longer_cited() -> None:
    kept, dropped = check(Cited(1, "It is important"), passages=[passage((0, 19))], text="X" + TEXT)
    assert kept == [] and "no longer says" in dropped[0]


def test_three_quotes_of_one_passage_are_three_citations_and_repeats_are_one() -> None:
    found = passage((0, len(TEXT)))
    kept, _ = check(
        Cited(1, "It is important"),
        Cited(1, "Old Mill"),
        Cited(1, "1788"),
        Cited(1, "old mill"),
        passages=[found],
    )
    assert len({c.spans for c in kept}) == len(kept) == 3


def test_joint_evidence_holds_every_leaf_once_and_no_passage_inside_another() -> None:
    parent, child, other = passage((0, 39), leaves=(0, 1)), passage((0, 19)), passage((40, 50), leaves=(2,))
    together = joint([[child, other], [parent, child]])
    assert together == [parent, other]
    assert leaf_set(together) == {("d", 0), ("d", 1), ("d", 2)}


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), max_size=6), st.integers(0, 150))
def test_evidence_is_cut_by_rank_to_what_fits(lengths: list[int], room: int) -> None:
    found = [Passage("d", "", i, (i,), ((0, 2 * n),), "a " * n, 1.0) for i, n in enumerate(lengths)]

    def count(text: str) -> int:
        return len(text.split())

    kept = fitting(found, count, room)
    assert sum(passage_tokens(p, count) for p in kept) <= room
    assert [p.node for p in kept] == list(range(len(kept)))
    if len(kept) < len(found):
        assert sum(passage_tokens(p, count) for p in found) > room


def test_answers_are_listed_once_and_markers_are_no_answers() -> None:
    assert distinct(["Graz", " graz. ", "[1]", "", "Linz [Sources: 1, 2]"]) == ["Graz", "Linz"]
    assert bare("[Sources: 1]") == ""
    assert bare("**") == ""
