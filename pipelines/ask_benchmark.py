"""`sproutrag bench ask`: what orchestration costs and saves, on gold plans, with an engine that takes time.

The engine is a process of its own (llm_simulator.py), plans and evidence are known (plan_player.py), so what
differs is the recursion.
"""

import asyncio
import gc
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.benchmark import Figure
from pipelines.llm_simulator import simulator_process
from pipelines.plan_player import PlanIndex, PlanPlayer
from sproutrag.options import BenchOptions
from sproutrag.private_ray import ray_on_demand
from sproutrag.qa.answer import answer_question
from sproutrag.qa.budget import Limits
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.llm import LLM, Completion, Message, OnText
from sproutrag.qa.method import Method
from sproutrag.qa.openai import OpenAILLM, connect
from sproutrag.qa.question import QuestionNode
from sproutrag.qa.ray_dispatch import Room, answer_on_ray, crew_of
from sproutrag.qa.trace import total_usage

PACE = {"prompt_token_s": 0.00005, "output_token_s": 0.01, "slots": 64}  # a mid-size GPU with a 4B model
AT_ONCE = 16
QUESTIONS = 8  # of the plan file, evenly drawn
IN_FLIGHT = 200
MEMORY_ROUNDS = 3  # the first two fill caches
FAST = {"prompt_token_s": 0.0, "output_token_s": 0.0001, "slots": 256}
WIDE = Limits(max_children=64, max_nodes=500, max_calls=1000)


@dataclass
class Recorder:
    """Passes calls on and remembers them, so that they can be made again one after the other."""

    llm: LLM
    name: str = "recorder"
    requests: list[tuple[Sequence[Message], int, dict[str, Any] | None]] = field(default_factory=list)

    @property
    def context_tokens(self) -> int:
        return self.llm.context_tokens

    def count_tokens(self, text: str) -> int:
        return self.llm.count_tokens(text)

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        json_schema: dict[str, Any] | None = None,
        on_text: OnText | None = None,
    ) -> Completion:
        self.requests.append((messages, max_tokens, json_schema))
        return await self.llm.complete(
            messages, max_tokens=max_tokens, json_schema=json_schema, on_text=on_text
        )

    async def again_one_by_one(self) -> None:
        for messages, max_tokens, schema in self.requests:
            await self.llm.complete(messages, max_tokens=max_tokens, json_schema=schema)


async def play(
    question: str,
    llm: LLM,
    index: PlanIndex,
    *,
    dispatcher: Dispatcher | None = None,
    method: Method | None = None,
) -> QuestionNode:
    return await answer_question(
        question,
        dispatcher=dispatcher or Dispatcher(llm, max_in_flight=AT_ONCE),
        retriever=index,
        sources=index,
        limits=WIDE,
        method=method,
    )


async def timed(work: Awaitable[Any]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def drawn(player: PlanPlayer, n: int = QUESTIONS) -> list[str]:
    step = max(1, len(player.trees) // n)
    return [tree["question"] for tree in player.trees[::step]][:n]


def speed_figures(options: BenchOptions) -> list[Figure]:
    """Calls in flight together against the same calls one by one, as the published code makes them."""
    player, index = PlanPlayer(options.plans), PlanIndex(options.plans)
    sets = {"one_by_one_over_in_flight": drawn(player), "one_by_one_over_one_question": drawn(player)[:1]}
    figures = []
    with simulator_process("pipelines.plan_player:speaker", options.plans, **PACE) as url:
        endpoint = connect(url)
        for (name, questions), least in zip(sets.items(), (4.0, 1.0), strict=True):
            together, alone, calls = asyncio.run(both_ways(questions, OpenAILLM(endpoint), index))
            settings = PACE | {"in_flight": AT_ONCE, "questions": len(questions), "calls": calls}
            met = alone >= least * together
            figures.append(
                Figure(name, alone / together, f">= {least:g}", met, alone, together, "s", settings)
            )
    return figures


async def both_ways(questions: Sequence[str], llm: LLM, index: PlanIndex) -> tuple[float, float, int]:
    """Seconds of the questions in flight together, of their calls one by one, and how many calls."""
    recorder = Recorder(llm)
    together = await timed(play_all(questions, recorder, index))
    return together, await timed(recorder.again_one_by_one()), len(recorder.requests)


async def play_all(questions: Sequence[str], llm: LLM, index: PlanIndex) -> None:
    """All questions over one dispatcher, whose limit of calls in flight they share."""
    dispatcher = Dispatcher(llm, max_in_flight=AT_ONCE)
    await asyncio.gather(*(play(question, llm, index, dispatcher=dispatcher) for question in questions))


def calls_figures(options: BenchOptions) -> list[Figure]:
    """Calls with batching and lateral reuse against the same questions without."""
    player, index = PlanPlayer(options.plans), PlanIndex(options.plans)
    methods = {
        "all": Method(),
        "no batching": Method(batching=False),
        "no lateral": Method(lateral=False),
        "neither": Method(batching=False, lateral=False),
    }
    counts = dict.fromkeys(methods, 0)
    for question in drawn(player, 4 * QUESTIONS):
        for name, method in methods.items():
            root = asyncio.run(play(question, player, index, method=method))
            counts[name] += total_usage(root).calls
    return [
        Figure(f"calls_over_{name.replace(' ', '_')}", counts["all"] / counts[name], "< 1",
               counts["all"] < counts[name], counts["all"], counts[name], "calls",
               {"questions": len(drawn(player, 4 * QUESTIONS))})
        for name in list(methods)[1:]
    ]  # fmt: skip


def overhead_figures(options: BenchOptions) -> list[Figure]:
    """Milliseconds per call that are neither engine nor search: on asyncio and with every step a Ray task."""
    player, index = PlanPlayer(options.plans), PlanIndex(options.plans)
    questions = drawn(player)
    inline = asyncio.run(
        overheads(questions, lambda question: play(question, player, index), clock=time.process_time)
    )
    with ray_on_demand() as start:
        start()
        with crew_of(partial(open_room, options.plans)) as crew:
            answer = partial(answer_on_ray, crew=crew, limits=WIDE)
            asyncio.run(overheads(questions, answer))  # the crew gathers
            on_ray = asyncio.run(overheads(questions, answer))
    return [
        overhead_figure("overhead_on_asyncio", inline, most_ms=2.0),
        overhead_figure("overhead_on_ray", on_ray, most_ms=10.0),
    ]


async def overheads(
    questions: Sequence[str],
    answer: Callable[[str], Awaitable[QuestionNode]],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> list[tuple[float, int]]:
    """Milliseconds per call and calls of each question, with an engine that takes no time.

    One process at work is measured by its own CPU time, which other processes of the machine do not disturb.
    """
    found = []
    for question in questions:
        began = clock()
        root = await answer(question)
        calls = total_usage(root).calls
        found.append((1000 * (clock() - began) / calls, calls))
    return found


def overhead_figure(name: str, found: Sequence[tuple[float, int]], *, most_ms: float) -> Figure:
    median = statistics.median(ms for ms, _ in found)
    settings = {"questions": len(found), "calls": sum(calls for _, calls in found)}
    met = median <= most_ms
    return Figure(name, median / most_ms, "<= 1", met, median, most_ms, "ms per call, median", settings)


def open_room(plans: str) -> Room:
    index = PlanIndex(plans)
    return Room(Dispatcher(PlanPlayer(plans), max_in_flight=AT_ONCE), index, index)


def memory_figures(options: BenchOptions) -> list[Figure]:
    """Resident memory after many questions in flight, round after round: what is done must be given back."""
    player, index = PlanPlayer(options.plans), PlanIndex(options.plans)
    questions = [drawn(player)[i % QUESTIONS] for i in range(IN_FLIGHT)]
    after: list[float] = []

    async def measure(url: str) -> float:
        llm, began = OpenAILLM(connect(url)), time.perf_counter()
        for _ in range(MEMORY_ROUNDS):
            await asyncio.gather(*(calls_of(question, llm, index) for question in questions))
            gc.collect()
            after.append(resident_mib())
        await llm.close()
        return time.perf_counter() - began

    with simulator_process("pipelines.plan_player:speaker", options.plans, **FAST) as url:
        seconds = asyncio.run(measure(url))
    grown_kib = 1024 * (after[-1] - after[1]) / (IN_FLIGHT * (MEMORY_ROUNDS - 2))
    settings = {
        "in_flight": IN_FLIGHT,
        "MiB_after_round": after,
        "seconds": seconds,
        "KiB_per_question": grown_kib,
    }
    ratio = after[-1] / after[1]
    return [
        Figure("memory_after_rounds", ratio, "<= 1.05", ratio <= 1.05, after[-1], after[1], "MiB", settings)
    ]


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


async def calls_of(question: str, llm: LLM, index: PlanIndex) -> int:
    return total_usage(await play(question, llm, index)).calls


FIGURES: dict[str, Callable[[BenchOptions], list[Figure]]] = {
    "speed": speed_figures,
    "calls": calls_figures,
    "overhead": overhead_figures,
    "memory": memory_figures,
}
