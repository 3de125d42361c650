"""Accounts: limits hold for calls in flight together, closing calls have a reserve, sums are exact."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sproutrag.qa.budget import Limits, LocalAccount, share
from sproutrag.qa.llm import Completion, Usage


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def opened(account: LocalAccount, key: str, **named: Any) -> str | None:
    named = {"prompt_tokens": 10, "room": 10, "closing": False} | named
    return (await account.open_call(key, **named)).refused


@settings(deadline=None)
@given(
    st.builds(Usage, *[st.integers(0, 1000)] * 5, seconds=st.floats(0, 99), estimated=st.booleans()),
    st.integers(1, 9),
)
def test_shares_of_a_bill_sum_to_it(usage: Usage, n: int) -> None:
    total = Usage()
    for part in share(usage, n):
        total.add(part)
    assert abs(total.seconds - usage.seconds) < 1e-6
    total.seconds = usage.seconds
    assert total == usage


def test_calls_in_flight_are_charged_at_their_most_until_they_close() -> None:
    async def play() -> None:
        account = LocalAccount(Limits(max_completion_tokens=100))
        assert await opened(account, "a", room=80) is None
        assert "completion tokens" in (await opened(account, "b", room=20) or "")
        await account.close_call("a", Usage(1, 10, 5), None)
        assert await opened(account, "b", room=80) is None

    asyncio.run(play())


def test_closing_calls_have_a_reserve() -> None:
    async def play() -> None:
        clock = Clock()
        account = LocalAccount(Limits(max_calls=10, max_seconds=100), clock)
        for i in range(8):
            assert await opened(account, str(i)) is None
        assert "10 calls" in (await opened(account, "x") or "")
        assert await opened(account, "y", closing=True) is None
        clock.now = 95
        assert await account.seconds_left() < 0
        assert await opened(account, "z", closing=True) is None
        clock.now = 101
        assert "100 seconds" in (await opened(account, "z", closing=True) or "")
        assert await account.spent() == "budget: 10 calls"

    asyncio.run(play())


def test_lost_workers_successor_gets_the_reply_that_was_paid_for() -> None:
    async def play() -> None:
        account = LocalAccount(Limits(max_calls=4))
        reply = Completion("{}", Usage(1, 10, 5))
        await opened(account, "0.1/plan/x")
        await account.close_call("0.1/plan/x", reply.usage, reply)
        grant = await account.open_call("0.1/plan/x", prompt_tokens=10, room=10, closing=False)
        assert grant.known == reply and account.used.calls == 1
        await opened(account, "0.1/plan/y")  # lost while under way
        await opened(account, "0.1/plan/y")  # asked again: one place, not two
        assert len(account.open) == 1
        assert [await account.take_nodes("0.1", 3), await account.take_nodes("0.1", 3)] == [3, 3]
        assert account.nodes == 4

    asyncio.run(play())
