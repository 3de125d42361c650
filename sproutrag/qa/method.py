"""What the steps of one question work with, and who carries the steps out."""

from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Protocol

from sproutrag.qa.budget import Account, Limits
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.llm import Retriever, Sources
from sproutrag.qa.question import QuestionNode
from sproutrag.qa.watch import Watch, unwatched


class Step(StrEnum):
    """What may run elsewhere: each is one task of an executor."""

    CLUSTER = auto()  # one colour class: one call
    LATERAL = auto()  # one node, from its siblings' answers
    VERTICAL = auto()  # one node with planned children: the recursion


@dataclass(frozen=True, slots=True)
class Kin:
    """What a step may know of the tree around its nodes: questions above, and the siblings they refer to."""

    ancestors: tuple[str, ...] = ()
    answered: tuple[QuestionNode, ...] = ()


class Executor(Protocol):
    async def run(
        self, step: Step, nodes: list[QuestionNode], kin: Kin, tools: "Tools"
    ) -> list[QuestionNode]:
        """The nodes, resolved: the same objects or copies, joined by id. Never raises for a step that
        failed."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """APT-RAG as published, less what a comparison switches off."""

    lateral: bool = True  # answers of siblings may be reused
    batching: bool = True  # questions with shared evidence are answered together
    plan_children: bool = True  # sub-questions may be decomposed or answered laterally themselves
    width: int = 0  # n: every decomposition has exactly n questions


@dataclass(frozen=True, slots=True)
class Tools:
    """What every step of one question works with."""

    dispatcher: Dispatcher
    retriever: Retriever
    sources: Sources
    account: Account
    executor: Executor
    limits: Limits = field(default_factory=Limits)
    method: Method = field(default_factory=Method)
    watch: Watch = unwatched
