"""`sproutrag verify --repair`: what is broken is made again from the stored text, what is lost is named.

One new snapshot, under the writer lock. Only rows of broken documents are touched. Killed at any moment it
has changed nothing that readers see, and the next repair starts over.
"""

import os
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.actors import IndexDocuments, Outcome, read_parcels
from pipelines.cluster import share_out
from pipelines.encoding import PARCEL_BYTES, encode, useful_workers
from pipelines.plan import reading_list, size_of
from pipelines.rebuild import find_stored
from sproutrag.commits import drop_fragments, settle
from sproutrag.damage import unreadable_fragments, unreadable_indices
from sproutrag.indices import build_indices
from sproutrag.ingest import Piece
from sproutrag.lock import WriterLock, writer_lock
from sproutrag.models import find_encoder, fingerprint_of
from sproutrag.options import VerifyOptions
from sproutrag.private_ray import ray_on_demand
from sproutrag.quarantine import file_of
from sproutrag.snapshots import NoIndex, Snapshot, current_snapshot, refuse_mixture
from sproutrag.storage import commit, encoder_of, publish
from sproutrag.stored import stored_pieces
from sproutrag.tables import TABLES, open_table
from sproutrag.verification import (
    Problem,
    Subject,
    Verification,
    document_faults,
    documents_with_nodes,
    verify,
)

HERE_BYTES = 1 << 20  # encoded in this process: starting Ray takes longer


@dataclass(frozen=True, slots=True)
class Mended:
    """Something that was repaired, or that could not be; then `next` says how to get it back."""

    what: str
    where: str
    next: str = ""


@dataclass(frozen=True, slots=True)
class Repair:
    """The index afterwards: `problems` are what verification still finds."""

    snapshot: int
    documents: int
    problems: tuple[Problem, ...]
    repaired: tuple[Mended, ...]
    left: tuple[Mended, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(slots=True)
class Notes:
    """What a repair did so far."""

    repaired: list[Mended] = field(default_factory=list)
    left: list[Mended] = field(default_factory=list)
    lost_texts: bool = False  # a file of `documents` could not be read


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """doc_ids whose rows are to leave, and, where the stored text is sound, to be made again."""

    broken: dict[str, str]  # doc_id -> what is wrong
    orphans: tuple[str, ...]  # in `nodes` only


def main(options: VerifyOptions) -> Repair:
    with writer_lock(options.db, command="verify --repair", wait_s=options.wait) as lock:
        current = current_snapshot(options.db)
        if current is None:
            raise NoIndex(f"{options.db} holds no index: run `sproutrag index SOURCE... --db {options.db}`")
        if (found := verify(options.db)).ok:
            return Repair(found.snapshot, found.documents, (), (), ())
        return repair(options.db, current, found, lock=lock)


def repair(db: str, current: Snapshot, found: Verification, *, lock: WriterLock) -> Repair:
    notes = Notes()
    settle(db, run_id="")
    leave_unreadable(db, notes)
    encoder = encoder_of(db)
    diagnosis = diagnose(db, current, fingerprint_now(current, encoder))
    pieces = stored_pieces(db)
    outcomes = list(encode_again(db, pieces, diagnosis, encoder=encoder, notes=notes))
    written = [outcome.written for outcome in outcomes if outcome.written]
    remove = [*diagnosis.orphans, *account(db, diagnosis, outcomes, notes)]
    lock.require()
    head = commit(
        db,
        written,
        run_id=uuid.uuid4().hex,
        remove=remove,
        sources=current.sources,
        encoder=encoder,
        command="verify --repair",
        repair=True,
    )
    notes.repaired += [Mended(done, "indices") for done in build_indices(db)]
    lock.require()
    snapshot = publish(db, head)
    if any(problem.kind in ("counts", "width") for problem in found.problems):
        notes.repaired.append(Mended("the record says what the tables hold", f"snapshot {snapshot.id}"))
    after = verify(db)
    return Repair(after.snapshot, after.documents, after.problems, tuple(notes.repaired), tuple(notes.left))


# --- what is wrong


def leave_unreadable(db: str, notes: Notes) -> None:
    """Take files that cannot be read out of the tables, so that all that is left can be."""
    for name in TABLES:
        for column, files, _ in list(unreadable_indices(open_table(db, name))):
            open_table(db, name).drop_index(str(column))
            notes.repaired.append(Mended(f"dropped the index that lay in {files}", f"{name}.{column}"))
        table = open_table(db, name)
        if damaged := list(unreadable_fragments(table)):
            drop_fragments(table, [int(one.which) for one in damaged])
            notes.repaired += [Mended(f"dropped {one.files}: {one.reason}", table.uri) for one in damaged]
            notes.lost_texts |= name == "documents"


def fingerprint_now(current: Snapshot, encoder: str) -> str:
    """Of the head's encoder: a rebuild that died before it was published has moved it."""
    return current.fingerprint if encoder == current.encoder else fingerprint_of(find_encoder(encoder))


def diagnose(db: str, current: Snapshot, fingerprint: str) -> Diagnosis:
    """Look at every document of the head, as verification does; memory for some hundred documents."""
    documents, nodes = open_table(db, "documents"), open_table(db, "nodes")
    subject = Subject(current, documents, nodes)
    ids = Counter(documents.to_table(columns=["doc_id"])["doc_id"].to_pylist())
    broken = {id: "it was stored twice" for id, times in ids.items() if times > 1}
    for row, own in documents_with_nodes(subject):
        if row["doc_id"] in broken:
            continue
        if row["fingerprint"] != fingerprint:
            broken[row["doc_id"]] = f"it was encoded by {row['fingerprint']!r}"
        elif not own.num_rows:
            broken[row["doc_id"]] = "it had no tree"
        elif faults := document_faults(row, own):
            broken[row["doc_id"]] = faults[0].what
    in_nodes = pc.unique(nodes.to_table(columns=["doc_id"])["doc_id"]).to_pylist()
    return Diagnosis(broken, tuple(sorted(set(in_nodes).difference(ids))))


# --- making it again


def encode_again(
    db: str, pieces: Sequence[Piece], diagnosis: Diagnosis, *, encoder: str, notes: Notes
) -> Iterator[Outcome]:
    """The broken documents whose stored text is sound; the others are noted with their source."""
    found = find_stored(pieces, diagnosis.broken.keys())
    sound = pc.is_null(found["reason"])
    notes.left += [lost(db, row) for row in found.filter(pc.invert(sound)).to_pylist()]
    wanted = found.filter(sound)
    if not wanted.num_rows:
        return
    path = find_encoder(encoder)
    refuse_mixture(db, [fingerprint_now(current_snapshot(db) or Snapshot(), encoder), fingerprint_of(path)])
    encode_wanted = encode_here if size_of(wanted) <= HERE_BYTES else encode_on_ray
    yield from encode_wanted(wanted, pieces, db=db, encoder=path)


def encode_here(wanted: pa.Table, pieces: Sequence[Piece], *, db: str, encoder: str) -> Iterator[Outcome]:
    worker = IndexDocuments(db=db, encoder=encoder, threads=os.cpu_count() or 1, rebuild=True)
    for reading in reading_list(pieces, wanted, size=HERE_BYTES):
        for parcels in read_parcels(reading, parcel_size=PARCEL_BYTES[0]):
            yield from map(worker.index_sealed, parcels.to_pylist())


def encode_on_ray(wanted: pa.Table, pieces: Sequence[Piece], *, db: str, encoder: str) -> Iterator[Outcome]:
    with ray_on_demand() as start_ray:
        start_ray()
        yield from encode(
            wanted,
            pieces,
            db=db,
            encoder=encoder,
            fingerprint=fingerprint_of(encoder),
            workers=share_out(0, useful=useful_workers(wanted)),
            rebuild=True,
        )


def lost(db: str, row: dict) -> Mended:
    """A document whose text is gone: where it came from, and the command that brings it back."""
    path = file_of(row["source"])
    what = f"removed: {row['reason']}; it was read from {row['source'] or 'an unknown place'}"
    return Mended(what, f"document {row['doc_id']!r}", f"run `sproutrag index {path or 'SOURCE'} --db {db}`")


def account(db: str, diagnosis: Diagnosis, outcomes: Sequence[Outcome], notes: Notes) -> list[str]:
    """Note what became of every document; returns those that leave and do not come back."""
    encoded = {id for outcome in outcomes if outcome.written for id in outcome.written.doc_ids}
    failed = [problem for outcome in outcomes for problem in outcome.problems]
    notes.left += [
        Mended(f"removed: {one.reason}", f"document {one.doc_id!r}", f"{one.hint} (from {one.source})")
        for one in failed
    ]
    notes.repaired += [
        Mended(f"encoded again: {reason}", f"document {id!r}")
        for id, reason in diagnosis.broken.items()
        if id in encoded
    ]
    sources = " ".join((current_snapshot(db) or Snapshot()).sources) or "SOURCE"
    again = f"run `sproutrag index {sources} --db {db}`"
    for id in diagnosis.orphans:
        if notes.lost_texts:
            notes.left.append(Mended("removed: its text was in a lost file", f"document {id!r}", again))
        else:
            notes.repaired.append(Mended("removed nodes that belong to no document", f"document {id!r}"))
    return sorted(diagnosis.broken.keys() - encoded)
