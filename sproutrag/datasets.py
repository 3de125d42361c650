"""Questions with gold evidence: a folder with corpus.jsonl or corpus/, queries.jsonl or questions.jsonl."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sproutrag.documents import Spans


@dataclass(frozen=True, slots=True)
class Evidence:
    """Characters [start, end) of a document that answer a query."""

    doc_id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Query:
    """A question and all its evidence; without evidence the corpus does not answer it."""

    id: str
    text: str
    evidence: tuple[Evidence, ...]
    answers: tuple[str, ...] = ()


class NoDataSet(Exception):
    """A folder lacks its corpus or its questions; the message says what it should hold."""

    exit_status = 2  # wrong usage


def corpus_of(folder: Path) -> str:
    return str(first_of(folder, "corpus.jsonl", "corpus"))


def first_of(folder: Path, *names: str) -> Path:
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise NoDataSet(f"{folder} has no {names[0]}; a data set is a folder with corpus.jsonl and queries.jsonl")


def read_queries(folder: str | Path) -> list[Query]:
    """Queries in file order, those without evidence left out: recall has no meaning for them."""
    return [query for query in all_queries(Path(folder)) if query.evidence]


def all_queries(folder: Path) -> Iterator[Query]:
    with open(first_of(folder, "queries.jsonl", "questions.jsonl"), encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            gold = tuple(Evidence(e["doc_id"], e["start"], e["end"]) for e in record["evidence"])
            yield Query(record["query_id"], record["question"], gold, tuple(record.get("answers") or ()))


def leaves_over(spans: Spans, start: int, end: int) -> range:
    """Leaves that share a character with [start, end)."""
    first = np.searchsorted(spans[:, 1], start, side="right")
    stop = np.searchsorted(spans[:, 0], end, side="left")
    return range(int(first), int(stop))


def relevant_leaves(query: Query, spans: dict[str, Spans]) -> frozenset[tuple[str, int]]:
    """(doc_id, leaf) of every leaf that overlaps gold evidence; documents outside the corpus are ignored."""
    return frozenset(
        (gold.doc_id, leaf)
        for gold in query.evidence
        if gold.doc_id in spans
        for leaf in leaves_over(spans[gold.doc_id], gold.start, gold.end)
    )
