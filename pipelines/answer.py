"""A file of questions against one snapshot of an index: many in flight on Ray, each answer kept as it comes.

Workers answer; the driver writes. Answers are joined with their questions by query_id, never by position.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.data import ActorPoolStrategy
from ray.exceptions import RayError

from pipelines.actors import Attempts
from pipelines.answer_file import Answer, AnswerFile, open_answers, read_answers
from pipelines.answer_reports import (
    AnswerForecast,
    AnswerProgress,
    AnswerReport,
    Estimate,
    actual_cost,
    estimate,
)
from pipelines.answer_workers import QUESTION, AnswerQuestions
from pipelines.cluster import Workers, configure_ray_data, share_out
from pipelines.questions import Question, SetAside, read_questions
from sproutrag.ask import limits_of
from sproutrag.index import TreeIndex
from sproutrag.interruption import heed
from sproutrag.private_ray import ray_on_demand
from sproutrag.qa.models import default_llm, find_llm, is_url
from sproutrag.qa.openai import connect
from sproutrag.qa.options import AnswerOptions
from sproutrag.qa.trace import trace_name, write_trace

QUESTIONS_PER_WORKER = 16  # in flight; searching for more keeps a core busy
RETRIES = 6  # of a question whose worker is lost; more than a worker allows it, so that none ends the run
SLACK_SECONDS = 600  # beyond a question's own time limit: loading models, closing calls

Told = tuple[Answer, dict[str, Any]]  # an answer, and the outcome with its trace


class AnsweringFailed(Exception):
    """Ray gave up: something other than a question stopped the workers."""


@dataclass(frozen=True)
class Work:
    """What a run has to do. tried: questions that failed in an earlier run."""

    questions: list[Question]
    rejected: list[SetAside]
    to_do: list[Question]
    tried: int

    @property
    def done(self) -> int:
        return len(self.questions) - len(self.to_do)


def main(options: AnswerOptions) -> AnswerReport | AnswerForecast:
    questions, rejected = read_questions(options.questions)
    limits_of(options)  # a limit that makes no sense fails before anything is loaded
    if options.dry_run:
        return forecast(options, work_of(options, questions, rejected, read_answers(options.out)))
    with open_answers(options.out) as answers:
        work = work_of(options, questions, rejected, answers)
        return answered(options, work, answers)


def work_of(
    options: AnswerOptions, questions: list[Question], rejected: list[SetAside], answers: AnswerFile
) -> Work:
    to_do = [question for question in questions if not answers.finished(question, options.method)]
    tried = sum(bool(answers.answers.get(question.query_id, {}).get("failure")) for question in to_do)
    return Work(questions, rejected, to_do, tried)


def forecast(options: AnswerOptions, work: Work) -> AnswerForecast:
    expected = estimate(
        read_answers(options.out), len(work.to_do), method=options.method, in_flight=options.in_flight
    )
    return AnswerForecast(
        done=work.done,
        to_do=len(work.to_do),
        tried=work.tried,
        set_aside=len(work.rejected),
        estimate=expected,
        problems=work.rejected,
    )


def answered(options: AnswerOptions, work: Work, answers: AnswerFile) -> AnswerReport:
    """Ask what is left, then account for every line of the file of questions."""
    progress = AnswerProgress()
    expected = estimate(answers, len(work.to_do), method=options.method, in_flight=options.in_flight)
    fresh: list[Answer] = []
    snapshot = 0
    if work.to_do:
        index = TreeIndex.open(options.db, encoder=options.encoder)  # holds the snapshot for the workers
        snapshot = index.snapshot.id
        if options.where is not None:
            index.matching_documents(options.where)
        with progress.stage("answer", size=len(work.to_do)):
            for answer, told in ask(options, work.to_do, snapshot=snapshot):
                heed()
                fresh.append(keep(answer, told, options, answers))
                progress.answered(answer)
        index.close()
    return account(work, answers, fresh, expected, snapshot=snapshot, seconds=progress.elapsed)


def keep(answer: Answer, told: dict[str, Any], options: AnswerOptions, answers: AnswerFile) -> Answer:
    """Its trace in a file of its own, if that is wanted; the answer itself in the file of answers."""
    if options.traces and told:
        path = Path(options.traces, trace_name(answer["query_id"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_trace(path, told)
        answer["trace"] = str(path)
    answers.append(answer)
    return answer


def ask(options: AnswerOptions, questions: Sequence[Question], *, snapshot: int) -> Iterator[Told]:
    """Answers as they come, in any order."""
    llm = reachable(options.llm or default_llm())
    with ray_on_demand() as start_ray:
        start_ray()
        useful = -(-min(options.in_flight, len(questions)) // QUESTIONS_PER_WORKER)
        workers = share_out(0, useful=useful) if is_url(llm) else share_out(1)
        yield from stream(options, questions, llm=llm, snapshot=snapshot, workers=workers)


def reachable(llm: str) -> str:
    """Fails here, with one clear message, rather than in every worker."""
    if is_url(llm):
        url, _, model = llm.partition("#")
        connect(url, model=model)
    else:
        find_llm(llm)
    return llm


def stream(
    options: AnswerOptions, questions: Sequence[Question], *, llm: str, snapshot: int, workers: Workers
) -> Iterator[Told]:
    """One engine per worker: connections to a server, or all of vLLM in the only one."""
    configure_ray_data(patience=options.max_seconds + SLACK_SECONDS)
    at_once = -(-options.in_flight // workers.count)
    rows = [pa.table({"query_id": [q.query_id], "question": [q.text]}, schema=QUESTION) for q in questions]
    done = ray.data.from_arrow(rows).map_batches(
        AnswerQuestions,
        fn_constructor_kwargs={
            "db": options.db,
            "encoder": options.encoder,
            "where": options.where,
            "snapshot": snapshot,
            "llm": llm,
            "method": options.method,
            "limits": limits_of(options),
            "at_once": at_once,
            "attempts": ray.remote(num_cpus=0)(Attempts).remote(),
        },
        compute=ActorPoolStrategy(
            size=workers.count,
            max_tasks_in_flight_per_actor=at_once,
            max_concurrent_calls_per_actor=at_once,
        ),
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=workers.cpus,
        num_gpus=workers.gpus or None,
        max_restarts=-1,
        max_task_retries=RETRIES,
    )
    try:
        for batch in done.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            for answer, told in zip(batch["answer"].to_pylist(), batch["told"].to_pylist(), strict=True):
                yield json.loads(answer), json.loads(told)
    except RayError as error:  # its text ends with what happened, below the worker's whole traceback
        raise AnsweringFailed(
            f"the workers failed: {str(error).strip().splitlines()[-1]}\nThe answers that came are in "
            f"{options.out}; run again to go on. Set SPROUTRAG_DEBUG=1 to see all of it"
        ) from error


# --- what became of every question


def account(
    work: Work,
    answers: AnswerFile,
    fresh: Sequence[Answer],
    expected: Estimate,
    *,
    snapshot: int,
    seconds: float,
) -> AnswerReport:
    """Every line of the questions ends in exactly one of answered, partial, set aside; this is asserted."""
    final = {question.query_id: answers.answers.get(question.query_id) for question in work.questions}
    lost = [question for question in work.questions if failed(final[question.query_id])]
    problems = work.rejected + [set_aside(question, final[question.query_id]) for question in lost]
    given = [answer for answer in final.values() if answer and not failed(answer)]
    partial = sum(answer["partial"] for answer in given)
    report = AnswerReport(
        answered=len(given) - partial,
        partial=partial,
        set_aside=len(problems),
        unanswered=sum(not answer["answered"] for answer in given),
        resumed=work.done,
        cost=actual_cost(fresh, seconds),
        estimate=expected,
        snapshot=snapshot,
        snapshots=sorted({answer["snapshot"] for answer in given}),
        models=sorted({answer["model"] for answer in given}),
        problems=problems,
    )
    inputs = len(work.questions) + len(work.rejected)
    assert report.inputs == inputs, f"{inputs} questions came in but {report.inputs} are accounted for"
    return report


def failed(answer: Answer | None) -> bool:
    return answer is None or bool(answer.get("failure"))


def set_aside(question: Question, answer: Answer | None) -> SetAside:
    reason = answer["failure"] if answer else "no worker gave an answer back"
    return SetAside(question.query_id, question.place, reason, "Run again to try it again")
