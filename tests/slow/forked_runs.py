"""The indexing job in a process that is forked with everything imported, its encoder in it instead of on Ray.

All else is the job's own code, from the command line to the clean-up. A run takes a second instead of half a
minute, so that hundreds of kills can look for the moments that matter to what is on disk.
"""

import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess

import pyarrow as pa

from pipelines import index as job
from pipelines.actors import IndexDocuments, Outcome, read_parcels, unseal
from pipelines.cluster import Workers
from pipelines.plan import reading_list
from sproutrag import cli, encoder
from sproutrag.ingest import Piece

PARCEL_BYTES = 8 << 10
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])
assert encoder.SentenceEncoder, "imported, so that no run has to"


class ForkedRun:
    """As much of subprocess.Popen as a crash test needs."""

    def __init__(self, words: Sequence[str], folder: str) -> None:
        self.process: ForkServerProcess = CONTEXT.Process(target=run_here, args=(list(words), folder))
        self.process.start()
        self.pid = self.process.pid or 0

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self.process.join(timeout)
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()


def run_here(words: Sequence[str], folder: str) -> None:
    with open(f"{folder}/out", "w") as sys.stdout, open(f"{folder}/err", "w") as sys.stderr:
        job.encode, job.ray_on_demand, job.share_out = encode_here, no_ray, one_worker
        status = cli.run(words)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    sys.exit(status)


def encode_here(
    wanted: pa.Table,
    pieces: Sequence[Piece],
    *,
    db: str,
    encoder: str,
    fingerprint: str,
    workers: Workers,
    rebuild: bool,
) -> Iterator[Outcome]:
    worker = IndexDocuments(
        db=db, encoder=encoder, threads=workers.threads, fingerprint=fingerprint, rebuild=rebuild
    )
    for reading in reading_list(pieces, wanted, size=1 << 20):
        for table in read_parcels(reading, parcel_size=PARCEL_BYTES):
            for parcel in table.to_pylist():
                yield worker.index(unseal(parcel["documents"]), size=parcel["size"])


@contextmanager
def no_ray() -> Iterator[object]:
    yield lambda: None


def one_worker(*_: object, **__: object) -> Workers:
    return Workers(count=1, cpus=1.0, gpus=0.0, threads=1)
