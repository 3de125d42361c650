"""HTML trees as plain text: headings, items, tables and code in the Markdown shapes that `blocks` knows.

Not an extractor of news articles: on our test pages trafilatura 2.3 loses headings and lists, readability
0.9 nested lists and tables, both without a word. An index of evidence keeps what a reader sees; it leaves out
what the page itself marks as navigation, and lists of nothing but links.
"""

import re
from typing import Any

from lxml import etree, html

from sproutrag.records import Unreadable

HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
BLOCKS = {
    *HEADINGS, "address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details",
    "dialog", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "head", "header", "hr",
    "html", "legend", "li", "main", "menu", "nav", "ol", "p", "pre", "section", "summary", "table", "tbody",
    "td", "tfoot", "th", "thead", "tr", "ul",
}  # fmt: skip
UNSEEN = (
    "script", "style", "noscript", "template", "svg", "iframe", "object", "embed", "button", "input",
    "select", "textarea", "datalist", "audio", "video", "canvas",
    "rt", "rp",  # readings above Chinese and Japanese words, which would cut them apart
)  # fmt: skip
HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.I)
NAVIGATION_ROLES = ("navigation", "banner", "contentinfo", "search", "menu", "menubar", "alertdialog")
CONSENT = re.compile(r"(?:^|[\s_-])(?:cookies?|consent|gdpr)(?:$|[\s_-])", re.I)
CONSENT_CHARS = 1_000  # a longer block that names cookies is a text about them
LINK_SHARE, LINKS = 0.7, 3  # of the characters, at least so many: a list of nothing but links
MAIN_SHARE = 0.25  # of the page's characters: with less, <main> is not what the page is about
CELL_CHARS = 1_000  # a table with a longer cell is layout
SPACE = re.compile(r"[ \t\r\n\f]+")
VOID = "area|base|br|col|hr|img|input|link|meta|source|wbr"
DTD = re.compile(r"<!doctype[^<>\[]{0,500}+\[.{0,20000}?\]\s*+>", re.I | re.S)  # XHTML may declare entities
EMPTY_TAG = re.compile(rf"<(?!(?:{VOID})\b)([a-zA-Z][\w:.-]*+)([^<>]*+)(?<=/)>")


class Writer:
    """Text under construction: finished blocks, and the line that inline elements add to."""

    def __init__(self) -> None:
        self.blocks: list[tuple[str, bool]] = []  # (text, is it a list item?)
        self.line: list[str] = []
        self.prefix = ""
        self.lists: list[int] = []  # items so far of each open <ol>, -1 for <ul>

    def open(self, tag: str) -> None:
        if tag in BLOCKS:
            self.flush()
        if tag in HEADINGS:
            self.prefix = HEADINGS[tag]
        elif tag in ("ul", "ol", "menu"):
            self.lists.append(0 if tag == "ol" else -1)
        elif tag == "li":
            self.prefix = self.bullet()
        elif tag == "br":
            self.line.append("\n")

    def close(self, tag: str) -> None:
        if tag in BLOCKS:
            self.flush()
        if tag in ("ul", "ol", "menu"):
            self.lists.pop()
        if tag == "li" or tag in HEADINGS:
            self.prefix = ""

    def bullet(self) -> str:
        indent = "  " * max(0, len(self.lists) - 1)
        if not self.lists or self.lists[-1] < 0:
            return indent + "- "
        self.lists[-1] += 1
        return f"{indent}{self.lists[-1]}. "

    def add(self, text: str | None) -> None:
        if text:
            self.line.append(SPACE.sub(" ", text))

    def flush(self) -> None:
        lines = [" ".join(filter(None, line.split(" "))) for line in "".join(self.line).split("\n")]
        self.line = []
        text = (" " if self.prefix else "\n").join(filter(None, lines))
        if text:
            self.blocks.append(
                (self.prefix + text, bool(self.prefix) and self.prefix not in HEADINGS.values())
            )
            self.prefix = ""

    def place(self, text: str) -> None:
        """A block as it is."""
        self.flush()
        if text.strip():
            self.blocks.append((text, False))

    def text(self) -> str:
        self.flush()
        parts: list[str] = []
        after_item = False
        for text, is_item in self.blocks:
            if parts:
                parts.append("\n" if after_item and is_item else "\n\n")
            parts.append(text)
            after_item = is_item
        return "".join(parts)


def parse(page: str) -> Any:
    """The tree of a page, however malformed, without comments and what is never seen."""
    page = DTD.sub("", page, count=1)
    page = EMPTY_TAG.sub(r"<\1\2></\1>", page.replace("\0", ""))  # XHTML's <title/> would swallow the page
    parser = html.HTMLParser(encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True)
    root = html.document_fromstring(page.encode("utf-8", "replace"), parser=parser)
    if any("depth" in entry.message for entry in parser.error_log):
        raise Unreadable("elements nested too deep to be read whole", "simplify the page")
    marked = root.xpath("//*[@hidden or @aria-hidden='true' or @style]")
    for element in [*root.iter(*UNSEEN), *filter(_is_hidden, marked)]:
        _drop(element)
    return root


def _is_hidden(element: Any) -> bool:
    styled = HIDDEN.search(element.get("style", "")) is not None
    return styled or element.get("aria-hidden") == "true" or "hidden" in element.attrib


def _drop(element: Any) -> None:
    if element.getparent() is not None:
        element.drop_tree()


def title_of(root: Any) -> str:
    """The first <h1> where <title> repeats it beside the name of the site, else <title>, else that <h1>."""
    titles = [SPACE.sub(" ", title.text_content()).strip() for title in root.iter("title")]
    headings = [SPACE.sub(" ", heading.text_content()).strip() for heading in root.iter("h1")]
    title, heading = next(iter(titles), ""), next(iter(headings), "")
    return heading if not title or (heading and heading in title) else title


def body_of(root: Any) -> Any:
    """The page without its title. Not its <body>: without that tag, the parser leaves <main> in the head."""
    for title in list(root.iter("title")):
        _drop(title)
    return root


def main_content(root: Any) -> tuple[Any, int]:
    """(the element that holds the main text, characters left out: navigation, banners, lists of links)."""
    body = body_of(root)
    total = length(body)
    named = body.xpath(".//main | .//*[@role='main']") or body.xpath(".//article[not(ancestor::article)]")
    if len(named) == 1 and length(named[0]) >= MAIN_SHARE * total:
        body = named[0]
    for element in list(body.iter()):
        if element is not body and _is_navigation(element):
            _drop(element)
    for element in link_lists(body):
        _drop(element)
    return body, total - length(body)


def _is_navigation(element: Any) -> bool:
    if element.tag == "nav" or element.get("role") in NAVIGATION_ROLES:
        return True
    label = f"{element.get('id', '')} {element.get('class', '')}"
    if CONSENT.search(label) and len(element.text_content()) < CONSENT_CHARS:
        return True
    if element.tag not in ("aside", "footer", "header") or element.find(".//h1") is not None:
        return False
    return next(element.iterancestors("main", "article", "blockquote", "figure"), None) is None


def link_lists(body: Any) -> list[Any]:
    """Outermost blocks of nothing but links; none where these are most of the page and so its point."""
    sizes = measure(body)
    found: list[Any] = []
    walker = etree.iterwalk(body, events=("start",))
    for _, element in walker:
        total, linked, links = sizes[element]
        if element is not body and element.tag in BLOCKS and links >= LINKS and linked > LINK_SHARE * total:
            found.append(element)
            walker.skip_subtree()
    return found if sum(sizes[element][0] for element in found) < sizes[body][0] / 2 else []


def length(root: Any) -> int:
    """Characters without the space around each piece of text."""
    return sum(len(text.strip()) for text in root.itertext())


def measure(root: Any) -> dict[Any, tuple[int, int, int]]:
    """Characters, those inside links, and the number of links, of each element. One pass."""
    sizes: dict[Any, tuple[int, int, int]] = {}
    for _, element in etree.iterwalk(root, events=("end",)):
        within = [sizes[child] for child in element]
        texts = [element.text, *(child.tail for child in element)]
        total = sum(len(text.strip()) for text in texts if text) + sum(size[0] for size in within)
        is_link = element.tag == "a"
        linked = total if is_link else sum(size[1] for size in within)
        sizes[element] = (total, linked, is_link + sum(size[2] for size in within))
    return sizes


def text_of(root: Any) -> str:
    """The text below an element, block by block. One pass, whatever the depth."""
    writer = Writer()
    walker = etree.iterwalk(root, events=("start", "end"))
    for event, element in walker:
        tag = element.tag if type(element.tag) is str else ""
        if event == "end":
            writer.close(tag)
            if element is not root:
                writer.add(element.tail)
        elif tag == "pre":
            writer.place(_fenced(element.text_content()))
            walker.skip_subtree()
        elif tag == "table" and (rows := _data_rows(element)):
            writer.place("\n".join(rows))
            walker.skip_subtree()
        else:
            writer.open(tag)
            writer.add(element.text)
    return writer.text()


def _fenced(code: str) -> str:
    fence = "~~~" if "```" in code else "```"
    return f"{fence}\n{code.strip(chr(10))}\n{fence}" if code.strip() else ""


def _data_rows(table: Any) -> list[str]:
    """The rows as Markdown, the header with its rule; nothing for a table that only arranges a page."""
    if table.find(".//table") is not None or table.find(".//pre") is not None:
        return []
    rows = [[cell for cell in row if cell.tag in ("td", "th")] for row in table.iter("tr")]
    texts = [[text_of(cell).replace("\n", " ").replace("|", "\\|") for cell in row] for row in rows]
    if max(map(len, texts), default=0) < 2 or max(len(text) for row in texts for text in row) > CELL_CHARS:
        return []
    kept = [cell for row in rows for cell in row] + list(table.iter("caption"))
    if sum(map(length, kept)) < length(table):
        return []  # malformed: there is text beside the cells
    caption = [text_of(caption) + "\n" for caption in table.iter("caption")]
    lines = [f"| {' | '.join(row)} |" for row in texts if any(row)]
    if lines and all(cell.tag == "th" or cell.getparent().getparent().tag == "thead" for cell in rows[0]):
        lines.insert(1, "|" + "---|" * len(rows[0]))
    return caption + lines
