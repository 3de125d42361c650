"""An LLM that knows the gold tree of a question and plays every kind of call from it; and the gold itself."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sproutrag.documents import Document
from sproutrag.qa.answer import answer_question
from sproutrag.qa.budget import Limits
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.evidence import distinct
from sproutrag.qa.question import QuestionNode
from tests.qa.scripted import Reply, ScriptedLLM, combined, external, replies, says, vertical, words

ROOT = Path(__file__).parents[2]
OURS = ROOT / "tests" / "data" / "plans"
BESIDE = [parent / "shared" / "data" / "fanoutqa_synth" for parent in ROOT.parents[:2]]
SHARED = next((folder for folder in BESIDE if folder.is_dir()), BESIDE[0])  # beside the checkout
WIDE = Limits(max_children=64, patience=1e6)

KNOWN = re.compile(r'<known id="(\d+)">\nquestion: (.*)\nanswer: (.*)\n</known>')
PASSAGE = re.compile(r'<passage number="(\d+)" doc="(.*?)" title="(.*?)">\n(.*?)\n</passage>', re.DOTALL)
ASKED = re.compile(r'<question id="(.*?)">(.*)</question>')


@dataclass(frozen=True)
class Gold:
    """One question of a plan file, with its final answers and the evidence spans of its leaves."""

    id: str
    question: str
    tree: dict[str, Any]
    answers: list[str]
    evidence: list[dict[str, Any]]
    quotes: list[tuple[str, str]]  # doc_id, what it says there


def read_gold(folder: Path) -> list[Gold]:
    texts = {row["doc_id"]: row["text"] for row in read_jsonl(folder / "corpus.jsonl")}
    queries = {row["query_id"]: row for row in read_jsonl(folder / "queries.jsonl")}
    return [
        Gold(
            row["query_id"],
            row["question"],
            row,
            distinct(query["answers"]),
            query["evidence"],
            [(e["doc_id"], texts[e["doc_id"]][e["start"] : e["end"]]) for e in query["evidence"]],
        )
        for row in read_jsonl(folder / "plan.jsonl")
        for query in [queries[row["query_id"]]]
    ]


def read_documents(folder: Path) -> list[Document]:
    return [Document(r["doc_id"], r["text"], title=r["title"]) for r in read_jsonl(folder / "corpus.jsonl")]


def read_jsonl(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def below(node: dict) -> Iterator[dict]:
    for child in node["decomposition"]:
        yield child
        yield from below(child)


def as_list(answer: Any) -> list[str]:
    if isinstance(answer, dict):
        return [f"{k}: {', '.join(as_list(v))}" for k, v in answer.items()]
    if isinstance(answer, list):
        return [", ".join(as_list(item)) for item in answer]
    if isinstance(answer, bool):
        return ["yes" if answer else "no"]
    return [str(answer)] if answer != "" else []


class Oracle(ScriptedLLM):
    """Plans with references where the gold depends on siblings; `fan_out`: one template per entity list."""

    name = "oracle"

    def __init__(self, gold: Gold, *, fan_out: bool = False, delay_s: float = 0.0) -> None:
        super().__init__({}, delay_s=delay_s)
        self.gold = gold
        self.fan_out = fan_out
        self.known: dict[str, list[dict]] = {}
        for node in (gold.tree, *below(gold.tree)):
            self.known.setdefault(plain(node["question"]), []).append(node)
        self.meant: dict[str, str] = {}  # a planned question with references -> the gold question
        for node in (gold.tree, *below(gold.tree)):
            list(self.planned(node["decomposition"]))  # any process may be asked to contextualise

    def reply(self, user: str, schema: dict[str, Any]) -> Reply:
        fields = schema["properties"]
        if "strategy" in fields:
            return self.plan(user, fields["strategy"]["enum"])
        if "replies" in fields:
            return replies(*(self.answer(id, q, user) for id, q in ASKED.findall(user)))
        if "question" in fields:
            return {"question": self.meant[plain(between(user, "planned"))]}
        node = self.node(between(user, "question"))
        answers = self.gold.answers if node is self.gold.tree else as_list(node["answer"])
        return combined(*answers, used=[n for n, _, _ in KNOWN.findall(user)])

    def node(self, question: str, *, leaf: bool = False) -> dict:
        question = plain(question)
        found = self.known.get(question) or self.known[self.end_of(question)]
        fitting = [node for node in found if not leaf or not node["decomposition"]]
        return fitting[0] if fitting else found[0]

    def end_of(self, question: str) -> str:
        """ "Given Paris: who leads it?" is the gold question "Who leads it?"."""
        return max((known for known in self.known if question.endswith(known)), key=len)

    def plan(self, user: str, allowed: list[str]) -> Reply:
        question = between(user, "question")
        node = self.node(question, leaf="vertical" not in allowed)
        if not node["decomposition"] or "vertical" not in allowed:
            return external(node["question"])
        return vertical(*self.planned(node["decomposition"]))

    def planned(self, children: list[dict]) -> Iterator[tuple[int, str]]:
        """Gold children as a planner would write them; a fan-out in place of those it covers."""
        number = {child["id"]: n for n, child in enumerate(children, start=1)}
        covered: set[str] = set()
        listed = []
        for child in children:
            template = self.template(child, children) if self.fan_out else None
            if child["id"] in covered:
                continue
            if template:
                covered |= {c["id"] for c in children if c["depends_on"] == child["depends_on"]}
                listed.append((child, template))
            else:
                listed.append((child, None))
        place = {child["id"]: n for n, (child, _) in enumerate(listed, start=1)}
        assert self.fan_out or place == number
        for child, template in listed:
            needs = [place[d] for d in child["depends_on"] if d in place]
            if template:
                yield needs[0], template.format(needs[0])
            else:
                yield 0, self.with_references(child, needs)

    def with_references(self, child: dict, needs: list[int]) -> str:
        if not needs:
            return child["question"]
        marks = " ".join(f"<Q{n}>" for n in needs)
        planned = f"Given {marks}: {child['question']}"
        self.meant[plain(planned)] = child["question"]
        return planned

    def template(self, child: dict, children: list[dict]) -> str | None:
        """ "... <Q{}> ..." where every dependent of one list asks the same of one entity of it each."""
        of = next((c for c in children if [c["id"]] == child["depends_on"]), None)
        group = [c for c in children if c["depends_on"] == child["depends_on"]]
        if of is None or not isinstance(of["answer"], list) or any(c["decomposition"] for c in group):
            return None
        entities = as_list(of["answer"])
        if len(entities) < 2 or [
            d for c in children for d in c["depends_on"] if d in {g["id"] for g in group}
        ]:
            return None
        shapes = {c["question"].replace(e, "<Q{}>") for c, e in zip(group, entities, strict=False)}
        same = len(shapes) == 1 and len(group) == len(entities) == len(distinct(entities))
        return shapes.pop() if same and "<Q{}>" in next(iter(shapes)) else None

    def answer(self, id: str, question: str, user: str) -> dict:
        """The gold answer with the stating sentence of the gold page, if that is in the evidence."""
        node = self.node(question, leaf=True)
        page = plain(node.get("evidence_title") or "")
        wanted = words(f"{node['question']} {node['answer']}")
        said = words(str(node["answer"]))
        best: tuple[float, int, str] | None = None
        for number, doc_id, title, text in PASSAGE.findall(user):
            for gold_id, quote in self.gold.quotes if title == page else ():
                shown = beginning(first_sentence(quote), text) if gold_id == doc_id else ""
                if shown:
                    found = words(quote)
                    score = len(wanted & found) / len(wanted | found) + (said <= found)
                    best = max(best or (0.0, 0, ""), (score, int(number), shown))
        if best is None or not said:
            return says(id)
        return says(id, *as_list(node["answer"]), quote=best[2], passage=best[1])


def beginning(quote: str, text: str) -> str:
    """As much of the quote as the passage holds: a very long sentence is cut into several leaves."""
    if quote in text:
        return quote
    parts = (quote[: len(quote) * tenths // 10] for tenths in range(9, 0, -1))
    return next((part for part in parts if len(part) > 100 and part in text), "").rpartition(" ")[0]


def first_sentence(text: str) -> str:
    return plain(re.split(r"(?<=[.?!])\s+", text.strip())[0])


def between(user: str, name: str) -> str:
    return user.split(f"<{name}>\n")[-1].split(f"\n</{name}>")[0]


def plain(text: str) -> str:
    """As it stands inside a fence."""
    return " ".join(text.replace("<Q", "\x00").replace("<", "\u2039").replace("\x00", "<Q").split())


# --- a whole question


async def play(gold: Gold, index: Any, *, fan_out: bool = False) -> tuple[QuestionNode, Oracle]:
    oracle = Oracle(gold, fan_out=fan_out)
    root = await answer_question(
        gold.question, dispatcher=Dispatcher(oracle), retriever=index, sources=index, limits=WIDE
    )
    return root, oracle


def problems(gold: Gold, root: QuestionNode) -> list[str]:
    """What differs from the gold; nothing when all went well."""
    found = [f"{n.id} {n.asks!r}: {n.failure or n.notes}" for n in root.walk() if not n.answered or n.failure]
    found += [f"{n.id}: {note}" for n in root.walk() for note in n.notes if "dropped" in note]
    if root.answers != gold.answers:
        found.append(f"answers {root.answers} instead of {gold.answers}")
    cited = {(c.doc_id, c.quote) for node in root.walk() for c in node.citations}
    for doc_id, text in gold.quotes:
        if not any(d == doc_id and (quote in text or text in quote) for d, quote in cited):
            found.append(f"not cited: {doc_id} {text!r}")
    return found
