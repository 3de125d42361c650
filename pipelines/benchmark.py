"""`sproutrag bench`: what this machine does, as ratios of two values that were taken side by side in one run.

Timings on shared machines drift by tens of percent within minutes, so the two sides of a ratio alternate and
the median of the rounds counts. A figure never stands without its raw values and its settings.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from sproutrag.documents import Document, leaf_spans
from sproutrag.ingest import list_pieces, read_piece
from sproutrag.options import BenchOptions

SHORTEST_SENTENCE = 40  # characters; headings and table cells make no prose


class UnknownFigure(Exception):
    """--only names a figure that the suite does not have."""

    exit_status = 2  # wrong usage


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured ratio: value / reference, with the target it is held against and how it came about."""

    figure: str
    ratio: float
    target: str
    met: bool
    value: float
    reference: float
    unit: str
    settings: dict[str, Any] = field(default_factory=dict)


def main(options: BenchOptions) -> list[dict[str, Any]]:
    suite = import_module(f"pipelines.{options.suite}_benchmark").FIGURES
    if unknown := set(options.only) - set(suite):
        raise UnknownFigure(f"bench {options.suite} has no {sorted(unknown)}: choose from {', '.join(suite)}")
    figures: list[dict[str, Any]] = []
    for name, measure in suite.items():
        if not options.only or name in options.only:
            figures += [asdict(figure) for figure in measure(options)]
    if options.out:
        folder = Path(options.out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{options.suite}.json").write_text(json.dumps(figures, indent=1))
    return figures


def alternate(rounds: int, *sides: Callable[[int], Any]) -> list[list[float]]:
    """Seconds of each side in each round; the order of the sides flips from round to round."""
    seconds: list[list[float]] = [[] for _ in sides]
    for round_ in range(rounds):
        order = range(len(sides)) if round_ % 2 == 0 else reversed(range(len(sides)))
        for side in order:
            seconds[side].append(timed(sides[side], round_))
    return seconds


def timed(side: Callable[[int], Any], round_: int) -> float:
    started = time.perf_counter()
    side(round_)
    return time.perf_counter() - started


def median_ratio(value: Sequence[float], reference: Sequence[float]) -> float:
    """Median over the rounds, so that a disturbance which hits one round does not count."""
    return statistics.median(a / b for a, b in zip(value, reference, strict=True))


def prose(source: str) -> list[str]:
    """The longer sentences of a corpus, as material for documents of any length."""
    spans = (
        (d.text, s) for d in read_documents(source) for s in leaf_spans(d.text, language=d.language).tolist()
    )
    return [text[start:stop] for text, (start, stop) in spans if stop - start >= SHORTEST_SENTENCE]


def read_documents(source: str) -> list[Document]:
    return [
        item for piece in list_pieces([source]) for item in read_piece(piece) if isinstance(item, Document)
    ]


def documents_of(sentences: Sequence[str], sizes: Sequence[int], *, seed: int) -> Iterator[Document]:
    """Documents of about `sizes` characters, drawn from the sentences; ten sentences make a paragraph."""
    rng = np.random.default_rng(seed)
    typical = statistics.mean(map(len, sentences))
    for number, size in enumerate(sizes):
        drawn = [sentences[i] for i in rng.integers(len(sentences), size=max(1, round(size / typical)))]
        paragraphs = [" ".join(drawn[i : i + 10]) for i in range(0, len(drawn), 10)]
        yield Document(id=f"{seed}-{number}", text="\n\n".join(paragraphs), language="en")


def write_jsonl(path: Path, documents: Sequence[Document]) -> str:
    rows = ({"doc_id": d.id, "text": d.text, "lang": d.language} for d in documents)
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return str(path)
