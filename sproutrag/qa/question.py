"""The reasoning tree of one question, and what its planned questions may refer to.

The tree of QuestionNodes is the trace: nothing else remembers what happened. Imports no torch.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto

from sproutrag.qa.budget import Bill
from sproutrag.qa.evidence import Citation
from sproutrag.qa.prompts import REFERENCE, SubQuestion, escape
from sproutrag.search import Passage

NOT_ANSWERED = "Not answered: the evidence does not say."  # what stands for an answer where there is none


class PlanError(Exception):
    """Questions refer to each other in a circle, or to themselves."""


class Strategy(StrEnum):
    LATERAL = auto()  # answer from siblings' answers
    EXTERNAL = auto()  # retrieve from the corpus
    VERTICAL = auto()  # decompose into sub-questions


@dataclass(slots=True)
class QuestionNode:
    """One question and all that was learnt about it. Child n of node x is x.n, and its siblings call it
    <Qn>."""

    id: str
    planned: str  # as the planner wrote it
    each: int = 0  # n: the question is asked once per entity of <Qn>
    entity: str = ""  # of a fan-out: whom this node asks about
    depth: int = 0  # decompositions above it
    wave: int = 0  # 0: needs no sibling
    question: str | None = None  # self-contained
    strategy: Strategy | None = None
    query: str = ""
    evidence: list[Passage] = field(default_factory=list)
    children: list["QuestionNode"] = field(default_factory=list)
    cluster: list[str] = field(default_factory=list)  # ids answered in the same call
    reuses: str | None = None  # id of the node that had asked the same already
    answered: bool = False
    answer: str | None = None
    answers: list[str] = field(default_factory=list)
    citations: list[Citation] = field(default_factory=list)
    unexplored: list[str] = field(default_factory=list)  # questions that a limit kept from being asked
    failure: str | None = None  # why nothing is known
    partial: bool = False  # a limit or a failure kept something from the answer
    notes: list[str] = field(default_factory=list)  # repairs, refusals, dropped citations
    bill: Bill = field(default_factory=Bill)
    began: float = 0.0  # unix seconds
    ended: float = 0.0

    def __post_init__(self) -> None:
        self.bill.owner = self.bill.owner or self.id

    @property
    def number(self) -> int:
        """What siblings call this node."""
        return int(self.id.rpartition(".")[2])

    @property
    def asks(self) -> str:
        return self.question or self.planned

    @property
    def needs(self) -> frozenset[int]:
        """Siblings whose answers it waits for."""
        return references(self.planned, self.each)

    def fail(self, reason: str) -> None:
        self.failure = self.failure or reason
        self.answered = False

    def walk(self) -> Iterator["QuestionNode"]:
        """The tree below and with this node, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


def references(planned: str, each: int = 0) -> frozenset[int]:
    named = {int(number) for number in REFERENCE.findall(planned)}
    return frozenset(named | {each} if each else named)


def substitute(planned: str, answers: dict[int, str]) -> str:
    """Each <Qn> replaced by answers[n] in one pass: an answer that looks like a reference is not one."""
    return REFERENCE.sub(lambda match: escape(answers.get(int(match[1]), match[0])), planned)


def waves(siblings: Sequence[QuestionNode]) -> Iterator[list[QuestionNode]]:
    """Siblings in order of need: a wave refers only to earlier waves. A cycle raises PlanError.

    What no sibling is called (refused or unexplored) counts as settled.
    """
    left = {node.number: node for node in siblings}
    while left:
        wave = [node for node in left.values() if not node.needs & left.keys()]
        if not wave:
            raise PlanError(f"{', '.join(f'<Q{n}>' for n in left)} wait for each other")
        yield wave
        settled = {node.number for node in wave}
        left = {n: node for n, node in left.items() if n not in settled}


def broken_references(questions: Sequence[SubQuestion]) -> dict[int, str]:
    """Number -> what is wrong with its references: unknown, to itself, or in a circle (P130).

    A reference to a later question is none of these: it is answered first.
    """
    broken: dict[int, str] = {}
    needs = {n: references(q.question, q.each) for n, q in enumerate(questions, start=1)}
    for n, named in needs.items():
        if unknown := sorted(named - needs.keys()):
            named_wrongly = ", ".join(f"<Q{u}>" for u in unknown)
            broken[n] = f"question {n} refers to {named_wrongly}, which is not in the plan"
        elif n in named:
            broken[n] = f"question {n} refers to itself"
    left = {n: named for n, named in needs.items() if n not in broken}
    while free := [n for n, named in left.items() if not named & left.keys()]:
        left = {n: named for n, named in left.items() if n not in free}
    circle = ", ".join(f"<Q{n}>" for n in left)
    return broken | {n: f"question {n} waits for itself: {circle}" for n in left}


# --- the same question again

# Words that ask but say nothing. Two questions are the same when their other words are, in any order.
ASKING = frozenset(
    {"a", "an", "the", "of", "in", "on", "at", "to", "for", "from", "by", "with", "and", "is", "are", "was",
     "were", "be", "been", "do", "does", "did", "has", "have", "had", "what", "which", "who", "whom", "whose",
     "tell", "me", "please", "give", "name", "list", "state", "find", "can", "could", "you", "would", "us",
     "that", "this", "these", "those", "it", "its", "there"}
)  # fmt: skip
WORD = re.compile(r"\w+(?:[.,]\d+)*")


def content_words(question: str) -> tuple[str, ...]:
    """Sorted words that make a question this one; all of them where it has no others."""
    words = [word for word in WORD.findall(question.casefold()) if word]
    telling = sorted(word for word in words if word not in ASKING)
    return tuple(telling or sorted(words))


def same_question(one: str, other: str) -> bool:
    """Equal but for order, case, punctuation and asking words. Synonyms pass: the depth bounds those.

    Where both write a word with a capital or a digit, its order counts: who beat whom is not who was
    beaten.
    """
    if content_words(one) != content_words(other):
        return False
    marked = names(one) & names(other)
    return in_order(one, marked) == in_order(other, marked)


def names(question: str) -> set[str]:
    return {w.casefold() for w in WORD.findall(question) if w[0].isupper() or w[0].isdigit()} - ASKING


def in_order(question: str, words: set[str]) -> list[str]:
    return [w for w in WORD.findall(question.casefold()) if w in words]
