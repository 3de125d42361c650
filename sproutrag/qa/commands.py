"""The commands of question answering: ask, answer, serve, trace. Each imports its job when it runs."""

import os
import sys
from contextlib import redirect_stdout

from sproutrag.qa.options import AnswerOptions, AskOptions, ServeOptions, TraceOptions
from sproutrag.terminal import print_answer, print_json, tell, terminal

DONE = 0


class NothingAsked(Exception):
    """The command line leaves out what to do; the message says what to write."""

    exit_status = 2  # wrong usage


def ask(options: AskOptions) -> int:
    if not options.question.strip():
        raise NothingAsked("the question is empty")
    from sproutrag.ask import main as answer_here

    told = answer_here(options)
    if options.json:
        print_json(told)
    else:
        print_answer(told)
    return DONE


def answer(options: AnswerOptions) -> int:
    if options.in_flight < 1:
        raise NothingAsked(f"--in-flight {options.in_flight}: ask at least one question at a time")
    from pipelines.answer import main as run_job

    with redirect_stdout(sys.stderr):  # Ray prints there when a worker dies
        told = run_job(options)
    return tell(told, as_json=options.json)


def serve(options: ServeOptions) -> int:
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # each line of a log counts; Ray reads this when imported
    os.environ.setdefault("RAY_SERVE_USE_GRPC_BY_DEFAULT", "1")  # halves what a call between replicas costs
    from serve.command import main as run_server
    from serve.command import make_key

    if options.new_key:
        print(make_key(options.new_key), end="")
        return DONE
    with redirect_stdout(sys.stderr):
        run_server(options)
    return DONE


def trace(options: TraceOptions) -> int:
    from sproutrag.qa.trace import read_trace
    from sproutrag.trace_view import draw_trace, write_trace_page

    told = read_trace(options.file)
    if options.html:
        write_trace_page(options.html, told)
        print(f"wrote {options.html}", file=sys.stderr)
    else:
        draw_trace(terminal(), told)
    return DONE
