"""Calls: bounded, retried, read strictly, billed to the last token; broken replies of every kind."""

import asyncio
import json
from typing import Any

import pytest

from sproutrag.qa.budget import Bill, BudgetSpent, Limits, LocalAccount
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.llm import Completion, MalformedReply, Refused, Unreachable, Usage
from sproutrag.qa.prompts import ANSWER_ALONE, PLAN, Combined, Fenced, Planned
from tests.qa.scripted import ScriptedLLM, combined, external

GOOD = json.dumps(external("roots"))


def plan(script: Any, *, limits: Limits | None = None, **named: Any) -> tuple[Planned, Bill, ScriptedLLM]:
    llm = ScriptedLLM({"Strategies": script})
    bill = Bill("0")
    value = asyncio.run(ask_plan(llm, bill, limits or Limits(), **named))
    return value, bill, llm


async def ask_plan(llm: ScriptedLLM, bill: Bill, limits: Limits, **named: Any) -> Planned:
    return await Dispatcher(llm, **named).ask(
        PLAN,
        bill=bill,
        account=LocalAccount(limits),
        choices={"strategy": ["external", "vertical"]},
        known=Fenced("<none/>"),
        question="What grows?",
        allowed=Fenced("Strategies allowed: external, vertical."),
    )


def cut(text: str, tokens: int = 20) -> Completion:
    return Completion(text, Usage(1, 10, tokens), finish="length")


# --- what can be read


@pytest.mark.parametrize(
    ("reply", "how"),
    [
        (GOOD, "json"),
        (f"```json\n{GOOD}\n```\nThis plan is the best.", "json in a fence"),
        (f"Here it is: {GOOD} I hope it helps.", "json among words"),
        (f'<think>maybe {{"a":1}} or {json.dumps(external("leaves"))}</think>{GOOD}', "json"),
        (f"{json.dumps(external('leaves'))} no, rather {GOOD}", "json among words"),
    ],
)
def test_fences_remarks_and_thinking_do_not_hide_the_reply(reply: str, how: str) -> None:
    value, bill, _ = plan(reply)
    assert value.query == "roots"
    assert [call.how for call in bill.calls] == [how]
    assert bill.usage.wasted_calls == 0


@pytest.mark.parametrize(
    "reply",
    [
        "def plan():\n    return ['a', 'b']",
        "",
        "[]",
        '{"strategy": "external"}',
        '{"strategy": "none", "query": "", "questions": []}',
        '{"strategy": "lateral", "query": "", "questions": []}',
        '{"strategy": "vertical", "query": "", "questions": ["as a string"]}',
        '{"strategy": "external", "query": null, "questions": []}',
        '<think>{"strategy": "external", "query": "", "questions": []}',
        "[" * 5000,
    ],
)
def test_reply_that_does_not_fit_is_repaired_once_then_refused(reply: str) -> None:
    value, bill, _ = plan([reply, GOOD])
    assert value.query == "roots"
    assert bill.calls[-1].how == "json, repaired"
    assert (bill.usage.calls, bill.usage.wasted_calls) == (2, 1)
    with pytest.raises(MalformedReply, match=r"plan: .*also after one repair"):
        plan([reply, reply, GOOD])


def test_string_false_is_not_a_truth_value() -> None:
    llm = ScriptedLLM({"<question>": combined("x") | {"answered": "false"}})

    async def ask() -> Combined:
        return await Dispatcher(llm).ask(
            ANSWER_ALONE, bill=Bill("0"), account=LocalAccount(Limits()), question="?"
        )

    with pytest.raises(MalformedReply, match="answered is 'false', not a boolean"):
        asyncio.run(ask())
    assert len(llm.calls) == 2


# --- cut replies


def test_cut_reply_is_not_read_but_asked_again_with_more_room() -> None:
    value, bill, llm = plan([cut(GOOD), GOOD])
    assert value.query == "roots"
    assert [room for _, room in llm.calls] == [PLAN.max_tokens, 2 * PLAN.max_tokens]
    assert bill.usage.wasted_tokens == 30


def test_replies_cut_three_times_end_cleanly_and_no_prompt_grows() -> None:
    llm = ScriptedLLM({"Strategies": [cut('{"strategy":'), cut('{"strategy":'), cut("{"), GOOD]})
    bill = Bill("0")
    with pytest.raises(MalformedReply, match="cut at 1024 tokens, with more room"):
        asyncio.run(ask_plan(llm, bill, Limits()))
    assert len({user for user, _ in llm.calls}) == 1
    assert (bill.usage.calls, bill.usage.wasted_calls, bill.usage.wasted_tokens) == (2, 2, 60)


def test_white_space_loop_gets_no_more_room() -> None:
    llm = ScriptedLLM({"Strategies": [cut('{"strategy": "external",' + "\n  " * 200), GOOD]})
    with pytest.raises(MalformedReply, match="runs in circles"):
        asyncio.run(ask_plan(llm, Bill("0"), Limits()))
    assert len(llm.calls) == 1


def test_complete_reply_followed_by_white_space_until_the_end_is_used() -> None:
    value, _, llm = plan([cut(GOOD + "\n" * 100)])
    assert value.query == "roots"
    assert len(llm.calls) == 1


# --- transport


def test_failing_engine_is_tried_again_and_the_failures_are_billed_as_wasted() -> None:
    lost = Unreachable("HTTP 500", Usage(1, 400, 100))
    value, bill, _ = plan([lost, lost, Completion(GOOD, Usage(1, 40, 10))])
    assert value.query == "roots"
    assert bill.usage.calls == 3
    assert (bill.usage.wasted_calls, bill.usage.wasted_tokens) == (2, 1000)
    assert bill.usage.prompt_tokens == 840


def test_engine_that_never_comes_back_is_given_up_with_the_reason() -> None:
    with pytest.raises(Unreachable, match=r"plan: refused \(3 attempts\)"):
        plan(Unreachable("refused"))


def test_engine_that_hangs_is_left_after_the_timeout() -> None:
    llm = ScriptedLLM({"Strategies": GOOD}, delay_s=30)
    with pytest.raises(Unreachable, match=r"no reply within 0\.05 s"):
        asyncio.run(ask_plan(llm, Bill("0"), Limits(), call_timeout_s=0.05, attempts=1))
    assert (llm.cancelled, llm.in_flight) == (1, 0)


def test_request_that_the_engine_refuses_is_not_sent_again() -> None:
    llm = ScriptedLLM({"Strategies": [Refused("bad schema"), GOOD]})
    with pytest.raises(Refused, match="bad schema"):
        asyncio.run(ask_plan(llm, Bill("0"), Limits()))
    assert len(llm.calls) == 1


def test_prompt_beyond_the_engines_limit_is_not_sent() -> None:
    llm = ScriptedLLM({"Strategies": GOOD}, context_tokens=600)
    with pytest.raises(Refused, match="do not fit into 600"):
        asyncio.run(ask_plan(llm, Bill("0"), Limits()))
    assert llm.calls == []


# --- many at once


async def ask_many(llm: ScriptedLLM, n: int, in_flight: int) -> list[tuple[int, Combined]]:
    dispatcher, account = Dispatcher(llm, max_in_flight=in_flight), LocalAccount(Limits())

    async def one(i: int) -> tuple[int, Combined]:
        bill = Bill(str(i))
        return i, await dispatcher.ask(ANSWER_ALONE, bill=bill, account=account, question=f"word {i}?")

    return await asyncio.gather(*map(one, range(n)))


def test_never_more_in_flight_than_allowed_and_no_reply_goes_to_another() -> None:
    llm = ScriptedLLM({f"word {i}?": combined(f"secret-{i}") for i in range(40)}, delay_s=0.005)
    found = asyncio.run(ask_many(llm, 40, in_flight=5))
    assert llm.most_in_flight == 5
    assert all(reply.answers == [f"secret-{i}"] for i, reply in found)


# --- budget


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(max_calls=1), "1 calls"),
        (Limits(max_prompt_tokens=400), "400 prompt tokens"),
        (Limits(max_completion_tokens=700), "700 completion tokens"),
    ],
)
def test_call_beyond_a_limit_is_not_made(limits: Limits, reason: str) -> None:
    llm = ScriptedLLM({"Strategies": GOOD})

    async def ask_until_spent() -> None:
        account = LocalAccount(limits)
        for i in range(30):
            await Dispatcher(llm).ask(
                PLAN,
                bill=Bill(str(i)),
                account=account,
                known=Fenced("<none/>"),
                question="What grows?",
                allowed=Fenced("Strategies"),
            )

    with pytest.raises(BudgetSpent, match=f"budget: {reason}"):
        asyncio.run(ask_until_spent())
    assert len(llm.calls) < 30


def test_deadline_ends_a_call_that_is_under_way() -> None:
    llm = ScriptedLLM({"Strategies": GOOD}, delay_s=30)
    with pytest.raises(BudgetSpent, match="no reply within"):
        asyncio.run(ask_plan(llm, Bill("0"), Limits(max_seconds=0.1)))
    assert llm.cancelled == 1
