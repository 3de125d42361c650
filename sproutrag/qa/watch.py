"""What is told of a question while it is answered: nodes as they change, their evidence, the answer.

Events are JSON-ready. `node` is sent again at each change, the latest `at` counts; a parent's comes before
its children's. `evidence` is sent once a node has some; `answer` as the root's answer becomes known.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum, auto
from typing import Any

from sproutrag.qa.question import QuestionNode

Watch = Callable[[str, dict[str, Any]], None]


class State(StrEnum):
    WAITING = auto()  # for siblings, for children, or for its turn
    PLANNING = auto()
    RETRIEVING = auto()
    ANSWERING = auto()
    DONE = auto()
    FAILED = auto()


def unwatched(name: str, data: dict[str, Any]) -> None:
    """Nobody looks."""


def tell_node(watch: Watch, node: QuestionNode, state: State) -> None:
    if watch is unwatched:
        return
    told = {
        "id": node.id,
        "parent": node.id.rpartition(".")[0] or None,
        "depth": node.depth,
        "wave": node.wave,
        "question": node.asks,
        "strategy": node.strategy and str(node.strategy),
        "state": str(state),
        "cluster": list(node.cluster),
        "reuses": node.reuses,
        "answer": node.answer,
        "failure": node.failure,
        "notes": list(node.notes),
        "at": time.time(),
    }
    watch("node", told)


def tell_settled(watch: Watch, node: QuestionNode) -> None:
    tell_node(watch, node, State.FAILED if node.failure else State.DONE)


def tell_evidence(watch: Watch, node: QuestionNode) -> None:
    if watch is not unwatched and node.evidence:
        watch("evidence", {"id": node.id, "passages": [asdict(passage) for passage in node.evidence]})


def tell_answer(watch: Watch, answer: str) -> None:
    if watch is not unwatched and answer:
        watch("answer", {"delta": answer})


class InOrder:
    """Events from several processes as one told them: nothing stale, no child before its parent."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.latest: dict[str, float] = {}
        self.early: dict[str, list[tuple[str, dict[str, Any]]]] = {}  # by the node they wait for

    def take(self, name: str, data: dict[str, Any]) -> None:
        missing = self.missing(name, data)
        if missing is not None:
            self.early.setdefault(missing, []).append((name, data))
            return
        if name == "node":
            if data["at"] < self.latest.get(data["id"], 0.0):
                return
            self.latest[data["id"]] = data["at"]
        self.watch(name, data)
        for event in self.early.pop(data.get("id", ""), []):
            self.take(*event)

    def missing(self, name: str, data: dict[str, Any]) -> str | None:
        """The node that has to be told of first."""
        needed = {"node": data.get("parent"), "evidence": data.get("id")}.get(name)
        return needed if needed is not None and needed not in self.latest else None
