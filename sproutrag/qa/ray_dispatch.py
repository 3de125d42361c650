"""The same recursion with every step a Ray task: a colour class, a lateral or a vertical child each run
somewhere.

A crew of actors carries the steps out. None holds a CPU and each is an event loop with many steps in flight,
so a step that waits for its children exhausts neither a cluster nor its processes. One more actor keeps the
accounts; it remembers the replies that were paid for, so the successor of a lost worker bills them once and
asks for none again.
"""

import asyncio
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import ray
from ray.exceptions import RayError

from sproutrag.qa.answer import STEPS, resolve
from sproutrag.qa.budget import Grant, Limits, LocalAccount
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.llm import Completion, Retriever, Sources, Usage
from sproutrag.qa.method import Kin, Method, Step, Tools
from sproutrag.qa.prompts import escape
from sproutrag.qa.question import QuestionNode

LOST_WORKERS = 3  # of one step, before its nodes fail
AT_ONCE = 1000  # steps in flight on one actor, most of them waiting


@dataclass(frozen=True, slots=True)
class Room:
    """What a process needs to carry out steps."""

    dispatcher: Dispatcher
    retriever: Retriever
    sources: Sources


@dataclass(frozen=True, slots=True)
class Crew:
    """Actors by name, so that a step can be handed to any of them from any of them."""

    id: str
    size: int

    def carrier(self, key: str) -> Any:
        """Always the same one for the same key."""
        return actor(f"{self.id}-{zlib.crc32(key.encode()) % self.size}")

    @property
    def books(self) -> Any:
        return actor(f"{self.id}-books")


@cache
def actor(name: str) -> Any:
    return ray.get_actor(name)


class Books:
    """The accounts of all questions in flight."""

    def __init__(self) -> None:
        self.accounts: dict[str, LocalAccount] = {}

    async def open(self, key: str, limits: Limits) -> None:
        self.accounts[key] = LocalAccount(limits)

    async def call(self, key: str, name: str, *words: Any, **named: Any) -> Any:
        return await getattr(self.accounts[key], name)(*words, **named)

    async def close(self, key: str) -> None:
        del self.accounts[key]


class Carrier:
    """One event loop and one Room for all steps that it is handed: connections survive."""

    def __init__(self, open_room: Callable[[], Room], crew: Crew) -> None:
        self.room = open_room()
        self.crew = crew

    async def resolve(self, question: str, key: str, limits: Limits, method: Method) -> QuestionNode:
        return await resolve(question, self.tools(key, limits, method))

    async def carry_out(
        self, step: Step, nodes: list[QuestionNode], kin: Kin, key: str, limits: Limits, method: Method
    ) -> list[QuestionNode]:
        return await STEPS[step](nodes, kin, self.tools(key, limits, method))

    def tools(self, key: str, limits: Limits, method: Method) -> Tools:
        room, account = self.room, SharedAccount(self.crew, key)
        executor = RayTasks(self.crew, key)
        return Tools(room.dispatcher, room.retriever, room.sources, account, executor, limits, method)


CARRIER: Any = ray.remote(
    num_cpus=0, max_concurrency=AT_ONCE, max_restarts=-1, max_task_retries=LOST_WORKERS
)(Carrier)
BOOKS: Any = ray.remote(num_cpus=0, max_concurrency=AT_ONCE)(Books)


@contextmanager
def crew_of(open_room: Callable[[], Room], size: int = 0) -> Iterator[Crew]:
    """A crew on a running Ray, one actor per CPU unless `size` says otherwise. `open_room` is pickled."""
    cpus = int(ray.cluster_resources().get("CPU", 1))
    crew = Crew(f"crew-{uuid.uuid4().hex[:12]}", size or max(cpus, 1))
    names = [f"{crew.id}-{number}" for number in range(crew.size)]
    actors = [BOOKS.options(name=f"{crew.id}-books").remote()]
    actors += [CARRIER.options(name=name).remote(open_room, crew) for name in names]
    try:
        yield crew
    finally:
        for member in actors:
            ray.kill(member)


class SharedAccount:
    """The account of a question, from wherever a task runs."""

    def __init__(self, crew: Crew, key: str) -> None:
        self.crew = crew
        self.key = key

    async def open_call(self, key: str, *, prompt_tokens: int, room: int, closing: bool) -> Grant:
        named = {"prompt_tokens": prompt_tokens, "room": room, "closing": closing}
        return await self._call("open_call", key, **named)

    async def close_call(self, key: str, usage: Usage, reply: Completion | None) -> None:
        """Told, not waited for: messages of one process arrive in order, before its next call opens."""
        self._call("close_call", key, usage, reply)

    async def take_nodes(self, key: str, wanted: int) -> int:
        return await self._call("take_nodes", key, wanted)

    async def seconds_left(self) -> float:
        return await self._call("seconds_left")

    async def spent(self) -> str | None:
        return await self._call("spent")

    def _call(self, name: str, *words: Any, **named: Any) -> Any:
        return self.crew.books.call.remote(self.key, name, *words, **named)


class RayTasks:
    """Executor: one task per step. A lost worker's step starts anew, a cancelled one stops."""

    def __init__(self, crew: Crew, key: str) -> None:
        self.crew = crew
        self.key = key

    async def run(self, step: Step, nodes: list[QuestionNode], kin: Kin, tools: Tools) -> list[QuestionNode]:
        carrier = self.crew.carrier(f"{self.key}/{nodes[0].id}")
        task = carrier.carry_out.remote(step, nodes, kin, self.key, tools.limits, tools.method)
        try:
            return await task
        except asyncio.CancelledError:
            ray.cancel(task, recursive=True)
            raise
        except RayError as error:
            for node in nodes:
                node.fail(f"{step}: {told(error)}")
            return nodes


def told(error: RayError) -> str:
    return f"lost on the cluster: {type(error).__name__}: {str(error)[:200]}"


async def answer_on_ray(
    question: str, crew: Crew, *, limits: Limits | None = None, method: Method | None = None
) -> QuestionNode:
    """`answer_question` with Ray tasks. Cancelling the caller stops all of them."""
    limits, key = limits or Limits(), uuid.uuid4().hex
    question = question.strip()
    try:
        await crew.books.open.remote(key, limits)
        task = crew.carrier(key).resolve.remote(question, key, limits, method or Method())
        try:
            return await task
        except asyncio.CancelledError:
            ray.cancel(task, recursive=True)
            raise
    except RayError as error:
        root = QuestionNode("0", planned=escape(question), question=question, partial=True)
        root.fail(told(error))
        return root
    finally:
        crew.books.close.remote(key)
