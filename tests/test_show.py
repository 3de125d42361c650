"""The drawn tree: every leaf once, no line too long, and no document that escapes into terminal or page."""

import base64
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from scipy.sparse import csr_array

from sproutrag.show import (
    LINES,
    ROWS,
    TreeView,
    draw_tree,
    icicle_rows,
    leaf_ranges,
    open_to_depth,
    page_data,
    ranks,
    script_json,
    walk,
    write_page,
)
from sproutrag.tree import Tree, build_tree

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "<!--<script>",
    "سياسة الخصوصية: لا نبيع بياناتك الشخصية لأي طرف ثالث.",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈",
    "合同期限为三年。任何一方均可提前终止本合同，但须提前三十天书面通知对方。" * 3,
    "line\u2028separator\u2029paragraph",
    "x" * 10_000,
    "{{data}} {{script}} ]]> &amp;",
    "\u202eevil\x1b[31m\x9b2J\x07red",
    "tab\tnew\nline\r\nend",
]
trees = st.builds(lambda n, seed: random_tree(n, seed), st.integers(1, 60), st.integers(0, 2**32 - 1))


def random_tree(n: int, seed: int) -> Tree:
    upper = np.triu(np.random.default_rng(seed).random((n, n)), 1).astype(np.float32)
    return build_tree(csr_array(upper + upper.T))


def caterpillar(n: int) -> Tree:
    """Leaf after leaf joins one growing node."""
    merges = [[0, 1]] + [[n + k - 1, k + 1] for k in range(1, n - 1)]
    return Tree.from_merges(np.asarray(merges), np.linspace(0.9, 0.1, n - 1))


def ladder(n: int) -> Tree:
    """Pair after pair joins one growing node: deep, without a chain of single leaves."""
    pairs = [[leaf, leaf + 1] for leaf in range(0, n, 2)]
    joins = [[n, n + 1]] + [[n + n // 2 + k, n + 2 + k] for k in range(n // 2 - 2)]
    return Tree.from_merges(np.asarray(pairs + joins), np.linspace(1, 0, n - 1))


def view_of(leaves: list[str], tree: Tree, **search: object) -> TreeView:
    stops = np.cumsum([len(leaf) + 1 for leaf in leaves])
    spans = np.column_stack([stops - [len(leaf) + 1 for leaf in leaves], stops - 1]).astype(np.int32)
    text = "\n".join(leaves)
    return TreeView("contracts/1.txt", "A contract", text, spans, tree, **search)  # type: ignore[arg-type]


def numbered(tree: Tree, **search: object) -> TreeView:
    return view_of([f"Sentence number {leaf}." for leaf in range(tree.n_leaves)], tree, **search)


def test_leaves_are_drawn_with_their_pages() -> None:
    view = numbered(caterpillar(3), places=("page 1", "pages 1, 2", "page 2"))
    assert "[pages 1, 2] Sentence number 1." in drawn(view)
    assert page_data(view)["places"] == view.places
    assert page_data(numbered(caterpillar(3)))["places"] == ()


def empty_view() -> TreeView:
    return TreeView(
        "empty", "", "", np.empty((0, 2), np.int32), Tree.from_merges(np.empty((0, 2)), np.empty(0))
    )


def drawn(view: TreeView, *, width: int = 100, depth: int | None = None, colour: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=colour, color_system="256" if colour else "auto")
    draw_tree(console, view, depth=depth)
    return file.getvalue()


class Page(HTMLParser):
    """What a browser would find: tags, attributes and the text of each script and style."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[tuple[str, str]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style") and data.strip():
            self.inline.append((self.tags[-1][0], data))

    @property
    def data(self) -> dict[str, object]:
        return json.loads(self.inline[1][1])


def written(view: TreeView, folder: Path) -> Page:
    write_page(folder / "tree.html", view)
    return Page(folder / "tree.html")


@given(trees, st.booleans())
def test_every_leaf_is_drawn_once_when_all_is_open(tree: Tree, search: bool) -> None:
    lit = np.arange(tree.n_leaves) % 3 == 0 if search else np.zeros(tree.n_leaves, dtype=bool)
    leaves: list[int] = []
    for _, entry in walk(tree, lit, open_to_depth(tree, lit, tree.n_leaves)):
        leaves += entry.joined or [entry.node] * (entry.node < tree.n_leaves)
    assert sorted(leaves) == list(range(tree.n_leaves))


@settings(deadline=None, max_examples=40)
@given(trees, st.text(max_size=60), st.integers(50, 140), st.sampled_from([None, 0, 1, 3, 99]))
def test_no_line_is_wider_than_the_terminal(tree: Tree, text: str, width: int, depth: int | None) -> None:
    leaves = [text.replace("\n", " ") + HOSTILE[leaf % len(HOSTILE)] for leaf in range(tree.n_leaves)]
    scores = np.linspace(-1, 1, tree.n_nodes, dtype=np.float32)
    lines = drawn(view_of(leaves, tree, query=text, node_scores=scores), width=width, depth=depth)
    assert max(cell_len(re.sub("[\u2068\u2069]", "", line)) for line in lines.splitlines()) <= width


def test_a_caterpillar_of_300_leaves_stays_readable() -> None:
    lines = drawn(numbered(caterpillar(300))).splitlines()
    assert len(lines) < 10
    assert "+ 298 leaves one by one, 0.897 → 0.1: 2–299" in "\n".join(lines)


def test_a_long_tree_is_folded_to_a_screen_and_says_so() -> None:
    lines = drawn(numbered(random_tree(600, 4))).splitlines()
    assert LINES <= len(lines) <= LINES + 20
    assert re.search(r"⋯ \d+ nodes? folded: --depth N opens more", lines[-1])


def test_depth_opens_that_many_levels() -> None:
    balanced = Tree.from_merges(np.array([[0, 1], [2, 3], [4, 5]]), np.array([0.9, 0.8, 0.1]))
    assert "└" not in drawn(numbered(balanced), depth=0) and "⋯ 0–3: Sentence number 0." in drawn(
        numbered(balanced), depth=0
    )
    assert drawn(numbered(balanced), depth=1).count("⋯ ") == 3  # both halves, and the note below
    assert all(f"Sentence number {leaf}." in drawn(numbered(balanced), depth=2) for leaf in range(4))


def test_a_tree_thousands_deep_is_drawn_without_recursion() -> None:
    lines = drawn(numbered(ladder(2400)), depth=10_000).splitlines()
    assert len(lines) > 2400 and max(map(len, lines)) <= 100


def test_a_query_lights_up_scores_beam_and_evidence() -> None:
    tree = random_tree(8, 1)
    scores = np.linspace(0, 1, 15, dtype=np.float32)
    scores[0] = np.nan
    text = drawn(numbered(tree, query="when?", node_scores=scores, beam=(14, 3), evidence=(3, 5)), depth=9)
    rows = {int(line.split()[0]): line for line in text.splitlines() if line.split()[0].isdigit()}
    assert "query: when?" in text and "1.000 ●" in rows[14]
    assert "0.214 ●★" in rows[3] and "0.357  ★" in rows[5]
    assert "●" not in rows[1] and "★" not in rows[1] and "nan" not in text


def test_evidence_that_is_folded_away_is_listed_below_the_tree() -> None:
    view = numbered(caterpillar(20), query="when?", evidence=(17,))
    folded = drawn(view, depth=0)
    assert "★ Sentence number 17." in folded
    assert "Sentence number 17." in drawn(view) and "★ Sentence" not in drawn(view)


def test_documents_cannot_steer_the_terminal() -> None:
    view = view_of(HOSTILE, random_tree(len(HOSTILE), 0), query="\x1b]0;title\x07")
    piped = drawn(view, depth=99)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]", piped)
    assert "\u2068سياسة" in piped and "…\u2069" in piped.replace(" ثالث.\u2069", "…\u2069")
    assert "\x1b[" in drawn(view, colour=True)


def test_documents_without_a_tree_are_named_as_such() -> None:
    assert "no leaves: the document has no text" in drawn(empty_view())
    assert "Sentence number 0." in drawn(numbered(random_tree(1, 0)))


def test_leaf_ranges_and_ranks() -> None:
    assert leaf_ranges(np.array([0, 1, 2, 5, 7, 8])) == "0–2, 5, 7–8"
    np.testing.assert_allclose(ranks(np.array([3.0, 1.0, 2.0, 1.0])), [1, 1 / 6, 2 / 3, 1 / 6])
    np.testing.assert_allclose(ranks(np.array([2.0])), [0.5])


@given(trees)
def test_a_row_of_the_icicle_holds_a_leaf_of_the_document_once(tree: Tree) -> None:
    """Only a node and its larger part share a row, so that cells of one row never lie over each other."""
    check_rows(tree)


@pytest.mark.parametrize("tree", [caterpillar(3000), random_tree(40, 5), random_tree(400, 6), ladder(3000)])
def test_deep_trees_have_few_rows(tree: Tree) -> None:
    check_rows(tree)
    assert icicle_rows(tree).max() <= max(ROWS, np.log(tree.n_leaves) / np.log(1.25) + 1)


def check_rows(tree: Tree) -> None:
    rows, n = icicle_rows(tree), tree.n_leaves
    size = np.diff(tree.slices, axis=1).ravel()
    assert rows[tree.root] == 0
    for k, (left, right) in enumerate(tree.merges.tolist()):
        below = [rows[left] - rows[n + k], rows[right] - rows[n + k]]
        assert sorted(below) in ([0, 1], [1, 1])
        if 0 in below:
            shared, other = (left, right) if below[0] == 0 else (right, left)
            assert shared >= n and size[shared] >= size[other]


some_text = st.one_of(st.sampled_from(HOSTILE), st.text(min_size=1, max_size=20))


@settings(max_examples=50)
@given(st.lists(some_text, min_size=1, max_size=12), st.integers(0, 99))
def test_the_page_holds_the_document_unaltered_and_inert(leaves: list[str], seed: int) -> None:
    view = view_of(leaves, random_tree(len(leaves), seed), query="</script><b>\u2028")
    plain = script_json(page_data(view))
    assert not re.search("[<>&\u2028\u2029]", plain)
    data = json.loads(plain)
    assert "".join(data["pieces"]) == view.text and data["pieces"][1::2] == leaves
    assert data["query"] == view.query


def test_lone_surrogates_do_not_stop_the_page(tmp_path: Path) -> None:
    assert written(view_of(["a\udc80b"], random_tree(1, 0)), tmp_path).data["pieces"] == ["", "a\udc80b", ""]


def test_a_hostile_document_adds_no_tag_to_the_page(tmp_path: Path) -> None:
    hostile = written(view_of(HOSTILE, random_tree(len(HOSTILE), 0)), tmp_path)
    plain = written(numbered(random_tree(3, 0)), tmp_path)
    assert hostile.tags == plain.tags
    assert [tag for tag, _ in hostile.inline] == ["style", "script", "script"]


def test_the_page_requests_nothing_and_runs_only_its_own_script(tmp_path: Path) -> None:
    page = written(numbered(random_tree(5, 0)), tmp_path)
    attributes = [pair for _, found in page.tags for pair in found.items()]
    (policy,) = (
        value or "" for name, value in attributes if name == "content" and "default-src" in (value or "")
    )
    style, _, script = (source for _, source in page.inline)
    for directive, source in (("style-src", style), ("script-src", script)):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert [value for name, value in attributes if name in ("src", "href")] == ["data:,"]
    assert not [name for name, _ in attributes if name.startswith("on")]
    assert not re.search(r"(inner|outer)HTML|insertAdjacent|document\.write|eval\(|fetch\(|https?:", script)


def test_the_page_carries_the_search(tmp_path: Path) -> None:
    tree = random_tree(6, 2)
    scores = np.arange(11, dtype=np.float32) / 10
    scores[4] = np.nan
    data = written(
        numbered(tree, query="q", node_scores=scores, beam=(10, 2), evidence=(tree.root,)), tmp_path
    ).data
    assert data["scores"] == [0.0, 0.1, 0.2, 0.3, None, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert data["beam"] == [10, 2] and data["evidence"] == [0, 1, 2, 3, 4, 5]
    assert data["merges"] == tree.merges.ravel().tolist() and data["order"] == tree.order.tolist()


def test_an_empty_document_has_a_page(tmp_path: Path) -> None:
    assert written(empty_view(), tmp_path).data["pieces"] == [""]


def test_the_page_of_3000_leaves_is_little_more_than_its_text(tmp_path: Path) -> None:
    view = numbered(caterpillar(3000))
    write_page(tmp_path / "tree.html", view)
    assert (tmp_path / "tree.html").stat().st_size < 30_000 + 2 * len(view.text) + 100 * view.tree.n_leaves
