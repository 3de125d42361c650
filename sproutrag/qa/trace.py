"""A resolved tree as one JSON document, and what of it answers the person who asked."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sproutrag.qa.llm import Usage
from sproutrag.qa.question import NOT_ANSWERED, QuestionNode

FORMAT = 1  # of the trace; a reader refuses another one
LONGEST_NAME = 120  # characters of a file's name


class NoTrace(Exception):
    """A file that is no trace; the message says what is."""

    exit_status = 2  # wrong usage


def outcome(
    root: QuestionNode, *, model: str, snapshot: int | None = None, method: str = "apt-rag"
) -> dict[str, Any]:
    """Answer, citations, what stayed open and what it cost; with the whole trace."""
    trace = {"format": FORMAT, "model": model, "method": method, "snapshot": snapshot}
    return {
        "question": root.asks,
        "answer": root.answer if root.answered else NOT_ANSWERED,
        "answers": root.answers,
        "citations": [asdict(citation) for citation in root.citations],
        "answered": root.answered,
        "partial": root.partial,
        "open": list(open_questions(root)),
        "warnings": [f"{node.id}: {note}" for node in root.walk() for note in node.notes],
        "usage": asdict(total_usage(root)),
        "trace": trace | {"prompts": prompts_used(root), "root": asdict(root)},
    }


def prompts_used(root: QuestionNode) -> list[str]:
    """name@version of each."""
    return sorted({call.prompt for node in root.walk() for call in node.bill.calls})


def total_usage(root: QuestionNode) -> Usage:
    """The sum over the tree: what the engine counted."""
    total = Usage()
    for node in root.walk():
        total.add(node.bill.usage)
    return total


def open_questions(root: QuestionNode) -> Iterator[dict[str, str]]:
    """Sub-questions without an answer, and those that a limit kept from being asked."""
    for node in root.walk():
        if not node.answered and (node is not root or node.failure):
            why = node.failure or "the evidence does not say"
            yield {"id": node.id, "question": node.asks, "reason": why}
        yield from ({"id": node.id, "question": q, "reason": "not explored"} for q in node.unexplored)


def outline(root: QuestionNode) -> list[tuple[Any, ...]]:
    """What two runs of the same question must agree on: everything but times."""
    return [
        (
            node.id, node.wave, node.question, node.strategy, node.query, tuple(node.cluster), node.reuses,
            node.answered, node.answer, tuple(node.answers), tuple(node.citations), node.failure,
            tuple(node.unexplored), tuple(node.notes), node.bill.usage.calls, node.bill.usage.prompt_tokens,
            tuple((passage.doc_id, passage.leaves) for passage in node.evidence),
        )
        for node in root.walk()
    ]  # fmt: skip


# --- as a file


def write_trace(path: str | Path, told: dict[str, Any]) -> None:
    text = json.dumps(told, ensure_ascii=False, indent=1)
    Path(path).write_bytes(text.encode("utf-8", "replace"))


def read_trace(path: str | Path) -> dict[str, Any]:
    """What `write_trace` wrote; refuses anything else by name."""
    try:
        told = json.loads(Path(path).read_bytes(), parse_constant=lambda _: None)  # NaN is no JSON
    except OSError as error:
        raise NoTrace(f"{path}: {error.strerror}; {WRITES_TRACES}") from error
    except (ValueError, RecursionError) as error:
        raise NoTrace(f"{path} is no trace ({error}); {WRITES_TRACES}") from error
    trace = told.get("trace") if type(told) is dict else None
    if type(trace) is not dict or "root" not in trace:
        raise NoTrace(f"{path} is no trace; {WRITES_TRACES}")
    if trace.get("format") != FORMAT:
        raise NoTrace(f"{path} has format {trace.get('format')}, this sproutrag reads {FORMAT}: ask again")
    return told


WRITES_TRACES = "`sproutrag ask --trace FILE` and `sproutrag answer --traces DIR` write traces"


def trace_name(query_id: str) -> str:
    """File name for the trace of any query_id: no path leads out of its directory, no two ids share one."""
    safe = quote(query_id, safe=" ").replace(".", "%2E")
    if len(safe) > LONGEST_NAME:
        safe = f"{safe[:LONGEST_NAME]}-{hashlib.sha256(query_id.encode()).hexdigest()[:16]}"
    return f"{safe}.json"
