"""What happens to a question while it is answered, for who wants to see it: nodes as they change, evidence
as it is found, the answer as it is written.

Events are JSON-ready: ("node", told_node(...)), ("evidence", {"id", "passages"}) and ("answer", {"delta"}),
where "replace" in an answer takes the place of all text before it. A parent comes before its children.
"""

from collections.abc import Callable
from enum import StrEnum, auto
from typing import Any

from sproutrag.qa.llm import OnText
from sproutrag.qa.partial_reply import PartialAnswer
from sproutrag.qa.question import QuestionNode
from sproutrag.qa.trace import NOT_ANSWERED
from sproutrag.search import Passage

ROOT = "0"  # id of the question that was asked
Watch = Callable[[str, dict[str, Any]], None]  # must not raise: it is called from within the recursion


class State(StrEnum):
    WAITING = auto()  # for siblings, children or company
    PLANNING = auto()
    RETRIEVING = auto()
    ANSWERING = auto()
    DONE = auto()
    FAILED = auto()


def unwatched(event: str, told: dict[str, Any]) -> None:
    """Nobody watches; events are not even made."""


class Audience:
    """Who watches one question: hears what is new, and at the end what the tree says, whatever was lost."""

    def __init__(self, watch: Watch | None) -> None:
        self.watch = watch or unwatched
        self.latest: dict[tuple[str, str], dict[str, Any]] = {}  # (event, id of the node)
        self.answer = ""

    @property
    def seat(self) -> Watch:
        """What the steps of the question tell."""
        return unwatched if self.watch is unwatched else self.hear

    def hear(self, event: str, told: dict[str, Any]) -> None:
        if event == "answer":
            self.hear_answer(**told)
        elif self.latest.get((event, told["id"])) != told:
            self.latest[event, told["id"]] = told
            self.watch(event, told)

    def hear_answer(self, delta: str, begins: bool = False) -> None:
        """begins: a reply starts with this text; what was heard before was of one that came to nothing."""
        if begins and self.answer:
            self.answer = delta
            self.watch("answer", {"delta": "", "replace": delta})
        elif delta:
            self.answer += delta
            self.watch("answer", {"delta": delta})

    def finish(self, root: QuestionNode) -> None:
        """Whoever heard it all now knows the tree and exactly the outcome's answer."""
        if self.watch is unwatched:
            return
        for node in root.walk():
            tell_end(node, self.hear)
            if node.evidence:
                tell_evidence(node, self.hear)
        answer = (root.answered and root.answer) or NOT_ANSWERED
        rest = answer.removeprefix(self.answer)
        self.hear_answer(rest, begins=not answer.startswith(self.answer))


def tell(node: QuestionNode, state: State, watch: Watch, cluster: list[str] | None = None) -> None:
    """cluster: the ids that are being answered together, before the tree has them."""
    if watch is not unwatched:
        watch("node", told_node(node, state) | ({"cluster": cluster} if cluster else {}))


def tell_end(node: QuestionNode, watch: Watch) -> None:
    known = node.answered or node.ended
    tell(node, State.FAILED if node.failure else State.DONE if known else State.WAITING, watch)


def tell_evidence(node: QuestionNode, watch: Watch) -> None:
    if watch is not unwatched:
        watch("evidence", {"id": node.id, "passages": [told_passage(passage) for passage in node.evidence]})


def answer_heard(node: QuestionNode, watch: Watch, *path: str | int) -> Callable[[], OnText] | None:
    """Who hears replies that answer the root alone, with the answer at `path`; None where nobody is to."""
    if watch is unwatched or node.id != ROOT:
        return None

    def listen() -> OnText:
        answer = PartialAnswer(*path)

        def on_text(part: str) -> None:
            begins = not answer.text
            if delta := answer.feed(part):
                watch("answer", {"delta": delta, "begins": begins})

        return on_text

    return listen


def told_node(node: QuestionNode, state: State) -> dict[str, Any]:
    return {
        "id": node.id,
        "parent": node.id.rpartition(".")[0] or None,
        "depth": node.depth,
        "wave": node.wave,
        "question": node.asks,
        "strategy": node.strategy and str(node.strategy),
        "state": str(state),
        "cluster": list(node.cluster),
        "reuses": node.reuses,
        "answer": node.answer if node.answered else None,
        "failure": node.failure,
        "notes": list(node.notes),
    }


def told_passage(passage: Passage) -> dict[str, Any]:
    """pages, sections: only of documents that have them."""
    told = {
        "doc_id": passage.doc_id,
        "title": passage.title,
        "node": passage.node,
        "leaves": list(passage.leaves),
        "spans": [list(span) for span in passage.spans],
        "text": passage.text,
        "score": passage.score,
    }
    places = {"pages": list(passage.pages), "sections": list(passage.sections)}
    return told | {name: numbers for name, numbers in places.items() if numbers}
