"""The steps that run on workers: read, encode, write. Each turns an Arrow batch into library types and back.

Documents travel in parcels: an Arrow table of about a given number of bytes, sealed into one row. So a batch
is bounded by bytes, whatever Ray merges or splits: a huge document travels alone, ten thousand tiny ones
together.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import ray
from ray.actor import ActorHandle

from pipelines.plan import DOCUMENT_OVERHEAD, read_all
from sproutrag.documents import Document, content_hash
from sproutrag.ingest import Piece
from sproutrag.journal import Entry, record
from sproutrag.quarantine import Problem
from sproutrag.storage import Written, write_documents

if TYPE_CHECKING:
    from sproutrag.encoder import EncodedDocument

DOCUMENT = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.large_string()),
        ("title", pa.string()),
        ("language", pa.string()),
        ("metadata", pa.large_string()),
        ("source", pa.string()),
    ]
)
PARCEL = pa.schema([("documents", pa.large_binary()), ("size", pa.int64())])
DEATHS_PER_DOCUMENT = 2  # alone in its parcel; once may be the neighbour's fault, or the machine's
OUTCOME = pa.schema([("outcome", pa.large_string())])  # an Outcome as JSON


class WorkerDiffers(Exception):
    """A worker would write other vectors than the run is planned for."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one parcel of `size` bytes: fragments waiting for the commit, documents set aside.

    seconds: that its worker was busy with it.
    """

    size: int
    written: Written | None
    problems: Sequence[Problem]
    seconds: float = 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Outcome":
        fields = json.loads(text)
        written = Written(**fields["written"]) if fields["written"] else None
        problems = [Problem(**problem) for problem in fields["problems"]]
        return cls(fields["size"], written, problems, fields["seconds"])


# --- read


def read_parcels(batch: pa.Table, *, parcel_size: int) -> Iterator[pa.Table]:
    """READING rows -> sealed parcels (PARCEL, one row each), holding one parcel at a time in memory."""
    yield PARCEL.empty_table()
    documents = (document for row in batch.to_pylist() for document in read_wanted(**row))
    for parcel, size in pack(documents, size=parcel_size):
        yield pa.table({"documents": [seal(parcel)], "size": [size]}, schema=PARCEL)


def read_wanted(piece: str, wanted: Sequence[str]) -> Iterator[Document]:
    ids = frozenset(wanted)
    for item in read_all(Piece(**json.loads(piece))):
        if isinstance(item, Document) and item.id in ids:
            yield item


def pack(documents: Iterable[Document], *, size: int) -> Iterator[tuple[list[Document], int]]:
    """Consecutive documents of at most `size` bytes together, with their bytes; a larger one goes alone."""
    parcel: list[Document] = []
    total = 0
    for document in documents:
        weight = len(document.text.encode()) + DOCUMENT_OVERHEAD
        if parcel and total + weight > size:
            yield parcel, total
            parcel, total = [], 0
        parcel.append(document)
        total += weight
    if parcel:
        yield parcel, total


def seal(documents: Sequence[Document]) -> bytes:
    table = pa.Table.from_pylist([asdict(document) for document in documents], schema=DOCUMENT)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, DOCUMENT) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def unseal(parcel: bytes) -> list[Document]:
    return [Document(**row) for row in pa.ipc.open_stream(parcel).read_all().to_pylist()]


# --- encode, build trees, write


class Attempts:
    """Remembers beyond the death of a worker what was begun and never finished. One for all of a run."""

    def __init__(self) -> None:
        self.unfinished: Counter[str] = Counter()

    def begin(self, work: str) -> int:
        """How often this was begun before without an end: each time, its worker died."""
        self.unfinished[work] += 1
        return self.unfinished[work] - 1

    def finish(self, work: str) -> None:
        del self.unfinished[work]


class IndexDocuments:
    """Encodes parcels, builds their trees and writes them as fragments that nobody sees before the commit.

    fingerprint: of the encoder that the run is planned for.
    attempts: handle of the run's Attempts actor; without it, nothing is remembered beyond this process.
    """

    def __init__(
        self,
        *,
        db: str,
        encoder: str,
        threads: int,
        fingerprint: str | None = None,
        attempts: ActorHandle | None = None,
    ) -> None:
        import torch

        from sproutrag.encoder import SentenceEncoder

        torch.set_num_threads(threads)
        self.db = db
        self.attempts = attempts
        self.encoder = SentenceEncoder.from_pretrained(encoder)
        if fingerprint not in (None, self.encoder.fingerprint):
            raise WorkerDiffers(
                f"a worker loaded encoder {self.encoder.fingerprint!r} from {encoder} but the run uses "
                f"{fingerprint!r}: put the same model on every node, then run again"
            )

    def __call__(self, batch: pa.Table) -> pa.Table:
        outcomes = [self.index(unseal(p["documents"]), size=p["size"]).to_json() for p in batch.to_pylist()]
        return pa.table({"outcome": outcomes}, schema=OUTCOME)

    def index(self, parcel: Sequence[Document], *, size: int) -> Outcome:
        """One parcel of `size` bytes. If its worker died, it is taken document by document the next time."""
        started = time.monotonic()
        work = f"parcel of {parcel[0].id}"
        encoded, problems = self.one_by_one(parcel) if self.begin(work) else self.encode(parcel)
        fingerprint = self.encoder.fingerprint
        written = write_documents(self.db, encoded, fingerprint=fingerprint) if encoded else None
        record(self.db, Entry(fingerprint, written, problems))
        self.finish(work)
        return Outcome(size, written, problems, round(time.monotonic() - started, 3))

    def encode(self, documents: Sequence[Document]) -> tuple[list["EncodedDocument"], list[Problem]]:
        return encode_each(self.encoder.encode, documents)

    def one_by_one(self, parcel: Sequence[Document]) -> tuple[list["EncodedDocument"], list[Problem]]:
        """A document that took its worker down twice when it was alone is set aside."""
        encoded: list[EncodedDocument] = []
        problems: list[Problem] = []
        for document in parcel:
            if self.begin(document.id) >= DEATHS_PER_DOCUMENT:
                problems.append(problem_with(document, "it ended the worker process each time it was tried"))
                continue
            good, bad = self.encode([document])
            self.finish(document.id)
            encoded, problems = encoded + good, problems + bad
        return encoded, problems

    def begin(self, work: str) -> int:
        return ray.get(self.attempts.begin.remote(work)) if self.attempts else 0

    def finish(self, work: str) -> None:
        if self.attempts:
            ray.get(self.attempts.finish.remote(work))


def encode_each(
    encode: Callable[[Sequence[Document]], list["EncodedDocument"]], documents: Sequence[Document]
) -> tuple[list["EncodedDocument"], list[Problem]]:
    """Encode all; where that fails, halve until the document that fails is alone, and set it aside."""
    try:
        encoded = encode(documents)
        return sort_out(encoded)
    except Exception as error:  # the boundary: one document must not take its neighbours down
        if len(documents) == 1:
            reason = f"the encoder failed: {type(error).__name__}: {str(error)[:300]}"
            return [], [problem_with(documents[0], reason)]
    middle = len(documents) // 2
    first, first_problems = encode_each(encode, documents[:middle])
    second, second_problems = encode_each(encode, documents[middle:])
    return first + second, first_problems + second_problems


def sort_out(encoded: Sequence["EncodedDocument"]) -> tuple[list["EncodedDocument"], list[Problem]]:
    """Documents that may be stored, and what is wrong with the others."""
    good, problems = [], []
    for one in encoded:
        if not len(one.spans):
            problems.append(problem_with(one.document, "there is no text to index"))
        elif not np.isfinite(one.vectors).all():
            problems.append(problem_with(one.document, "its vectors are not finite"))
        else:
            good.append(one)
    return good, problems


def problem_with(document: Document, reason: str) -> Problem:
    hint = f"look at the text of {document.id!r}, correct it and run again; the other documents are indexed"
    return Problem(document.source, document.id, reason, hint, content_hash(document))
