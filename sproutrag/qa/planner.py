"""The first two steps of a node: make its question self-contained, decide how to answer it."""

from collections.abc import Sequence

from sproutrag.qa.budget import BudgetSpent
from sproutrag.qa.llm import LLMError
from sproutrag.qa.method import Tools
from sproutrag.qa.prompts import (
    CONTEXTUALIZE,
    PLAN,
    Fenced,
    Planned,
    SubQuestion,
    fence_pairs,
    fence_planned,
)
from sproutrag.qa.question import (
    REFERENCE,
    QuestionNode,
    Strategy,
    broken_references,
    references,
    same_question,
    substitute,
)

SHORT = 12  # words of a single answer that may stand in a question as it is


async def contextualize(node: QuestionNode, answered: Sequence[QuestionNode], tools: Tools) -> str:
    """The question with its references replaced; costs a call only where an answer is long or a list.

    When the model fails, the answers themselves are put in, and a note says so.
    """
    said = {sibling.number: sibling for sibling in answered}
    named = [said[n] for n in sorted(references(node.planned)) if n in said]
    if not named:
        return node.planned
    plain = substitute(node.planned, {s.number: short_answer(s) for s in named})
    if all(len(s.answers) == 1 and len(s.answers[0].split()) <= SHORT for s in named):
        return plain
    try:
        reply = await tools.dispatcher.ask(
            CONTEXTUALIZE,
            bill=node.bill,
            account=tools.account,
            known=known(named),
            planned=fence_planned(node.planned),
        )
    except BudgetSpent:
        raise
    except LLMError as error:
        node.notes.append(f"contextualize: {error}; the answers were put in as they are")
        return plain
    if REFERENCE.search(reply.question) or not reply.question.strip():
        node.notes.append("contextualize: the reply left a reference; the answers were put in as they are")
        return plain
    return reply.question.strip()


def short_answer(node: QuestionNode) -> str:
    return ", ".join(node.answers) or node.answer or ""


def known(nodes: Sequence[QuestionNode]) -> Fenced:
    """QA pairs by the numbers that references use."""
    return fence_pairs([(str(n.number), n.asks, n.answer or short_answer(n)) for n in nodes])


async def plan(
    node: QuestionNode, answered: Sequence[QuestionNode], ancestors: Sequence[str], tools: Tools
) -> None:
    """Sets strategy, query and children. A planner that cannot be understood decomposes nothing, visibly
    (P116)."""
    node.strategy, node.query = Strategy.EXTERNAL, node.asks
    lateral = tools.method.lateral and tools.method.plan_children and bool(answered)
    vertical = node.depth < tools.limits.max_depth and (tools.method.plan_children or node.depth == 0)
    if any(same_question(node.asks, above) for above in ancestors):
        node.notes.append("plan: it repeats an ancestor, so it is looked up and not decomposed again")
        vertical = False
    allowed = [s for s, may in ((Strategy.LATERAL, lateral), (Strategy.VERTICAL, vertical)) if may]
    if not allowed:
        return
    try:
        reply = await ask_plan(node, answered, [Strategy.EXTERNAL, *allowed], tools, remark="")
        if reply.strategy == Strategy.VERTICAL:
            reply = await mended(node, answered, allowed, reply, tools)
    except BudgetSpent:
        raise
    except LLMError as error:
        node.notes.append(f"plan: {error}; not decomposed")
        return
    await follow(node, reply, ancestors, tools)


async def ask_plan(
    node: QuestionNode,
    answered: Sequence[QuestionNode],
    strategies: Sequence[Strategy],
    tools: Tools,
    *,
    remark: str,
) -> Planned:
    rule = f"Strategies allowed: {', '.join(strategies)}."
    if tools.method.width:
        rule += f" A decomposition has exactly {tools.method.width} questions."
    return await tools.dispatcher.ask(
        PLAN,
        bill=node.bill,
        account=tools.account,
        choices={"strategy": list(strategies)},
        known=known(answered),
        question=node.asks,
        allowed=Fenced(rule + remark),
    )


async def mended(
    node: QuestionNode,
    answered: Sequence[QuestionNode],
    allowed: Sequence[Strategy],
    reply: Planned,
    tools: Tools,
) -> Planned:
    """The plan, or one re-plan where references are broken; what stays broken is refused later, by name."""
    broken = broken_references(reply.questions)
    if not broken:
        return reply
    node.notes.append(f"plan: {'; '.join(broken.values())}; planned once more")
    remark = f" Your last plan was wrong: {'; '.join(broken.values())}."
    try:
        return await ask_plan(node, answered, [Strategy.EXTERNAL, *allowed], tools, remark=remark)
    except BudgetSpent:
        raise
    except LLMError as error:
        node.notes.append(f"plan: {error}; the first plan is kept")
        return reply


async def follow(node: QuestionNode, reply: Planned, ancestors: Sequence[str], tools: Tools) -> None:
    node.strategy = Strategy(reply.strategy)
    if node.strategy is Strategy.EXTERNAL:
        node.query = reply.query.strip() or node.asks
    if node.strategy is Strategy.VERTICAL:
        await grow(node, [q for q in reply.questions if q.question.strip()], (*ancestors, node.asks), tools)


async def grow(
    node: QuestionNode, questions: Sequence[SubQuestion], ancestors: Sequence[str], tools: Tools
) -> None:
    """Children as planned, within width and nodes. A plan that only repeats an ancestor is refused (P127)."""
    if not [q for q in questions if not any(same_question(q.question, a) for a in ancestors)]:
        why = "it only repeats the question" if questions else "it has no questions"
        node.notes.append(f"plan: decomposition refused, {why}; looked up instead")
        node.strategy = Strategy.EXTERNAL
        return
    kept = await within_limits(node, [q.question for q in questions], tools)
    broken = broken_references(questions)
    for n, question in enumerate(questions[:kept], start=1):
        child = QuestionNode(
            id=f"{node.id}.{n}", planned=question.question, each=max(question.each, 0), depth=node.depth + 1
        )
        if n in broken:
            child.fail(f"plan: {broken[n]}: not asked")
        node.children.append(child)


async def within_limits(node: QuestionNode, questions: Sequence[str], tools: Tools) -> int:
    """How many of the questions become nodes; the others are named as not explored."""
    width = tools.method.width if tools.method.width and not node.each else tools.limits.max_children
    wanted = min(len(questions), width, tools.limits.max_children)
    kept = await tools.account.take_nodes(node.id, wanted)
    if kept < len(questions):
        node.unexplored += questions[kept:]
        limit = f"{wanted} children" if kept == wanted else f"{tools.limits.max_nodes} nodes"
        node.notes.append(f"plan: {len(questions) - kept} questions not explored (limit: {limit})")
    return kept


async def fan_out(node: QuestionNode, answered: Sequence[QuestionNode], tools: Tools) -> None:
    """One child per entity of the sibling that `each` names, without a call."""
    of = next(sibling for sibling in answered if sibling.number == node.each)
    entities = of.answers or [of.answer or ""]
    marked = f"<Q{node.each}>"
    template = node.planned if marked in node.planned else f"{node.planned} ({marked})"
    others = {s.number: short_answer(s) for s in answered if s.number != node.each}
    questions = [substitute(template, others | {node.each: entity}) for entity in entities]
    node.question = substitute(node.planned, others | {node.each: f"each of {short_answer(of)}"})
    node.strategy = Strategy.VERTICAL
    kept = await within_limits(node, questions, tools)
    for n, question in enumerate(questions[:kept], start=1):
        child = QuestionNode(f"{node.id}.{n}", question, depth=node.depth, question=question)
        child.entity = entities[n - 1]
        node.children.append(child)
