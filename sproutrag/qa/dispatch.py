"""The one way to call an LLM: bounds requests in flight, retries, reads the reply, bills what it cost.

At most: `attempts` tries to reach the engine per request, one more request with twice the room when a reply
was cut, one repair when a reply cannot be read. No retry makes the prompt longer than the repair's fixed
line (P124).
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from sproutrag.qa.budget import Account, Bill, BudgetSpent, Call
from sproutrag.qa.llm import (
    LLM,
    Completion,
    LLMError,
    MalformedReply,
    Message,
    OnText,
    Refused,
    Unreachable,
    Usage,
)
from sproutrag.qa.prompts import Prompt
from sproutrag.qa.replies import Choices, Unreadable, read_reply, runs_in_circles, schema_of

T = TypeVar("T")
Listen = Callable[[], OnText]  # who hears the next reply: one for each that is begun

MARGIN = 64  # tokens: the engine's chat template, and where our count differs from its own (P137)
REPAIR = (
    "\n\nThe last reply could not be read: {problem}. Reply with one JSON object that fits this schema:"
    "\n{schema}"
)
COUNTS_KEPT = 8192  # texts whose tokens are counted once
BACKOFF_S = 0.25  # before the second try; doubles


@dataclass(frozen=True, slots=True)
class Request:
    """What one reply is asked for."""

    prompt: Prompt[Any]
    messages: list[Message]
    schema: dict[str, Any]
    max_tokens: int
    closing: bool = False
    listen: Listen | None = None


class Dispatcher:
    """Shared by all questions of a process; `clock` gives seconds."""

    def __init__(
        self,
        llm: LLM,
        *,
        max_in_flight: int = 16,
        attempts: int = 3,
        call_timeout_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.llm = llm
        self.attempts = attempts
        self.call_timeout_s = call_timeout_s
        self.clock = clock
        self.count = lru_cache(maxsize=COUNTS_KEPT)(llm.count_tokens)
        self.slots = asyncio.Semaphore(max_in_flight)
        self.completed = 0
        self.seconds = 0.0

    def mean_call_s(self) -> float:
        """Mean time of a completed call so far; what a ready question may wait for company."""
        return self.seconds / self.completed if self.completed else 0.0

    def prompt_room(self, prompt: Prompt[Any], n_questions: int = 1) -> int:
        """Tokens that the fields of a prompt may fill, by the engine's own limit."""
        fixed = self.count(prompt.system) + self.count(prompt.template)
        return self.llm.context_tokens - fixed - MARGIN - n_questions * prompt.max_tokens

    async def ask(
        self,
        prompt: Prompt[T],
        *,
        bill: Bill,
        account: Account,
        closing: bool = False,
        n_questions: int = 1,
        choices: Choices | None = None,
        listen: Listen | None = None,
        **fields: str,
    ) -> T:
        """Raises MalformedReply after one repair, Unreachable, Refused or BudgetSpent. Never returns a
        default."""
        request = Request(
            prompt,
            prompt.messages(fields),
            schema_of(prompt.returns, choices),
            prompt.max_tokens * n_questions,
            closing,
            listen,
        )
        completion = await self._whole(request, bill, account)
        try:
            value, how = read_reply(completion.text, prompt.returns, choices)
        except Unreadable as problem:
            enter(bill, prompt, completion.usage, f"unreadable: {problem}", wasted=True)
            completion = await self._whole(repair(request, str(problem)), bill, account)
            value, how = self._read_repaired(request, completion, bill, choices)
        enter(bill, prompt, completion.usage, how)
        return value

    def _read_repaired(
        self, request: Request, completion: Completion, bill: Bill, choices: Choices | None
    ) -> tuple[Any, str]:
        try:
            value, how = read_reply(completion.text, request.prompt.returns, choices)
            return value, f"{how}, repaired"
        except Unreadable as problem:
            enter(bill, request.prompt, completion.usage, f"unreadable: {problem}", wasted=True)
            raise MalformedReply(f"{request.prompt.name}: {problem}, also after one repair") from None

    async def _whole(self, request: Request, bill: Bill, account: Account) -> Completion:
        """A reply that was not cut; `finish` is looked at before anything is read (P118)."""
        completion = await self._reached(request, bill, account)
        if completion.finish == "stop" or done_but_idle(completion):
            return completion
        enter(bill, request.prompt, completion.usage, f"cut at {request.max_tokens} tokens", wasted=True)
        if runs_in_circles(completion.text):
            raise MalformedReply(f"{request.prompt.name}: the reply runs in circles")
        roomier = replace(request, max_tokens=self._more_room(request))
        completion = await self._reached(roomier, bill, account)
        if completion.finish == "length":
            enter(bill, request.prompt, completion.usage, f"cut at {roomier.max_tokens} tokens", wasted=True)
            raise MalformedReply(f"{request.prompt.name}: cut at {roomier.max_tokens} tokens, with more room")
        return completion

    def _more_room(self, request: Request) -> int:
        free = self.llm.context_tokens - self._count(request.messages) - MARGIN
        return max(min(2 * request.max_tokens, free), request.max_tokens)

    async def _reached(self, request: Request, bill: Bill, account: Account) -> Completion:
        """One reply, over as many attempts as it may take; each attempt that brought none is billed as
        wasted."""
        for attempt in range(1, self.attempts + 1):
            try:
                return await self._call(request, bill, account)
            except Unreachable as error:
                enter(bill, request.prompt, error.usage, f"attempt {attempt}: {error}", wasted=True)
                if attempt == self.attempts:
                    raise Unreachable(f"{request.prompt.name}: {error} ({attempt} attempts)") from error
            await asyncio.sleep(BACKOFF_S * 2 ** (attempt - 1))
        raise AssertionError("attempts >= 1")

    async def _call(self, request: Request, bill: Bill, account: Account) -> Completion:
        """One attempt within the budget, the deadline and the slots."""
        prompt_tokens = self._count(request.messages)
        if prompt_tokens + request.max_tokens > self.llm.context_tokens:
            raise Refused(
                f"{request.prompt.name}: {prompt_tokens} prompt tokens and {request.max_tokens} for the "
                f"reply "
                f"do not fit into {self.llm.context_tokens}: ask for less evidence (k)"
            )
        async with self.slots:
            key = key_of(bill.owner, request)
            grant = await account.open_call(
                key, prompt_tokens=prompt_tokens, room=request.max_tokens, closing=request.closing
            )
            if grant.refused:
                raise BudgetSpent(grant.refused)
            if grant.known:
                return grant.known
            return await self._timed(key, request, account, grant.seconds_left)

    async def _timed(self, key: str, request: Request, account: Account, seconds_left: float) -> Completion:
        began = self.clock()
        completion: Completion | None = None
        usage = Usage()
        try:
            async with asyncio.timeout(min(seconds_left, self.call_timeout_s)):
                completion = await self.llm.complete(
                    request.messages,
                    max_tokens=request.max_tokens,
                    json_schema=request.schema,
                    on_text=request.listen() if request.listen else None,
                )
            usage = completion.usage
            self.completed += 1
            self.seconds += self.clock() - began
            return completion
        except TimeoutError:
            if seconds_left <= self.call_timeout_s:
                raise BudgetSpent(f"budget: no reply within the {seconds_left:.1f} seconds left") from None
            raise Unreachable(f"no reply within {self.call_timeout_s:g} s") from None
        except LLMError as error:
            usage = error.usage
            raise
        finally:
            whole = completion is not None and completion.finish == "stop"
            await account.close_call(key, usage, completion if whole else None)

    def _count(self, messages: Sequence[Message]) -> int:
        return sum(self.count(m.content) for m in messages) + MARGIN


def enter(bill: Bill, prompt: Prompt[Any], usage: Usage, how: str, *, wasted: bool = False) -> None:
    if wasted:
        tokens = usage.prompt_tokens + usage.completion_tokens
        usage = replace(usage, wasted_calls=usage.calls, wasted_tokens=tokens)
    bill.enter(Call(prompt.label, usage, how, ended=time.time()))


def repair(request: Request, problem: str) -> Request:
    """The same request with one fixed line more; the unreadable reply is not sent back."""
    system, user = request.messages
    schema = str(request.schema).replace("'", '"').replace("False", "false")
    line = REPAIR.format(problem=problem[:120], schema=schema)
    return replace(request, messages=[system, Message("user", user.content + line)])


def done_but_idle(completion: Completion) -> bool:
    """Complete, then nothing but white space until the room was used up (P119)."""
    text = completion.text
    return text.endswith((" ", "\n", "\t")) and text.rstrip().endswith("}") and runs_in_circles(text)


def key_of(owner: str, request: Request) -> str:
    """Names one request of one node, so that a lost worker's successor finds its reply."""
    content = "\x00".join([str(request.max_tokens), *(m.content for m in request.messages)])
    return f"{owner}/{request.prompt.name}/{hashlib.sha256(content.encode()).hexdigest()[:16]}"
