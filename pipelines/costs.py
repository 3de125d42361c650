"""What a run will cost, by what the last large one did: for --dry-run, and beside the actual in reports."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.actors import Outcome
from pipelines.plan import DOCUMENT_OVERHEAD
from sproutrag.indices import index_freshness
from sproutrag.journal import data_files
from sproutrag.snapshots import Rates
from sproutrag.tables import TABLES, open_table

# Where no run has measured: all-MiniLM-L6-v2 over tests/data/corpus, one process per core of two.
DEFAULT_RATES = Rates(
    text_bytes=1_000_000, tokens=270_000, encode_seconds=170.0, workers=1, disk_bytes=23_000_000
)
ENOUGH_TO_MEASURE = 256 << 10  # bytes of text; of two short documents, a file's own overhead is all there is
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


def measured(db: str, rest: pa.Table, outcomes: Sequence[Outcome], *, workers: int) -> Rates | None:
    """The rates of this run; None where it encoded too little to tell, so that those of before stay."""
    written = [outcome.written for outcome in outcomes if outcome.written]
    if not written or text_bytes(rest) < ENOUGH_TO_MEASURE:
        return None
    data = sum(size for one in written for _, size in data_files(db, one))
    return Rates(
        text_bytes=text_bytes(rest),
        tokens=sum(one.counts["tokens"] for one in written),
        encode_seconds=round(sum(outcome.seconds for outcome in outcomes), 3),
        workers=workers,
        disk_bytes=round(data * (1 + index_share(db))),
    )


def index_share(db: str) -> float:
    """Bytes of indices per byte of data. Not what a run added: extending an index may write it all anew."""
    tables = [(name, open_table(db, name)) for name in TABLES]
    files = [file for _, table in tables for one in table.get_fragments() for file in one.data_files()]
    indices = sum(index["bytes"] or 0 for name, table in tables for index in index_freshness(table, name))
    return float(indices / max(1, sum(file.file_size_bytes or 0 for file in files)))
