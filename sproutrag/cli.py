"""The command line: picks a command, runs it, prints what it returns. A command imports its job when it runs.

Data goes to standard output, progress and logs to standard error. Exit status: 0 done; 1 failed; 2 wrong
usage; 3 done, but some inputs were set aside; 130 interrupted.
"""

import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Annotated, Any

import tyro
from tyro.conf import subcommand

from sproutrag.interruption import asked, remembered
from sproutrag.options import (
    BenchOptions,
    DeleteOptions,
    EvaluateOptions,
    IndexOptions,
    ModelsOptions,
    QuarantineOptions,
    RollbackOptions,
    SearchOptions,
    ShowOptions,
    StatsOptions,
    VerifyOptions,
    VersionsOptions,
)
from sproutrag.qa.commands import answer, ask, serve, trace
from sproutrag.qa.options import AnswerOptions, AskOptions, ServeOptions, TraceOptions
from sproutrag.terminal import (
    print_facts,
    print_figures,
    print_json,
    print_mended,
    print_passages,
    tell,
    terminal,
)

DONE, FAILED, WRONG_USAGE, SET_ASIDE, INTERRUPTED = 0, 1, 2, 3, 130

Command = (
    Annotated[IndexOptions, subcommand("index")]
    | Annotated[QuarantineOptions, subcommand("quarantine")]
    | Annotated[SearchOptions, subcommand("search")]
    | Annotated[AskOptions, subcommand("ask")]
    | Annotated[AnswerOptions, subcommand("answer")]
    | Annotated[ServeOptions, subcommand("serve")]
    | Annotated[TraceOptions, subcommand("trace")]
    | Annotated[ShowOptions, subcommand("show")]
    | Annotated[StatsOptions, subcommand("stats")]
    | Annotated[VersionsOptions, subcommand("versions")]
    | Annotated[RollbackOptions, subcommand("rollback")]
    | Annotated[VerifyOptions, subcommand("verify")]
    | Annotated[DeleteOptions, subcommand("delete")]
    | Annotated[ModelsOptions, subcommand("models")]
    | Annotated[BenchOptions, subcommand("bench")]
    | Annotated[EvaluateOptions, subcommand("evaluate")]
)


class WrongUsage(Exception):
    """The command line asks for something that makes no sense; the message says what to write instead."""

    exit_status = WRONG_USAGE


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as on standard error: shown, never fatal
    sys.exit(run(arguments))


def run(arguments: Sequence[str]) -> int:
    """One command from words to exit status; raises nothing but what tyro does for help and wrong flags."""
    if list(arguments) == ["--version"]:
        print(version("sproutrag"))
        return DONE
    options = tyro.cli(
        Command,
        prog="sproutrag",
        description="From files to evidence: sentence trees grown from an encoder's own attention.",
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    try:
        require_place(options)
        with remembered():
            status = COMMANDS[type(options)](options)
        print(end="", flush=True)  # not sys.stdout.flush(): it is None where standard output is closed
        return status
    except KeyboardInterrupt:
        return report_interruption()
    except BrokenPipeError:  # whoever reads our output has seen enough, as in `sproutrag search ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:  # one that came of Ctrl-C is no failure
        return report_interruption() if asked.is_set() else report_failure(error)


def report_interruption() -> int:
    print("interrupted; what did not finish changes nothing, and the next run continues it", file=sys.stderr)
    return INTERRUPTED


def report_failure(error: Exception) -> int:
    """One clear message on standard error; the traceback only for who asks for it. Returns the exit status.

    An exception that is the caller's fault says so by its `exit_status`.
    """
    if os.environ.get("SPROUTRAG_DEBUG") == "1":
        traceback.print_exception(error)
        return FAILED
    if is_ours(error):
        print(f"sproutrag: {error}", file=sys.stderr)
    else:
        hint = "set SPROUTRAG_DEBUG=1 to see where this happened"
        print(f"sproutrag: {type(error).__name__}: {error}\n{hint}", file=sys.stderr)
    return getattr(error, "exit_status", FAILED)


def is_ours(error: Exception) -> bool:
    """Our exceptions carry messages written for people; of any other the name is worth printing too."""
    return any(kind.__module__.split(".")[0] in ("sproutrag", "pipelines") for kind in type(error).__mro__)


def require_place(options: Any) -> None:
    """An empty --db, as of an unset shell variable, would be the root of the file system."""
    db = getattr(options, "db", None)
    if db == "":
        raise WrongUsage("--db is empty: name the directory of an index, or a new one")
    if db and "://" in db:
        from sproutrag.snapshots import require_openable

        require_openable(db)


# --- one function per command


def index(options: IndexOptions) -> int:
    if not options.sources:
        raise WrongUsage("nothing to index: name files or directories (sproutrag index docs --db my.db)")
    if options.workers < 0:
        raise WrongUsage(f"--workers {options.workers}: give a number of processes, or 0 to choose by itself")
    require_kept(options.keep)
    from pipelines.index import forecast
    from pipelines.index import main as run_job

    with redirect_stdout(sys.stderr):  # Ray prints there when a worker dies
        told = forecast(options) if options.dry_run else run_job(options)
    return tell(told, as_json=options.json)


def quarantine(options: QuarantineOptions) -> int:
    if options.action == "retry":
        from pipelines.retry import retry

        with redirect_stdout(sys.stderr):
            told = retry(options)
        return tell(told, as_json=options.json)
    from sproutrag.quarantine import read_rows

    return print_figures([row.as_json() for row in read_rows(options.db)], as_json=options.json)


def require_kept(keep: int | None) -> None:
    if keep is not None and keep < 1:
        raise WrongUsage(f"--keep {keep}: the current snapshot always stays, so at least 1")


def search(options: SearchOptions) -> int:
    if options.k < 1:
        raise WrongUsage(f"-k {options.k}: ask for at least one leaf")
    from sproutrag.index import TreeIndex

    index = TreeIndex.open(options.db, encoder=options.encoder)
    found = index.search(options.query, k=options.k, mode=options.mode, doc=options.doc, where=options.where)
    if options.json:
        print_json([asdict(passage) for passage in found])
    else:
        print_passages(found)
    return DONE


def show(options: ShowOptions) -> int:
    from sproutrag.show import draw_tree, page_data, write_page

    view = tree_view(options)
    if options.html:
        try:
            write_page(options.html, view)
        except OSError as error:
            place = f"--html {options.html}: {(error.strerror or str(error)).lower()}"
            raise WrongUsage(
                f"{place}; name a file in a directory that is there and may be written"
            ) from error
        print(f"wrote {options.html}", file=sys.stderr)
    if options.json:
        print_json(page_data(view))
    elif not options.html:
        draw_tree(terminal(), view)
    return DONE


def tree_view(options: ShowOptions) -> Any:
    """The document and, with a query, what a search in this document alone returns."""
    from sproutrag.documents import LONE_SURROGATE
    from sproutrag.index import TreeIndex
    from sproutrag.pages import places
    from sproutrag.show import TreeView

    index = TreeIndex.open(options.db)
    stored = index.document(options.doc)
    document = stored.document
    where = places(document.metadata, stored.spans)
    view = TreeView(document.id, document.title, document.text, stored.spans, stored.tree, places=where)
    if not options.query:
        return view
    scores, beam = index.retriever.trace(options.query, document.id)
    found = index.search(options.query, doc=document.id)
    return replace(
        view,
        query=LONE_SURROGATE.sub("\ufffd", options.query),
        node_scores=scores,
        beam=tuple(beam.tolist()),
        evidence=tuple(leaf for passage in found for leaf in passage.leaves),
    )


def stats(options: StatsOptions) -> int:
    from sproutrag.index import TreeIndex

    return print_facts(TreeIndex.open(options.db).stats(), as_json=options.json)


def versions(options: VersionsOptions) -> int:
    require_kept(options.keep)
    from sproutrag import retention

    if options.keep is None:
        return print_figures(retention.versions(options.db), as_json=options.json)
    freed = asdict(retention.prune(options.db, keep=options.keep, wait_s=options.wait))
    kept = retention.versions(options.db)
    if options.json:
        print_json({"freed": freed, "versions": kept})
    else:
        print_figures([freed, *kept], as_json=False)
    return FAILED if freed["failed"] else DONE


def rollback(options: RollbackOptions) -> int:
    from sproutrag import retention

    snapshot = asdict(retention.rollback(options.db, options.id, wait_s=options.wait))
    return print_figures(snapshot if options.json else [snapshot], as_json=options.json)


def verify(options: VerifyOptions) -> int:
    if options.repair:
        return mend(options)
    from sproutrag import verification

    found = verification.verify(options.db, snapshot=options.snapshot)
    if options.json:
        print_json({"ok": found.ok} | asdict(found))
    elif found.ok:
        print(f"snapshot {found.snapshot} is sound: {found.documents} documents")
    else:
        print_figures(map(asdict, found.problems), as_json=False)
    return DONE if found.ok else FAILED


def mend(options: VerifyOptions) -> int:
    if options.snapshot is not None:
        raise WrongUsage("--repair mends the newest state: leave --snapshot out, or roll back first")
    from pipelines.repair import main as run_job

    with redirect_stdout(sys.stderr):
        mended = run_job(options)
    print_mended(mended, as_json=options.json)
    return DONE if mended.ok else FAILED


def delete(options: DeleteOptions) -> int:
    if not options.docs:
        raise WrongUsage("nothing to delete: name documents (sproutrag delete docs/a.md --db my.db)")
    from sproutrag import retention

    deleted = retention.delete_documents(options.db, options.docs, purge=options.purge, wait_s=options.wait)
    proof = asdict(deleted)
    return print_figures(proof if options.json else [proof], as_json=options.json)


def models(options: ModelsOptions) -> int:
    from sproutrag.models import find_encoder, list_models
    from sproutrag.qa.models import find_llm, is_llm, list_llms

    if options.action == "list":
        known = [*list_models(), *list_llms()]
        return print_figures([asdict(model) for model in known], as_json=options.json)
    if not options.name:
        raise WrongUsage("models get: say which one; `sproutrag models list` names them")
    find = find_llm if is_llm(options.name) else find_encoder
    return print_facts({"name": options.name, "path": find(options.name)}, as_json=options.json)


def bench(options: BenchOptions) -> int:
    from pipelines.benchmark import main as run_job

    with redirect_stdout(sys.stderr):
        figures = run_job(options)
    return print_figures(figures, as_json=options.json)


def evaluate(options: EvaluateOptions) -> int:
    from pipelines.evaluate import main as run_job

    return print_figures(run_job(options), as_json=options.json)


COMMANDS: dict[type, Callable[[Any], int]] = {
    IndexOptions: index,
    QuarantineOptions: quarantine,
    SearchOptions: search,
    AskOptions: ask,
    AnswerOptions: answer,
    ServeOptions: serve,
    TraceOptions: trace,
    ShowOptions: show,
    StatsOptions: stats,
    VersionsOptions: versions,
    RollbackOptions: rollback,
    VerifyOptions: verify,
    DeleteOptions: delete,
    ModelsOptions: models,
    BenchOptions: bench,
    EvaluateOptions: evaluate,
}

if __name__ == "__main__":
    main()
