"""A resolved tree as one JSON document, and what of it answers the person who asked."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sproutrag.qa.llm import Usage
from sproutrag.qa.question import QuestionNode

NOT_ANSWERED = "Not answered: the evidence does not say."
FORMAT = 1  # of the trace; a reader refuses another one


def outcome(root: QuestionNode, *, model: str, snapshot: int | None = None) -> dict[str, Any]:
    """Answer, citations, what stayed open and what it cost; with the whole trace."""
    return {
        "answer": root.answer if root.answered else NOT_ANSWERED,
        "answers": root.answers,
        "citations": [asdict(citation) for citation in root.citations],
        "answered": root.answered,
        "partial": root.partial,
        "open": list(open_questions(root)),
        "warnings": [f"{node.id}: {note}" for node in root.walk() for note in node.notes],
        "usage": asdict(total_usage(root)),
        "trace": {"format": FORMAT, "model": model, "snapshot": snapshot, "root": asdict(root)},
    }


def total_usage(root: QuestionNode) -> Usage:
    """The sum over the tree: what the engine counted."""
    total = Usage()
    for node in root.walk():
        total.add(node.bill.usage)
    return total


def open_questions(root: QuestionNode) -> Iterator[dict[str, str]]:
    """Sub-questions without an answer, and those that a limit kept from being asked."""
    for node in root.walk():
        if not node.answered and (node is not root or node.failure):
            why = node.failure or "the evidence does not say"
            yield {"id": node.id, "question": node.asks, "reason": why}
        yield from ({"id": node.id, "question": q, "reason": "not explored"} for q in node.unexplored)


def outline(root: QuestionNode) -> list[tuple[Any, ...]]:
    """What two runs of the same question must agree on: everything but times."""
    return [
        (
            node.id, node.wave, node.question, node.strategy, node.query, tuple(node.cluster), node.reuses,
            node.answered, node.answer, tuple(node.answers), tuple(node.citations), node.failure,
            tuple(node.unexplored), tuple(node.notes), node.bill.usage.calls, node.bill.usage.prompt_tokens,
            tuple((passage.doc_id, passage.leaves) for passage in node.evidence),
        )
        for node in root.walk()
    ]  # fmt: skip
