"""One question from request to outcome: who may ask, where its steps run, what is told on the way."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from serve.bodies import AskRequest
from serve.corpora import ServedCorpus, retriever_handle
from serve.engines import CountedLLM, NotReady, open_engine
from serve.keys import Tenant
from serve.logs import REQUEST_ID, log
from serve.metrics import change, count
from serve.problems import Problem, problem_of, told
from serve.settings import Settings
from serve.traces import spans_of_question
from sproutrag.documents import LONE_SURROGATE
from sproutrag.qa.baselines import METHODS, SYSTEMS
from sproutrag.qa.budget import Limits
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.llm import LLM
from sproutrag.qa.question import QuestionNode
from sproutrag.qa.ray_dispatch import Hired, Room, answer_on_ray, hire
from sproutrag.qa.trace import outcome
from sproutrag.qa.watch import Watch

KEEP_ALIVE_S = 10.0  # between two signs of life of a stream
BUSY_S = 2  # Retry-After when there is no room for a question
WARM_UP_S = 2.0  # between two looks whether the LLM is up
ENDINGS = ("done", "error")
Event = tuple[str, dict[str, Any]] | None


@dataclass(frozen=True, slots=True)
class Engine:
    """What asks the LLM: here, or in the processes of a crew."""

    llm: LLM
    dispatcher: Dispatcher
    hired: Hired | None


class Asker:
    """The questions of one ingress replica."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.engine: Engine | None = None
        self.opening = asyncio.Lock()
        self.open: Counter[str] = Counter()

    # --- the engine

    async def ready_engine(self) -> Engine:
        """Opened with the first question that finds the LLM up. Raises NotReady."""
        async with self.opening:
            if self.engine is None:
                llm = CountedLLM(await open_engine(self.settings))
                room = partial(room_of, llm, self.bounds())
                hired = hire(room, self.settings.carriers) if self.settings.executor == "tasks" else None
                self.engine = Engine(llm, Dispatcher(llm, **self.bounds()), hired)
                log("llm ready", model=llm.name, context_tokens=llm.context_tokens)
            return self.engine

    async def warm_up(self) -> None:
        """So that the first question finds everything open."""
        while self.engine is None:
            with suppress(NotReady):
                await self.ready_engine()
            await asyncio.sleep(WARM_UP_S)

    def bounds(self) -> dict[str, Any]:
        limits = self.settings
        return {"max_in_flight": limits.calls_in_flight, "call_timeout_s": limits.llm_deadline_s}

    def close(self) -> None:
        if self.engine and self.engine.hired:
            self.engine.hired.close()

    # --- one question

    @contextmanager
    def admitted(self, tenant: Tenant) -> Iterator[None]:
        """A place for one more question, or Problem 429."""
        if self.open[tenant.name] >= tenant.concurrent:
            raise busy(f"This key may ask {tenant.concurrent} at a time.", "Wait for one to end.")
        if self.open.total() >= self.settings.concurrent_questions:
            raise busy("The server is answering as many as it can.", "Try again in a moment.")
        self.open[tenant.name] += 1
        change("sproutrag_open_questions", +1)
        try:
            yield
        finally:
            self.open[tenant.name] -= 1
            change("sproutrag_open_questions", -1)

    async def ask(self, request: AskRequest, tenant: Tenant, watch: Watch | None) -> dict[str, Any]:
        """The outcome, as `sproutrag ask --json` prints it. A client that leaves cancels all of it."""
        engine = await self.ready_engine()
        where = tenant.narrowed(request.where)
        request_id = REQUEST_ID.get()
        snapshot = await retriever_handle().snapshot_for.remote(where)
        question = LONE_SURROGATE.sub("\ufffd", request.question)
        named = {"request_id": request_id, "question": question, "snapshot": snapshot}
        if watch:
            watch("start", named | {"model": engine.llm.name})
        corpus = ServedCorpus(snapshot, where, request_id)
        root = await self.resolved(request, question, engine, corpus, watch)
        count_calls(root)
        spans_of_question(root)
        return outcome(root, model=engine.llm.name, snapshot=snapshot, method=request.method)

    async def resolved(
        self, request: AskRequest, question: str, engine: Engine, corpus: ServedCorpus, watch: Watch | None
    ) -> QuestionNode:
        """With every step a Ray task where the settings say so; baselines are one call, made here."""
        shared: dict[str, Any] = {
            "retriever": corpus,
            "sources": corpus,
            "limits": self.limits(request),
            "watch": watch,
        }
        if engine.hired and request.method in METHODS:
            method, key = METHODS[request.method], corpus.request_id
            return await answer_on_ray(question, engine.hired.crew, method=method, key=key, **shared)
        return await SYSTEMS[request.method](question, dispatcher=engine.dispatcher, **shared)

    def limits(self, request: AskRequest) -> Limits:
        asked, longest = request.limits, self.settings.deadline_s
        return Limits(
            k=request.k,
            max_depth=asked.max_depth,
            max_calls=asked.max_calls,
            max_prompt_tokens=asked.max_tokens,
            max_completion_tokens=max(asked.max_tokens // 10, 1),
            max_seconds=min(asked.max_seconds or longest, longest),
        )

    # --- as a stream

    async def events(self, request: AskRequest, tenant: Tenant) -> AsyncIterator[Event]:
        """What happens, as it happens; the last one is `done` or `error`. None: nothing for a while.

        Leaving the iteration cancels the question.
        """
        told: asyncio.Queue[Event] = asyncio.Queue()
        asking = asyncio.create_task(self.ask(request, tenant, lambda *event: told.put_nowait(event)))
        asking.add_done_callback(lambda task: told.put_nowait(ending(task)))
        try:
            while True:
                try:
                    event = await asyncio.wait_for(told.get(), KEEP_ALIVE_S)
                except TimeoutError:
                    event = None
                yield event
                if event and event[0] in ENDINGS:
                    return
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


def room_of(llm: LLM, bounds: dict[str, Any]) -> Room:
    """Of a process that carries out steps; the corpus comes with each question."""
    return Room(Dispatcher(llm, **bounds))


def ending(task: asyncio.Task[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    if task.cancelled():
        return "error", told(problem_of(TimeoutError()))
    error = task.exception()
    if isinstance(error, Exception):
        return "error", told(problem_of(error))
    return "done", task.result()


def written(event: Event) -> str:
    """As server-sent event; a sign of life is a comment."""
    if event is None:
        return ": keep-alive\n\n"
    name, data = event
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def busy(detail: str, next_step: str) -> Problem:
    return Problem(429, "Too many questions at once", detail, next_step, {"Retry-After": str(BUSY_S)})


def count_calls(root: QuestionNode) -> None:
    for node in root.walk():
        for call in node.bill.calls:
            usage = call.usage
            wasted = min(usage.wasted_calls, usage.calls)
            count("sproutrag_llm_calls_total", usage.calls - wasted, prompt=call.prompt, outcome="ok")
            count("sproutrag_llm_calls_total", wasted, prompt=call.prompt, outcome="wasted")
            count("sproutrag_llm_tokens_total", usage.prompt_tokens, kind="prompt")
            count("sproutrag_llm_tokens_total", usage.completion_tokens, kind="completion")
            count("sproutrag_llm_tokens_total", usage.wasted_tokens, kind="wasted")
