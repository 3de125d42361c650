"""The same recursion with every step a Ray task: a colour class, a lateral or a vertical child each run
somewhere.

A task holds no CPU, so waiting for children cannot exhaust a cluster. The account is an actor without CPU;
it remembers the replies that were paid for, so the successor of a lost worker bills them once and asks for
none again.
"""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from sproutrag.qa.answer import STEPS, resolve
from sproutrag.qa.budget import Grant, Limits, LocalAccount
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.llm import Completion, Retriever, Sources, Usage
from sproutrag.qa.method import Kin, Method, Step, Tools
from sproutrag.qa.question import QuestionNode

LOST_WORKERS = 3  # of one step, before its nodes fail


@dataclass(frozen=True, slots=True)
class Room:
    """What a process needs to carry out steps."""

    dispatcher: Dispatcher
    retriever: Retriever
    sources: Sources


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a worker process makes its Room, once; `open` is pickled."""

    open: Callable[[], Room]
    key: str = field(default_factory=lambda: uuid.uuid4().hex)


class Worker:
    """One event loop, and one Room per recipe, for all steps of this process: connections survive."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.rooms: dict[str, Room] = {}

    def room(self, recipe: Recipe) -> Room:
        if recipe.key not in self.rooms:
            self.rooms[recipe.key] = recipe.open()
        return self.rooms[recipe.key]


WORKER = Worker()


class AccountKeeper:
    """A LocalAccount that all tasks of one question share."""

    def __init__(self, limits: Limits) -> None:
        self.account = LocalAccount(limits)

    async def call(self, name: str, *words: Any, **named: Any) -> Any:
        return await getattr(self.account, name)(*words, **named)


KEEPER: Any = ray.remote(num_cpus=0, max_concurrency=256)(AccountKeeper)


class SharedAccount:
    """The account of a question, from wherever a task runs."""

    def __init__(self, keeper: Any) -> None:
        self.keeper = keeper

    async def open_call(self, key: str, *, prompt_tokens: int, room: int, closing: bool) -> Grant:
        named = {"prompt_tokens": prompt_tokens, "room": room, "closing": closing}
        return await self.keeper.call.remote("open_call", key, **named)

    async def close_call(self, key: str, usage: Usage, reply: Completion | None) -> None:
        await self.keeper.call.remote("close_call", key, usage, reply)

    async def take_nodes(self, key: str, wanted: int) -> int:
        return await self.keeper.call.remote("take_nodes", key, wanted)

    async def seconds_left(self) -> float:
        return await self.keeper.call.remote("seconds_left")

    async def spent(self) -> str | None:
        return await self.keeper.call.remote("spent")


class RayTasks:
    """Executor: one task per step. A lost worker's step starts anew, a cancelled one stops."""

    def __init__(self, recipe: Recipe, keeper: Any) -> None:
        self.recipe = recipe
        self.keeper = keeper

    async def run(self, step: Step, nodes: list[QuestionNode], kin: Kin, tools: Tools) -> list[QuestionNode]:
        task = CARRY_OUT.remote(step, nodes, kin, self.recipe, self.keeper, tools.limits, tools.method)
        try:
            return await task
        except asyncio.CancelledError:
            ray.cancel(task, recursive=True)
            raise
        except RayError as error:
            for node in nodes:
                node.fail(f"{step}: lost on the cluster: {type(error).__name__}: {str(error)[:200]}")
            return nodes


def carry_out(
    step: Step,
    nodes: list[QuestionNode],
    kin: Kin,
    recipe: Recipe,
    keeper: Any,
    limits: Limits,
    method: Method,
) -> list[QuestionNode]:
    tools = tools_of(recipe, keeper, limits, method)
    return WORKER.runner.run(STEPS[step](nodes, kin, tools))


CARRY_OUT: Any = ray.remote(num_cpus=0, max_retries=LOST_WORKERS)(carry_out)


def tools_of(recipe: Recipe, keeper: Any, limits: Limits, method: Method) -> Tools:
    room = WORKER.room(recipe)
    return Tools(
        room.dispatcher,
        room.retriever,
        room.sources,
        SharedAccount(keeper),
        RayTasks(recipe, keeper),
        limits,
        method,
    )


async def answer_on_ray(
    question: str, recipe: Recipe, *, limits: Limits | None = None, method: Method | None = None
) -> QuestionNode:
    """`answer_question` with Ray tasks, on a running Ray. Only the root's family lives in this process."""
    limits = limits or Limits()
    keeper = KEEPER.remote(limits)
    tools = tools_of(recipe, keeper, limits, method or Method())
    try:
        return await resolve(question.strip(), tools)
    finally:
        ray.kill(keeper)
