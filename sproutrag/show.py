"""One document's tree for the eye: in the terminal, and as one page without a single request.

Both draw from a TreeView. Affinity is shaded by rank: it is too skewed for a linear scale. Document text is
hostile until drawn: no control or direction character reaches the terminal, no markup the page.
"""

import base64
import hashlib
import heapq
import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from sproutrag.tree import Tree

LINES = 60  # what a tree is folded to when no depth is asked for
COLUMNS, COLUMNS_WITH_SCORES = (f"   node  affinity {score}  leaves  tree" for score in ("", "   score   "))
BARS = "▁▂▃▄▅▆▇█"
GREENS = ["#5f8f6f", "#4f9f6a", "#3fae64", "#2fbd5d", "#1fcc56"]  # legible on black and on white
AMBERS = ["#8f7f5f", "#a8843f", "#c18a2a", "#da8a18", "#f08a00"]
SNIPPET = 400  # characters of a leaf that can matter to one line
ROWS = 16  # deepest tree whose icicle gives every depth its own row
STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
UNSAFE_IN_SCRIPT = re.compile("[<>&\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class TreeView:
    """A document, its tree and, after a query, what the search saw. Leaves are nodes 0..n-1.

    spans        (n, 2) int32: half-open code-point offsets into `text`; n may be 0, then `tree` is not read.
    node_scores  (2n-1,) float32: NaN where a node was not scored.
    beam         nodes the beam kept, in any order.
    evidence     nodes whose leaves were returned: pass the leaves of a passage that holds part of its node.
    places       (n,) page or section of each leaf, in words; () where the format has none.
    """

    doc_id: str
    title: str
    text: str
    spans: np.ndarray
    tree: Tree
    query: str = ""
    node_scores: np.ndarray | None = None
    beam: tuple[int, ...] = ()
    evidence: tuple[int, ...] = ()
    places: tuple[str, ...] = ()

    @property
    def n_leaves(self) -> int:
        return len(self.spans)

    def opening(self, leaf: int) -> str:
        """How the leaf begins, after its page where it has one, in one line."""
        start, stop = self.spans[leaf].tolist()
        text = one_line(self.text[start : min(stop, start + SNIPPET)])
        return f"[{self.places[leaf]}] {text}" if self.places else text

    def evidence_leaves(self) -> np.ndarray:
        """(n,) bool: leaves that were returned."""
        marked = np.zeros(self.n_leaves, dtype=bool)
        for node in self.evidence:
            marked[self.tree.leaves(node)] = True
        return marked


def ranks(values: np.ndarray) -> np.ndarray:
    """Rank of each value in 0..1, ties in the middle of their ranks; all equal is 0.5."""
    ordered = np.sort(values)
    middle = (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") - 1) / 2
    return middle / max(len(values) - 1, 1) if len(values) > 1 else np.full(len(values), 0.5)


def scores_of(view: TreeView) -> np.ndarray:
    """(2n-1,) scores, NaN throughout where the search gave none."""
    return np.full(view.tree.n_nodes, np.nan) if view.node_scores is None else view.node_scores


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the drawing: a node, or several leaves that joined the chain above `node` one by one."""

    node: int
    joined: tuple[int, ...] = ()


def chain_below(tree: Tree, top: int) -> tuple[int, list[int]]:
    """Where a chain of single-leaf merges ends, and the leaves that joined on the way, outermost first."""
    n, node, joined = tree.n_leaves, top, []
    while node >= n:
        left, right = tree.merges[node - n].tolist()
        if (left < n) == (right < n):
            break
        joined.append(min(left, right))  # a leaf is numbered below every merge
        node = max(left, right)
    return node, joined


def entries_below(tree: Tree, top: int, lit: np.ndarray) -> list[Entry]:
    """What to draw under an open node: the two parts of its core, and leaves of the chain, in document order.

    More than three leaves of one chain share a line; lit (n,) bool leaves keep their own.
    """
    core, joined = chain_below(tree, top)
    quiet = [leaf for leaf in joined if not lit[leaf]]
    shared = tuple(quiet) if len(quiet) > 3 else ()
    single = [leaf for leaf in joined if lit[leaf] or not shared]
    parts = [*tree.merges[core - tree.n_leaves].tolist(), *single]
    parts.sort(key=lambda node: int(tree.leaves(node)[0]))
    return [Entry(node) for node in parts] + ([Entry(core, shared)] if shared else [])


def open_to_depth(tree: Tree, lit: np.ndarray, depth: int) -> set[int]:
    """Internal nodes to open so that every line down to `depth` is drawn."""
    opened, reached = set[int](), [tree.root]
    for _ in range(depth):
        reached = [node for node in reached if node >= tree.n_leaves]
        opened.update(reached)
        reached = [e.node for node in reached for e in entries_below(tree, node, lit) if not e.joined]
    return opened


def open_to_lines(tree: Tree, lit: np.ndarray, budget: int) -> set[int]:
    """Internal nodes to open within about `budget` lines: those with lit leaves first, then the largest."""
    size = tree.slices[:, 1] - tree.slices[:, 0]
    found = np.append(0, np.cumsum(lit[tree.order]))
    holds = found[tree.slices[:, 1]] - found[tree.slices[:, 0]] > 0
    opened, lines = set[int](), 1
    waiting = [(not holds[tree.root], -int(size[tree.root]), tree.root)]
    while waiting and lines < budget:
        _, _, node = heapq.heappop(waiting)
        if node < tree.n_leaves:
            continue
        opened.add(node)
        below = entries_below(tree, node, lit)
        lines += len(below)
        for node in (entry.node for entry in below if not entry.joined):
            heapq.heappush(waiting, (not holds[node], -int(size[node]), node))
    return opened


def walk(tree: Tree, lit: np.ndarray, opened: set[int]) -> Iterator[tuple[str, Entry]]:
    """Guide and entry of every line, from the root down; no recursion, as a tree may be thousands deep."""
    stack = [("", "", Entry(tree.root))]
    while stack:
        above, guide, entry = stack.pop()
        yield above + guide, entry
        if entry.joined or entry.node not in opened:
            continue
        inherited = above + {"": "", "├ ": "│ ", "└ ": "  "}[guide]
        below = entries_below(tree, entry.node, lit)
        guides = ["├ "] * (len(below) - 1) + ["└ "]
        stack.extend((inherited, guide, e) for guide, e in reversed(list(zip(guides, below, strict=True))))


def one_line(text: str) -> str:
    """`text` without line breaks or characters that steer a terminal (escapes, marks of direction)."""
    return STEERING.sub("", " ".join(text.split()))


def fit(text: str, width: int) -> str:
    """`text` cut to `width` cells; right-to-left text is isolated so that it cannot reorder the line."""
    if cell_len(text) > width:
        text = set_cell_size(text, max(width - 1, 0)).rstrip() + "…"
    isolate = any(unicodedata.bidirectional(character) in ("R", "AL") for character in text)
    return f"\u2068{text}\u2069" if isolate else text


def leaf_ranges(leaves: np.ndarray) -> str:
    """Ascending leaves as 0–4, 7, 9–12."""
    runs = np.split(leaves, np.flatnonzero(np.diff(leaves) > 1) + 1)
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def counted(count: int, noun: str, plural: str) -> str:
    return f"{count:,} {noun if count == 1 else plural}"


class TreeDrawing:
    """The columns of one terminal drawing: node, affinity, score, leaves, then guides and text."""

    def __init__(self, console: Console, view: TreeView) -> None:
        self.console, self.view, self.tree = console, view, view.tree
        self.lit = view.evidence_leaves()
        self.beam = set(view.beam)
        self.shade = ranks(self.tree.affinity)
        self.scores = scores_of(view)
        self.heat = np.zeros(self.tree.n_nodes)
        self.heat[np.isfinite(self.scores)] = ranks(self.scores[np.isfinite(self.scores)])

    def columns(self, entry: Entry, opened: bool) -> Text:
        """The numbers left of the guides, in fixed width; leaves drawn in one line have only their count."""
        merge = entry.node - self.tree.n_leaves
        size = len(entry.joined) or int(np.diff(self.tree.slices[entry.node])[0])
        line = Text(" " * 7 if entry.joined else f"{entry.node:>7}", "dim")
        if merge < 0 or entry.joined:
            line.append(" " * 11)
        else:
            share, affinity = float(self.shade[merge]), float(self.tree.affinity[merge])
            line.append(f"  {BARS[round(share * 7)]} {affinity:<7.3g}", GREENS[round(share * 4)])
        if self.view.query:
            self.append_search(line, entry, opened)
        return line.append(f"{size:>8,}  " if merge >= 0 or entry.joined else " " * 10, "dim")

    def append_search(self, line: Text, entry: Entry, opened: bool) -> None:
        """Score, beam mark and evidence mark; a folded node is marked for the evidence it hides."""
        node, alone = entry.node, not entry.joined
        score, heat = float(self.scores[node]), float(self.heat[node])
        scored = f"{score:>8.3f}" if alone and np.isfinite(score) else " " * 8
        line.append(scored, AMBERS[round(heat * 4)])
        line.append(" ●" if alone and node in self.beam else "  ", "bold cyan")
        holds = alone and not opened and self.lit[self.tree.leaves(node)].any()
        line.append("★" if holds else " ", "bold magenta")

    def label(self, entry: Entry, opened: bool) -> tuple[str, str]:
        """Words right of the guides, and their style."""
        n = self.tree.n_leaves
        if entry.joined:
            joins = self.tree.affinity[np.isin(self.tree.merges, entry.joined).any(axis=1)]
            ranges = leaf_ranges(np.sort(np.asarray(entry.joined)))
            return f"+ {joins.size:,} leaves one by one, {joins[0]:.3g} → {joins[-1]:.3g}: {ranges}", "dim"
        if entry.node < n:
            return self.view.opening(entry.node), "bold" if self.lit[entry.node] else ""
        leaves = self.tree.leaves(entry.node)
        if opened:
            return f"leaves {leaf_ranges(leaves)}", "dim"
        return f"⋯ {leaf_ranges(leaves)}: {self.view.opening(int(leaves[0]))}", ""

    def line(self, guide: str, entry: Entry, opened: bool) -> Text:
        line = self.columns(entry, opened)
        room = max(self.console.width - line.cell_len, 8)
        if len(guide) > room // 2:
            guide = "…" + guide[1 - room // 2 :]
        line.append(guide, "dim")
        label, style = self.label(entry, opened)
        return line.append(fit(label, room - len(guide)), style)


def draw_tree(console: Console, view: TreeView, *, depth: int | None = None) -> None:
    """Print the tree, one line per node or chain of single-leaf merges, then evidence that was folded away.

    `depth` levels are opened below the root; None opens the largest nodes until about LINES lines are full.
    """
    print_header(console, view)
    if not view.n_leaves:
        print_line(console, Text("no leaves: the document has no text", "dim"))
        return
    drawing, tree, lit = TreeDrawing(console, view), view.tree, view.evidence_leaves()
    opened = open_to_lines(tree, lit, LINES) if depth is None else open_to_depth(tree, lit, depth)
    print_line(console, Text(COLUMNS_WITH_SCORES if view.query else COLUMNS, "dim italic"))
    drawn = list(walk(tree, lit, opened))
    for guide, entry in drawn:
        print_line(console, drawing.line(guide, entry, entry.node in opened))
    alone = {entry.node for _, entry in drawn if not entry.joined}
    for leaf in sorted(set(np.flatnonzero(lit).tolist()) - alone):
        print_line(console, drawing.line("★ ", Entry(leaf), False))
    print_footer(console, view, sum(node >= tree.n_leaves for node in alone - opened))


def print_header(console: Console, view: TreeView) -> None:
    facts = [counted(view.n_leaves, "leaf", "leaves")]
    if view.n_leaves > 1:
        weak, strong = (float(a) for a in (view.tree.affinity.min(), view.tree.affinity.max()))
        facts += [counted(view.tree.n_nodes, "node", "nodes"), f"depth {view.tree.depth:,}"]
        facts += [f"affinity {weak:.3g} {BARS} {strong:.3g} by rank"]
    names = dict.fromkeys(one_line(name) for name in (view.title, view.doc_id) if name)
    for line, style in zip([*names, " · ".join(facts)], ["bold", "dim", "dim"], strict=False):
        print_line(console, Text(fit(line, console.width), style))
    if view.query:
        print_line(console, Text(fit(f"query: {one_line(view.query)}", console.width), "bold cyan"))


def print_footer(console: Console, view: TreeView, hidden: int) -> None:
    notes = ["● kept by the beam · ★ returned as evidence"] if view.query else []
    if hidden:
        notes.append(f"⋯ {counted(hidden, 'node', 'nodes')} folded: --depth N opens more")
    if notes:
        print_line(console, Text(fit(" · ".join(notes), console.width), "dim"))


def print_line(console: Console, line: Text) -> None:
    console.print(line, soft_wrap=True, highlight=False)


def icicle_rows(tree: Tree) -> np.ndarray:
    """(2n-1,) row of each node, root 0: its depth, or in trees deeper than ROWS fewer, O(log n).

    There a part of at most a quarter of its sibling, and every single leaf, joins within the sibling's row.
    """
    if tree.depth <= ROWS:
        return tree.depths
    n, size = tree.n_leaves, (tree.slices[:, 1] - tree.slices[:, 0]).tolist()
    rows = [0] * tree.n_nodes
    for k, (left, right) in reversed(list(enumerate(tree.merges.tolist()))):
        large, small = (left, right) if size[left] >= size[right] else (right, left)
        shared = size[large] > 1 and (size[small] == 1 or size[small] * 4 <= size[large])
        rows[small], rows[large] = rows[n + k] + 1, rows[n + k] + (not shared)
    return np.asarray(rows, dtype=np.int32)


def page_data(view: TreeView) -> dict[str, object]:
    """What the page's script reads; numbers in six digits, scores null where unknown."""
    # gap, leaf, gap, ..., leaf, gap: offsets of code points mean nothing to a browser
    cuts = pairwise([0, *view.spans.ravel().tolist(), len(view.text)])
    data: dict[str, object] = {"docId": view.doc_id, "title": view.title, "query": view.query}
    data |= {"pieces": [view.text[a:b] for a, b in cuts], "places": view.places}
    data |= {"scores": None, "beam": [], "evidence": []}
    if not view.n_leaves:
        return data | {key: [] for key in ("affinity", "shade", "merges", "order", "slices", "rows")}
    tree = view.tree
    for name, numbers in {"affinity": tree.affinity, "shade": ranks(tree.affinity)}.items():
        data[name] = [float(f"{number:.6g}") for number in numbers.tolist()]
    arrays = {"merges": tree.merges, "order": tree.order, "slices": tree.slices, "rows": icicle_rows(tree)}
    data |= {name: array.ravel().tolist() for name, array in arrays.items()}
    if view.query:
        data["scores"] = [float(f"{s:.6g}") if np.isfinite(s) else None for s in scores_of(view).tolist()]
        data["beam"] = [int(node) for node in view.beam]
        data["evidence"] = np.flatnonzero(view.evidence_leaves()).tolist()
    return data


def script_json(value: object) -> str:
    """JSON that no HTML parser can mistake for markup, and that survives any encoding of surrogates."""
    plain = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return UNSAFE_IN_SCRIPT.sub(lambda match: f"\\u{ord(match[0]):04x}", plain)


def inline_hash(template: str, tag: str) -> str:
    """What a Content-Security-Policy calls the one inline <tag> of the template."""
    source = template.split(f"<{tag}>")[1].split(f"</{tag}>")[0]
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def write_page(path: str | Path, view: TreeView) -> None:
    """Write one self-contained page: only its own style and script may run, and it requests nothing."""
    template = files("sproutrag").joinpath("page/tree.html").read_text(encoding="utf-8")
    for tag in ("style", "script"):
        template = template.replace("{{" + tag + "}}", inline_hash(template, tag))
    before, _, after = template.partition("{{data}}")
    Path(path).write_text(before + script_json(page_data(view)) + after, encoding="utf-8")
