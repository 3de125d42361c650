"""What a run will cost, by what the last one did: shown by --dry-run, beside the actual in each report."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.actors import Outcome
from pipelines.plan import DOCUMENT_OVERHEAD
from sproutrag.snapshots import Rates

# Where no run has measured: all-MiniLM-L6-v2 over tests/data/corpus, one process per core of two.
DEFAULT_RATES = Rates(
    text_bytes=1_000_000, tokens=270_000, encode_seconds=170.0, workers=1, disk_bytes=23_000_000
)
START_SECONDS = 10.0  # Ray, and the encoder in each worker; only where something is to be encoded


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of what is left to encode. measured: by a run over this index; else by DEFAULT_RATES."""

    documents: int
    tokens: int
    seconds: float
    bytes: int  # on disk, indices included
    workers: int
    measured: bool


def estimate(rest: pa.Table, *, rates: Rates | None, workers: int, useful: int) -> Estimate:
    """rest: the rows of FOUND to encode. workers: 0 for as many as the job would choose, at most `useful`."""
    used = rates or DEFAULT_RATES
    text = text_bytes(rest)
    count = workers or min(rates.workers if rates else os.cpu_count() or 1, useful)
    tokens = text * used.tokens / used.text_bytes
    encoding = tokens * used.encode_seconds / used.tokens / count
    return Estimate(
        documents=rest.num_rows,
        tokens=round(tokens),
        seconds=round(START_SECONDS + encoding, 1) if rest.num_rows else 0.0,
        bytes=round(text * used.disk_bytes / used.text_bytes),
        workers=count if rest.num_rows else 0,
        measured=rates is not None,
    )


def text_bytes(documents: pa.Table) -> int:
    return (pc.sum(documents["size"]).as_py() or 0) - DOCUMENT_OVERHEAD * documents.num_rows


def measured(rest: pa.Table, outcomes: Sequence[Outcome], *, workers: int, disk_bytes: int) -> Rates | None:
    """The rates of this run; None where it encoded nothing."""
    tokens = sum(outcome.written.counts["tokens"] for outcome in outcomes if outcome.written)
    if not tokens:
        return None
    return Rates(
        text_bytes=max(1, text_bytes(rest)),
        tokens=tokens,
        encode_seconds=round(sum(outcome.seconds for outcome in outcomes), 3),
        workers=workers,
        disk_bytes=disk_bytes,
    )
