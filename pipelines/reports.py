"""What a job tells when it has ended: of every input what became of it, what it cost, what was maintained."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.costs import Estimate
from pipelines.maintenance import Step
from sproutrag.disk import megabytes
from sproutrag.quarantine import Problem

SHOWN_PROBLEMS = 10
DONE, FAILED, SET_ASIDE = 0, 1, 3  # exit status


@dataclass(frozen=True, kw_only=True)
class Report:
    """What became of every input. leaves, nodes, tokens count what this run wrote."""

    indexed: int
    replaced: int
    unchanged: int
    quarantined: int
    deleted: int
    resumed: int  # of indexed and replaced: encoded by an interrupted run, only committed by this one
    coverage: float  # of the whole index: share of non-space characters in exactly one encoded leaf
    leaves: int
    nodes: int
    tokens: int
    seconds: float
    tokens_per_s: float
    bytes: int  # on disk, that documents and indices of this run take
    estimate: Estimate  # made before encoding began
    snapshot: int
    encoder: str
    workers: int
    documents: int  # in the index now
    indices: list[str]
    maintenance: list[Step]
    stages: dict[str, float]  # seconds
    skipped: list[str]  # files of a kind that is not read, left out of `in`
    dropped: list[str]  # why something that an interrupted run left was of no use
    problems: list[Problem]

    @property
    def inputs(self) -> int:
        return self.indexed + self.replaced + self.unchanged + self.quarantined

    @property
    def failures(self) -> list[Step]:
        return [step for step in self.maintenance if step.failure]

    @property
    def exit_status(self) -> int:
        return FAILED if self.failures else SET_ASIDE if self.quarantined else DONE

    def as_json(self) -> dict[str, Any]:
        return {"in": self.inputs} | asdict(self)

    def show(self, console: Console, *, quiet: bool = False) -> None:
        """On standard output the table, unless `quiet`; on standard error what went wrong."""
        if not quiet:
            print_report(self, console)
            print_problems(self.problems)
        print_failures(self)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a run would do. resumed: of new and changed, what an interrupted run has encoded already."""

    new: int
    changed: int
    unchanged: int
    quarantined: int
    missing: int  # in the index, not in the sources; only --delete-missing would delete them
    resumed: int
    estimate: Estimate
    skipped: list[str]

    exit_status = DONE

    @property
    def inputs(self) -> int:
        return self.new + self.changed + self.unchanged + self.quarantined

    def as_json(self) -> dict[str, Any]:
        return {"dry_run": True, "in": self.inputs} | asdict(self) | asdict(self.estimate)

    def show(self, console: Console, *, quiet: bool = False) -> None:
        if not quiet:
            print_forecast(self, console)


@dataclass(frozen=True, slots=True)
class Retried:
    """report: None where there was nothing left to read. not_retryable: whose source is gone."""

    report: Report | None
    not_retryable: list[Problem]

    @property
    def exit_status(self) -> int:
        status = self.report.exit_status if self.report else DONE
        return status or (SET_ASIDE if self.not_retryable else DONE)

    def as_json(self) -> dict[str, Any]:
        report = self.report.as_json() if self.report else None
        return {"report": report, "not_retryable": [asdict(one) for one in self.not_retryable]}

    def show(self, console: Console, *, quiet: bool = False) -> None:
        if self.report:
            self.report.show(console, quiet=quiet)
        if not quiet:
            print_problems(self.not_retryable)


def print_report(report: Report, console: Console) -> None:
    """The final table; what comes first adds up: in = indexed + replaced + unchanged + set aside."""
    expected, steps = report.estimate, [step for step in report.maintenance if not step.failure]
    rows = [
        ("documents in", f"{report.inputs:,}"),
        ("  indexed", f"{report.indexed:,}"),
        ("  replaced", f"{report.replaced:,}"),
        ("  unchanged", f"{report.unchanged:,}"),
        ("  set aside", f"{report.quarantined:,}"),
        ("files of other kinds", f"{len(report.skipped):,} left out"),
        ("deleted", f"{report.deleted:,}"),
        ("resumed", f"{report.resumed:,} finished by an interrupted run"),
        ("coverage", f"{report.coverage:.4f}"),
        ("leaves, nodes", f"{report.leaves:,}, {report.nodes:,}"),
        ("tokens", f"{report.tokens:,} ({report.tokens_per_s:,.0f} per second)"),
        ("on disk", megabytes(report.bytes)),
        ("estimated", f"{cost_of(expected)}{'' if expected.measured else ', by default rates'}"),
        ("maintenance", "; ".join(phrase for step in steps for phrase in step.what) or "nothing to do"),
        ("snapshot", f"{report.snapshot} ({report.documents:,} documents, encoder {report.encoder})"),
        ("seconds", f"{report.seconds:.1f}: " + ", ".join(f"{k} {v:.1f}" for k, v in report.stages.items())),
    ]
    print_grid(rows, console)


def print_forecast(forecast: Forecast, console: Console) -> None:
    rows = [
        ("documents in", f"{forecast.inputs:,}"),
        ("  new", f"{forecast.new:,}"),
        ("  changed", f"{forecast.changed:,}"),
        ("  unchanged", f"{forecast.unchanged:,}"),
        ("  set aside", f"{forecast.quarantined:,}"),
        ("missing", f"{forecast.missing:,} (only --delete-missing deletes them)"),
        ("resumed", f"{forecast.resumed:,} finished by an interrupted run"),
        ("files of other kinds", f"{len(forecast.skipped):,} left out"),
        ("to encode", f"{forecast.estimate.documents:,}"),
        ("estimated", cost_of(forecast.estimate)),
        (
            "by",
            "this index's last large run"
            if forecast.estimate.measured
            else "default rates: none measured yet",
        ),
    ]
    print_grid(rows, console)


def cost_of(estimate: Estimate) -> str:
    workers = f"{estimate.workers} worker{'s' if estimate.workers != 1 else ''}"
    return (
        f"{estimate.tokens:,} tokens, {estimate.seconds:,.0f} s with {workers}, {megabytes(estimate.bytes)}"
    )


def print_grid(rows: Sequence[tuple[str, str]], console: Console) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, style="bold"), Text(value))
    console.print(table)


def print_failures(report: Report) -> None:
    for step in report.failures:
        print(
            f"maintenance failed: {step.name}: {step.failure}; the documents are published; {step.next}",
            file=sys.stderr,
        )
    for reason in report.dropped[:SHOWN_PROBLEMS]:
        print(f"not taken over from the interrupted run: {reason}; encoded again", file=sys.stderr)


def print_problems(problems: Sequence[Problem]) -> None:
    for problem in problems[:SHOWN_PROBLEMS]:
        where = problem.source or problem.doc_id
        print(f"set aside {where}: {problem.reason}; {problem.hint}", file=sys.stderr)
    if len(problems) > SHOWN_PROBLEMS:
        more = len(problems) - SHOWN_PROBLEMS
        print(f"... and {more:,} more; --json lists them all", file=sys.stderr)
