"""The layout of a text: lines grouped into blocks, in one linear pass. Knows nothing of sentences."""

import re
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

PROSE_WIDTH = 120  # characters; a longer line was not wrapped by hand, so its end is the end of a paragraph
CJK_STOPS = ("。", "！", "？", "。”", "。」")  # a line that ends so may as well be a paragraph
MIN_WRAP_WIDTH = 40  # narrower lines are verse, addresses or forms, where each line stands for itself
RAGGED = 8  # characters a hand-wrapped line may stay short of its paragraph's width
TITLE_CHARS, TITLE_WORDS = 60, 6
CODE_LINES, CODE_CHARS = 8, 600

FENCE = re.compile(r" {0,3}(`{3}|~{3})")
HEADING = re.compile(r" {0,3}#{1,6}[ \t]+\S")
UNDERLINE = re.compile(r" {0,3}(?:={2,}|-{2,})\s*\Z")
SEPARATOR = re.compile(r"(?=[^|]*+\|)\s*+\|?[ \t]*+:?-++:?[ \t]*+(?:\|[ \t]*+:?-++:?[ \t]*+)*+\|?\s*+\Z")
BULLET = re.compile(r"\s*+[-*+•‣◦▪·●][ \t]+\S")
NUMBERED = re.compile(
    r"\s*+(?:\(?(?:\d{1,3}(?:\.\d{1,3})*+|[a-zA-Z]|[ivxIVX]{1,5})[.)]\s+\S|[一二三四五六七八九十]{1,3}、|（[一二三四五六七八九十\d]{1,3}）)"
)
FIRST_WORD = re.compile(r"\S{1,40}")
TERMINAL = re.compile(r"[.!?。！？;；,，、…؟۔।:：][\"'”’»)\]）」』】]*+\Z")


class Kind(IntEnum):
    PROSE = 0
    ITEM = 1
    HEADING = 2
    TABLE_HEADER = 3
    TABLE_ROW = 4
    CODE = 5


class Block(NamedTuple):
    """Characters [start, end) of one kind. No blank line lies between blocks of one `paragraph` number."""

    start: int
    end: int
    kind: Kind
    paragraph: int


class Line(NamedTuple):
    """A line that is not blank; `after_gap`: a blank line comes before it."""

    start: int
    text: str
    after_gap: bool

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def blocks(text: str) -> list[Block]:
    """Blocks in document order, disjoint, together holding every non-space character. O(len(text))."""
    found: list[Block] = []
    paragraph = 0
    for run in _runs(_lines(text)):
        paragraph += 1
        for kind, first, last in _shapes(run):
            if kind is Kind.PROSE:
                paragraph = _add_prose(found, run[first:last], paragraph)
            else:
                paragraph += 1
                found.append(Block(run[first].start, run[last - 1].end, kind, paragraph))
                paragraph += 1
    return _promote_titles(found, text)


def _lines(text: str) -> list[Line]:
    lines: list[Line] = []
    start, gap = 0, True
    for line in text.splitlines(keepends=True):
        if not line.isspace():
            lines.append(Line(start, line, gap))
        gap = line.isspace()
        start += len(line)
    return lines


def _runs(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Stretches of lines without a blank line; a fenced code block is one stretch, with its blanks."""
    closes = _fence_ends(lines)
    first = i = 0
    while i < len(lines):
        if i > first and (lines[i].after_gap or i in closes):
            yield list(lines[first:i])
            first = i
        if i in closes:
            yield list(lines[i : closes[i]])
            first = i = closes[i]
            continue
        i += 1
    if first < len(lines):
        yield list(lines[first:])


def _fence_ends(lines: Sequence[Line]) -> dict[int, int]:
    """Line of an opening fence -> line after its closing one. A fence that is never closed is prose."""
    ends: dict[int, int] = {}
    opened, mark = -1, ""
    for i, line in enumerate(lines):
        fence = FENCE.match(line.text) if "```" in line.text or "~~~" in line.text else None
        if fence is None or (mark and fence[1] != mark):
            continue
        if mark:
            ends[opened] = i + 1
            mark = ""
        else:
            opened, mark = i, fence[1]
    return ends


def _shapes(run: Sequence[Line]) -> Iterator[tuple[Kind, int, int]]:
    """(kind, first, last) slices of `run`; neighbouring plain lines form one PROSE slice."""
    if FENCE.match(run[0].text) and len(run) > 1 and FENCE.match(run[-1].text):
        yield from _code_groups(run)
        return
    i = prose = 0
    while i < len(run):
        kind, last = _shape_at(run, i)
        if kind is not Kind.PROSE:
            if prose < i:
                yield Kind.PROSE, prose, i
            yield kind, i, last
            if kind is Kind.TABLE_HEADER:
                while last < len(run) and "|" in run[last].text:
                    yield Kind.TABLE_ROW, last, last + 1
                    last += 1
            prose = last
        i = last
    if prose < len(run):
        yield Kind.PROSE, prose, len(run)


def _shape_at(run: Sequence[Line], i: int) -> tuple[Kind, int]:
    """What starts at line `i`, and the line after it."""
    text = run[i].text
    following = run[i + 1].text if i + 1 < len(run) else ""
    if HEADING.match(text):
        return Kind.HEADING, i + 1
    if "|" in text:
        if "-" in following and SEPARATOR.match(following):
            return Kind.TABLE_HEADER, i + 2
        stripped = text.strip()
        if stripped[0] == "|" == stripped[-1] and len(stripped) > 1:
            return Kind.TABLE_ROW, i + 1
    if len(text) <= PROSE_WIDTH and UNDERLINE.match(following) and not BULLET.match(text):
        return Kind.HEADING, i + 2
    return Kind.PROSE, i + 1


def _code_groups(run: Sequence[Line]) -> Iterator[tuple[Kind, int, int]]:
    """Groups of whole lines; fences stay with the code beside them."""
    first, chars = 0, 0
    for i, line in enumerate(run):
        full = i - first >= CODE_LINES or chars + len(line.text) > CODE_CHARS
        if full and 1 < i < len(run) - 1 and i > first:
            yield Kind.CODE, first, i
            first, chars = i, 0
        chars += len(line.text)
    yield Kind.CODE, first, len(run)


def _add_prose(found: list[Block], lines: Sequence[Line], paragraph: int) -> int:
    """Cut plain lines where a line break is more than a wrap; returns the paragraph number reached."""
    width = max(len(line.text.rstrip()) for line in lines)
    first, kind = 0, _prose_kind(lines[0])
    for i in range(1, len(lines)):
        before, line = lines[i - 1].text, lines[i].text
        wrapped = _is_wrap(before, line, width)
        if wrapped and not BULLET.match(line):
            continue
        found.append(Block(lines[first].start, lines[i - 1].end, kind, paragraph))
        paragraph += _width(before) > PROSE_WIDTH
        first, kind = i, _prose_kind(lines[i])
    found.append(Block(lines[first].start, lines[-1].end, kind, paragraph))
    return paragraph


def _width(line: str) -> int:
    """Length in UTF-8 bytes, which is about what it fills on a page in any script."""
    return len(line) if line.isascii() or len(line) > PROSE_WIDTH else len(line.encode("utf-8", "replace"))


def _prose_kind(line: Line) -> Kind:
    return Kind.ITEM if BULLET.match(line.text) or NUMBERED.match(line.text) else Kind.PROSE


def _is_wrap(before: str, line: str, width: int) -> bool:
    """Is the line break a wrap by hand: did the next word not fit, or does it go on in lower case?"""
    word = FIRST_WORD.search(line)
    if word is None or len(before) > PROSE_WIDTH + RAGGED or before.rstrip().endswith(CJK_STOPS):
        return False
    if word[0][0].islower() and not NUMBERED.match(line):
        return True
    if width < MIN_WRAP_WIDTH or width > PROSE_WIDTH:
        return False
    needed = 1 if ord(word[0][0]) >= 0x2E80 else len(word[0]) + 1
    return len(before.rstrip()) + needed > width - RAGGED


def _promote_titles(found: list[Block], text: str) -> list[Block]:
    """Short lines without a full stop before something longer are headings, whatever the markup."""
    for i in range(len(found) - 2, -1, -1):
        block, following = found[i], found[i + 1]
        if block.kind <= Kind.ITEM and block.end - block.start <= 2 * TITLE_CHARS:
            line = text[block.start : block.end].strip().strip("*_")
            if _is_title(line, block, text[following.start : following.end], following):
                found[i] = block._replace(kind=Kind.HEADING)
    return found


def _is_title(line: str, block: Block, next_text: str, following: Block) -> bool:
    if line.endswith((":", "：")) and block.kind is Kind.PROSE:
        return True
    if not line or len(line) > TITLE_CHARS or "\n" in line or not line[0].isalnum() or line[0].islower():
        return False
    apart = block.paragraph != following.paragraph and following.kind is Kind.PROSE
    if block.kind is Kind.ITEM or (line[0].isdigit() and TERMINAL.search(line)):
        return line.isupper() or (apart and len(next_text) > PROSE_WIDTH and len(line.split()) <= TITLE_WORDS)
    if TERMINAL.search(line):
        return False
    longer = len(next_text) > TITLE_CHARS or TERMINAL.search(next_text.rstrip()) is not None
    return longer or following.kind > Kind.ITEM
