"""Siblings in flight: who may start, who is answered together, and how long a ready one waits for company.

The rule of waiting: a question whose evidence is there joins the next cluster. Clusters are formed as soon
as no sibling that could still join is being planned or retrieved for; and at the latest after `patience`
mean calls, because joining saves one call at most, so a longer wait costs more than it can save. A sibling
that waits for another's answer cannot join and is not waited for.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from sproutrag.qa.budget import BudgetSpent
from sproutrag.qa.clustering import cluster_by_evidence
from sproutrag.qa.evidence import fitting, leaf_set, passage_tokens
from sproutrag.qa.method import Kin, Step, Tools
from sproutrag.qa.planner import contextualize, fan_out, plan
from sproutrag.qa.prompts import ANSWER
from sproutrag.qa.question import QuestionNode, Strategy, same_question, waves
from sproutrag.qa.watch import State, tell, tell_end, tell_evidence
from sproutrag.search import Passage

LEAST_WAIT_S = 0.02  # below this a wait is scheduling noise
QUESTION_TOKENS = 24  # a question's fence and key
STEP_OF = {Strategy.LATERAL: Step.LATERAL, Strategy.VERTICAL: Step.VERTICAL}


class Family:
    """One generation. Dependencies, not waves, decide when a sibling starts; waves are what a reader sees."""

    def __init__(self, siblings: Sequence[QuestionNode], ancestors: tuple[str, ...], tools: Tools) -> None:
        self.nodes = {node.number: node for node in siblings}
        self.ancestors = ancestors
        self.tools = tools
        self.settled = {number: asyncio.Event() for number in self.nodes}
        self.begun: dict[int, QuestionNode] = {}
        self.preparing: set[int] = set()
        self.ready: list[int] = []
        self.timer: asyncio.TimerHandle | None = None

    async def resolve(self) -> list[QuestionNode]:
        """All siblings, answered or failed, in their order."""
        runnable = [node for node in self.nodes.values() if not node.failure]
        for number, wave in enumerate(waves(runnable)):
            for node in wave:
                node.wave = number
        for node in self.nodes.values():
            tell(node, State.FAILED if node.failure else State.WAITING, self.tools.watch)
        try:
            async with asyncio.TaskGroup() as self.tasks:
                for number, node in self.nodes.items():
                    if node.failure:
                        self.settled[number].set()
                self.start()
        finally:
            self.stop_waiting()
        return list(self.nodes.values())

    def start(self) -> None:
        """Everyone whose needs are settled."""
        for number, node in self.nodes.items():
            idle = number not in self.begun and not self.settled[number].is_set()
            if idle and all(self.settled[n].is_set() for n in node.needs if n in self.settled):
                node.began = time.time()
                self.begun[number] = node
                self.preparing.add(number)
                tell(node, State.PLANNING, self.tools.watch)
                self.tasks.create_task(self.pursue(number, node))

    async def pursue(self, number: int, node: QuestionNode) -> None:
        try:
            await self.prepare(number, node)
        except BudgetSpent as error:
            node.fail(str(error))
        if node.failure or node.reuses or (node.strategy is Strategy.EXTERNAL and not node.evidence):
            self.settle(number)
        elif node.strategy is Strategy.EXTERNAL:
            tell(node, State.WAITING, self.tools.watch)
            self.ready.append(number)
        elif node.strategy:
            tell(node, State.WAITING, self.tools.watch)
            self.tasks.create_task(self.carry_out(STEP_OF[node.strategy], [number]))
        self.preparing.discard(number)
        self.answer_or_wait()

    async def prepare(self, number: int, node: QuestionNode) -> None:
        """Contextualise, plan, gather (of an external question)."""
        answered = [self.nodes[n] for n in sorted(node.needs) if n in self.nodes and self.nodes[n].answered]
        if missing := node.needs - {sibling.number for sibling in answered}:
            named = ", ".join(f"<Q{n}>" for n in sorted(missing))
            return node.fail(f"unresolved: {named} has no answer: not asked")
        if node.each:
            return await fan_out(node, answered, self.tools)
        if node.question is None:
            node.question = await contextualize(node, answered, self.tools)
        if twin := self.twin_of(number, node.question):
            return await self.reuse(number, node, twin)
        await plan(node, answered, self.ancestors, self.tools)
        if node.strategy is Strategy.EXTERNAL:
            await look_up(node, self.tools)

    def twin_of(self, number: int, question: str) -> QuestionNode | None:
        """A sibling that has begun with the same question."""
        for other in self.begun.values():
            asked = other.number != number and other.question and not other.reuses and not other.each
            if asked and same_question(other.question or "", question):
                return other
        return None

    async def reuse(self, number: int, node: QuestionNode, twin: QuestionNode) -> None:
        node.reuses = twin.id
        tell(node, State.WAITING, self.tools.watch)
        self.preparing.discard(number)
        self.answer_or_wait()
        await self.settled[twin.number].wait()
        twin = self.nodes[twin.number]
        node.strategy = Strategy.LATERAL
        node.answered, node.answer, node.answers = twin.answered, twin.answer, list(twin.answers)
        node.citations = list(twin.citations)
        if twin.failure:
            node.fail(f"same question as {twin.id}, which failed")

    # --- batching

    def answer_or_wait(self) -> None:
        if not self.ready:
            return
        if not self.preparing or not self.tools.method.batching:
            self.answer_ready()
        elif self.timer is None:
            wait_s = max(self.tools.limits.patience * self.tools.dispatcher.mean_call_s(), LEAST_WAIT_S)
            self.timer = asyncio.get_running_loop().call_later(min(wait_s, 1e6), self.answer_ready)

    def answer_ready(self) -> None:
        """One task per colour class of the questions that are ready."""
        self.stop_waiting()
        numbers, self.ready = sorted(self.ready), []
        evidence = [self.nodes[n].evidence for n in numbers]
        groups = [[i] for i in range(len(numbers))]
        if self.tools.method.batching:
            groups = cluster_by_evidence(
                [leaf_set(passages) for passages in evidence],
                joint_tokens(evidence, [self.nodes[n].asks for n in numbers], self.tools),
                min_overlap=self.tools.limits.min_overlap,
                max_tokens=call_room(self.tools),
            )
        for group in groups:
            self.tasks.create_task(self.carry_out(Step.CLUSTER, [numbers[i] for i in group]))

    def stop_waiting(self) -> None:
        if self.timer:
            self.timer.cancel()
        self.timer = None

    async def carry_out(self, step: Step, numbers: list[int]) -> None:
        nodes = [self.nodes[n] for n in numbers]
        needed = sorted({n for node in nodes for n in node.needs if n in self.nodes})
        kin = Kin(self.ancestors, tuple(without_subtree(self.nodes[n]) for n in needed))
        done = {node.id: node for node in await self.tools.executor.run(step, nodes, kin, self.tools)}
        for number, node in zip(numbers, nodes, strict=True):
            self.nodes[number] = done.get(node.id, node)  # by id, never by position (P133)
            self.settle(number)

    def settle(self, number: int) -> None:
        self.nodes[number].ended = time.time()
        tell_end(self.nodes[number], self.tools.watch)
        self.settled[number].set()
        self.start()


def without_subtree(node: QuestionNode) -> QuestionNode:
    """What siblings may see: the question and its answer."""
    return replace(node, children=[], evidence=[], notes=[])


async def look_up(node: QuestionNode, tools: Tools) -> None:
    """Evidence of one question, cut by rank to what one call can hold."""
    tell(node, State.RETRIEVING, tools.watch)
    try:
        async with asyncio.timeout(max(await tools.account.seconds_left(), 0)):
            [found] = await tools.retriever.retrieve([node.query], tools.limits.k)
    except TimeoutError:
        raise BudgetSpent("budget: no time left to retrieve") from None
    except Exception as error:  # the door to a foreign system; what fails there is this question's failure
        return node.fail(f"retrieve: {type(error).__name__}: {error}")
    count = tools.dispatcher.count
    room = call_room(tools) - ANSWER.max_tokens - count(node.asks) - QUESTION_TOKENS
    node.evidence = fitting(found, count, room)
    if not node.evidence:
        node.notes.append(
            "gather: nothing found" if not found else "gather: the prompt has no room for evidence"
        )
    if len(leaf_set(node.evidence)) < len(leaf_set(found)):
        node.notes.append(f"gather: {len(found) - len(node.evidence)} passages left out, the prompt is full")
    tell_evidence(node, tools.watch)


def call_room(tools: Tools) -> int:
    """Tokens of evidence, questions and replies in one ANSWER call, by the engine's own limit."""
    return min(tools.limits.max_context_tokens, tools.dispatcher.prompt_room(ANSWER, n_questions=0))


def joint_tokens(
    evidence: Sequence[Sequence[Passage]], questions: Sequence[str], tools: Tools
) -> Callable[[Sequence[int]], int]:
    """Tokens of one call for some of the questions: each passage once, each question with room for its
    reply."""
    count = tools.dispatcher.count
    costs = {key(p): passage_tokens(p, count) for passages in evidence for p in passages}
    keys = [frozenset(map(key, passages)) for passages in evidence]
    asking = [count(question) + QUESTION_TOKENS + ANSWER.max_tokens for question in questions]

    def tokens(group: Sequence[int]) -> int:
        passages = frozenset().union(*(keys[i] for i in group))
        return sum(costs[k] for k in passages) + sum(asking[i] for i in group)

    return tokens


def key(passage: Passage) -> tuple[str, tuple[int, ...], int]:
    return passage.doc_id, passage.leaves, len(passage.text)
