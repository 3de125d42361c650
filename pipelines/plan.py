"""What a run has to do: every document found is new, changed, unchanged or set aside. Knows no encoder.

The scan reads each input once and keeps a few bytes per document, as Arrow tables; the texts are read again
when they are encoded, from exactly the pieces that hold something new.
"""

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
import ray.data

from pipelines.progress import Progress
from sproutrag.documents import Document, content_hash
from sproutrag.ingest import Piece, read_piece
from sproutrag.quarantine import Problem
from sproutrag.records import Rejected

# One row per input; `reason` and `hint` are null for a document and say why for what is set aside.
FOUND = pa.schema(
    [
        ("doc_id", pa.string()),
        ("content_hash", pa.string()),
        ("source", pa.string()),
        ("size", pa.int64()),  # UTF-8 bytes of the text
        ("piece", pa.int32()),
        ("reason", pa.string()),
        ("hint", pa.string()),
    ]
)
PIECE = pa.schema([("number", pa.int32()), ("piece", pa.string())])  # a Piece as JSON
READING = pa.schema([("piece", pa.string()), ("wanted", pa.list_(pa.string()))])  # wanted: doc_ids

SCAN_SECONDS = 10.0  # about what starting Ray costs: what takes longer is scanned in parallel
ROWS_PER_TABLE = 4096
DOCUMENT_OVERHEAD = 256  # bytes a document counts beyond its text: a parcel of tiny ones has an end


class DuplicateDocuments(Exception):
    """The sources hold two documents under one doc_id; nothing was written."""


@dataclass(frozen=True, slots=True)
class Plan:
    """wanted: the rows of FOUND to index. stale: doc_ids that are in the index with other content."""

    wanted: pa.Table
    set_aside: pa.Table
    held: pa.Table  # documents that can only fail again, with the reason
    unchanged: int
    stale: frozenset[str]
    missing: list[str]  # to delete

    @property
    def inputs(self) -> int:
        return self.wanted.num_rows + self.set_aside.num_rows + self.held.num_rows + self.unchanged


def size_of(documents: pa.Table) -> int:
    """Bytes of these rows of FOUND, as parcels count them."""
    return pc.sum(documents["size"]).as_py() or 0


# --- scan


def scan(pieces: Sequence[Piece], *, start_ray: Callable[[], None], progress: Progress) -> pa.Table:
    """All inputs as one table of FOUND: read here for as long as starting Ray would take, the rest on Ray."""
    tables = [FOUND.empty_table()]
    for table in scan_pieces(pieces, start_ray=start_ray):
        progress.advance(documents=table.num_rows, size=pc.sum(table["size"]).as_py() or 0)
        tables.append(table)
    return pa.concat_tables(tables)


def scan_pieces(pieces: Sequence[Piece], *, start_ray: Callable[[], None]) -> Iterator[pa.Table]:
    started = time.monotonic()
    for number, piece in enumerate(pieces):
        if time.monotonic() - started > SCAN_SECONDS:
            start_ray()
            yield from scan_on_ray(pieces, first=number)
            return
        yield from scan_piece(number, piece)


def scan_on_ray(pieces: Sequence[Piece], *, first: int) -> Iterator[pa.Table]:
    blocks = [
        pa.table({"number": [number], "piece": [to_json(pieces[number])]}, schema=PIECE)
        for number in range(first, len(pieces))
    ]
    found = ray.data.from_arrow(blocks).map_batches(scan_batch, batch_format="pyarrow", num_cpus=0.5)
    yield from found.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)


def scan_batch(batch: pa.Table) -> Iterator[pa.Table]:
    for row in batch.to_pylist():
        yield FOUND.empty_table()
        yield from scan_piece(row["number"], Piece(**json.loads(row["piece"])))


def scan_piece(number: int, piece: Piece) -> Iterator[pa.Table]:
    rows = []
    for item in read_all(piece):
        rows.append(describe(item) | {"piece": number})
        if len(rows) == ROWS_PER_TABLE:
            yield pa.Table.from_pylist(rows, schema=FOUND)
            rows = []
    yield pa.Table.from_pylist(rows, schema=FOUND)


def read_all(piece: Piece) -> Iterator[Document | Rejected]:
    """The piece, and if reading breaks off, one more input set aside that says so: other pieces go on."""
    try:
        yield from read_piece(piece)
    except Exception as error:  # the boundary: one bad file must not stop the run
        reason = f"reading broke off: {type(error).__name__}: {error}"
        yield Rejected(piece.path, reason, "check that the file is whole and readable, then run again")


def describe(item: Document | Rejected) -> dict[str, str | int | None]:
    if isinstance(item, Rejected):
        return asdict(item) | {"size": 0}
    size = len(item.text.encode()) + DOCUMENT_OVERHEAD
    return {"doc_id": item.id, "content_hash": content_hash(item), "source": item.source, "size": size}


def to_json(piece: Piece) -> str:
    return json.dumps(asdict(piece))


# --- plan


def plan_run(
    found: pa.Table,
    stored: dict[str, str],
    *,
    delete_missing: bool,
    hopeless: Mapping[str, Problem] = MappingProxyType({}),
) -> Plan:
    """Compare what was found with what is stored (doc_id -> content hash) and hopeless (by doc_id)."""
    is_document = pc.is_null(found["reason"])
    documents, set_aside = found.filter(is_document), found.filter(pc.invert(is_document))
    refuse_duplicates(documents)
    ids, hashes = documents["doc_id"].to_pylist(), documents["content_hash"].to_pylist()
    changed = [stored.get(id) != digest for id, digest in zip(ids, hashes, strict=True)]
    differing = documents.filter(pa.array(changed, pa.bool_()))
    wanted, held = hold_back(differing, hopeless)
    return Plan(
        wanted=wanted,
        set_aside=set_aside,
        held=held,
        unchanged=len(ids) - differing.num_rows,
        stale=frozenset(id for id in wanted["doc_id"].to_pylist() if id in stored),
        missing=missing_documents(ids, set_aside, stored) if delete_missing else [],
    )


def hold_back(documents: pa.Table, hopeless: Mapping[str, Problem]) -> tuple[pa.Table, pa.Table]:
    """Documents to try, and those that failed with this very content, with what was wrong then."""
    columns = documents.select(["doc_id", "content_hash"])
    suspects = columns.filter(pc.is_in(columns["doc_id"], pa.array(list(hopeless), pa.string()))).to_pylist()
    failed = [
        one["doc_id"] for one in suspects if hopeless[one["doc_id"]].content_hash == one["content_hash"]
    ]
    is_held = pc.is_in(documents["doc_id"], pa.array(failed, pa.string()))
    held = documents.filter(is_held)
    rows = [
        row | {"reason": hopeless[row["doc_id"]].reason, "hint": hopeless[row["doc_id"]].hint}
        for row in held.to_pylist()
    ]
    return documents.filter(pc.invert(is_held)), pa.Table.from_pylist(rows, schema=FOUND)


def without(documents: pa.Table, ids: Collection[str]) -> pa.Table:
    """The rows of FOUND that are not of these documents."""
    return documents.filter(pc.invert(pc.is_in(documents["doc_id"], pa.array(list(ids), pa.string()))))


def refuse_duplicates(documents: pa.Table, *, shown: int = 10) -> None:
    counts = documents.group_by("doc_id").aggregate([("source", "count")])
    twice = counts.filter(pc.greater(counts["source_count"], 1))["doc_id"]
    if not len(twice):
        return
    rows = documents.filter(pc.is_in(documents["doc_id"], twice.slice(0, shown).combine_chunks()))
    places: dict[str, list[str]] = {}
    for id, source in zip(rows["doc_id"].to_pylist(), rows["source"].to_pylist(), strict=True):
        places.setdefault(id, []).append(source)
    lines = [f"  {id!r} in {' and '.join(sources[:3])}" for id, sources in places.items()]
    more = [f"  ... and {len(twice) - shown} more"] if len(twice) > shown else []
    raise DuplicateDocuments(
        "\n".join([f"{len(twice)} doc_ids name more than one document:", *lines, *more])
        + "\nNothing was written: give every document its own doc_id, or leave one of the places out."
    )


def missing_documents(found: list[str], set_aside: pa.Table, stored: dict[str, str]) -> list[str]:
    """Stored documents that the sources no longer hold; one that could not be read this time is not missing.

    An input set aside without a doc_id may be any of them, so then nothing counts as missing.
    """
    unreadable = set_aside["doc_id"].to_pylist()
    if not all(unreadable):
        return []
    return sorted(stored.keys() - set(found) - set(unreadable))


# --- what to read again


def reading_list(pieces: Sequence[Piece], wanted: pa.Table, *, size: int) -> list[pa.Table]:
    """Tables of READING, one per task: a whole piece each, or small pieces together up to `size` bytes."""
    readings: list[pa.Table] = []
    rows: list[dict[str, object]] = []
    total = 0
    for number, group in groupby(by_piece(wanted), key=lambda row: row["piece"]):
        documents = list(group)
        weight = sum(row["size"] for row in documents)
        if rows and total + weight > size:
            readings.append(pa.Table.from_pylist(rows, schema=READING))
            rows, total = [], 0
        rows.append({"piece": to_json(pieces[number]), "wanted": [row["doc_id"] for row in documents]})
        total += weight
    return [*readings, pa.Table.from_pylist(rows, schema=READING)] if rows else readings


def by_piece(wanted: pa.Table) -> Iterator[dict]:
    columns = wanted.select(["piece", "doc_id", "size"]).sort_by("piece")
    for batch in columns.to_batches(max_chunksize=ROWS_PER_TABLE):
        yield from batch.to_pylist()
