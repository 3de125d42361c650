"""The trace of one question for the eye: in the terminal, and as one page without a single request.

Both draw what `qa.trace.outcome` tells. Questions, replies and evidence are hostile until drawn, as in
show.py: no control or direction character reaches the terminal, no markup the page.
"""

from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text
from rich.tree import Tree as RichTree

from sproutrag.show import counted, inline_hash, one_line, script_json

Node = dict[str, Any]  # a QuestionNode as JSON
COUNTS = ("calls", "prompt_tokens", "completion_tokens", "wasted_calls", "wasted_tokens")
LONGEST_LINE = 2000  # characters in the terminal; the page has all
STYLES = {"vertical": "cyan", "external": "green", "lateral": "magenta"}


def walk(node: Node, parent: int = -1, depth: int = 0) -> Iterator[tuple[Node, int, int]]:
    """Node, place of its parent in this order, depth; parents first."""
    stack, place = [(node, parent, depth)], 0
    while stack:
        node, parent, depth = stack.pop()
        yield node, parent, depth
        stack.extend((child, place, depth + 1) for child in reversed(node["children"]))
        place += 1


def asks(node: Node) -> str:
    return node["question"] or node["planned"]


def seconds_of(node: Node) -> float:
    return max(node["ended"] - node["began"], 0.0)


def usage_line(usage: dict[str, Any], seconds: float) -> str:
    tokens = usage["prompt_tokens"] + usage["completion_tokens"]
    facts = [counted(usage["calls"], "call", "calls"), f"{tokens:,} tokens", f"{seconds:.1f} s"]
    if usage["wasted_calls"]:
        facts.append(f"{counted(usage['wasted_calls'], 'call', 'calls')} wasted")
    return " · ".join(facts)


# --- in the terminal


def line_of(text: str) -> str:
    """Safe for a terminal; cut, because wrapping a very long word takes minutes."""
    line = one_line(text)
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"


def draw_trace(console: Console, told: dict[str, Any]) -> None:
    """The tree, one node on three lines; then the answer and its citations."""
    trace = told["trace"]
    drawn: list[RichTree] = []
    for node, parent, _ in walk(trace["root"]):
        label = node_label(node)
        drawn.append(drawn[parent].add(label) if drawn else RichTree(label, guide_style="dim"))
    console.print(drawn[0], highlight=False)
    console.print()
    console.print(Text(line_of(told["answer"]), style="bold" if told["answered"] else "yellow"))
    for number, citation in enumerate(told["citations"], start=1):
        console.print(Text(f"[{number}] {place_of(citation)}", style="cyan"), highlight=False)
        console.print(Padding(Text(line_of(citation["quote"])), (0, 0, 0, 4)), highlight=False)
    console.print(Text(" · ".join(facts_of(told)), style="dim"), highlight=False)


def node_label(node: Node) -> Text:
    strategy = node["strategy"] or "none"
    label = Text(f"{line_of(node['id'])} ", "bold").append(
        f"{line_of(strategy)} ", STYLES.get(strategy, "dim")
    )
    label.append(line_of(asks(node)))
    if node["question"] and node["planned"] != node["question"]:
        label.append(f"\nplanned: {line_of(node['planned'])}", "dim")
    result, style = result_of(node)
    label.append(f"\n{line_of(result)}", style)
    return label.append(
        "\n" + " · ".join([usage_line(node["bill"]["usage"], seconds_of(node)), *ties(node)]), "dim"
    )


def result_of(node: Node) -> tuple[str, str]:
    """What is known of a node, and its style."""
    if node["failure"]:
        return f"✗ {node['failure']}", "red"
    if not node["answered"]:
        return "○ not answered: the evidence does not say", "yellow"
    return f"→ {node['answer']}" + (" (partial)" if node["partial"] else ""), "bold"


def ties(node: Node) -> list[str]:
    """How a node hangs together with its siblings, and what it left out."""
    told = [f"wave {node['wave']}"]
    others = [id for id in node["cluster"] if id != node["id"]]
    if others:
        told.append(f"answered together with {line_of(', '.join(others))}")
    if node["reuses"]:
        told.append(f"reuses {line_of(node['reuses'])}")
    if node["unexplored"]:
        told.append(f"{len(node['unexplored'])} not explored")
    return told


def place_of(citation: dict[str, Any]) -> str:
    spans = ", ".join(f"{start}:{stop}" for start, stop in citation["spans"])
    return f"{line_of(citation['doc_id'])} [{spans}]"


def facts_of(told: dict[str, Any]) -> list[str]:
    trace = told["trace"]
    names = [
        f"{name} {line_of(str(trace[name]))}" for name in ("model", "method", "snapshot") if trace.get(name)
    ]
    seconds = told.get("seconds", seconds_of(trace["root"]))
    prompts = [f"prompts {line_of(', '.join(trace.get('prompts', [])))}"]
    return [usage_line(told["usage"], seconds), *(["partial"] if told["partial"] else []), *names, *prompts]


# --- as a page


def page_data(told: dict[str, Any]) -> dict[str, Any]:
    """What the page's script reads; times in seconds after the question began."""
    nodes = list(walk(told["trace"]["root"]))
    began = min((node["began"] for node, _, _ in nodes if node["began"]), default=0.0)
    rows = [node_data(node, parent, depth, began) for node, parent, depth in nodes]
    holders = {name_of(citation): place for place, row in enumerate(rows) for citation in row["citations"]
               if row["evidence"]}  # fmt: skip
    for row in rows:
        for citation in row["citations"]:
            citation["held"] = holders.get(name_of(citation), -1)
    return {
        "question": asks(told["trace"]["root"]),
        "answer": told["answer"],
        "answered": told["answered"],
        "facts": facts_of(told),
        "nodes": rows,
    }


def name_of(citation: dict[str, Any]) -> tuple[str, str]:
    return citation["doc_id"], str(citation["spans"])


SHOWN = (
    *("id", "planned", "question", "entity", "strategy", "query", "wave", "cluster", "reuses"),
    *("answered", "answer", "answers", "failure", "partial", "notes", "unexplored"),
)


def node_data(node: Node, parent: int, depth: int, began: float) -> dict[str, Any]:
    start = max(node["began"] - began, 0.0) if node["began"] else 0.0
    return {name: node[name] for name in SHOWN} | {
        "parent": parent,
        "depth": depth,
        "result": result_of(node)[0],
        "usage": usage_line(node["bill"]["usage"], seconds_of(node)),
        "from": round(start, 4),
        "to": round(start + seconds_of(node), 4),
        "calls": [call_data(call, began) for call in node["bill"]["calls"]],
        "evidence": [passage_data(passage, node["citations"]) for passage in node["evidence"]],
        "citations": [{key: one[key] for key in ("doc_id", "spans", "quote")} for one in node["citations"]],
    }


def call_data(call: dict[str, Any], began: float) -> dict[str, Any]:
    usage, shared = call["usage"], max(call.get("shared_by", 1), 1)
    to = max((call.get("ended") or began) - began, 0.0)
    figures = {"from": round(max(to - usage["seconds"] * shared, 0.0), 4), "to": round(to, 4)}
    return figures | {
        "prompt": call["prompt"],
        "how": call["how"],
        "shared": shared,
        "seconds": round(usage["seconds"] * shared, 3),
        **{name: usage[name] for name in COUNTS},
    }


def passage_data(passage: dict[str, Any], citations: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """pieces: text, quoted text, text, ...: offsets of code points mean nothing to a browser."""
    text = passage["text"]
    lit = [False] * len(text)
    offset = 0
    for first, stop in passage["spans"]:
        for start, end in spans_in(passage["doc_id"], citations):
            for place in range(max(start, first), min(end, stop)):
                if offset + place - first < len(text):
                    lit[offset + place - first] = True
        offset += stop - first
    shown = {name: passage.get(name) for name in ("doc_id", "title", "score", "pages", "sections")}
    return shown | {"pieces": pieces_of(text, lit)}


def spans_in(doc_id: str, citations: Sequence[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    for citation in citations:
        if citation["doc_id"] == doc_id:
            yield from ((start, end) for start, end in citation["spans"])


def pieces_of(text: str, lit: Sequence[bool]) -> list[str]:
    """Every second piece, from the second on, is lit."""
    pieces, state = [""], False
    for character, on in zip(text, lit, strict=True):
        if on != state:
            pieces.append("")
            state = on
        pieces[-1] += character
    return pieces


def write_trace_page(path: str | Path, told: dict[str, Any]) -> None:
    """Write one self-contained page: only its own style and script may run, and it requests nothing."""
    template = files("sproutrag").joinpath("page/trace.html").read_text(encoding="utf-8")
    for tag in ("style", "script"):
        template = template.replace("{{" + tag + "}}", inline_hash(template, tag))
    before, _, after = template.partition("{{data}}")
    Path(path).write_text(before + script_json(page_data(told)) + after, encoding="utf-8")
