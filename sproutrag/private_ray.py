"""Ray for one command: a private one on this machine, or the cluster that RAY_ADDRESS names."""

import glob
import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.util.annotations import RayDeprecationWarning

from sproutrag.leases import create_locked, try_lock

SCRATCH, OWNER = "sproutrag-", "owner.lock"  # folder of a private Ray; whose run is alive while it is locked
STARTS = 3  # Ray gives its own processes 30 seconds to come up, which a busy machine may take
STARTED_TOO_SLOWLY = "timed out during startup"  # what Ray says then
OBJECT_STORE_BYTES = 512 << 20  # of a private Ray: parcels are small, and few are under way


@contextmanager
def ray_on_demand(logs: bool = False, **resources: Any) -> Iterator[Callable[[], None]]:
    """Yields a function that starts Ray, or joins the cluster, the first time it is called.

    `resources` are declared of a private one (num_cpus).
    What was started or joined is left on the way out; a Ray that the caller had running stays as it is.
    """
    ours = not ray.is_initialized()
    scratch = tempfile.mkdtemp(prefix=SCRATCH, dir="/tmp" if os.path.isdir("/tmp") else None)
    owner = create_locked(f"{scratch}/{OWNER}", b"")
    remove_abandoned(os.path.dirname(scratch))

    def start() -> None:
        if not ray.is_initialized():
            start_ray(scratch, logs, **resources)

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


def start_ray(scratch: str, logs: bool = False, **resources: Any) -> None:
    """Quiet, without a dashboard; a private Ray listens on this machine only, so it needs no token.

    logs: what workers write to standard error comes out here.
    """
    warnings.filterwarnings("ignore", message="lance is not fork-safe")  # Ray forks only to start programs
    warnings.filterwarnings("ignore", category=RayDeprecationWarning)  # Ray is pinned; updating it is a task
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    environment = worker_environment()
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": logs}
    if os.environ.get("RAY_ADDRESS"):
        with native_stderr_silenced():
            ray.init(runtime_env={"env_vars": environment}, **quiet)
        return
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a notice
    os.environ.update(environment)
    for attempt in range(1, STARTS + 1):
        try:
            start_private_ray(scratch, **quiet, **resources)
            return
        except Exception as error:
            if STARTED_TOO_SLOWLY not in str(error) or attempt == STARTS:
                raise
            ray.shutdown()
            print("Ray is slow to start on this busy machine; trying again", file=sys.stderr)


def start_private_ray(scratch: str, **settings: Any) -> None:
    with native_stderr_silenced():
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=scratch,
            _node_ip_address="127.0.0.1",
            **settings,
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
