"""From files to a searchable index: scan, plan, encode on Ray, commit once per table, index, publish.

Workers write fragments; the driver commits them. Until the new snapshot is published, readers see the old
one; a run that dies leaves it as it is.
"""

import os
import uuid
from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow.compute as pc
import ray
import ray.data
from ray.data import ActorPoolStrategy
from ray.exceptions import RayError

from pipelines.actors import Attempts, IndexDocuments, Outcome, read_parcels
from pipelines.cluster import NO_WORKERS, Workers, configure_ray_data, ray_on_demand, share_out
from pipelines.plan import Plan, plan_run, reading_list, scan
from pipelines.progress import Problem, Progress, Report
from pipelines.rebuild import refuse_loss, with_stored
from sproutrag.indices import build_indices
from sproutrag.ingest import Piece, survey
from sproutrag.lock import WriterLock, writer_lock
from sproutrag.models import DEFAULT_ENCODER, find_encoder, fingerprint_of
from sproutrag.options import IndexOptions
from sproutrag.snapshots import Snapshot
from sproutrag.storage import commit, encoder_of, publish, require_fingerprint, stored_hashes

PARCELS_PER_WORKER = 4  # at least, where there is enough to do: workers finish within a quarter of a parcel
PARCEL_BYTES = (64 << 10, 1 << 20)  # least: a batch worth encoding and a fragment worth a file; most: memory
GPU_PARCEL_BYTES = 4 << 20
READING_PARCELS = 16  # parcels per read task, about
TASK_CPUS = 0.25
RETRIES_PER_PARCEL = 12  # a document that kills its process costs three, then it is set aside
SLOWEST_BYTES_PER_SECOND = 1000  # an encoder slower than that is taken for stuck
PATIENCE_SECONDS = 600


class WorkersFailed(Exception):
    """Ray gave up: something other than a bad document stopped the workers."""


def main(options: IndexOptions) -> Report:
    command = f"index {' '.join(options.sources)}{' --rebuild' if options.rebuild else ''}"
    with writer_lock(options.db, command=command, wait_s=options.wait) as lock:
        return run(options, lock=lock, command=command)


def run(options: IndexOptions, *, lock: WriterLock, command: str) -> Report:
    progress = Progress()
    encoder = choose_encoder(options)
    path = find_encoder(encoder)
    fingerprint = fingerprint_of(path)
    if not options.rebuild:
        require_fingerprint(options.db, fingerprint)
    with ray_on_demand() as start_ray:
        with progress.stage("scan"):
            pieces, skipped = survey(options.sources)
            found = scan(pieces, start_ray=start_ray, progress=progress)
            stored = stored_hashes(options.db)
            plan = plan_run(found, stored, delete_missing=options.delete_missing, rebuild=options.rebuild)
            if options.rebuild:
                plan, pieces = with_stored(plan, pieces, stored, db=options.db)
        workers, outcomes = NO_WORKERS, []
        if plan.wanted.num_rows:
            with progress.stage("start"):
                start_ray()
                workers = share_out(options.workers, useful=1 + plan.size // PARCEL_BYTES[0])
            with progress.stage("encode", documents=plan.wanted.num_rows, size=plan.size):
                stream = encode(
                    plan,
                    pieces,
                    db=options.db,
                    encoder=path,
                    fingerprint=fingerprint,
                    workers=workers,
                    rebuild=options.rebuild,
                )
                outcomes = list(shown(stream, progress))
    with progress.stage("commit"):
        lock.require()
        written = [outcome.written for outcome in outcomes if outcome.written]
        if options.rebuild:
            refuse_loss(options.db, plan, stored, written, [p for one in outcomes for p in one.problems])
        head = commit(
            options.db,
            written,
            run_id=uuid.uuid4().hex,
            remove=plan.missing,
            sources=options.sources,
            encoder=encoder,
            command=command,
            rebuild=options.rebuild,
        )
    with progress.stage("indices"):
        indices = build_indices(options.db)
    with progress.stage("publish"):
        lock.require()
        snapshot = publish(options.db, head)
    return account(
        plan,
        outcomes,
        snapshot,
        indices,
        encoder=fingerprint,
        workers=workers.count,
        stages=progress.seconds,
        skipped=skipped,
        seconds=progress.elapsed,
    )


def choose_encoder(options: IndexOptions) -> str:
    """A name, or the absolute path of a model directory: what later runs and readers will look for."""
    chosen = options.encoder or encoder_of(options.db) or DEFAULT_ENCODER
    return os.path.abspath(chosen) if os.path.isdir(chosen) else chosen


def encode(
    plan: Plan,
    pieces: Sequence[Piece],
    *,
    db: str,
    encoder: str,
    fingerprint: str | None = None,
    workers: Workers,
    rebuild: bool = False,
) -> Iterator[Outcome]:
    """Read, encode and write on Ray; outcomes arrive as parcels finish."""
    size = parcel_size(plan.size, workers)
    readings = reading_list(pieces, plan.wanted, size=READING_PARCELS * size)
    largest = max(size, pc.max(plan.wanted["size"]).as_py())
    configure_ray_data(patience=PATIENCE_SECONDS + largest / SLOWEST_BYTES_PER_SECOND)
    done = (
        ray.data.from_arrow(readings)
        .map_batches(
            partial(read_parcels, parcel_size=size),
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=TASK_CPUS,
        )
        .map_batches(
            IndexDocuments,
            fn_constructor_kwargs={
                "db": db,
                "encoder": encoder,
                "threads": workers.threads,
                "fingerprint": fingerprint,
                "attempts": ray.remote(num_cpus=0)(Attempts).remote(),
                "rebuild": rebuild,
            },
            compute=ActorPoolStrategy(min_size=1, max_size=workers.count, initial_size=workers.count),
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=workers.cpus,
            num_gpus=workers.gpus or None,
            max_restarts=-1,
            max_task_retries=RETRIES_PER_PARCEL,
        )
    )
    try:
        for batch in done.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            yield from map(Outcome.from_json, batch["outcome"].to_pylist())
    except RayError as error:  # its text ends with what happened, below the worker's whole traceback
        raise WorkersFailed(
            f"the workers failed and nothing was published: {str(error).strip().splitlines()[-1]}\n"
            "Set SPROUTRAG_DEBUG=1 to see all of it"
        ) from error


def parcel_size(total: int, workers: Workers) -> int:
    """Bytes per parcel: several for each worker, none tiny, none too large for memory or for progress."""
    least, most = PARCEL_BYTES
    most = GPU_PARCEL_BYTES if workers.gpus else most
    return min(most, max(least, total // (PARCELS_PER_WORKER * workers.count)))


def shown(outcomes: Iterator[Outcome], progress: Progress) -> Iterator[Outcome]:
    for outcome in outcomes:
        counts = outcome.written.counts if outcome.written else {"documents": 0, "tokens": 0}
        documents = counts["documents"] + len(outcome.problems)
        progress.advance(documents=documents, size=outcome.size, tokens=counts["tokens"])
        yield outcome


# --- what became of every input


def account(
    plan: Plan,
    outcomes: Sequence[Outcome],
    snapshot: Snapshot,
    indices: list[str],
    *,
    encoder: str,
    workers: int,
    stages: dict[str, float],
    skipped: list[str],
    seconds: float,
) -> Report:
    """Every input ends in exactly one of indexed, replaced, unchanged, quarantined; this is asserted."""
    written = [outcome.written for outcome in outcomes if outcome.written]
    ids = [id for one in written for id in one.doc_ids]
    replaced = sum(id in plan.stale for id in ids)
    failed = [problem for outcome in outcomes for problem in outcome.problems]
    problems = [*set_aside_early(plan), *failed, *lost(plan, {*ids, *(problem.doc_id for problem in failed)})]
    totals = {name: sum(one.counts[name] for one in written) for name in ("leaves", "nodes", "tokens")}
    report = Report(
        indexed=len(ids) - replaced,
        replaced=replaced,
        unchanged=plan.unchanged,
        quarantined=len(problems),
        deleted=len(plan.missing),
        coverage=snapshot.coverage,
        **totals,
        seconds=round(seconds, 3),
        tokens_per_s=round(totals["tokens"] / stages["encode"], 1) if ids else 0.0,
        snapshot=snapshot.id,
        encoder=encoder,
        workers=workers,
        documents=snapshot.counts["documents"],
        indices=indices,
        stages=stages,
        skipped=skipped,
        problems=problems,
    )
    assert report.inputs == plan.inputs, f"{plan.inputs} inputs came in but {report.inputs} are accounted for"
    return report


def set_aside_early(plan: Plan) -> list[Problem]:
    columns = plan.set_aside.select(["source", "doc_id", "reason", "hint"])
    return [Problem(**row) for row in columns.to_pylist()]


def lost(plan: Plan, accounted: set[str]) -> list[Problem]:
    """Documents that the scan saw and the second reading did not."""
    columns = plan.wanted.select(["source", "doc_id"])
    reason, hint = "it changed or went away while the run was reading", "Run again when the source is at rest"
    return [
        Problem(row["source"], row["doc_id"], reason, hint)
        for row in columns.to_pylist()
        if row["doc_id"] not in accounted
    ]
