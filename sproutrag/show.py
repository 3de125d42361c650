"""One document's tree for the eye: in the terminal, and as one page without a single request.

Both draw from a TreeView. Affinity is shaded by rank (it is too skewed for a linear scale) and printed as it is.
Document text is hostile until drawn: control and direction characters stay out of the terminal.
"""

import heapq
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from sproutrag.tree import Tree

LINES = 60  # what a tree is folded to when no depth is asked for
BARS = "▁▂▃▄▅▆▇█"
GREENS = ["#5f8f6f", "#4f9f6a", "#3fae64", "#2fbd5d", "#1fcc56"]  # legible on black and on white
AMBERS = ["#8f7f5f", "#a8843f", "#c18a2a", "#da8a18", "#f08a00"]
SNIPPET = 400  # characters of a leaf that can matter to one line
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


@dataclass(frozen=True, slots=True)
class TreeView:
    """A document, its tree and, after a query, what the search saw. Leaves are nodes 0..n-1.

    spans        (n, 2) int32: half-open code-point offsets into `text`; n may be 0, then `tree` is not read.
    node_scores  (2n-1,) float32: NaN where a node was not scored.
    beam         nodes the beam kept, in any order.
    evidence     nodes whose leaves were returned: pass the leaves of a passage that holds only some of its node.
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

    @property
    def n_leaves(self) -> int:
        return len(self.spans)

    def leaf_text(self, leaf: int, limit: int | None = None) -> str:
        start, stop = self.spans[leaf].tolist()
        return self.text[start : stop if limit is None else min(stop, start + limit)]

    def evidence_leaves(self) -> np.ndarray:
        """(n,) bool: leaves that were returned."""
        marked = np.zeros(self.n_leaves, dtype=bool)
        for node in self.evidence:
            marked[self.tree.leaves(node)] = True
        return marked


def shares(values: np.ndarray) -> np.ndarray:
    """Rank of each value in 0..1, ties in the middle of their ranks; all equal is 0.5."""
    ordered = np.sort(values)
    middle = (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") - 1) / 2
    return middle / max(len(values) - 1, 1) if len(values) > 1 else np.full(len(values), 0.5)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the drawing: a node, or several leaves that joined the chain above `node` one by one."""

    node: int
    joined: tuple[int, ...] = ()


def chain_below(tree: Tree, top: int) -> tuple[int, list[int]]:
    """The node where a chain of single-leaf merges ends, and the leaves that joined on the way, outermost first."""
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
    """Internal nodes to open so that `depth` lines lie between the root and the deepest line."""
    opened, level = set[int](), [tree.root]
    for _ in range(depth):
        level = [node for node in level if node >= tree.n_leaves]
        opened.update(level)
        level = [e.node for node in level for e in entries_below(tree, node, lit) if not e.joined]
    return opened


def open_to_lines(tree: Tree, lit: np.ndarray, budget: int) -> set[int]:
    """Internal nodes to open within about `budget` lines: those with lit leaves first, then the largest."""
    size = tree.slices[:, 1] - tree.slices[:, 0]
    found = np.append(0, np.cumsum(lit[tree.order]))
    holds = found[tree.slices[:, 1]] - found[tree.slices[:, 0]] > 0
    opened, lines = set[int](), 1
    waiting = [(not holds[tree.root], -int(size[tree.root]), tree.root)]
    while waiting and (lines < budget or not waiting[0][0]):
        _, _, node = heapq.heappop(waiting)
        if node < tree.n_leaves:
            continue
        opened.add(node)
        below = entries_below(tree, node, lit)
        lines += len(below)
        for entry in below:
            if not entry.joined:
                heapq.heappush(waiting, (not holds[entry.node], -int(size[entry.node]), entry.node))
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
    return UNPRINTABLE.sub("", " ".join(text.split()))


def fit(text: str, width: int) -> str:
    """`text` cut to `width` terminal cells; right-to-left text is isolated so that it cannot reorder the line."""
    if cell_len(text) > width:
        text = set_cell_size(text, max(width - 1, 0)).rstrip() + "…"
    if any(unicodedata.bidirectional(character) in ("R", "AL") for character in text):
        return f"\u2068{text}\u2069"
    return text


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
        self.shade = shares(self.tree.affinity)
        self.heat = None if view.node_scores is None else heat_of(view.node_scores)

    def columns(self, entry: Entry, size: int, opened: bool) -> Text:
        """The numbers left of the guides, in fixed width."""
        line = Text()
        merge = entry.node - self.tree.n_leaves
        line.append("       " if entry.joined else f"{entry.node:>7}", "dim")
        if merge < 0 or entry.joined:
            line.append(" " * 11)
        else:
            share = float(self.shade[merge])
            line.append(f"  {BARS[round(share * 7)]} {self.tree.affinity[merge]:<7.3g}", GREENS[round(share * 4)])
        if self.view.query:
            line.append_text(self.search_columns(entry, opened))
        leaf = entry.node < self.tree.n_leaves and not entry.joined
        return line.append(" " * 10 if leaf else f"{size:>8,}  ", "dim")

    def search_columns(self, entry: Entry, opened: bool) -> Text:
        line = Text()
        score = np.nan if self.heat is None or entry.joined else self.heat[entry.node]
        if np.isnan(score):
            line.append(" " * 8)
        else:
            assert self.view.node_scores is not None
            line.append(f"{self.view.node_scores[entry.node]:>8.3f}", AMBERS[round(float(score) * 4)])
        line.append(" ●" if entry.node in self.beam and not entry.joined else "  ", "bold cyan")
        return line.append("★" if self.returned(entry, opened) else " ", "bold magenta")

    def returned(self, entry: Entry, opened: bool) -> bool:
        """Whether evidence lies in what this line stands for: a leaf, or all that it folds away."""
        return not opened and not entry.joined and bool(self.lit[self.tree.leaves(entry.node)].any())

    def label(self, entry: Entry, opened: bool) -> tuple[str, str]:
        """Words right of the guides, and their style."""
        n = self.tree.n_leaves
        if entry.joined:
            first, last = (f"{a:.3g}" for a in self.affinities_of_joins(entry))
            ranges = leaf_ranges(np.sort(np.asarray(entry.joined)))
            return f"+ {len(entry.joined):,} leaves one by one, {first} → {last}: {ranges}", "dim"
        if entry.node < n:
            text = one_line(self.view.leaf_text(entry.node, SNIPPET))
            return text, "bold" if self.lit[entry.node] else ""
        leaves = self.tree.leaves(entry.node)
        if opened:
            return f"leaves {leaf_ranges(leaves)}", "dim"
        return f"⋯ {leaf_ranges(leaves)}: {one_line(self.view.leaf_text(int(leaves[0]), SNIPPET))}", ""

    def affinities_of_joins(self, entry: Entry) -> tuple[float, float]:
        """Affinity of the first (strongest) and the last join among `entry.joined`."""
        joined = np.isin(self.tree.merges, entry.joined).any(axis=1)
        return float(self.tree.affinity[joined].max()), float(self.tree.affinity[joined].min())

    def line(self, guide: str, entry: Entry, opened: bool) -> Text:
        size = len(entry.joined) or int(np.diff(self.tree.slices[entry.node])[0])
        line = self.columns(entry, size, opened)
        room = max(self.console.width - line.cell_len, 12)
        if len(guide) > room // 2:
            guide = "…" + guide[-(room // 2) :]
        line.append(guide, "dim")
        label, style = self.label(entry, opened)
        return line.append(fit(label, max(room - len(guide), 8)), style)


def heat_of(scores: np.ndarray) -> np.ndarray:
    """Scores spread over 0..1 by value; NaN stays NaN."""
    known = scores[np.isfinite(scores)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    spread = np.clip((scores.astype(np.float64) - low) / max(high - low, 1e-12), 0, 1)
    return np.where(np.isfinite(scores), spread, np.nan)


def draw_tree(console: Console, view: TreeView, *, depth: int | None = None) -> None:
    """Print the tree, one line per node or chain of single-leaf merges.

    `depth` lines lie between root and deepest line; None folds the tree to about LINES lines, evidence always open.
    """
    print_header(console, view)
    if not view.n_leaves:
        print_line(console, Text("no leaves: the document has no text", "dim"))
        return
    drawing, tree = TreeDrawing(console, view), view.tree
    if depth is None:
        opened = open_to_lines(tree, drawing.lit, LINES)
    else:
        opened = open_to_depth(tree, drawing.lit, depth)
    scores = "   score   " if view.query else ""
    print_line(console, Text(f"{'node':>7}  affinity {scores}{'leaves':>8}  tree", "dim italic"))
    hidden = 0
    for guide, entry in walk(tree, drawing.lit, opened):
        print_line(console, drawing.line(guide, entry, entry.node in opened))
        hidden += not entry.joined and tree.n_leaves <= entry.node and entry.node not in opened
    print_footer(console, view, hidden)


def print_header(console: Console, view: TreeView) -> None:
    facts = [counted(view.n_leaves, "leaf", "leaves")]
    if view.n_leaves > 1:
        weak, strong = (float(a) for a in (view.tree.affinity.min(), view.tree.affinity.max()))
        facts += [counted(view.tree.n_nodes, "node", "nodes"), f"depth {view.tree.depth:,}"]
        facts += [f"affinity {weak:.3g} {BARS} {strong:.3g} by rank"]
    names = [one_line(name) for name in (view.title, view.doc_id) if name]
    print_line(console, Text(fit(names[0] if names else "", console.width), "bold"))
    for line in [*dict.fromkeys(names[1:]), " · ".join(facts)]:
        print_line(console, Text(fit(line, console.width), "dim"))
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
