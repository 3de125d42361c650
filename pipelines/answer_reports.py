"""What answering a file of questions will cost and did cost, and what became of every question."""

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.answer_file import Answer, AnswerFile
from pipelines.progress import Progress
from pipelines.questions import SetAside

SHOWN_PROBLEMS = 10
DONE, SET_ASIDE = 0, 3  # exit status
SECONDS_PER_CALL = 2.0  # where nothing was measured yet: a 4B model on one GPU
# Calls, prompt and completion tokens of a question, where nothing was measured yet. Trees: means over our
# plans in tests/data. The others: one prompt without evidence, one with 20 leaves of 100 tokens.
EXPECTED = {"llm-only": (1, 250, 80), "naive-rag": (1, 2200, 120)}
EXPECTED_OF_TREES = (12, 7400, 650)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Of `questions` together. seconds: wall time."""

    questions: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    wasted_tokens: int
    seconds: float

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """measured: answers of the same method that it is drawn from; 0 means built-in defaults."""

    questions: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    measured: int


def estimate(answers: AnswerFile, questions: int, *, method: str, in_flight: int) -> Estimate:
    """What `questions` more will cost, by the answers that the file holds."""
    known = [a for a in answers.answers.values() if a.get("method") == method and not a.get("failure")]
    calls, prompt, completion, seconds = means(known) if known else defaults(method)
    return Estimate(
        questions=questions,
        calls=round(calls * questions),
        prompt_tokens=round(prompt * questions),
        completion_tokens=round(completion * questions),
        seconds=round(seconds * questions / max(min(in_flight, questions), 1), 1),
        measured=len(known),
    )


def means(known: Sequence[Answer]) -> tuple[float, float, float, float]:
    """Calls, prompt tokens, completion tokens and seconds of a question."""
    usage = [answer["usage"] | {"seconds": answer.get("seconds", 0.0)} for answer in known]
    calls, prompt, completion, seconds = (
        statistics.fmean(one[name] for one in usage)
        for name in ("calls", "prompt_tokens", "completion_tokens", "seconds")
    )
    return calls, prompt, completion, seconds


def defaults(method: str) -> tuple[float, float, float, float]:
    calls, prompt, completion = EXPECTED.get(method, EXPECTED_OF_TREES)
    return calls, prompt, completion, calls * SECONDS_PER_CALL


def actual_cost(fresh: Sequence[Answer], seconds: float) -> Cost:
    def total(name: str) -> int:
        return sum(answer["usage"][name] for answer in fresh)

    return Cost(
        questions=len(fresh),
        calls=total("calls"),
        prompt_tokens=total("prompt_tokens"),
        completion_tokens=total("completion_tokens"),
        wasted_tokens=total("wasted_tokens"),
        seconds=round(seconds, 3),
    )


@dataclass(frozen=True, kw_only=True)
class AnswerReport:
    """What became of every line of the questions. cost: of this run. unanswered: of answered and partial."""

    answered: int
    partial: int
    set_aside: int
    unanswered: int  # the evidence does not say
    resumed: int  # answered by an earlier run
    cost: Cost
    estimate: Estimate  # made before
    snapshot: int  # that this run read; 0: it had nothing to ask
    snapshots: list[int]  # that the answers come from
    models: list[str]
    problems: list[SetAside]

    @property
    def inputs(self) -> int:
        return self.answered + self.partial + self.set_aside

    @property
    def exit_status(self) -> int:
        return SET_ASIDE if self.set_aside else DONE

    def as_json(self) -> dict[str, Any]:
        cost = self.cost
        rates = {"calls_per_s": rate(cost.calls, cost), "tokens_per_s": rate(cost.tokens, cost)}
        return {"in": self.inputs} | asdict(self) | rates

    def show(self, console: Console, *, quiet: bool = False) -> None:
        if not quiet:
            print_rows(console, report_rows(self))
            print_problems(self.problems)
        for name, several in (("snapshots", map(str, self.snapshots)), ("models", self.models)):
            if len(values := list(several)) > 1:
                print(f"the answers come from several {name}: {', '.join(values)}", file=sys.stderr)


@dataclass(frozen=True, kw_only=True)
class AnswerForecast:
    """What a run would do. tried: of to_do, questions that failed before."""

    done: int
    to_do: int
    tried: int
    set_aside: int
    estimate: Estimate
    problems: list[SetAside]

    exit_status = DONE

    @property
    def inputs(self) -> int:
        return self.done + self.to_do + self.set_aside

    def as_json(self) -> dict[str, Any]:
        return {"dry_run": True, "in": self.inputs} | asdict(self)

    def show(self, console: Console, *, quiet: bool = False) -> None:
        if not quiet:
            print_rows(console, forecast_rows(self))
            print_problems(self.problems)


def rate(count: int, cost: Cost) -> float:
    return round(count / cost.seconds, 2) if cost.seconds else 0.0


def report_rows(report: AnswerReport) -> list[tuple[str, str]]:
    cost, expected = report.cost, report.estimate
    speed = f"{rate(cost.calls, cost):,.1f} calls/s, {rate(cost.tokens, cost):,.0f} tokens/s"
    return [
        ("questions in", f"{report.inputs:,}"),
        ("  answered", f"{report.answered:,}"),
        ("  partial", f"{report.partial:,}"),
        ("  set aside", f"{report.set_aside:,}"),
        ("without an answer", f"{report.unanswered:,}, because the evidence does not say"),
        ("resumed", f"{report.resumed:,} answered by an earlier run"),
        ("cost", cost_of(cost)),
        ("estimated", cost_of(expected) + source_of(expected)),
        ("wasted", f"{cost.wasted_tokens:,} tokens on replies that were of no use"),
        ("speed", speed),
        ("snapshot", str(report.snapshot or "nothing to ask")),
    ]


def forecast_rows(forecast: AnswerForecast) -> list[tuple[str, str]]:
    expected = forecast.estimate
    each = max(expected.questions, 1)
    return [
        ("questions in", f"{forecast.inputs:,}"),
        ("  answered", f"{forecast.done:,}"),
        ("  to ask", f"{forecast.to_do:,}, {forecast.tried:,} of them again"),
        ("  set aside", f"{forecast.set_aside:,}"),
        ("estimated", cost_of(expected)),
        ("per question", f"{expected.calls / each:.1f} calls, {tokens_of(expected) / each:,.0f} tokens"),
        ("by", f"{expected.measured:,} answers of the file" if expected.measured else "built-in defaults"),
    ]


def tokens_of(cost: Cost | Estimate) -> int:
    return cost.prompt_tokens + cost.completion_tokens


def cost_of(cost: Cost | Estimate) -> str:
    tokens = f"{cost.prompt_tokens:,} + {cost.completion_tokens:,} tokens"
    return f"{cost.calls:,} calls, {tokens}, {cost.seconds:,.1f} s for {cost.questions:,} questions"


def source_of(expected: Estimate) -> str:
    return "" if expected.measured else ", by built-in defaults"


def print_rows(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, style="bold"), Text(value))
    console.print(table)


def print_problems(problems: Sequence[SetAside]) -> None:
    for problem in problems[:SHOWN_PROBLEMS]:
        named = f" ({problem.query_id})" if problem.query_id else ""
        print(f"set aside {problem.place}{named}: {problem.reason}; {problem.hint}", file=sys.stderr)
    if len(problems) > SHOWN_PROBLEMS:
        print(f"... and {len(problems) - SHOWN_PROBLEMS:,} more; --json lists them all", file=sys.stderr)


class AnswerProgress(Progress):
    """Questions, with calls and tokens per second."""

    calls = 0

    def answered(self, answer: Answer) -> None:
        usage = answer["usage"]
        self.calls += usage["calls"]
        self.advance(documents=1, size=1, tokens=usage["prompt_tokens"] + usage["completion_tokens"])

    def counts(self) -> str:
        seconds = max(time.monotonic() - self.started, 1e-9)
        speed = f"{self.calls / seconds:,.1f} calls/s, {self.tokens / seconds:,.0f} tokens/s"
        return f"{self.documents:,} of {self.size:,} questions, {speed}"
