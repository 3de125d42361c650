"""Read, encode and write on Ray: rows of FOUND in, one Outcome for each parcel out, as they finish."""

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data
from ray.data import ActorPoolStrategy
from ray.exceptions import RayError

from pipelines.actors import Attempts, IndexDocuments, Outcome, read_parcels
from pipelines.cluster import Workers, configure_ray_data
from pipelines.plan import reading_list, size_of
from pipelines.progress import Progress
from sproutrag.ingest import Piece
from sproutrag.interruption import heed

PARCELS_PER_WORKER = 4  # at least, where there is enough to do: workers finish within a quarter of a parcel
PARCEL_BYTES = (64 << 10, 1 << 20)  # least: a batch worth encoding and a fragment worth a file; most: memory
GPU_PARCEL_BYTES = 4 << 20
READING_PARCELS = 16  # parcels per read task, about
TASK_CPUS = 0.25
SURVIVES = {"max_restarts": -1, "max_task_retries": -1}  # Attempts forgets when its node is lost, no more
RETRIES_PER_PARCEL = 12  # a document that kills its process costs three, then it is set aside
SLOWEST_BYTES_PER_SECOND = 1000  # an encoder slower than that is taken for stuck
PATIENCE_SECONDS = 600


class WorkersFailed(Exception):
    """Ray gave up: something other than a bad document stopped the workers."""


def encode(
    wanted: pa.Table,
    pieces: Sequence[Piece],
    *,
    db: str,
    encoder: str,
    fingerprint: str | None = None,
    workers: Workers,
    rebuild: bool = False,
) -> Iterator[Outcome]:
    """Read, encode and write on Ray; outcomes arrive as parcels finish."""
    size = parcel_size(size_of(wanted), workers)
    readings = reading_list(pieces, wanted, size=READING_PARCELS * size)
    largest = max(size, pc.max(wanted["size"]).as_py())
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
                "attempts": ray.remote(num_cpus=0, **SURVIVES)(Attempts).remote(),
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
            "Run again: it continues with what is left. SPROUTRAG_DEBUG=1 shows all of this failure"
        ) from error


def shown(outcomes: Iterator[Outcome], progress: Progress) -> Iterator[Outcome]:
    for outcome in outcomes:
        heed()
        counts = outcome.written.counts if outcome.written else {"documents": 0, "tokens": 0}
        documents = counts["documents"] + len(outcome.problems)
        progress.advance(documents=documents, size=outcome.size, tokens=counts["tokens"])
        yield outcome


def useful_workers(wanted: pa.Table) -> int:
    return 1 + size_of(wanted) // PARCEL_BYTES[0]


def parcel_size(total: int, workers: Workers) -> int:
    """Bytes per parcel: several for each worker, none tiny, none too large for memory or for progress."""
    least, most = PARCEL_BYTES
    most = GPU_PARCEL_BYTES if workers.gpus else most
    return min(most, max(least, total // (PARCELS_PER_WORKER * workers.count)))
