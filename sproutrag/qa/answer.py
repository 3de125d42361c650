"""The one recursion: a question becomes a family of one; each strategy is a step that an executor carries
out.

`answer_question` never raises for what models, retrievers or limits do: it returns the tree, with the
reasons.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from sproutrag.qa.budget import Account, Bill, BudgetSpent, Limits, LocalAccount, share
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.evidence import bare, distinct, joint, verified
from sproutrag.qa.family import Family, look_up
from sproutrag.qa.llm import LLMError, Retriever, Sources
from sproutrag.qa.method import Executor, Kin, Method, Step, Tools
from sproutrag.qa.planner import known, short_answer
from sproutrag.qa.prompts import ANSWER, COMBINE, Answered, Combined, escape, fence_passages, fence_questions
from sproutrag.qa.question import QuestionNode
from sproutrag.qa.watch import ROOT, Audience, State, Watch, answer_heard, tell
from sproutrag.search import Passage


class Inline:
    """Carries steps out where they arise, in this event loop."""

    async def run(self, step: Step, nodes: list[QuestionNode], kin: Kin, tools: Tools) -> list[QuestionNode]:
        return await STEPS[step](nodes, kin, tools)


async def answer_question(
    question: str,
    *,
    dispatcher: Dispatcher,
    retriever: Retriever,
    sources: Sources,
    limits: Limits | None = None,
    method: Method | None = None,
    executor: Executor | None = None,
    account: Account | None = None,
    watch: Watch | None = None,
) -> QuestionNode:
    """Resolve a question recursively; siblings that are ready together are planned, retrieved and answered
    together.

    The tree of the returned node is the trace. Cancelling the caller closes every open call.
    """
    limits, audience = limits or Limits(), Audience(watch)
    tools = Tools(
        dispatcher,
        retriever,
        sources,
        account or LocalAccount(limits),
        executor or Inline(),
        limits,
        method or Method(),
        audience.seat,
    )
    root = await resolve(question.strip(), tools)
    audience.finish(root)
    return root


async def resolve(question: str, tools: Tools) -> QuestionNode:
    root = QuestionNode(ROOT, planned=escape(question), question=question)
    [root] = await Family([root], (), tools).resolve()
    root.partial = any(node.partial or node.failure or node.unexplored for node in root.walk())
    return root


# --- steps


async def answer_cluster(nodes: list[QuestionNode], kin: Kin, tools: Tools) -> list[QuestionNode]:
    """All questions of one colour class in one call, replies joined by id. Who is left out is asked alone,
    once."""
    left_out = await answer_together(nodes, tools)
    if left_out and len(nodes) > 1:
        await asyncio.gather(*(answer_together([node], tools) for node in left_out))
    for node in left_out:
        if not node.answered and not node.failure and not node.notes:
            node.fail("answer: the reply leaves this question out")
    return nodes


async def answer_together(nodes: list[QuestionNode], tools: Tools) -> list[QuestionNode]:
    """Who got no reply. A failure of a call for one question is that question's failure."""
    passages = joint([node.evidence for node in nodes])
    ids = [node.id for node in nodes]
    bill = Bill(owner="+".join(ids))
    for node in nodes:
        tell(node, State.ANSWERING, tools.watch, ids)
    try:
        reply = await tools.dispatcher.ask(
            ANSWER,
            bill=bill,
            account=tools.account,
            n_questions=len(nodes),
            choices={"id": ids},
            listen=answer_heard(nodes[0], tools.watch, "replies", 0, "answer"),
            evidence=fence_passages(passages),
            questions=fence_questions([(node.id, node.asks) for node in nodes]),
        )
    except LLMError as error:
        if len(nodes) == 1 or isinstance(error, BudgetSpent):
            for node in nodes:
                node.fail(f"answer: {error}")
            return []
        return nodes
    finally:
        split_bill(bill, nodes)
    said: dict[str, Answered] = {}
    for one in reply.replies:
        said.setdefault(one.id, one)
    for node in nodes:
        node.cluster = ids
        if node.id in said:
            await take_reply(node, said[node.id], passages, tools)
    return [node for node in nodes if node.id not in said]


def split_bill(bill: Bill, nodes: Sequence[QuestionNode]) -> None:
    """Every call of the bill shared by the nodes: their sum is what the engine counted."""
    for call in bill.calls:
        for node, part in zip(nodes, share(call.usage, len(nodes)), strict=True):
            node.bill.enter(replace(call, usage=part, shared_by=len(nodes)))


async def take_reply(node: QuestionNode, reply: Answered, passages: Sequence[Passage], tools: Tools) -> None:
    """The reply as the node's answer; citations only as far as the stored text proves them."""
    set_answer(node, reply.answered, reply.answers, reply.answer)
    if node.answered:
        node.citations, dropped = await verified(reply.quotes, passages, tools.sources)
        node.notes += dropped
        if not node.citations:
            node.notes.append("answer: no citation proves it")


def set_answer(node: QuestionNode, answered: bool, answers: Sequence[str], answer: str) -> None:
    """Nothing but markers is no answer (P125)."""
    listed, prose = distinct(answers), bare(answer)
    node.answered = answered and bool(listed or prose)
    if node.answered:
        node.answers = listed or [prose]
        node.answer = prose or ", ".join(listed)
    elif answered:
        node.notes.append("answer: the reply is empty: not answered")


async def answer_laterally(nodes: list[QuestionNode], kin: Kin, tools: Tools) -> list[QuestionNode]:
    """From the siblings' answers; where they do not suffice after all, by a search."""
    [node] = nodes
    await combine(node, kin.answered, tools)
    if not node.answered and not node.failure:
        node.notes.append("lateral: the siblings' answers did not suffice; looked up")
        await search_alone(node, tools)
    return nodes


async def answer_vertically(nodes: list[QuestionNode], kin: Kin, tools: Tools) -> list[QuestionNode]:
    """The children's family, then the answer from theirs; where none is known, by a search."""
    [node] = nodes
    node.children = await Family(node.children, (*kin.ancestors, node.asks), tools).resolve()
    known_children = [child for child in node.children if child.answered]
    if node.each:
        list_entities(node)
    elif known_children:
        await combine(node, known_children, tools)
        if not node.answered and node.failure:
            answer_without_model(node, known_children)
    else:
        node.notes.append("vertical: no sub-question was answered; looked up")
        await search_alone(node, tools)
    return nodes


async def search_alone(node: QuestionNode, tools: Tools) -> None:
    node.query = node.query or node.asks
    try:
        await look_up(node, tools)
    except BudgetSpent as error:
        return node.fail(str(error))
    if node.evidence:
        await answer_cluster([node], Kin(), tools)


async def combine(node: QuestionNode, parts: Sequence[QuestionNode], tools: Tools) -> None:
    """The answer from QA pairs; it cites what they cite. Sets a failure where the model gives none."""
    tell(node, State.ANSWERING, tools.watch)
    try:
        reply = await tools.dispatcher.ask(
            COMBINE,
            bill=node.bill,
            account=tools.account,
            closing=True,
            choices={"used": [str(part.number) for part in parts]},
            listen=answer_heard(node, tools.watch, "answer"),
            known=known(parts),
            question=node.asks,
        )
    except LLMError as error:
        return node.fail(f"combine: {error}")
    take_combined(node, reply, parts)


def take_combined(node: QuestionNode, reply: Combined, parts: Sequence[QuestionNode]) -> None:
    set_answer(node, reply.answered, reply.answers, reply.answer)
    used = [part for part in parts if str(part.number) in reply.used] or parts
    if node.answered:
        node.citations = list(dict.fromkeys(c for part in used for c in part.citations))


def list_entities(node: QuestionNode) -> None:
    """The answer of a fan-out: what is known of each entity, without a call."""
    found = [child for child in node.children if child.answered]
    listed = [f"{child.entity}: {short_answer(child)}" for child in found]
    set_answer(node, bool(found), listed, "; ".join(listed))
    node.citations = list(dict.fromkeys(c for child in found for c in child.citations))


def answer_without_model(node: QuestionNode, parts: Sequence[QuestionNode]) -> None:
    """The best from what is there when no call can be made any more: the last wave's answers, partial."""
    last = max(part.wave for part in parts)
    node.answers = distinct(a for part in parts if part.wave == last for a in part.answers)
    node.answer = " ".join(f"{part.asks} {part.answer or short_answer(part)}" for part in parts)
    node.citations = list(dict.fromkeys(c for part in parts for c in part.citations))
    node.answered, node.partial = True, True
    node.notes.append(f"{node.failure}; the sub-questions' answers are listed instead")
    node.failure = None


STEPS = {
    Step.CLUSTER: answer_cluster,
    Step.LATERAL: answer_laterally,
    Step.VERTICAL: answer_vertically,
}
