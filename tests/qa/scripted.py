"""Small working LLMs and retrievers for tests: deterministic, counted, without weights."""

import asyncio
import heapq
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sproutrag.documents import Document, leaf_spans
from sproutrag.qa.llm import Completion, Message, OnText, Usage
from sproutrag.search import Passage, merged_spans

Reply = str | dict | Completion | Exception
WORD = re.compile(r"\w+")
PART = 3  # characters that a listener hears at once


class ScriptedLLM:
    """Replies by the first phrase of `script` in the user message; a list of replies is used up in order.

    Raises on an unknown phrase. `calls` holds every request; usage counts words.
    """

    name = "scripted"

    def __init__(
        self, script: Mapping[str, Reply | list[Reply]], *, context_tokens: int = 32_000, delay_s: float = 0.0
    ) -> None:
        self.script = {k: list(v) if isinstance(v, list) else v for k, v in script.items()}
        self.context_tokens = context_tokens
        self.delay_s = delay_s
        self.calls: list[tuple[str, int]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.cancelled = 0

    def count_tokens(self, text: str) -> int:
        return len(WORD.findall(text))

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        json_schema: dict[str, Any] | None = None,
        on_text: OnText | None = None,
    ) -> Completion:
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        try:
            self.calls.append((messages[-1].content, max_tokens))
            await asyncio.sleep(self.delay_s)
            completion = self.completion(messages, self.reply(messages[-1].content, json_schema or {}))
            if on_text:
                for start in range(0, len(completion.text), PART):
                    on_text(completion.text[start : start + PART])
            return completion
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1

    def reply(self, user: str, schema: dict[str, Any]) -> Reply:
        for phrase, reply in self.script.items():
            if phrase in user:
                return (reply.pop(0) if len(reply) > 1 else reply[0]) if isinstance(reply, list) else reply
        raise AssertionError(f"no scripted reply to:\n{user}")

    def completion(self, messages: Sequence[Message], reply: Reply) -> Completion:
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, Completion):
            return reply
        text = reply if isinstance(reply, str) else json.dumps(reply, ensure_ascii=False)
        prompt_tokens = sum(self.count_tokens(m.content) for m in messages)
        return Completion(text, Usage(1, prompt_tokens, self.count_tokens(text), seconds=self.delay_s))

    def asked(self, phrase: str) -> int:
        return sum(phrase in user for user, _ in self.calls)


class WordIndex:
    """Retriever and Sources over texts in memory: leaves by shared words, rare ones first; titles count."""

    def __init__(self, documents: Iterable[Document], *, delay_s: float = 0.0) -> None:
        self.texts = {document.id: document.text for document in documents}
        self.delay_s = delay_s
        self.queries: list[str] = []
        self.leaves: list[Passage] = []
        self.words: list[frozenset[str]] = []
        for document in documents:
            for leaf, span in enumerate(leaf_spans(document.text)):
                spans = merged_spans(document.text, span[None])
                text = document.text[spans[0][0] : spans[0][1]]
                self.leaves.append(Passage(document.id, document.title, leaf, (leaf,), spans, text, 0.0))
                self.words.append(words(f"{document.title} {text}"))
        count = Counter(word for leaf in self.words for word in leaf)
        self.weight = {word: math.log(1 + len(self.leaves) / n) for word, n in count.items()}
        self.where: dict[str, list[int]] = {}
        for i, leaf_words in enumerate(self.words):
            for word in leaf_words:
                self.where.setdefault(word, []).append(i)

    async def retrieve(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        await asyncio.sleep(self.delay_s)
        self.queries += queries
        return [self.search(query, k) for query in queries]

    def search(self, query: str, k: int) -> list[Passage]:
        scores: dict[int, float] = {}
        for word in words(query):
            if len(self.where.get(word, ())) < max(len(self.leaves) / 8, 8):  # the others tell nothing apart
                for i in self.where.get(word, ()):
                    scores[i] = scores.get(i, 0.0) + self.weight[word]
        best = heapq.nsmallest(k, scores, key=lambda i: (-scores[i], i))
        return [self.leaves[i] for i in best]

    async def text(self, doc_id: str) -> str | None:
        return self.texts.get(doc_id)


def words(text: str) -> frozenset[str]:
    return frozenset(WORD.findall(text.casefold()))


def corpus(**texts: str) -> WordIndex:
    return WordIndex([Document(id, text, title=id) for id, text in texts.items()])


# --- replies in short


def external(query: str = "") -> dict:
    return {"strategy": "external", "query": query, "questions": []}


def lateral() -> dict:
    return {"strategy": "lateral", "query": "", "questions": []}


def vertical(*questions: str | tuple[int, str]) -> dict:
    pairs = [(0, q) if isinstance(q, str) else q for q in questions]
    return {"strategy": "vertical", "query": "", "questions": [{"each": n, "question": q} for n, q in pairs]}


def says(id: str, *answers: str, quote: str = "", passage: int = 1, answer: str = "") -> dict:
    quotes = [{"passage": passage, "quote": quote}] if quote else []
    return {
        "id": id,
        "answered": bool(answers),
        "quotes": quotes,
        "answers": list(answers),
        "answer": answer or ", ".join(answers),
    }


def replies(*said: dict) -> dict:
    return {"replies": list(said)}


def combined(*answers: str, used: Sequence[str] = (), answer: str = "") -> dict:
    return {
        "answered": bool(answers),
        "used": list(used),
        "answers": list(answers),
        "answer": answer or ", ".join(answers),
    }


def plan_of(question: str) -> str:
    """Phrase that only the PLAN request for this question holds."""
    return f"<question>\n{question}\n</question>\nStrategies"


def combine_of(question: str) -> str:
    return f"</known>\n<question>\n{question}\n</question>"


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


Play = Callable[..., Any]
