"""What a person sees of a job while it runs, on standard error."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

SECONDS_PER_LINE = 10.0  # where standard error is no terminal


class Progress:
    """Counts documents, bytes and tokens stage by stage; a moving bar on a terminal, else plain lines."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.name, self.total, self.size = "", 0, 0
        self.documents = self.done = self.tokens = 0
        self.born = self.started = self.last_line = time.monotonic()
        self.bar = make_bar() if sys.stderr.isatty() else None
        self.row: TaskID | None = None

    @contextmanager
    def stage(self, name: str, *, documents: int = 0, size: int = 0) -> Iterator[None]:
        """Time what runs inside. documents, size: how much there is to do, where that is known."""
        self.name, self.total, self.size = name, documents, size
        self.documents = self.done = self.tokens = 0
        self.started = self.last_line = time.monotonic()
        if self.bar:
            self.bar.start()
            self.row = self.bar.add_task(name, total=size or None, counts="")
        elif documents:
            print(f"{name}: {documents:,} documents, {size / 1e6:,.1f} MB", file=sys.stderr, flush=True)
        try:
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - self.started, 3)
            if self.bar and self.row is not None:
                self.bar.remove_task(self.row)
                self.bar.stop()
                self.row = None

    def advance(self, *, documents: int, size: int, tokens: int = 0) -> None:
        self.documents += documents
        self.done += size
        self.tokens += tokens
        if self.bar and self.row is not None:
            self.bar.update(self.row, advance=size, counts=self.counts())
        elif time.monotonic() - self.last_line > SECONDS_PER_LINE:
            self.last_line = time.monotonic()
            print(f"{self.name}: {self.counts()}{self.time_left()}", file=sys.stderr, flush=True)

    @property
    def elapsed(self) -> float:
        """Seconds since the job began."""
        return time.monotonic() - self.born

    def counts(self) -> str:
        of_total = f" of {self.total:,}" if self.total else ""
        rate = self.tokens / max(time.monotonic() - self.started, 1e-9)
        return f"{self.documents:,}{of_total} documents" + (f", {rate:,.0f} tokens/s" if self.tokens else "")

    def time_left(self) -> str:
        if not self.size or not self.done:
            return ""
        seconds = (time.monotonic() - self.started) / self.done * (self.size - self.done)
        return f", {max(0, self.size - self.done) / self.size:.0%} left, about {seconds:,.0f} s"


def make_bar() -> RichProgress:
    return RichProgress(
        TextColumn("{task.description:<8}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
