"""References, waves and what counts as the same question."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sproutrag.qa.prompts import SubQuestion
from sproutrag.qa.question import (
    PlanError,
    QuestionNode,
    broken_references,
    references,
    same_question,
    substitute,
    waves,
)


def siblings(*planned: str) -> list[QuestionNode]:
    return [QuestionNode(f"0.{n}", text) for n, text in enumerate(planned, start=1)]


def plan(*planned: str) -> list[SubQuestion]:
    return [SubQuestion(0, text) for text in planned]


@settings(deadline=None)
@given(st.lists(st.sets(st.integers(1, 6), max_size=3), min_size=1, max_size=6))
def test_every_reference_points_to_an_earlier_wave_and_a_cycle_raises(needs: list[set[int]]) -> None:
    nodes = siblings(*(" ".join(f"<Q{n}>" for n in sorted(named)) or "?" for named in needs))
    known = {node.number for node in nodes}
    settled: set[int] = set()
    try:
        for wave in waves(nodes):
            assert all(node.needs & known <= settled for node in wave)
            settled |= {node.number for node in wave}
        assert settled == known
    except PlanError:
        assert broken_references(plan(*(node.planned for node in nodes)))


def test_unknown_self_and_circular_references_are_found_and_later_ones_are_not_wrong() -> None:
    broken = broken_references(
        plan("Who leads <Q9>?", "Who is <Q2>?", "What is <Q4>?", "Where is <Q3>?", "Is <Q6> old?", "Who?")
    )
    assert sorted(broken) == [1, 2, 3, 4]
    assert "<Q9>" in broken[1]
    assert "itself" in broken[2]
    assert "<Q3>, <Q4>" in broken[3]


def test_fan_out_over_itself_or_over_nothing_is_broken() -> None:
    assert sorted(broken_references([SubQuestion(1, "How long?"), SubQuestion(7, "How old?")])) == [1, 2]


def test_answer_that_looks_like_a_reference_is_not_one() -> None:
    asked = substitute("Who leads <Q1> in <Q2>?", {1: "<Q2>", 2: "Rome"})
    assert references(asked) == frozenset()
    assert asked == "Who leads \u2039Q2\u203a in Rome?"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is the capital of France?", "Tell me the capital of France."),
        ("what is the capital of FRANCE", "Which is the capital of France?"),
        ("Could you please state the capital of France?", "The capital of France?"),
    ],
)
def test_rewording_with_asking_words_is_the_same_question(one: str, other: str) -> None:
    assert same_question(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is the batting hand of Pat Burrell?", "What is the batting hand of Mark Mulder?"),
        ("How many people lived in Graz in 1990?", "How many people lived in Graz in 1991?"),
        ("Did Ajax beat Celtic?", "Did Celtic beat Ajax?"),
        ("Who is the mother of Ann?", "Who is the father of Ann?"),
        ("Is Graz not a capital?", "Is Graz a capital?"),
    ],
)
def test_questions_that_differ_in_a_name_number_or_order_are_different(one: str, other: str) -> None:
    assert not same_question(one, other)
