"""`sproutrag serve` as a process of its own: for what measures it and for what tests it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

READY = "search is ready: "
STOP_S = 60.0


class NotStarted(Exception):
    """The server ended before it was ready; the message is the end of what it said."""


@contextmanager
def serving(db: str, *, encoder: str, llm: str, **settings: Any) -> Iterator[tuple[str, int]]:
    """Address and pid of a server that answers searches; ended as a person ends it."""
    environment = os.environ | {f"SPROUTRAG_{name.upper()}": str(value) for name, value in settings.items()}
    command = [sys.executable, "-m", "sproutrag.cli", "serve", "--db", db, "--encoder", encoder]
    command += ["--llm", llm, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr
        try:
            address = first_address(process.stderr)
            threading.Thread(target=drain, args=(process.stderr,), daemon=True).start()
            yield address, process.pid
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(STOP_S)


def first_address(said: IO[str]) -> str:
    lines: list[str] = []
    for line in said:
        lines.append(line)
        if READY in line:
            return line.split(READY)[1].strip().rstrip("/")
    raise NotStarted("".join(lines[-20:]))


def drain(pipe: IO[str]) -> None:
    """Read on, so that the server never waits for somebody to read what it logs."""
    for _ in pipe:
        pass


def family(pid: int) -> list[int]:
    """A process and all below it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(member for child in children for member in family(int(child)))]


def resident_mib(pid: int) -> float:
    """Memory of a process and all below it that no other process shares, as far as Linux tells."""
    total = 0.0
    for member in family(pid):
        try:
            rollup = Path(f"/proc/{member}/smaps_rollup").read_text()
        except OSError:  # ended meanwhile
            continue
        total += next(float(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024
