"""From files to a searchable index: scan, plan, encode on Ray, commit once per table, index, publish.

Workers write fragments and note them in the journal; the driver commits them. Until the new snapshot is
published, readers see the old one; a run that dies leaves it as it is, and the next one continues.
"""

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from pipelines import maintenance
from pipelines.accounts import Account, account
from pipelines.actors import Outcome
from pipelines.cluster import share_out
from pipelines.costs import Estimate, estimate, measured
from pipelines.encoding import encode, shown, useful_workers
from pipelines.maintenance import Step
from pipelines.plan import Plan, plan_run, scan, size_of, without
from pipelines.progress import Progress
from pipelines.rebuild import refuse_loss, with_stored
from pipelines.reports import Forecast, Report
from sproutrag import journal, quarantine
from sproutrag.commits import settle
from sproutrag.disk import full_disk_explained, require_room
from sproutrag.ingest import Piece, survey
from sproutrag.lock import WriterLock, writer_lock
from sproutrag.models import DEFAULT_ENCODER, find_encoder, fingerprint_of
from sproutrag.options import ColumnOptions, IndexOptions
from sproutrag.private_ray import ray_on_demand
from sproutrag.records import Columns
from sproutrag.snapshots import Snapshot, current_snapshot
from sproutrag.storage import Written, commit, encoder_of, publish, require_fingerprint, stored_hashes
from sproutrag.tables import bytes_on_disk, remove_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run is asked for, its encoder found."""

    db: str
    read: tuple[str, ...]  # sources
    sources: tuple[str, ...]  # what the snapshot says the index was made of
    encoder: str
    path: str  # of the encoder
    fingerprint: str
    command: str
    columns: Columns
    workers: int = 0
    delete_missing: bool = False
    keep: int | None = None
    rebuild: bool = False
    retried: frozenset[str] = frozenset()  # doc_ids

    @property
    def code(self) -> str:
        return quarantine.code_of(self.fingerprint)


@dataclass(frozen=True, slots=True)
class Work:
    """What a run found to do. finished: the part of it that an interrupted run has done."""

    pieces: Sequence[Piece]
    skipped: list[str]
    plan: Plan
    finished: journal.Finished
    rows: Sequence[quarantine.Row]  # set aside by earlier runs


@dataclass(frozen=True, slots=True)
class Encoded:
    """What is ready to be committed. left: of the interrupted run; estimate: of what it left to do."""

    left: Sequence[Written]
    dropped: list[str]
    outcomes: Sequence[Outcome]
    rest: pa.Table
    workers: int
    estimate: Estimate


def main(options: IndexOptions) -> Report:
    command = f"index {' '.join(options.sources)}{' --rebuild' if options.rebuild else ''}"
    with writing(options.db, command, wait_s=options.wait) as lock:
        return index(prepare(options, command), lock=lock)


@contextmanager
def writing(db: str, command: str, *, wait_s: float) -> Iterator[WriterLock]:
    with (
        full_disk_explained(db, kept=journal.documents_kept),
        writer_lock(db, command=command, wait_s=wait_s) as lock,
    ):
        yield lock


def index(run: Run, *, lock: WriterLock) -> Report:
    progress = Progress()
    settle(run.db, run_id="")
    with ray_on_demand() as start_ray:
        work = look(run, start_ray=start_ray, progress=progress)
        before = bytes_on_disk(run.db)
        encoded = encode_rest(run, work, start_ray=start_ray, progress=progress)
    accounts = account(work.plan, encoded.outcomes, written=encoded.left, problems=work.finished.problems)
    with progress.stage("commit"):
        lock.require()
        if run.rebuild:
            refuse_loss(run.db, work.plan, accounts)
        head = commit_documents(run, work.plan, accounts)
    grown = bytes_on_disk(run.db) - before
    with progress.stage("maintenance"):
        steps = [*maintenance.compaction(run.db)]
        before = bytes_on_disk(run.db)
        steps += maintenance.indices(run.db)
        grown += bytes_on_disk(run.db) - before
    with progress.stage("publish"):
        lock.require()
        remember_problems(run, work, accounts)
        rates = measured(run.db, encoded.rest, encoded.outcomes, workers=encoded.workers)
        snapshot = publish(run.db, replace(head, rates=rates))
        journal.empty(run.db)
    with progress.stage("clean-up"):
        steps += maintenance.clean_up(run.db, keep=run.keep)
    return report_on(run, work, encoded, accounts, snapshot, steps, bytes=grown, progress=progress)


def forecast(options: IndexOptions) -> Forecast:
    """What `main` would do now, without the lock and without writing anything."""
    counts_missing = options.delete_missing or not options.rebuild  # a rebuild encodes them instead
    run = replace(prepare(options, "index --dry-run"), delete_missing=counts_missing)
    with ray_on_demand() as start_ray:
        work = look(run, start_ray=start_ray, progress=Progress())
    plan = work.plan
    changed = len(plan.stale)
    return Forecast(
        new=plan.wanted.num_rows - changed,
        changed=changed,
        unchanged=plan.unchanged,
        quarantined=plan.set_aside.num_rows + plan.held.num_rows,
        missing=len(plan.missing),
        resumed=len(work.finished.doc_ids),
        estimate=estimate_of(run, without(plan.wanted, work.finished.doc_ids)),
        skipped=work.skipped,
    )


# --- before anything is encoded


def prepare(options: IndexOptions, command: str) -> Run:
    encoder = choose_encoder(options)
    path = find_encoder(encoder)
    fingerprint = fingerprint_of(path)
    if not options.rebuild:
        require_fingerprint(options.db, fingerprint)
    return Run(
        db=options.db,
        read=options.sources,
        sources=options.sources,
        encoder=encoder,
        path=path,
        fingerprint=fingerprint,
        command=command,
        columns=columns_of(options),
        workers=options.workers,
        delete_missing=options.delete_missing,
        keep=options.keep,
        rebuild=options.rebuild,
    )


def columns_of(options: ColumnOptions) -> Columns:
    return Columns(
        text=options.text_column,
        id=options.id_column,
        title=options.title_column,
        metadata=options.metadata_columns,
    )


def look(run: Run, *, start_ray: Callable[[], None], progress: Progress) -> Work:
    """Read the sources once and compare them with the index, the quarantine and the journal."""
    with progress.stage("scan"):
        pieces, skipped = survey(run.read, columns=run.columns)
        found = scan(pieces, start_ray=start_ray, progress=progress)
        rows = quarantine.read_rows(run.db)
        stored = stored_hashes(run.db)
        plan = plan_run(
            found,
            stored,
            delete_missing=run.delete_missing,
            rebuild=run.rebuild,
            hopeless=quarantine.hopeless(rows, code=run.code, retried=run.retried),
        )
        if run.rebuild:
            plan, pieces = with_stored(plan, pieces, stored, db=run.db)
        columns = (plan.wanted[name].to_pylist() for name in ("doc_id", "content_hash"))
        wanted = dict(zip(*columns, strict=True))
        finished = journal.finished(run.db, fingerprint=run.fingerprint, wanted=wanted)
    return Work(pieces, skipped, plan, finished, rows)


def estimate_of(run: Run, rest: pa.Table) -> Estimate:
    current = current_snapshot(run.db)
    rates = current.rates if current else None
    return estimate(rest, rates=rates, workers=run.workers, useful=useful_workers(rest))


def choose_encoder(options: IndexOptions) -> str:
    """A name, or the absolute path of a model directory: what later runs and readers will look for."""
    chosen = options.encoder or encoder_of(options.db) or DEFAULT_ENCODER
    return os.path.abspath(chosen) if os.path.isdir(chosen) else chosen


def encode_rest(run: Run, work: Work, *, start_ray: Callable[[], None], progress: Progress) -> Encoded:
    """Take over what an interrupted run finished and encode the others, if they fit on the disk."""
    left, dropped = journal.take_over(run.db, work.finished, rebuild=run.rebuild)
    taken = {id for one in left for id in one.doc_ids}
    rest = without(work.plan.wanted, {*taken, *(problem.doc_id for problem in work.finished.problems)})
    expected = estimate_of(run, rest)
    if not rest.num_rows:
        return Encoded(left, dropped, [], rest, 0, expected)
    require_room(run.db, expected.bytes)
    if not left and current_snapshot(run.db) is None and not stored_hashes(run.db):
        remove_tables(run.db)
    with progress.stage("start"):
        start_ray()
        workers = share_out(run.workers, useful=useful_workers(rest))
    with progress.stage("encode", documents=rest.num_rows, size=size_of(rest)):
        stream = encode(
            rest,
            work.pieces,
            db=run.db,
            encoder=run.path,
            fingerprint=run.fingerprint,
            workers=workers,
            rebuild=run.rebuild,
        )
        outcomes = list(shown(stream, progress))
    return Encoded(left, dropped, outcomes, rest, workers.count, expected)


# --- commit, and what is told about it


def commit_documents(run: Run, plan: Plan, accounts: Account) -> Snapshot:
    return commit(
        run.db,
        accounts.written,
        run_id=uuid.uuid4().hex,
        remove=plan.missing,
        sources=run.sources,
        encoder=run.encoder,
        command=run.command,
        rebuild=run.rebuild,
    )


def remember_problems(run: Run, work: Work, accounts: Account) -> None:
    """The quarantine after this run. A file that could not be read to its end keeps its rows."""
    paths = {piece.path for piece in work.pieces}
    broken = paths & {problem.source for problem in accounts.failed if not problem.doc_id}
    rows = quarantine.updated(
        work.rows,
        accounts.failed,
        code=run.code,
        held={problem.doc_id: problem.source for problem in accounts.held},
        indexed=frozenset(accounts.doc_ids),
        read=paths - broken,
        whole=run.delete_missing and not broken,
    )
    quarantine.write_rows(run.db, rows)


def report_on(
    run: Run,
    work: Work,
    encoded: Encoded,
    accounts: Account,
    snapshot: Snapshot,
    steps: Sequence[Step],
    *,
    bytes: int,
    progress: Progress,
) -> Report:
    written = accounts.written
    tokens, leaves, nodes = (
        sum(one.counts[name] for one in written) for name in ("tokens", "leaves", "nodes")
    )
    fresh = sum(one.written.counts["tokens"] for one in encoded.outcomes if one.written)
    return Report(
        indexed=accounts.indexed,
        replaced=accounts.replaced,
        unchanged=accounts.unchanged,
        quarantined=len(accounts.problems),
        deleted=len(work.plan.missing),
        resumed=accounts.resumed,
        coverage=snapshot.coverage,
        leaves=leaves,
        nodes=nodes,
        tokens=tokens,
        seconds=round(progress.elapsed, 3),
        tokens_per_s=round(fresh / progress.seconds["encode"], 1) if fresh else 0.0,
        bytes=bytes,
        estimate=encoded.estimate,
        snapshot=snapshot.id,
        encoder=run.fingerprint,
        workers=encoded.workers,
        documents=snapshot.counts["documents"],
        indices=[phrase for step in steps if step.name == "indices" for phrase in step.what],
        maintenance=list(steps),
        stages=progress.seconds,
        skipped=work.skipped,
        dropped=[*work.finished.dropped, *encoded.dropped],
        problems=accounts.problems,
    )
