"""Documents and their leaves: exact spans into unaltered text. Knows nothing of files, encoders or trees."""

import bisect
import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from py3langid.langid import LanguageIdentifier

from sproutrag.blocks import TERMINAL, Block, Kind, blocks
from sproutrag.sentences import CLAUSE, MAX_SENTENCE, is_bare, sentence_ends

Spans = np.ndarray  # (n, 2) int32 half-open code-point offsets, ascending, disjoint

DEFAULT_LANGUAGE = "en"
LANGUAGE_SAMPLE = 400  # characters read to tell the language
ATOMIC_ITEM = 300  # characters; longer list items are cut into sentences
FRAGMENT = 20  # characters; a shorter line that is no sentence is no leaf of its own if it has a neighbour
SENTENCE_WEIGHT, FRAGMENT_WEIGHT = 4, 1  # so that a leaf takes up to four fragments for each sentence

NOT_PROSE = re.compile(r"https?://\S+|[\W\d_]+")
ENGLISH = re.compile(r"\b(?:the|of|and)\b")
ENGLISH_SHARE = 0.05  # of the words; no other language uses these three

LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
SPACE = np.array([chr(code).isspace() for code in range(0x3002)])  # U+3000 is the last space of Unicode


@dataclass(frozen=True, slots=True)
class Document:
    """One source text. `id` is unique in the corpus.

    language is ISO 639-1, "" where it is to be detected; metadata is a JSON object as text with sorted keys,
    so that no schema can drift; source is "path" or "path:line" (1-based), where the document was read.
    """

    id: str
    text: str
    title: str = ""
    language: str = ""
    metadata: str = "{}"
    source: str = ""


class Unit(NamedTuple):
    """Characters [start, end), never cut. `leads`: goes with what follows. `alone`: shares no leaf."""

    start: int
    end: int
    paragraph: int
    weight: int = SENTENCE_WEIGHT
    leads: bool = False
    alone: bool = False
    bare: bool = False


@lru_cache(maxsize=1)
def _identifier() -> LanguageIdentifier:
    """py3langid with the ISO 639-1 languages only; about a second to load, so on first use."""
    identifier = LanguageIdentifier.from_model_file("data/model.npz.xz")
    identifier.set_languages([code for code in identifier.labels if len(code) == 2])
    return identifier


def detect_language(text: str) -> str:
    """ISO 639-1 code by a short sample from the start; English where there are too few letters to tell."""
    sample = NOT_PROSE.sub(" ", text[: 4 * LANGUAGE_SAMPLE])[:LANGUAGE_SAMPLE].strip()
    if not sample or (sample.isascii() and len(sample) < FRAGMENT):
        return DEFAULT_LANGUAGE
    words = ENGLISH.findall(sample)
    if len(set(words)) > 1 and len(words) > ENGLISH_SHARE * (sample.count(" ") + 1):
        return "en"  # saves most of the 0.4 ms that the classifier takes
    return _identifier().classify(sample)[0]


def leaf_spans(text: str, *, language: str = "", sentences_per_leaf: int = 2) -> Spans:
    """Cut text into leaves of whole sentences. Every non-space character is in exactly one leaf. Linear time.

    Leaves keep to paragraphs, but a heading goes with what follows it; a table row is a leaf of its own.
    """
    text = LONE_SURROGATE.sub("\ufffd", text)
    language = language.split("-")[0].lower() or detect_language(text)
    units = [unit for block in blocks(text) for unit in _units(text, block, language)]
    leaves = _gather(units, capacity=sentences_per_leaf * SENTENCE_WEIGHT)
    return np.array(leaves, dtype=np.int32).reshape(-1, 2)


def _units(text: str, block: Block, language: str) -> list[Unit]:
    body = text[block.start : block.end]
    if block.kind is Kind.HEADING and len(body) <= ATOMIC_ITEM:
        return _trimmed(text, block, [len(body)], weight=0, leads=True)
    if block.kind >= Kind.TABLE_HEADER:
        return _trimmed(
            text,
            block,
            [len(body)] if len(body) <= MAX_SENTENCE else sentence_ends(body, language),
            alone=True,
        )
    if block.kind is Kind.ITEM and len(body) <= ATOMIC_ITEM:
        return _trimmed(text, block, [len(body)])
    units = _trimmed(text, block, sentence_ends(body, language))
    last = text[units[-1].start : units[-1].end]
    whole = len(units) == 1 or last.isascii()  # a short Chinese clause may well be a sentence
    if len(last) < FRAGMENT and whole and not units[-1].bare and not TERMINAL.search(last):
        units[-1] = units[-1]._replace(weight=FRAGMENT_WEIGHT)
    return units


def _trimmed(text: str, block: Block, ends: list[int], *, weight: int = SENTENCE_WEIGHT, leads: bool = False,
             alone: bool = False) -> list[Unit]:  # fmt: skip
    """Units between `ends` (relative to the block) without the space around them."""
    units, start = [], block.start
    for end in ends:
        first, last = trimmed(text, start, block.start + end)
        if first < last:
            if is_bare(text[first:last]):
                units.append(Unit(first, last, block.paragraph, weight=0, bare=True))
            else:
                units.append(Unit(first, last, block.paragraph, weight, leads, alone))
        start = block.start + end
    return units


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without the space at its ends, empty if there is nothing else in it."""
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())


def _gather(units: list[Unit], *, capacity: int) -> list[tuple[int, int]]:
    """Fill leaves with units in order."""
    leaves: list[list[Unit]] = []
    weight = 0
    for unit in units:
        if leaves and _joins(leaves[-1], weight, unit, capacity):
            leaves[-1].append(unit)
            weight += unit.weight
        else:
            _settle(leaves)
            leaves.append([unit])
            weight = unit.weight
    _settle(leaves)
    if len(leaves) > 1 and leaves[-1][-1].leads and not leaves[-2][-1].alone:
        heading = leaves.pop()
        leaves[-1] += heading
    return [(leaf[0].start, leaf[-1].end) for leaf in leaves]


def _joins(leaf: list[Unit], weight: int, unit: Unit, capacity: int) -> bool:
    """Does `unit` belong to the leaf before it?"""
    last, length = leaf[-1], unit.end - leaf[0].start
    if length > MAX_SENTENCE + CLAUSE:
        return False
    if unit.bare:
        return True
    if last.leads or (last.bare and len(leaf) == 1):
        return length <= (ATOMIC_ITEM if unit.leads else MAX_SENTENCE + ATOMIC_ITEM)
    if unit.leads or unit.alone or last.alone or unit.paragraph != last.paragraph:
        return False
    return weight + unit.weight <= capacity and length <= CLAUSE


def _settle(leaves: list[list[Unit]]) -> None:
    """A fragment left over at the end of its paragraph goes to the leaf before it."""
    if len(leaves) < 2 or len(leaves[-1]) > 1 or leaves[-1][0].weight != FRAGMENT_WEIGHT:
        return
    before, fragment = leaves[-2][-1], leaves[-1][0]
    if before.paragraph == fragment.paragraph and not (before.alone or before.leads):
        leaves.pop()
        leaves[-1].append(fragment)


def content_hash(document: Document) -> str:
    """blake2b (32 hex digits) of all that an index stores of a document; where it was read does not count."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (document.id, document.title, document.text, document.language, document.metadata):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def coverage(text: str, spans: Spans) -> float:
    """Share of the non-space characters that lie in exactly one span; 1.0 for a text without any."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    visible = ~SPACE[np.minimum(codes, len(SPACE) - 1)]
    steps = np.zeros(len(codes) + 1, dtype=np.int32)
    np.add.at(steps, spans[:, 0], 1)
    np.add.at(steps, spans[:, 1], -1)
    once = np.cumsum(steps[:-1]) == 1
    total = int(visible.sum())
    return float((visible & once).sum() / total) if total else 1.0


def row_context(text: str, start: int) -> tuple[int, int] | None:
    """Span of header and separator of the Markdown table with a row at character `start`; None elsewhere."""
    starts, ends, headers = _rows(text)
    row = bisect.bisect_right(starts, start) - 1
    return headers[row] if row >= 0 and start < ends[row] else None


@lru_cache(maxsize=4)
def _rows(text: str) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Starts, ends and header spans of all table rows, kept so that asking for each row stays linear."""
    starts, ends, headers = [], [], []
    header: tuple[int, int] | None = None
    for block in blocks(text):
        if block.kind is Kind.TABLE_HEADER:
            header = trimmed(text, block.start, block.end)
        elif block.kind is not Kind.TABLE_ROW:
            header = None
        elif header is not None:
            starts.append(block.start)
            ends.append(block.end)
            headers.append(header)
    return starts, ends, headers
