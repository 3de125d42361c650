"""Where sentences end inside one block of prose. sentencex decides, kept linear here; CJK is added."""

import re
import unicodedata
from collections.abc import Iterator
from itertools import chain

from sentencex import get_sentence_boundaries

WINDOW = 4_000  # characters per call: sentencex is quadratic in sentences where text is not ASCII
MAX_SENTENCE = 2_000  # characters; longer ones are cut at clauses
SHORT = 200  # characters; a look saves the call where no terminator is left
CLAUSE = 1_000  # characters aimed at when a sentence is too long

# Full-width terminators end a sentence without a space.
CJK_END = re.compile(r"(?:[。！？；｡]|……)[。！？；｡…]*+([”’」』】）》〉〕\"']*+)\s*")
BEFORE_ELLIPSIS = 6  # characters; after fewer, as in "我……我", an ellipsis is a pause
OTHER_END = re.compile(r"[.!?:।؟۔։።]")
MARKER = re.compile(
    r"\W*(?:(?:section|sec|article|art|clause|no|nr|chapter|abs|ziff)\.?\s+)?"
    r"(?:\d{1,3}(?:\.\d{1,3})*|[a-z]|[ivxlc]{1,6}|[一二三四五六七八九十]{1,3})\W{0,3}\Z",
    re.IGNORECASE,
)
CUTS = (re.compile(r"[;；]\s*"), re.compile(r"[,:](?=\s)|[，、：]|\s[|–—-](?=\s)"), re.compile(r"\s+"))
PAGE_NUMBER = re.compile(r"[^\w(\[]{0,3}(?:\d{1,3}|[ivxlc]{1,6})[^\w)\]]{0,3}\Z")
OPENERS = ("(", "[", "“", "（", "¿", "¡", "「", "『")
INNER_END = re.compile(r"(?<=[a-z\d)\]]{2})\s?[.!?][\"'”’)\]]*+\s++(?=[A-Z\"“‘(])")
LONG_SENTENCE = 600  # characters; beyond it a quotation is cut into its sentences
MARK = 40  # characters; nothing longer is a bare mark
ZWJ = "\u200d"


def sentence_ends(text: str, language: str) -> list[int]:
    """Ascending end offsets, the last one len(text); no piece is longer than MAX_SENTENCE."""
    ends: list[int] = []
    start = 0
    for end in [] if text.isascii() else _cjk_ends(text):
        ends += _boundaries(text[start:end], start, language)
        start = end
    ends += _boundaries(text[start:], start, language)
    return _cut_long(text, _joined(text, ends))


def _cjk_ends(text: str) -> list[int]:
    ends, start = [], 0
    for match in CJK_END.finditer(text):
        end = match.end()
        # a quotation inside a Japanese sentence goes on with a particle
        quoted = match[1] and end < len(text) and "ぁ" <= text[end] <= "ゖ"
        pause = text[match.start()] == "…" and match.start() - start < BEFORE_ELLIPSIS
        if end < len(text) and not quoted and not pause:
            ends.append(end)
            start = end
    return ends


def _boundaries(text: str, offset: int, language: str) -> list[int]:
    """sentencex in windows; the last sentence of a window is read again with what follows it. Linear."""
    if len(text) < SHORT and not OTHER_END.search(text):
        return [offset + len(text)]
    ends: list[int] = []
    start = 0
    while start < len(text):
        window = text[start : start + WINDOW]
        found = [boundary["end_index"] for boundary in get_sentence_boundaries(language, window)]
        if start + len(window) == len(text):
            found = [*(end for end in found if end < len(window)), len(window)]
        elif len(found) > 1:
            found.pop()
        else:
            found = _inner_ends(window) or [clause_cut(window, 0)]
        ends += [offset + start + end for end in found]
        start = ends[-1] - offset
    return ends


def _joined(text: str, ends: list[int]) -> list[int]:
    """Drop ends that leave a bare number or punctuation alone, or that fall inside a grapheme."""
    kept: list[int] = []
    start = 0
    for end in ends:
        if in_grapheme(text, end):
            continue
        piece = text[start : min(end, start + MARK)].strip()
        bare = end - start <= MARK and is_bare(piece)
        if bare and kept and not piece.startswith(OPENERS):
            kept[-1] = start = end
        elif end == len(text) or not (bare or _is_marker(piece) or _goes_on(text, start, end)):
            kept.append(end)
            start = end
    return kept


def is_bare(piece: str) -> bool:
    """Is there nothing to read: punctuation only, or the number of a page?"""
    return len(piece) <= MARK and (not any(map(str.isalnum, piece)) or PAGE_NUMBER.match(piece) is not None)


def _goes_on(text: str, start: int, end: int) -> bool:
    """sentencex also ends at "et al., 2017)": after a comma or an open bracket the sentence goes on."""
    return text[max(start, end - 8) : end].rstrip().endswith((",", "(", "["))


def _is_marker(piece: str) -> bool:
    return len(piece) < 24 and MARKER.match(piece) is not None


def _cut_long(text: str, ends: list[int]) -> list[int]:
    cuts: list[int] = []
    start = 0
    for end in chain.from_iterable(_with_inner_ends(text, ends)):
        while end - start > MAX_SENTENCE:
            start = clause_cut(text, start)
            cuts.append(start)
        cuts.append(end)
        start = end
    return cuts


def _with_inner_ends(text: str, ends: list[int]) -> Iterator[list[int]]:
    start = 0
    for end in ends:
        inner = _inner_ends(text[start:end]) if end - start > LONG_SENTENCE else []
        yield [*(start + place for place in inner), end]
        start = end


def _inner_ends(piece: str) -> list[int]:
    """Plain ends inside a long quotation or after a bracket that never closes, where sentencex sees none."""
    return [match.end() for match in INNER_END.finditer(piece) if match.end() < len(piece)]


def clause_cut(text: str, start: int) -> int:
    """Where to cut within CLAUSE characters of `start`: semicolon, comma, space, else between graphemes."""
    piece = text[start : start + CLAUSE]
    for pattern in CUTS:
        places = [match.end() for match in pattern.finditer(piece, CLAUSE // 3)]
        while places:
            place = start + places.pop()
            if not in_grapheme(text, place):
                return place
    place = start + len(piece)
    while in_grapheme(text, place) and place > start + CLAUSE // 2:
        place -= 1
    return place


def in_grapheme(text: str, place: int) -> bool:
    """Would a cut before text[place] split what a reader sees as one character?"""
    if not 0 < place < len(text) or (text[place] < "\u0300" and text[place] != "\n"):
        return False
    before, after = text[place - 1], text[place]
    if after == "\n":
        return before == "\r"
    if "\U0001f1e6" <= after <= "\U0001f1ff":
        return _flags_before(text, place) % 2 == 1
    if before in ("\n", "\r"):
        return False
    joins = unicodedata.category(after) in ("Mn", "Mc", "Me") or after in "\u200c\u200d\uff9e\uff9f"
    modifies = "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f"
    jamo = "\u1100" <= before <= "\u11ff" or "\uac00" <= before <= "\ud7ff"
    return joins or modifies or before == ZWJ or (jamo and "\u1100" <= after <= "\u11ff")


def _flags_before(text: str, place: int) -> int:
    """Regional indicators just before `place`; a flag is two of them."""
    first = place
    while first > max(0, place - 64) and "\U0001f1e6" <= text[first - 1] <= "\U0001f1ff":
        first -= 1
    return place - first
