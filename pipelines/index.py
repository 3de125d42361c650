"""From files to a searchable index: scan, plan, encode on Ray, commit once per table, index, publish.

Workers write fragments and note them in the journal; the driver commits them. Until the new snapshot is
published, readers see the old one; a run that dies leaves it as it is, and the next one continues.
"""

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import fsspec
import pyarrow as pa

from pipelines import maintenance
from pipelines.accounts import Account, account
from pipelines.actors import Outcome
from pipelines.cluster import ray_on_demand, share_out
from pipelines.costs import Estimate, estimate, measured
from pipelines.encoding import encode, useful_workers
from pipelines.maintenance import Step
from pipelines.plan import Plan, plan_run, scan, size_of, without
from pipelines.progress import Progress
from pipelines.reports import Forecast, Report, Retried
from sproutrag import journal, quarantine
from sproutrag.disk import full_disk_explained, require_room
from sproutrag.ingest import Piece, survey
from sproutrag.lock import WriterLock, writer_lock
from sproutrag.models import DEFAULT_ENCODER, find_encoder, fingerprint_of
from sproutrag.options import IndexOptions, QuarantineOptions
from sproutrag.snapshots import DocumentNotFound, Snapshot, current_snapshot, name_some
from sproutrag.storage import Written, commit, encoder_of, publish, require_fingerprint, stored_hashes
from sproutrag.tables import bytes_on_disk, remove_tables

GONE_HINT = "bring the file back or go where its path holds; with `index --delete-missing` the row goes"


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
    workers: int = 0
    delete_missing: bool = False
    keep: int | None = None
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
    command = f"index {' '.join(options.sources)}"
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
    with ray_on_demand() as start_ray:
        work = look(run, start_ray=start_ray, progress=progress)
        before = bytes_on_disk(run.db)
        encoded = encode_rest(run, work, start_ray=start_ray, progress=progress)
    accounts = account(work.plan, encoded.outcomes, written=encoded.left, problems=work.finished.problems)
    with progress.stage("commit"):
        lock.require()
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
    run = replace(prepare(options, "index --dry-run"), delete_missing=True)
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


def retry(options: QuarantineOptions) -> Retried:
    """Read the files of what was set aside again, and try these documents as if for the first time."""
    rows = chosen_rows(options)
    files = sorted({quarantine.file_of(row.problem.source) for row in rows})
    there = {path for path in files if exists(path)}
    gone = [row.problem for row in rows if quarantine.file_of(row.problem.source) not in there]
    not_retryable = [replace(one, reason=gone_reason(one), hint=GONE_HINT) for one in gone]
    if not there:
        return Retried(None, not_retryable)
    command = f"quarantine retry {name_some(options.docs)}".strip()
    asked = IndexOptions(sources=tuple(sorted(there)), db=options.db, workers=options.workers)
    with writing(options.db, command, wait_s=options.wait) as lock:
        run = replace(
            prepare(asked, command),
            sources=(current_snapshot(options.db) or Snapshot()).sources,
            retried=frozenset(row.problem.doc_id for row in rows),
        )
        return Retried(index(run, lock=lock), not_retryable)


# --- before anything is encoded


def prepare(options: IndexOptions, command: str) -> Run:
    encoder = choose_encoder(options)
    path = find_encoder(encoder)
    fingerprint = fingerprint_of(path)
    require_fingerprint(options.db, fingerprint)
    return Run(
        db=options.db,
        read=options.sources,
        sources=options.sources,
        encoder=encoder,
        path=path,
        fingerprint=fingerprint,
        command=command,
        workers=options.workers,
        delete_missing=options.delete_missing,
        keep=options.keep,
    )


def look(run: Run, *, start_ray: Callable[[], None], progress: Progress) -> Work:
    """Read the sources once and compare them with the index, the quarantine and the journal."""
    with progress.stage("scan"):
        pieces, skipped = survey(run.read)
        found = scan(pieces, start_ray=start_ray, progress=progress)
        rows = quarantine.read_rows(run.db)
        plan = plan_run(
            found,
            stored_hashes(run.db),
            delete_missing=run.delete_missing,
            hopeless=quarantine.hopeless(rows, code=run.code, retried=run.retried),
        )
        columns = (plan.wanted[name].to_pylist() for name in ("doc_id", "content_hash"))
        wanted = dict(zip(*columns, strict=True))
        finished = journal.finished(run.db, fingerprint=run.fingerprint, wanted=wanted)
    return Work(pieces, skipped, plan, finished, rows)


def estimate_of(run: Run, rest: pa.Table) -> Estimate:
    current = current_snapshot(run.db)
    rates = current.rates if current else None
    return estimate(rest, rates=rates, workers=run.workers, useful=useful_workers(rest))


def chosen_rows(options: QuarantineOptions) -> list[quarantine.Row]:
    """The rows that are named by doc_id or place, or all."""
    rows = quarantine.read_rows(options.db)
    names = {name for row in rows for name in (row.problem.doc_id, row.problem.source)}
    if unknown := [name for name in options.docs if name not in names]:
        raise DocumentNotFound(
            f"nothing is set aside as {name_some(unknown)}: `sproutrag quarantine list --db {options.db}`"
        )
    asked = frozenset(options.docs)
    return [row for row in rows if not asked or asked & {row.problem.doc_id, row.problem.source}]


def exists(path: str) -> bool:
    files, inner = fsspec.url_to_fs(path)
    return bool(files.exists(inner))


def gone_reason(problem: quarantine.Problem) -> str:
    return f"not retryable: {quarantine.file_of(problem.source)} is not there (seen from {os.getcwd()})"


def choose_encoder(options: IndexOptions) -> str:
    """A name, or the absolute path of a model directory: what later runs and readers will look for."""
    chosen = options.encoder or encoder_of(options.db) or DEFAULT_ENCODER
    return os.path.abspath(chosen) if os.path.isdir(chosen) else chosen


def encode_rest(run: Run, work: Work, *, start_ray: Callable[[], None], progress: Progress) -> Encoded:
    """Take over what an interrupted run finished and encode the others, if they fit on the disk."""
    left, dropped = journal.take_over(run.db, work.finished)
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
            rest, work.pieces, db=run.db, encoder=run.path, fingerprint=run.fingerprint, workers=workers
        )
        outcomes = list(shown(stream, progress))
    return Encoded(left, dropped, outcomes, rest, workers.count, expected)


def shown(outcomes: Iterator[Outcome], progress: Progress) -> Iterator[Outcome]:
    for outcome in outcomes:
        counts = outcome.written.counts if outcome.written else {"documents": 0, "tokens": 0}
        documents = counts["documents"] + len(outcome.problems)
        progress.advance(documents=documents, size=outcome.size, tokens=counts["tokens"])
        yield outcome


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
