"""Gold plans as an LLM and a retriever that know the answers: what remains to be measured is the machinery.

A folder holds plan.jsonl (question trees with answers and the title of the page that says so), corpus.jsonl.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipelines.llm_simulator import Reply, Speak
from sproutrag.documents import leaf_spans
from sproutrag.qa.llm import Completion, Message, OnText, Usage
from sproutrag.qa.openai import tokens_by_bytes
from sproutrag.search import Passage, merged_spans

ASKED = re.compile(r'<question id="(.*?)">(.*)</question>')
PASSAGE = re.compile(r'<passage number="(\d+)" doc=".*?" title="(.*?)">\n(.*?)\n</passage>', re.DOTALL)
WORDS = 8  # of a quote: whole ones, as citations must be
COMMON = 50  # leaves with one word that count: more tell nothing apart
GIVEN = re.compile(r"Given (?:<Q\d+> ?)+: ")


def read_rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def nodes_of(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield tree
    for child in tree["decomposition"]:
        yield from nodes_of(child)


class PlanPlayer:
    """Replies to every kind of call as the gold tree of its question says."""

    name = "plan player"
    context_tokens = 32768

    def __init__(self, folder: str) -> None:
        self.trees = read_rows(Path(folder, "plan.jsonl"))
        self.known = {plain(node["question"]): node for tree in self.trees for node in nodes_of(tree)}

    def speak(self, body: dict[str, Any]) -> Reply:
        """For the simulator: the reply to the body of a request; a word where it only looks for life."""
        if "response_format" not in body:
            return Reply("yes")
        schema = body["response_format"]["json_schema"]["schema"]
        return Reply(json.dumps(self.reply(body["messages"][-1]["content"], schema["properties"])))

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        json_schema: dict[str, Any] | None = None,
        on_text: OnText | None = None,
    ) -> Completion:
        """For measuring what is not the engine: at once."""
        assert json_schema
        text = json.dumps(self.reply(messages[-1].content, json_schema["properties"]))
        await asyncio.sleep(0)
        if on_text:
            on_text(text)
        return Completion(text, Usage(1, tokens_by_bytes(messages[-1].content), tokens_by_bytes(text)))

    def count_tokens(self, text: str) -> int:
        return tokens_by_bytes(text)

    def reply(self, user: str, fields: dict[str, Any]) -> dict[str, Any]:
        if "strategy" in fields:
            return self.plan(self.node(between(user, "question")), fields["strategy"]["enum"])
        if "replies" in fields:
            passages = PASSAGE.findall(user)
            asked = ASKED.findall(user)
            return {"replies": [self.answer(key, self.node(question), passages) for key, question in asked]}
        if "question" in fields:
            return {"question": GIVEN.sub("", between(user, "planned"))}
        answers = as_list(self.node(between(user, "question"))["answer"])
        used = fields["used"]["items"].get("enum", [])
        return {"answered": True, "used": used, "answers": answers, "answer": "; ".join(answers)}

    def node(self, question: str) -> dict[str, Any]:
        """Also where its references were replaced: "Given Graz: who leads it?" is "who leads it?"."""
        asked = plain(question)
        while asked not in self.known:
            _, colon, asked = asked.partition(": ")
            assert colon, f"no plan holds {question!r}"
        return self.known[asked]

    def plan(self, node: dict[str, Any], allowed: list[str]) -> dict[str, Any]:
        children = node["decomposition"] if "vertical" in allowed else []
        place = {child["id"]: number for number, child in enumerate(children, start=1)}
        planned = []
        for child in children:
            needs = "".join(f"<Q{place[need]}> " for need in child["depends_on"] if need in place)
            question = f"Given {needs.strip()}: {child['question']}" if needs else child["question"]
            planned.append({"each": 0, "question": question})
        strategy = "vertical" if planned else "external"
        return {"strategy": strategy, "query": node["question"], "questions": planned}

    def answer(self, key: str, node: dict[str, Any], passages: list[tuple[str, str, str]]) -> dict[str, Any]:
        """Cites the first sentence of its page; a question without a page has no answer."""
        page = plain(node.get("evidence_title") or "")
        answers = as_list(node["answer"]) or ["nothing"]
        quotes = [
            {"passage": int(number), "quote": " ".join(text.split()[:WORDS])}
            for number, title, text in passages
            if title == page
        ]
        said = {"answered": True, "quotes": quotes[:1], "answers": answers, "answer": "; ".join(answers)}
        return {"id": key} | said


class PlanIndex:
    """Retriever and Sources: for a gold question the leaves of its page, at once."""

    def __init__(self, folder: str) -> None:
        rows = read_rows(Path(folder, "corpus.jsonl"))
        self.texts = {row["doc_id"]: row["text"] for row in rows}
        self.leaves = [leaf for row in rows for leaf in leaves_of(row)]
        self.where: dict[str, list[int]] = {}
        for i, leaf in enumerate(self.leaves):
            for word in words(leaf.text):
                self.where.setdefault(word, []).append(i)
        trees = read_rows(Path(folder, "plan.jsonl"))
        self.titles = {
            plain(node["question"]): plain(node.get("evidence_title") or "")
            for tree in trees
            for node in nodes_of(tree)
        }

    async def retrieve(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [self.search(query, k) for query in queries]

    def search(self, query: str, k: int) -> list[Passage]:
        """The leaves of the page that knows, then whatever shares rare words, as of any real search."""
        page = self.titles.get(plain(query), "")
        scores = Counter(i for word in sorted(words(query)) for i in self.where.get(word, ())[:COMMON])
        known = [i for i, leaf in enumerate(self.leaves) if leaf.title == page and page]
        others = [i for i, _ in scores.most_common(k + len(known)) if i not in known]
        return [self.leaves[i] for i in [*known, *others][:k]]

    async def text(self, doc_id: str) -> str | None:
        return self.texts.get(doc_id)


def leaves_of(row: dict[str, Any]) -> Iterator[Passage]:
    text = row["text"]
    for leaf, span in enumerate(leaf_spans(text)):
        spans = merged_spans(text, span[None])
        shown = text[spans[0][0] : spans[0][1]]
        yield Passage(row["doc_id"], plain(row["title"]), leaf, (leaf,), spans, shown, 1.0)


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))


def speaker(folder: str) -> Speak:
    return PlanPlayer(folder).speak


def between(user: str, name: str) -> str:
    return user.split(f"<{name}>\n")[-1].split(f"\n</{name}>")[0]


def plain(text: str) -> str:
    """As it stands inside a fence: no angle brackets, one space between words."""
    return " ".join(text.replace("<", "\u2039").replace(">", "\u203a").split())


def as_list(answer: Any) -> list[str]:
    match answer:
        case dict():
            return [f"{key}: {', '.join(as_list(value))}" for key, value in answer.items()]
        case list():
            return [", ".join(as_list(item)) for item in answer]
        case bool():
            return ["yes" if answer else "no"]
    return [str(answer)] if answer != "" else []
