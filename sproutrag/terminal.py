"""How commands print: JSON on one line, figures as aligned text, passages and answers with their spans."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

DONE = 0


def print_json(value: Any) -> None:
    """One line; where standard output cannot carry a character, its JSON escape."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = json.dumps(value, ensure_ascii=False)
    carried = text.encode(encoding, "ignore").decode(encoding) == text
    print(text if carried else json.dumps(value))


def terminal() -> Any:
    """rich on standard output; when its reader stops early, `run` answers, where rich would exit with 1."""
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise

    return Terminal()


def print_passages(found: Sequence[Any]) -> None:
    """Each passage with its document, score, spans and pages; text as stored, never read as markup."""
    from rich.padding import Padding
    from rich.text import Text

    from sproutrag.pages import cite

    console = terminal()
    if not found:
        print("nothing found", file=sys.stderr)
    for rank, passage in enumerate(found, start=1):
        spans = ", ".join(f"{start}:{stop}" for start, stop in passage.spans)
        heading = Text(f"{rank}. ", style="bold")
        heading.append(passage.title or passage.doc_id, style="bold cyan")
        heading.append(f"  {passage.score:.3f}", style="green")
        console.print(heading)
        place = cite(passage.pages, passage.sections)
        console.print(Text(f"   {passage.doc_id} [{spans}] {place}".rstrip(), style="dim"))
        console.print(Padding(Text(passage.text.strip()), (0, 0, 1, 3)))


def tell(told: Any, *, as_json: bool) -> int:
    """What a job returns, and the exit status that it means."""
    if as_json:
        print_json(told.as_json())
    told.show(terminal(), quiet=as_json)
    return int(told.exit_status)


def print_answer(told: dict[str, Any]) -> None:
    """The answer, its citations as stored, and what stayed open; text is never read as markup."""
    from rich.padding import Padding
    from rich.text import Text

    console = terminal()
    console.print(Text(told["answer"], style="bold" if told["answered"] else "yellow"))
    if len(told["answers"]) > 1:
        for item in told["answers"]:
            console.print(Text(f"  - {item}"))
    for number, citation in enumerate(told["citations"], start=1):
        spans = ", ".join(f"{start}:{stop}" for start, stop in citation["spans"])
        console.print(Text(f"[{number}] {citation['doc_id']} [{spans}]", style="cyan"))
        console.print(Padding(Text(citation["quote"].strip()), (0, 0, 0, 4)))
    if told["partial"]:
        print("partial: a limit or a failure kept something from this answer", file=sys.stderr)
    for open_question in told["open"]:
        print(f"open: {open_question['question']} ({open_question['reason']})", file=sys.stderr)
    usage = told["usage"]
    tokens = f"{usage['prompt_tokens']} + {usage['completion_tokens']} tokens"
    print(f"{usage['calls']} calls, {tokens}, {told['seconds']:.1f} s", file=sys.stderr)


def print_mended(mended: Any, *, as_json: bool) -> None:
    """What `verify --repair` repaired, what it had to leave, and what is still wrong."""
    if as_json:
        print_json({"ok": mended.ok} | asdict(mended))
        return
    for heading in ("repaired", "left", "problems"):
        print_figures(({heading: ""} | asdict(one) for one in getattr(mended, heading)), as_json=False)
    state = "sound" if mended.ok else "still broken"
    print(f"snapshot {mended.snapshot} is {state}: {mended.documents} documents")


def print_figures(figures: Any, *, as_json: bool) -> int:
    if as_json:
        print_json(figures)
    else:
        for figure in figures:
            print_table(figure)
    return DONE


def print_facts(facts: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        print_json(facts)
    else:
        print_table(facts)
    return DONE


def print_table(values: dict[str, Any]) -> None:
    width = max(map(len, values), default=0)
    for name, value in values.items():
        print(f"{name:<{width}}  {value}")
    print()
