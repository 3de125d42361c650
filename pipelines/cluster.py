"""Where a job runs: a private Ray on this machine, or the cluster that RAY_ADDRESS names."""

import glob
import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.data import DataContext
from ray.util.annotations import RayDeprecationWarning

from sproutrag.leases import create_locked, try_lock

WORKER_BYTES = 2 << 30  # memory of a node that an encoder process may count on; small ones take 0.6 GB
CORES_FOR_TASKS = 0.5  # of every node: actors are placed first and must leave room for tasks that feed them
ONE_ROW = 1  # byte: Ray ends a block as soon as it is larger, so a parcel is neither merged nor split
SCRATCH, OWNER = "sproutrag-", "owner.lock"  # folder of a private Ray; whose run is alive while it is locked
STARTS = 3  # Ray gives its own processes 30 seconds to come up, which a busy machine may take
STARTED_TOO_SLOWLY = "timed out during startup"  # what Ray says then
OBJECT_STORE_BYTES = 512 << 20  # of a private Ray: parcels are small, and few are under way


@dataclass(frozen=True, slots=True)
class Workers:
    """How many encoders there are, and what each of them takes of its node."""

    count: int
    cpus: float
    gpus: float
    threads: int


NO_WORKERS = Workers(count=0, cpus=0.0, gpus=0.0, threads=0)


@contextmanager
def ray_on_demand() -> Iterator[Callable[[], None]]:
    """Yields a function that starts Ray, or joins the cluster, the first time it is called.

    What was started or joined is left on the way out; a Ray that the caller had running stays as it is.
    """
    ours = not ray.is_initialized()
    scratch = tempfile.mkdtemp(prefix=SCRATCH, dir="/tmp" if os.path.isdir("/tmp") else None)
    owner = create_locked(f"{scratch}/{OWNER}", b"")
    remove_abandoned(os.path.dirname(scratch))

    def start() -> None:
        if not ray.is_initialized():
            start_ray(scratch)

    try:
        yield start
    finally:
        if ours and ray.is_initialized():
            ray.shutdown()
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(owner)


def remove_abandoned(folder: str) -> None:
    """Scratch folders whose runs were killed: nobody holds the lock on the file in them any more."""
    for path in glob.glob(f"{folder}/{SCRATCH}*/{OWNER}"):
        try:
            handle = os.open(path, os.O_RDWR)
        except OSError:  # gone meanwhile, or another user's
            continue
        if try_lock(handle):
            shutil.rmtree(os.path.dirname(path), ignore_errors=True)
        os.close(handle)


def start_ray(scratch: str) -> None:
    """Quiet, without a dashboard; a private Ray listens on this machine only, so it needs no token."""
    warnings.filterwarnings("ignore", message="lance is not fork-safe")  # Ray forks only to start programs
    warnings.filterwarnings("ignore", category=RayDeprecationWarning)  # Ray is pinned; updating it is a task
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    environment = worker_environment()
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if os.environ.get("RAY_ADDRESS"):
        with native_stderr_silenced():
            ray.init(runtime_env={"env_vars": environment}, **quiet)
        return
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a notice
    os.environ.update(environment)
    for attempt in range(1, STARTS + 1):
        try:
            start_private_ray(scratch, **quiet)
            return
        except Exception as error:
            if STARTED_TOO_SLOWLY not in str(error) or attempt == STARTS:
                raise
            ray.shutdown()
            print("Ray is slow to start on this busy machine; trying again", file=sys.stderr)


def start_private_ray(scratch: str, **quiet: Any) -> None:
    with native_stderr_silenced():
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=scratch,
            _node_ip_address="127.0.0.1",
            **quiet,
        )


@contextmanager
def native_stderr_silenced() -> Iterator[None]:
    """Ray's native code announces its own log level; what goes wrong in here is raised, not printed."""
    kept = os.dup(2)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(silence)


def worker_environment() -> dict[str, str]:
    """Lets workers import this package from a source checkout; an installed package needs nothing."""
    root = str(Path(__file__).resolve().parent.parent)
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root in known or "site-packages" in Path(root).parts:
        return {}
    return {"PYTHONPATH": os.pathsep.join([root, *known])}


def share_out(wanted: int, *, useful: int | None = None) -> Workers:
    """Fit `wanted` encoders (0: choose, at most `useful`) to the nodes that are there.

    With GPUs: one encoder per GPU, or several sharing each. Without: one per core, as one process per core
    encodes more than one process with many threads; CORES_FOR_TASKS stay free on every node.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    count = wanted or min(gpus or sum(map(room_for_workers, nodes)), useful or sys.maxsize)
    if gpus:
        return Workers(count=count, cpus=CORES_FOR_TASKS, gpus=1 / -(-count // gpus), threads=1)
    cores = min(node["CPU"] for node in nodes)
    each = -(-count // len(nodes))
    cpus = round_down((cores - CORES_FOR_TASKS) / each)
    return Workers(count=count, cpus=cpus, gpus=0.0, threads=max(1, int(cores // each)))


def room_for_workers(node: dict[str, float]) -> int:
    return max(1, int(min(node["CPU"], node["memory"] // WORKER_BYTES)))


def round_down(cpus: float) -> float:
    """Ray counts ten-thousandths; one hundredth is fine enough, and never zero."""
    return max(0.01, int(cpus * 100) / 100)


def configure_ray_data(*, patience: float) -> None:
    """Silent, one row per block, and an error after `patience` seconds without any result.

    Applies to the data sets created afterwards: a data set copies its context.
    """
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.target_max_block_size = ONE_ROW
    context.execution_no_progress_timeout_s = patience
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what it logs is raised as well
