"""What a question may cost, and what it did cost: limits, the account of one question, bills of its nodes.

A limit never ends in an exception for the caller: a refused call raises BudgetSpent inside the recursion,
which turns it into the best answer from what is there, marked partial.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Protocol

from sproutrag.qa.llm import Completion, LLMError, Usage

DEEPEST = 8  # no configuration goes deeper (P128)
RESERVE = 0.1  # share of tokens and seconds that only closing calls may use: answers on the way to the root


class BudgetSpent(LLMError):
    """A limit of the question is reached; the message names it."""


class WrongLimit(Exception):
    """A limit that makes no sense; the message says what to write instead."""

    exit_status = 2  # wrong usage


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one question may use. Counts are per question, whole tree."""

    max_depth: int = 4  # levels of decomposition
    max_children: int = 20  # of one node; the rest are named as not explored
    max_nodes: int = 200
    max_calls: int = 300
    max_prompt_tokens: int = 2_000_000
    max_completion_tokens: int = 200_000
    max_seconds: float = 600.0
    k: int = 20  # leaves retrieved per question
    max_context_tokens: int = 50_000  # of one call, below the engine's own limit
    min_overlap: float = 0.0  # questions are answered together above this Jaccard similarity of evidence
    patience: float = 1.0  # a ready question waits for others to join it at most so many mean calls

    def __post_init__(self) -> None:
        for limit in fields(self):
            least = 0.0 if limit.name in ("min_overlap", "patience") else 1e-9
            value = getattr(self, limit.name)
            if not value >= least:
                raise WrongLimit(f"{limit.name} = {value}: give a number {'>= 0' if least == 0 else '> 0'}")
        if self.max_depth > DEEPEST:
            raise WrongLimit(f"max_depth = {self.max_depth}: the deepest tree allowed is {DEEPEST}")


@dataclass(frozen=True, slots=True)
class Call:
    """One entry of a node's bill: which prompt, what it cost, how the reply was read."""

    prompt: str  # name@version
    usage: Usage
    how: str  # "json", "json in a fence", ... or why there is no reply
    shared_by: int = 1  # nodes that were answered by this call; `usage` is this node's share
    ended: float = 0.0  # unix seconds; it began `usage.seconds * shared_by` earlier


@dataclass(slots=True)
class Bill:
    """What one node cost. `owner` says whose calls these are, across lost workers."""

    owner: str = ""
    usage: Usage = field(default_factory=Usage)
    calls: list[Call] = field(default_factory=list)

    def enter(self, call: Call) -> None:
        self.calls.append(call)
        self.usage.add(call.usage)


def share(usage: Usage, n: int) -> list[Usage]:
    """Usage in n parts whose sum is `usage`; what does not divide goes to the first."""

    def parts(total: int) -> list[int]:
        return [total // n + (total % n if i == 0 else 0) for i in range(n)]

    counts = zip(
        parts(usage.calls),
        parts(usage.prompt_tokens),
        parts(usage.completion_tokens),
        parts(usage.wasted_calls),
        parts(usage.wasted_tokens),
        strict=True,
    )
    return [Usage(*count, seconds=usage.seconds / n, estimated=usage.estimated) for count in counts]


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to make a call within so many seconds; or why not; or the reply that was paid for already."""

    seconds_left: float
    refused: str | None = None
    known: Completion | None = None


class Account(Protocol):
    """The account of one question, here or in another process."""

    async def open_call(self, key: str, *, prompt_tokens: int, room: int, closing: bool) -> Grant: ...

    async def close_call(self, key: str, usage: Usage, reply: Completion | None) -> None: ...

    async def take_nodes(self, key: str, wanted: int) -> int: ...

    async def seconds_left(self) -> float: ...

    async def spent(self) -> str | None: ...


class LocalAccount:
    """The account itself. A call is charged at its most when it opens and at its true cost when it closes,
    so calls in flight together stay within the limits. Ordinary calls leave a reserve to closing ones."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.clock = clock
        self.started = clock()
        self.used = Usage()
        self.nodes = 1
        self.granted: dict[str, int] = {}
        self.open: dict[str, Usage] = {}
        self.replies: dict[str, Completion] = {}
        self.ended: str | None = None

    async def open_call(self, key: str, *, prompt_tokens: int, room: int, closing: bool) -> Grant:
        seconds = self._seconds_left(closing)
        if key in self.replies:  # a lost worker's call: paid, not made again
            return Grant(seconds, known=self.replies[key])
        self.open.pop(key, None)
        refused = self._over(Usage(1, prompt_tokens, room), seconds, closing)
        if refused:
            self.ended = self.ended or refused
            return Grant(seconds, refused=refused)
        self.open[key] = Usage(1, prompt_tokens, room)
        return Grant(seconds)

    async def close_call(self, key: str, usage: Usage, reply: Completion | None) -> None:
        self.open.pop(key, None)
        if key not in self.replies:
            self.used.add(usage)
        if reply is not None:
            self.replies[key] = reply

    async def take_nodes(self, key: str, wanted: int) -> int:
        """How many of the `wanted` children of node `key` may be made; the same again for a lost worker."""
        if key in self.granted:
            return self.granted[key]
        granted = max(min(wanted, self.limits.max_nodes - self.nodes), 0)
        self.granted[key] = granted
        self.nodes += granted
        if granted < wanted:
            self.ended = self.ended or f"budget: {self.limits.max_nodes} nodes"
        return granted

    async def seconds_left(self) -> float:
        """For ordinary work; closing calls have a little more."""
        return self._seconds_left(closing=False)

    async def spent(self) -> str | None:
        """The limit that ended the question early, if one did."""
        return self.ended

    def _seconds_left(self, closing: bool) -> float:
        allowed = self.limits.max_seconds * (1 if closing else 1 - RESERVE)
        return self.started + allowed - self.clock()

    def _over(self, wanted: Usage, seconds_left: float, closing: bool) -> str | None:
        limits, total = self.limits, Usage()
        for usage in (self.used, *self.open.values(), wanted):
            total.add(usage)
        kept = 0 if closing else RESERVE
        calls_kept = 0 if closing else min(limits.max_depth, limits.max_calls // 4)
        if seconds_left <= 0:
            return f"budget: {limits.max_seconds:g} seconds"
        if total.calls > limits.max_calls - calls_kept:
            return f"budget: {limits.max_calls} calls"
        if total.prompt_tokens > limits.max_prompt_tokens * (1 - kept):
            return f"budget: {limits.max_prompt_tokens} prompt tokens"
        if total.completion_tokens > limits.max_completion_tokens * (1 - kept):
            return f"budget: {limits.max_completion_tokens} completion tokens"
        return None
