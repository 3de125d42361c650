"""Which processes belong to a run, when one of them is to be killed, and which one."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

POLL_S = 0.002
WORKERS = "ray::"  # how Ray titles the processes that run our code
IDLE = "ray::IDLE"
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")  # a node ends with either of them
# A file that appears in this folder of the index, or goes from it, says what the driver is doing.
SIGNS = {
    "writing fragments": "nodes.lance/data",
    "committing nodes": "nodes.lance/_versions",
    "committing documents": "documents.lance/_versions",
    "building indices": "nodes.lance/_indices",
    "publishing": "snapshots",
}
ANY_TIME = "any time"
MOMENTS = (ANY_TIME, ANY_TIME, ANY_TIME, *SIGNS)
AFTER_SIGN_S = 0.15


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    session: int
    command: str


@dataclass(frozen=True, slots=True)
class Kill:
    """What was decided beforehand. share: of a whole run's time, or of AFTER_SIGN_S after the sign."""

    victim: str  # driver or worker
    moment: str
    share: float

    @classmethod
    def draw(cls, rng: np.random.Generator) -> "Kill":
        victim = str(rng.choice(["driver", "driver", "worker"]))
        return cls(victim, str(rng.choice(MOMENTS)), float(rng.random()))


def processes() -> list[Process]:
    """All that live now, as /proc says it."""
    return [one for path in Path("/proc").iterdir() if path.name.isdigit() for one in read_process(path)]


def read_process(path: Path) -> list[Process]:
    """Empty where it ended meanwhile, or is only waiting for its parent to notice."""
    try:
        state, parent, _, session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
        command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [] if state == "Z" else [Process(int(path.name), int(parent), int(session), command)]


def family(root: int) -> list[Process]:
    """The processes of the session that `root` began, if it did, and all their descendants."""
    living = processes()
    members = {root}
    while more := {p.pid for p in living if p.session == root or p.parent in members} - members:
        members |= more
    return [process for process in living if process.pid in members and process.pid != root]


def wait_and_kill(
    kill: Kill,
    driver: int,
    db: str,
    rng: np.random.Generator,
    *,
    ray_root: int,
    typical_s: float,
    is_over: Callable[[], bool],
) -> tuple[int, list[Process]]:
    """Wait for the moment, then SIGKILL. Returns its pid, 0 if the run was over, and the run's family.

    ray_root: the process below which this run's workers are.
    """
    wait_for(kill, db, typical_s=typical_s, is_over=is_over)
    while kill.victim == "worker" and not is_over() and not workers_below(ray_root):
        time.sleep(0.1)
    related, workers = family(driver), workers_below(ray_root)
    if is_over() or (kill.victim == "worker" and not workers):
        return 0, related
    pid = driver if kill.victim == "driver" else int(rng.choice(workers))
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return 0, related
    return pid, related


def wait_for(kill: Kill, db: str, *, typical_s: float, is_over: Callable[[], bool]) -> None:
    started, folder = time.monotonic(), Path(db) / SIGNS.get(kill.moment, "")
    before = names(folder)
    if kill.moment == ANY_TIME:
        while time.monotonic() - started < kill.share * typical_s and not is_over():
            time.sleep(POLL_S)
    else:
        while names(folder) == before and not is_over():
            time.sleep(POLL_S)
        time.sleep(kill.share * AFTER_SIGN_S)


def workers_below(root: int) -> list[int]:
    """Those that do something for a run; idle ones only where there are no others."""
    living = [p for p in family(root) if p.command.startswith(WORKERS) and not p.command.startswith(AGENTS)]
    titles = {p.pid: p.command for p in living}
    return [pid for pid, title in titles.items() if not title.startswith(IDLE)] or list(titles)


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder)) if folder.is_dir() else set()


def end_those_left(related: list[Process], *, patience_s: float) -> list[Process]:
    """Who of a run's family still lives after so long; exactly these are then killed, by their pid."""
    deadline = time.monotonic() + patience_s
    while (left := still_alive(related)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in left:
        os.kill(process.pid, signal.SIGKILL)
    return left


def still_alive(related: list[Process]) -> list[Process]:
    """By pid and session, so that a number that was given out again is not taken for the old process."""
    living = {(process.pid, process.session) for process in processes()}
    return [process for process in related if (process.pid, process.session) in living]
