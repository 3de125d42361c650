"""`sproutrag evaluate --methods`: answers of several methods over the same questions, against gold answers.

The answers are those of `sproutrag answer`, a file for each data set and method, so a run that was stopped
goes on (another --out asks anew, after a prompt changed for example). A row of the table is a method on a
data set; figures are means over questions.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from pipelines.answer import main as answer_questions
from pipelines.answer_file import Answer, read_answers
from pipelines.index import main as index_corpus
from sproutrag.datasets import Query, all_queries, corpus_of
from sproutrag.metrics import paired_difference, token_f1
from sproutrag.options import EvaluateOptions, IndexOptions
from sproutrag.qa.models import default_llm
from sproutrag.qa.options import AnswerOptions, MethodName

SEED = 20
COLUMNS = (
    "data", "method", "questions", "f1", "answered", "cited", "citation_precision",
    "calls", "tokens", "seconds",
)  # fmt: skip


def compare_answers(options: EvaluateOptions) -> list[dict[str, Any]]:
    folders = [Path(folder) for folder in options.data]
    queries = [drawn(list(all_queries(folder)), options.queries) for folder in folders]
    corpora = [corpus_of(folder) for folder in folders]  # what is not there is said before anything is asked
    sets = zip(folders, corpora, queries, strict=True)
    return [row for folder, corpus, asked in sets for row in compare(folder.name, corpus, asked, options)]


def compare(
    name: str, corpus: str, queries: Sequence[Query], options: EvaluateOptions
) -> list[dict[str, Any]]:
    """The rows of one data set; the difference of F1 to the first method with its 95 % interval."""
    db = str(Path(options.out, name, "index"))
    index_corpus(IndexOptions(sources=(corpus,), db=db, encoder=options.encoder))
    rows: list[dict[str, Any]] = []
    f1: list[np.ndarray] = []
    for method in options.methods:
        answers = answered(method, queries, db, options)
        f1.append(np.array([token_f1(given(answers.get(q.id)), q.answers) for q in queries]))
        row = {"data": name, "method": method} | measured(queries, answers, f1[-1])
        if rows:
            difference = paired_difference(f1[-1], f1[0], rng=np.random.default_rng(SEED))
            row[f"f1_less_{options.methods[0]}"] = asdict(difference)
        rows.append(row)
    return rows


def drawn(queries: Sequence[Query], limit: int) -> list[Query]:
    order = np.random.default_rng(SEED).permutation(len(queries))[: limit or None]
    return [queries[i] for i in np.sort(order)]


def answered(
    method: MethodName, queries: Sequence[Query], db: str, options: EvaluateOptions
) -> Mapping[str, Answer]:
    """By query id. Answers of another model or with another k lie in another folder and are never reused."""
    settings = f"{options.llm or default_llm()} k={options.k} queries={options.queries}"
    place = Path(db).with_name(quote(settings, safe=" =#"))
    place.mkdir(parents=True, exist_ok=True)
    asked, out = place / "questions.jsonl", str(place / f"{method}.jsonl")
    lines = (json.dumps({"query_id": q.id, "question": q.text}, ensure_ascii=False) for q in queries)
    asked.write_text("\n".join(lines) + "\n", encoding="utf-8")
    answer_questions(
        AnswerOptions(
            questions=str(asked),
            out=out,
            traces=str(place / f"{method}-traces"),
            db=db,
            llm=options.llm,
            method=method,
            k=options.k,
            in_flight=options.in_flight,
        )
    )
    return read_answers(out).answers


def given(answer: Answer | None) -> list[str]:
    return answer["answers"] if answer and answer["answered"] else []


def measured(queries: Sequence[Query], answers: Mapping[str, Answer], f1: np.ndarray) -> dict[str, Any]:
    """cited: share of the answered with a citation; citation_precision: of citations over gold evidence."""
    found = [(query, answers[query.id]) for query in queries if query.id in answers]
    true = [over_evidence(citation, query) for query, answer in found for citation in answer["citations"]]
    answered = [answer for _, answer in found if answer["answered"]]
    usage = [answer["usage"] for _, answer in found]
    return {
        "questions": len(queries),
        "f1": round(100 * float(f1.mean()), 1),
        "answered": len(answered),
        "cited": share([bool(answer["citations"]) for answer in answered]),
        "citation_precision": share(true),
        "citations": len(true),
        "calls": mean([use["calls"] for use in usage]),
        "tokens": mean([use["prompt_tokens"] + use["completion_tokens"] for use in usage]),
        "wasted_tokens": mean([use["wasted_tokens"] for use in usage]),
        "seconds": mean([answer["seconds"] for _, answer in found]),
    }


def over_evidence(citation: Mapping[str, Any], query: Query) -> bool:
    return any(
        gold.doc_id == citation["doc_id"] and start < gold.end and gold.start < end
        for gold in query.evidence
        for start, end in citation["spans"]
    )


def share(of: Sequence[bool]) -> float | None:
    """In percent; None where there is nothing to count."""
    return round(100 * float(np.mean(of)), 1) if of else None


def mean(of: Sequence[float]) -> float:
    return round(float(np.mean(of)), 1) if of else 0.0


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [COLUMNS, ("---",) * len(COLUMNS)]
    lines += [tuple("–" if row[c] is None else str(row[c]) for c in COLUMNS) for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
