"""What a rebuild does beyond a run: it takes along what only the index holds, and loses nothing."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.accounts import Account
from pipelines.plan import FOUND, Plan, scan_piece
from sproutrag.ingest import Piece
from sproutrag.snapshots import IndexProblem, name_some
from sproutrag.storage import stored_hashes
from sproutrag.stored import stored_pieces


class RebuildRefused(IndexProblem):
    """The rebuilt index would lack documents that the live one holds."""


def with_stored(
    plan: Plan, pieces: Sequence[Piece], stored: Collection[str], *, db: str
) -> tuple[Plan, list[Piece]]:
    """The plan with the stored documents that the sources lack and that are not to be deleted."""
    absent = set(stored).difference(plan.wanted["doc_id"].to_pylist(), plan.missing)
    if not absent:
        return plan, list(pieces)
    more = stored_pieces(db)
    found = find_stored(more, absent, first=len(pieces))
    good = pc.is_null(found["reason"])
    return replace(
        plan,
        wanted=pa.concat_tables([plan.wanted, found.filter(good)]),
        set_aside=pa.concat_tables([plan.set_aside, found.filter(pc.invert(good))]),
        stale=plan.stale | absent,
    ), [*pieces, *more]


def find_stored(pieces: Sequence[Piece], ids: Collection[str], *, first: int = 0) -> pa.Table:
    """One row of FOUND for each of these stored documents; the first piece has number `first`."""
    wanted = pa.array(sorted(ids), pa.string())
    tables = chain.from_iterable(scan_piece(first + i, piece) for i, piece in enumerate(pieces))
    rows = [table.filter(pc.is_in(table["doc_id"], value_set=wanted)) for table in tables]
    found = pa.concat_tables([FOUND.empty_table(), *rows])
    sound_first = found.take(pc.sort_indices(pc.is_valid(found["reason"]).cast(pa.int8())))
    chosen = np.unique(sound_first["doc_id"].to_numpy(), return_index=True)[1]
    return sound_first.take(pa.array(np.sort(chosen)))


def refuse_loss(db: str, plan: Plan, accounts: Account) -> None:
    """Every document of the live index is in the new one or deleted on purpose; else nothing is swapped."""
    accounted = {*plan.missing, *accounts.doc_ids}
    lost = [id for id in stored_hashes(db) if id not in accounted]
    if not lost:
        return
    reasons = {problem.doc_id: problem.reason for problem in accounts.problems}
    reason = next((reasons[id] for id in lost if id in reasons), "it was not found again")
    raise RebuildRefused(
        f"rebuilding {db} would lose {name_some(lost)} ({reason}): the live index is as it was; correct "
        f"these documents or remove them with `sproutrag delete DOC... --db {db}`, then run again"
    )
