"""What a person sees of a job: progress on standard error while it runs, and its report at the end."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

SECONDS_PER_LINE = 10.0  # where standard error is no terminal
SHOWN_PROBLEMS = 10


@dataclass(frozen=True, slots=True)
class Problem:
    """One input that was set aside: where it is, what is wrong, what to do."""

    source: str
    doc_id: str
    reason: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """What became of every input. leaves, nodes, tokens count what this run wrote."""

    indexed: int
    replaced: int
    unchanged: int
    quarantined: int
    deleted: int
    coverage: float  # of the whole index: share of non-space characters in exactly one encoded leaf
    leaves: int
    nodes: int
    tokens: int
    seconds: float
    tokens_per_s: float
    snapshot: int
    encoder: str
    workers: int
    documents: int  # in the index now
    indices: list[str]
    stages: dict[str, float]  # seconds
    skipped: list[str]  # files of a kind that is not read, left out of `in`
    problems: list[Problem]

    @property
    def inputs(self) -> int:
        return self.indexed + self.replaced + self.unchanged + self.quarantined

    def as_json(self) -> dict[str, Any]:
        return {"in": self.inputs} | asdict(self)


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


def print_report(report: Report, console: Console) -> None:
    """The final table on standard output, then what was set aside on standard error."""
    table = Table.grid(padding=(0, 2))
    rows = [
        ("documents in", f"{report.inputs:,}"),
        ("  indexed", f"{report.indexed:,}"),
        ("  replaced", f"{report.replaced:,}"),
        ("  unchanged", f"{report.unchanged:,}"),
        ("  set aside", f"{report.quarantined:,}"),
        ("files of other kinds", f"{len(report.skipped):,} left out"),
        ("deleted", f"{report.deleted:,}"),
        ("coverage", f"{report.coverage:.4f}"),
        ("leaves, nodes", f"{report.leaves:,}, {report.nodes:,}"),
        ("tokens", f"{report.tokens:,} ({report.tokens_per_s:,.0f} per second)"),
        ("indices", "; ".join(report.indices) or "as before"),
        ("snapshot", f"{report.snapshot} ({report.documents:,} documents, encoder {report.encoder})"),
        ("seconds", f"{report.seconds:.1f}: " + ", ".join(f"{k} {v:.1f}" for k, v in report.stages.items())),
    ]
    for name, value in rows:
        table.add_row(Text(name, style="bold"), Text(value))
    console.print(table)
    print_problems(report.problems)


def print_problems(problems: list[Problem]) -> None:
    for problem in problems[:SHOWN_PROBLEMS]:
        where = problem.source or problem.doc_id
        print(f"set aside {where}: {problem.reason}; {problem.hint}", file=sys.stderr)
    if len(problems) > SHOWN_PROBLEMS:
        more = len(problems) - SHOWN_PROBLEMS
        print(f"... and {more:,} more; --json lists them all", file=sys.stderr)
