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
from dataclasses import dataclass, field
from functools import lru_cache
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
from sproutrag.qa.watch import Audience, Watch, unwatched

LOST_WORKERS = 3  # of one step, before its nodes fail
AT_ONCE = 1000  # steps in flight on one actor, most of them waiting
HANDLES_KEPT = 1024  # of actors, in each process

Events = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Room:
    """What a process needs to carry out steps."""

    dispatcher: Dispatcher
    retriever: Retriever | None = None  # of questions that bring none
    sources: Sources | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What every step of one question is told about it."""

    key: str
    limits: Limits
    method: Method
    watched: bool
    retriever: Retriever | None = None
    sources: Sources | None = None


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


@lru_cache(maxsize=HANDLES_KEPT)
def actor(name: str) -> Any:
    return ray.get_actor(name)


@dataclass(slots=True)
class Page:
    """One question in the books: its account, and what happened since its reader last asked."""

    account: LocalAccount
    events: Events = field(default_factory=list)
    ended: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Books:
    """The accounts of all questions in flight, and what those who watch them have not heard yet.

    What still comes of a question that was closed is dropped.
    """

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}

    async def open(self, key: str, limits: Limits) -> None:
        self.pages[key] = Page(LocalAccount(limits))

    async def call(self, key: str, name: str, *words: Any, **named: Any) -> Any:
        return await getattr(self.pages[key].account, name)(*words, **named)

    async def tell(self, key: str, events: Events) -> None:
        if page := self.pages.get(key):
            page.events += events
            page.news.set()

    async def hear(self, key: str) -> tuple[Events, bool]:
        """What happened, as soon as something did; and whether that was all."""
        page = self.pages[key]
        await page.news.wait()
        events, page.events = page.events, []
        page.news.clear()
        return events, page.ended

    async def end(self, key: str) -> None:
        page = self.pages[key]
        page.ended = True
        page.news.set()

    async def close(self, key: str, opened: None) -> None:
        """opened: what `open` gave, because calls of one process may overtake each other."""
        if page := self.pages.pop(key, None):
            page.ended = True
            page.news.set()  # who waits to hear more is let go

    async def size(self) -> int:
        """Questions in flight."""
        return len(self.pages)


class Carrier:
    """One event loop and one Room for all steps that it is handed: connections survive."""

    def __init__(self, open_room: Callable[[], Room], crew: Crew) -> None:
        self.room = open_room()
        self.crew = crew

    async def resolve(self, question: str, asked: "Asked") -> QuestionNode:
        tools, letters = self.desk(asked)
        root = await resolve(question, tools)
        await letters.sent()
        return root

    async def carry_out(
        self, step: Step, nodes: list[QuestionNode], kin: Kin, asked: "Asked"
    ) -> list[QuestionNode]:
        tools, letters = self.desk(asked)
        nodes = await STEPS[step](nodes, kin, tools)
        await letters.sent()
        return nodes

    def desk(self, asked: "Asked") -> tuple[Tools, "Letters"]:
        room, letters = self.room, Letters(self.crew, asked.key)
        retriever, sources = asked.retriever or room.retriever, asked.sources or room.sources
        assert retriever is not None and sources is not None, "neither the room nor the question has a corpus"
        tools = Tools(
            room.dispatcher,
            retriever,
            sources,
            SharedAccount(self.crew, asked.key),
            RayTasks(self.crew, asked, letters),
            asked.limits,
            asked.method,
            letters.write if asked.watched else unwatched,
        )
        return tools, letters


CARRIER: Any = ray.remote(
    num_cpus=0, max_concurrency=AT_ONCE, max_restarts=-1, max_task_retries=LOST_WORKERS
)(Carrier)
BOOKS: Any = ray.remote(num_cpus=0, max_concurrency=AT_ONCE)(Books)


class Hired:
    """A crew and the hold on it: its actors end with `close`, with this object, and with this process."""

    def __init__(self, crew: Crew, members: list[Any]) -> None:
        self.crew = crew
        self.members = members

    def close(self) -> None:
        """Ends the crew's actors; once more is nothing."""
        while self.members:
            ray.kill(self.members.pop())
        actor.cache_clear()


def hire(open_room: Callable[[], Room], size: int = 0) -> Hired:
    """A crew on a running Ray, one actor per CPU unless `size` says otherwise. `open_room` is pickled."""
    cpus = int(ray.cluster_resources().get("CPU", 1))
    crew = Crew(f"crew-{uuid.uuid4().hex[:12]}", size or max(cpus, 1))
    names = [f"{crew.id}-{number}" for number in range(crew.size)]
    members = [BOOKS.options(name=f"{crew.id}-books").remote()]
    members += [CARRIER.options(name=name).remote(open_room, crew) for name in names]
    return Hired(crew, members)


@contextmanager
def crew_of(open_room: Callable[[], Room], size: int = 0) -> Iterator[Crew]:
    """`hire` for the time of a block."""
    hired = hire(open_room, size)
    try:
        yield hired.crew
    finally:
        hired.close()


class SharedAccount:
    """The account of a question, from wherever a task runs."""

    def __init__(self, crew: Crew, key: str) -> None:
        self.crew = crew
        self.key = key

    async def open_call(self, key: str, *, prompt_tokens: int, room: int, closing: bool) -> Grant:
        named = {"prompt_tokens": prompt_tokens, "room": room, "closing": closing}
        return await self._call("open_call", key, **named)

    async def close_call(self, key: str, usage: Usage, reply: Completion | None) -> None:
        """Told, not waited for: until it arrives the call is charged at its most."""
        self._call("close_call", key, usage, reply)

    async def take_nodes(self, key: str, wanted: int) -> int:
        return await self._call("take_nodes", key, wanted)

    async def seconds_left(self) -> float:
        return await self._call("seconds_left")

    async def spent(self) -> str | None:
        return await self._call("spent")

    def _call(self, name: str, *words: Any, **named: Any) -> Any:
        return self.crew.books.call.remote(self.key, name, *words, **named)


class Letters:
    """What one step tells of its nodes: sent as it comes, in order, one letter under way at a time."""

    def __init__(self, crew: Crew, key: str) -> None:
        self.crew = crew
        self.key = key
        self.events: Events = []
        self.sending: asyncio.Task[None] | None = None

    def write(self, event: str, told: dict[str, Any]) -> None:
        self.events.append((event, told))
        if self.sending is None or self.sending.done():
            self.sending = asyncio.get_running_loop().create_task(self.send())

    async def send(self) -> None:
        while self.events:
            events, self.events = self.events, []
            await self.crew.books.tell.remote(self.key, events)

    async def sent(self) -> None:
        """Nothing is under way any more: what another process tells from now on is heard later."""
        if self.sending:
            await self.sending


class RayTasks:
    """Executor: one task per step. A lost worker's step starts anew, a cancelled one stops."""

    def __init__(self, crew: Crew, asked: Asked, letters: Letters) -> None:
        self.crew = crew
        self.asked = asked
        self.letters = letters

    async def run(self, step: Step, nodes: list[QuestionNode], kin: Kin, tools: Tools) -> list[QuestionNode]:
        carrier = self.crew.carrier(f"{self.asked.key}/{nodes[0].id}")
        await self.letters.sent()
        task = carrier.carry_out.remote(step, nodes, kin, self.asked)
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
    watch: Watch | None = None,
    key: str | None = None,
) -> QuestionNode:
    """`answer_question` with Ray tasks. Cancelling the caller stops all of them.

    retriever, sources: pickled with each step; without them, those of the crew's rooms.
    key: what the crew's tasks call the question, a request's id say; the same twice is still two questions.
    """
    name = f"{key or 'question'}-{uuid.uuid4().hex}"
    watched = watch is not None
    asked = Asked(name, limits or Limits(), method or Method(), watched, retriever, sources)
    audience = Audience(watch)
    opened = crew.books.open.remote(asked.key, asked.limits)
    try:
        await opened
        root = await resolved(question.strip(), crew, asked, audience)
    except RayError as error:
        root = QuestionNode("0", planned=escape(question.strip()), question=question.strip(), partial=True)
        root.fail(told(error))
    finally:
        crew.books.close.remote(asked.key, opened)
    audience.finish(root)
    return root


async def resolved(question: str, crew: Crew, asked: Asked, audience: Audience) -> QuestionNode:
    """The tree, after its audience has heard all that was told of it."""
    reading = asyncio.create_task(read_out(crew, asked.key, audience)) if asked.watched else None
    task = crew.carrier(asked.key).resolve.remote(question, asked)
    try:
        root = await task
        crew.books.end.remote(asked.key)
        if reading:
            await reading
        return root
    except asyncio.CancelledError:
        ray.cancel(task, recursive=True)
        raise
    finally:
        if reading:
            reading.cancel()


async def read_out(crew: Crew, key: str, audience: Audience) -> None:
    ended = False
    while not ended:
        events, ended = await crew.books.hear.remote(key)
        for event, told_of_it in events:
            audience.hear(event, told_of_it)
