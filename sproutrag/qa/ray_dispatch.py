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
from contextlib import contextmanager, suppress
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
from sproutrag.qa.watch import InOrder, Watch, unwatched

LOST_WORKERS = 3  # of one step, before its nodes fail
Event = tuple[str, dict[str, Any]]
AT_ONCE = 1000  # steps in flight on one actor, most of them waiting


@dataclass(frozen=True, slots=True)
class Room:
    """What a process needs to carry out steps. retriever, sources: of questions that bring none."""

    dispatcher: Dispatcher
    retriever: Retriever | None = None
    sources: Sources | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What all steps of one question have in common; it travels with each."""

    key: str
    limits: Limits
    method: Method
    retriever: Retriever | None = None
    sources: Sources | None = None
    watched: bool = False


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
    """The accounts of all questions in flight, and what is told of those that somebody watches."""

    def __init__(self) -> None:
        self.accounts: dict[str, LocalAccount] = {}
        self.news: dict[str, asyncio.Queue[Event | None]] = {}

    async def open(self, key: str, limits: Limits, watched: bool) -> None:
        self.accounts[key] = LocalAccount(limits)
        if watched:
            self.news[key] = asyncio.Queue()

    async def call(self, key: str, name: str, *words: Any, **named: Any) -> Any:
        return await getattr(self.accounts[key], name)(*words, **named)

    async def tell(self, key: str, event: Event) -> None:
        if key in self.news:
            self.news[key].put_nowait(event)

    async def hear(self, key: str) -> list[Event]:
        """What was told since the last call, at least one event; nothing once the question is closed."""
        queue = self.news.get(key)
        if queue is None:
            return []
        heard = [await queue.get()]
        while not queue.empty():
            heard.append(queue.get_nowait())
        return [event for event in heard if event is not None]

    async def close(self, key: str) -> None:
        del self.accounts[key]
        if key in self.news:
            self.news.pop(key).put_nowait(None)


class Carrier:
    """One event loop and one Room for all steps that it is handed: connections survive."""

    def __init__(self, open_room: Callable[[], Room], crew: Crew) -> None:
        self.room = open_room()
        self.crew = crew

    async def resolve(self, question: str, errand: Errand) -> QuestionNode:
        tools, news = self.tools(errand)
        root = await resolve(question, tools)
        await news.arrived()
        return root

    async def carry_out(
        self, step: Step, nodes: list[QuestionNode], kin: Kin, errand: Errand
    ) -> list[QuestionNode]:
        tools, news = self.tools(errand)
        done = await STEPS[step](nodes, kin, tools)
        await news.arrived()
        return done

    def tools(self, errand: Errand) -> tuple[Tools, "News"]:
        room, news = self.room, News(self.crew, errand.key)
        retriever, sources = errand.retriever or room.retriever, errand.sources or room.sources
        assert retriever is not None and sources is not None, "neither room nor question brings a corpus"
        tools = Tools(
            room.dispatcher,
            retriever,
            sources,
            SharedAccount(self.crew, errand.key),
            RayTasks(self.crew, errand),
            errand.limits,
            errand.method,
            news.tell if errand.watched else unwatched,
        )
        return tools, news


class News:
    """What one step tells, on its way to the books."""

    def __init__(self, crew: Crew, key: str) -> None:
        self.crew = crew
        self.key = key
        self.last: Any = None

    def tell(self, name: str, data: dict[str, Any]) -> None:
        self.last = self.crew.books.tell.remote(self.key, (name, data))

    async def arrived(self) -> None:
        """Messages of one process arrive in order, so the last one speaks for all."""
        if self.last is not None:
            await self.last


CARRIER: Any = ray.remote(
    num_cpus=0, max_concurrency=AT_ONCE, max_restarts=-1, max_task_retries=LOST_WORKERS
)(Carrier)
BOOKS: Any = ray.remote(num_cpus=0, max_concurrency=AT_ONCE)(Books)
OWNED: dict[str, list[Any]] = {}  # the members of crews that this process opened; they end with it


def open_crew(open_room: Callable[[], Room], size: int = 0) -> Crew:
    """A crew on a running Ray, one actor per CPU unless `size` says otherwise. `open_room` is pickled."""
    cpus = int(ray.cluster_resources().get("CPU", 1))
    crew = Crew(f"crew-{uuid.uuid4().hex[:12]}", size or max(cpus, 1))
    names = [f"{crew.id}-{number}" for number in range(crew.size)]
    members = [BOOKS.options(name=f"{crew.id}-books").remote()]
    members += [CARRIER.options(name=name).remote(open_room, crew) for name in names]
    OWNED[crew.id] = members
    return crew


def close_crew(crew: Crew) -> None:
    for member in OWNED.pop(crew.id, []):
        ray.kill(member)
    actor.cache_clear()


@contextmanager
def crew_of(open_room: Callable[[], Room], size: int = 0) -> Iterator[Crew]:
    crew = open_crew(open_room, size)
    try:
        yield crew
    finally:
        close_crew(crew)


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

    def __init__(self, crew: Crew, errand: Errand) -> None:
        self.crew = crew
        self.errand = errand

    async def run(self, step: Step, nodes: list[QuestionNode], kin: Kin, tools: Tools) -> list[QuestionNode]:
        carrier = self.crew.carrier(f"{self.errand.key}/{nodes[0].id}")
        task = carrier.carry_out.remote(step, nodes, kin, self.errand)
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
    question: str,
    crew: Crew,
    *,
    limits: Limits | None = None,
    method: Method | None = None,
    retriever: Retriever | None = None,
    sources: Sources | None = None,
    watch: Watch = unwatched,
    key: str = "",
) -> QuestionNode:
    """`answer_question` with Ray tasks. Cancelling the caller stops all of them.

    retriever, sources: pickled with each step; without them, those of the crew's rooms. `key` names the
    question among those of the crew in flight; all that is told of it is told before this returns.
    """
    errand = Errand(
        key=key or uuid.uuid4().hex,
        limits=limits or Limits(),
        method=method or Method(),
        retriever=retriever,
        sources=sources,
        watched=watch is not unwatched,
    )
    question = question.strip()
    following: asyncio.Task[None] | None = None
    try:
        await crew.books.open.remote(errand.key, errand.limits, errand.watched)
        if errand.watched:
            following = asyncio.create_task(follow(crew, errand.key, InOrder(watch)))
        task = crew.carrier(errand.key).resolve.remote(question, errand)
        try:
            root = await task
        except asyncio.CancelledError:
            ray.cancel(task, recursive=True)
            raise
    except RayError as error:
        root = QuestionNode("0", planned=escape(question), question=question, partial=True)
        root.fail(told(error))
    finally:
        crew.books.close.remote(errand.key)
    if following:
        await following
    return root


async def follow(crew: Crew, key: str, news: InOrder) -> None:
    """Until the question is closed."""
    with suppress(RayError):  # the books are gone, and the question fails for it elsewhere
        while heard := await crew.books.hear.remote(key):
            for name, data in heard:
                news.take(name, data)
