"""What APT-RAG is compared with, behind the interface of `answer_question`: same prompts and budget."""

import time
from collections.abc import Awaitable, Callable
from functools import partial

from sproutrag.qa.answer import Inline, answer_question, search_alone, set_answer
from sproutrag.qa.budget import Limits, LocalAccount
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.llm import LLMError, Retriever, Sources
from sproutrag.qa.method import Method, Tools
from sproutrag.qa.prompts import ANSWER_ALONE, escape
from sproutrag.qa.question import QuestionNode, Strategy
from sproutrag.qa.watch import ROOT, Audience, State, Watch, answer_heard, tell

System = Callable[..., Awaitable[QuestionNode]]


def started(question: str, watch: Watch | None) -> tuple[QuestionNode, Audience]:
    root, audience = QuestionNode(ROOT, planned=escape(question), question=question), Audience(watch)
    root.began = time.time()
    return root, audience


async def llm_only(
    question: str,
    *,
    dispatcher: Dispatcher,
    retriever: Retriever,
    sources: Sources,
    limits: Limits | None = None,
    watch: Watch | None = None,
) -> QuestionNode:
    """What the model says without any evidence; one call."""
    root, audience = started(question, watch)
    tell(root, State.ANSWERING, audience.seat)
    try:
        reply = await dispatcher.ask(
            ANSWER_ALONE,
            bill=root.bill,
            account=LocalAccount(limits or Limits()),
            listen=answer_heard(root, audience.seat, "answer"),
            question=question,
        )
        set_answer(root, reply.answered, reply.answers, reply.answer)
    except LLMError as error:
        root.fail(f"answer: {error}")
    return ended(root, audience)


async def naive_rag(
    question: str,
    *,
    dispatcher: Dispatcher,
    retriever: Retriever,
    sources: Sources,
    limits: Limits | None = None,
    watch: Watch | None = None,
) -> QuestionNode:
    """Retrieve for the question as it is, answer; one call."""
    limits = limits or Limits()
    root, audience = started(question, watch)
    root.strategy = Strategy.EXTERNAL
    account = LocalAccount(limits)
    tools = Tools(dispatcher, retriever, sources, account, Inline(), limits, watch=audience.seat)
    await search_alone(root, tools)
    return ended(root, audience)


def ended(root: QuestionNode, audience: Audience) -> QuestionNode:
    root.partial, root.ended = root.failure is not None, time.time()
    audience.finish(root)
    return root


METHODS = {
    "apt-rag": Method(),
    "fixed-plan": Method(plan_children=False),  # plan first, then execute
    "width-2": Method(width=2),
    "width-6": Method(width=6),
    "no-lateral": Method(lateral=False),
    "no-batching": Method(batching=False),
}
SYSTEMS: dict[str, System] = {"llm-only": llm_only, "naive-rag": naive_rag}
SYSTEMS |= {name: partial(answer_question, method=method) for name, method in METHODS.items()}
