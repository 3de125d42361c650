"""What APT-RAG is compared with, behind the interface of `answer_question`: same prompts and budget."""

from collections.abc import Awaitable, Callable
from functools import partial

from sproutrag.qa.answer import Inline, answer_question, search_alone, set_answer
from sproutrag.qa.budget import Limits, LocalAccount
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.llm import LLMError, Retriever, Sources
from sproutrag.qa.method import Method, Tools
from sproutrag.qa.prompts import ANSWER_ALONE, escape
from sproutrag.qa.question import NOT_ANSWERED, QuestionNode, Strategy
from sproutrag.qa.watch import State, Watch, tell_answer, tell_node, tell_settled, unwatched

System = Callable[..., Awaitable[QuestionNode]]


async def llm_only(
    question: str,
    *,
    dispatcher: Dispatcher,
    retriever: Retriever,
    sources: Sources,
    limits: Limits | None = None,
    watch: Watch = unwatched,
) -> QuestionNode:
    """What the model says without any evidence; one call."""
    root = QuestionNode("0", planned=escape(question), question=question)
    try:
        reply = await dispatcher.ask(
            ANSWER_ALONE, bill=root.bill, account=LocalAccount(limits or Limits()), question=question
        )
        set_answer(root, reply.answered, reply.answers, reply.answer)
    except LLMError as error:
        root.fail(f"answer: {error}")
    return told(root, watch)


async def naive_rag(
    question: str,
    *,
    dispatcher: Dispatcher,
    retriever: Retriever,
    sources: Sources,
    limits: Limits | None = None,
    watch: Watch = unwatched,
) -> QuestionNode:
    """Retrieve for the question as it is, answer; one call."""
    limits = limits or Limits()
    tools = Tools(dispatcher, retriever, sources, LocalAccount(limits), Inline(), limits, watch=watch)
    root = QuestionNode("0", planned=escape(question), question=question, strategy=Strategy.EXTERNAL)
    tell_node(watch, root, State.WAITING)
    await search_alone(root, tools)
    return told(root, watch)


def told(root: QuestionNode, watch: Watch) -> QuestionNode:
    """The root as its one step left it."""
    root.partial = root.failure is not None
    tell_settled(watch, root)
    tell_answer(watch, root.answer if root.answered and root.answer else NOT_ANSWERED)
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
