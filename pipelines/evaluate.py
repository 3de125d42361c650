"""`sproutrag evaluate`: index data sets with gold evidence, compare the search with others and controls.

A row of the table is a system, a column a data set, a cell its information efficiency times 100. The small
script that this first issue needs; a full harness comes later.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.evaluate_answers import SEED, compare_answers
from pipelines.evaluate_answers import as_table as answers_table
from pipelines.index import main as index_corpus
from sproutrag.baselines import CONTROLS, FlatLeaves, System, search_system
from sproutrag.calibration import calibrate
from sproutrag.datasets import Query, corpus_of, read_queries, relevant_leaves
from sproutrag.documents import Spans
from sproutrag.encoder import SentenceEncoder
from sproutrag.index import TreeIndex
from sproutrag.metrics import information_efficiency, paired_difference
from sproutrag.models import find_encoder
from sproutrag.options import EvaluateOptions, IndexOptions
from sproutrag.retriever import TreeRetriever
from sproutrag.scoring import write_weights

OURS = "tree (hybrid)"


class UnknownSystem(Exception):
    """--systems names a row that the table does not have."""

    exit_status = 2  # wrong usage


def main(options: EvaluateOptions) -> list[dict[str, Any]]:
    if options.methods:
        rows = compare_answers(options)
        return kept(options.out, "answers", rows, answers_table(rows))
    encoder = SentenceEncoder.from_pretrained(find_encoder(options.encoder))
    columns = [evaluate(Path(folder), encoder, options) for folder in options.data]
    return kept(options.out, "retrieval", columns, as_table(columns))


def kept(out: str, name: str, rows: list[dict[str, Any]], table: str) -> list[dict[str, Any]]:
    """`rows`, also as JSON and as a table in `out`."""
    Path(out, f"{name}.json").write_text(json.dumps(rows, indent=2), encoding="utf-8")
    Path(out, f"{name}.md").write_text(table, encoding="utf-8")
    print(table, file=sys.stderr)
    return rows


def evaluate(folder: Path, encoder: SentenceEncoder, options: EvaluateOptions) -> dict[str, Any]:
    """One column: means, ours less each other system with its interval, calibrated weights if asked for."""
    db = str(Path(options.out) / folder.name)
    index_corpus(IndexOptions(sources=(corpus_of(folder),), db=db, encoder=options.encoder))
    index = TreeIndex.open(db, encoder=encoder)
    rng = np.random.default_rng(SEED)
    queries, relevant = questions(folder, leaf_spans_of(index), options.queries, rng)
    print(f"{folder.name}: {len(queries)} queries", file=sys.stderr)
    efficiency = {
        name: np.array(
            [information_efficiency(system(q.text), r) for q, r in zip(queries, relevant, strict=True)]
        )
        for name, system in chosen(systems_of(index), options.systems).items()
    }
    column: dict[str, Any] = {"data": folder.name, "queries": len(queries)}
    column["efficiency"] = {name: round(100 * float(values.mean()), 2) for name, values in efficiency.items()}
    column["ours_less_others"] = differences(efficiency, rng)
    if options.calibrate:
        calibrated = calibrate(TreeRetriever(index), queries, relevant, rng=rng)
        write_weights(db, calibrated.weights, fingerprint=index.snapshot.fingerprint)
        column["calibrated"] = asdict(calibrated)
    return column


def systems_of(index: TreeIndex) -> dict[str, System]:
    """The five rows, then the controls: the same scores without trees and in other trees."""
    retriever = TreeRetriever(index)
    return FlatLeaves(index).systems() | {
        "tree (dense routing)": search_system(retriever, "tree"),
        OURS: search_system(retriever, "hybrid"),
        "same scores, no tree": search_system(retriever, "leaves"),
        **{
            name: search_system(TreeRetriever(index, regrow=tree), "hybrid")
            for name, tree in CONTROLS.items()
        },
    }


def chosen(systems: dict[str, System], names: Sequence[str]) -> dict[str, System]:
    if unknown := set(names) - systems.keys():
        raise UnknownSystem(f"no system {sorted(unknown)}: choose from {', '.join(systems)}")
    return {name: system for name, system in systems.items() if not names or name in names}


def leaf_spans_of(index: TreeIndex) -> dict[str, Spans]:
    rows = index.documents.to_table(columns=["doc_id", "spans"])
    flat = (np.asarray(spans, dtype=np.int32) for spans in rows["spans"].to_pylist())
    return dict(zip(rows["doc_id"].to_pylist(), (spans.reshape(-1, 2) for spans in flat), strict=True))


def questions(
    folder: Path, spans: dict[str, Spans], limit: int, rng: np.random.Generator
) -> tuple[list[Query], list[frozenset]]:
    """Queries that some leaf answers, and these leaves."""
    queries = [(query, relevant_leaves(query, spans)) for query in read_queries(folder)]
    queries = [(query, leaves) for query, leaves in queries if leaves]
    drawn = np.sort(rng.permutation(len(queries))[: limit or None])
    return [queries[i][0] for i in drawn], [queries[i][1] for i in drawn]


def differences(efficiency: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, Any]:
    """Ours less each other system, times 100, over the same queries."""
    if OURS not in efficiency:
        return {}
    ours = 100 * efficiency[OURS]
    return {
        name: asdict(paired_difference(ours, 100 * values, rng=rng))
        for name, values in efficiency.items()
        if name != OURS
    }


def as_table(columns: Sequence[dict[str, Any]]) -> str:
    """Markdown; the best system of each column in bold, the controls not counted."""
    rows = [["", *(f"{c['data']} ({c['queries']})" for c in columns)]]
    rows.append(["---"] * len(rows[0]))
    for name in columns[0]["efficiency"]:
        rows.append([name, *(f"{c['efficiency'][name]:.1f}" for c in columns)])
    if all(c["ours_less_others"] for c in columns):
        rows.append(["ours less the best other", *(against_best(c) for c in columns)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def against_best(column: dict[str, Any]) -> str:
    others = {name: value for name, value in column["efficiency"].items() if name != OURS}
    best = max(others, key=others.__getitem__)
    difference = column["ours_less_others"][best]
    return f"{difference['mean']:+.1f} [{difference['low']:+.1f}, {difference['high']:+.1f}]"
