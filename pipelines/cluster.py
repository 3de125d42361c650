"""How a job's workers fit on the nodes of its Ray, and how Ray Data behaves there."""

import logging
import sys
from dataclasses import dataclass

import ray
from ray.data import DataContext

WORKER_BYTES = 2 << 30  # memory of a node that an encoder process may count on; small ones take 0.6 GB
CORES_FOR_TASKS = 0.5  # of every node: actors are placed first and must leave room for tasks that feed them
ONE_ROW = 1  # byte: Ray ends a block as soon as it is larger, so a parcel is neither merged nor split


@dataclass(frozen=True, slots=True)
class Workers:
    """How many encoders there are, and what each of them takes of its node."""

    count: int
    cpus: float
    gpus: float
    threads: int


NO_WORKERS = Workers(count=0, cpus=0.0, gpus=0.0, threads=0)


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
