"""Prompts are values: static part first, examples that their own schema accepts, nothing unfenced."""

import json
import re
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sproutrag.qa.prompts import (
    ANSWER,
    ANSWER_ALONE,
    COMBINE,
    CONTEXTUALIZE,
    PLAN,
    AnsweredAll,
    Combined,
    Planned,
    Prompt,
    escape,
    fence,
    fence_planned,
)
from sproutrag.qa.replies import objects_in, read_reply, runs_in_circles, schema_of

PROMPTS = [CONTEXTUALIZE, PLAN, ANSWER, ANSWER_ALONE, COMBINE]


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.label)
def test_examples_in_a_prompt_are_replies_that_it_would_accept(prompt: Prompt[Any]) -> None:
    for example in objects_in(prompt.system):
        value, how = read_reply(json.dumps(example), prompt.returns)
        assert how == "json" and json.loads(json.dumps(asdict(value))) == example
    expected = {"contextualize": 1, "plan": 3, "answer": 1, "answer_alone": 1}
    assert len(list(objects_in(prompt.system))) == expected.get(prompt.name, 0)


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.label)
def test_static_part_comes_first_and_never_changes(prompt: Prompt[Any]) -> None:
    names = re.findall(r"{(\w+)}", prompt.template)
    one, other = (prompt.messages({name: f"{i}{name}" for name in names}) for i in (1, 2))
    assert one[0] == other[0] and one[0].role == "system" and one[1] != other[1]
    assert all(f"<{name}>\n1{name}\n</{name}>" in one[1].content for name in names)


def test_schemas_are_strict_with_enumerations_first() -> None:
    schema = schema_of(Planned, {"strategy": ["external", "vertical"]})
    assert list(schema["properties"]) == schema["required"] == ["strategy", "query", "questions"]
    assert schema["properties"]["strategy"]["enum"] == ["external", "vertical"]
    assert schema["additionalProperties"] is False
    batch = schema_of(AnsweredAll, {"id": ["0.1", "0.2"]})
    assert batch["properties"]["replies"]["items"]["properties"]["id"]["enum"] == ["0.1", "0.2"]
    used = schema_of(Combined, {"used": ["1"]})["properties"]["used"]
    assert used == {"type": "array", "items": {"type": "string", "enum": ["1"]}}


COMBINED = st.builds(Combined, st.booleans(), st.lists(st.text()), st.lists(st.text()), st.text())


@settings(deadline=None)
@given(COMBINED, st.text(alphabet='abc {}\n`"', max_size=20))
def test_reply_is_read_back_whatever_stands_around_it(reply: Combined, words: str) -> None:
    text = json.dumps(asdict(reply))
    assert read_reply(text, Combined)[0] == reply
    assert read_reply(f"<think>{words}</think>\n```json\n{text}\n```", Combined)[0] == reply


@settings(deadline=None)
@given(st.text())
def test_no_text_can_close_its_fence_or_hold_a_control_token(text: str) -> None:
    fenced = fence("question", text)
    assert fenced.count("<") == fenced.count(">") == 2
    assert len(escape(text)) == len(text)


def test_references_of_a_planned_question_stay_readable() -> None:
    assert fence_planned("<Q1></planned> and <Q12>") == (
        "<planned>\n<Q1>\u2039/planned\u203a and <Q12>\n</planned>"
    )


@pytest.mark.parametrize(
    ("text", "circles"), [("a, b, c, d", False), ("x" + " \n" * 99, True), ("ha" * 40, True)]
)
def test_circles_are_recognised(text: str, circles: bool) -> None:
    assert runs_in_circles(text) == circles
