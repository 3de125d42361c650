"""Passages as evidence: what is shared, what fits, and citations that the stored source proves.

A model's quote only says where to look; the quote that leaves is a slice of the stored text.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sproutrag.documents import leaf_spans
from sproutrag.lexical import terms
from sproutrag.qa.llm import Sources
from sproutrag.qa.prompts import CLOSE, OPEN, Cited, escape
from sproutrag.search import INVISIBLE, Passage

# What models change when they copy; every replacement keeps the length.
LOOK_ALIKE = str.maketrans(
    {OPEN: "<", CLOSE: ">", "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2010": "-",
     "\u2011": "-", "\u2012": "-", "\u2013": "-", "\u2014": "-", "\u2212": "-"}
)  # fmt: skip
NEAR = 0.7  # share of a quote's words in the sentence that it was copied from: small models rewrite
FEWEST = 3  # words of a quote; fewer stand in sentences by chance
NUMBER = re.compile(r"\d+")
EDGES = " .\"'\u2026\u201c\u201d"  # what models put around a quote


@dataclass(frozen=True, slots=True)
class Citation:
    """quote = the joined text[start:end] of `spans` in the stored document, checked when the answer was
    made."""

    doc_id: str
    spans: tuple[tuple[int, int], ...]
    quote: str


def leaf_set(passages: Iterable[Passage]) -> frozenset[tuple[str, int]]:
    return frozenset((p.doc_id, leaf) for p in passages for leaf in p.leaves)


def joint(evidence: Sequence[Sequence[Passage]]) -> list[Passage]:
    """The passages of several questions, best first per question in turn; none inside another (P112)."""
    ranks = max(map(len, evidence), default=0)
    in_turn = [passages[rank] for rank in range(ranks) for passages in evidence if rank < len(passages)]
    held: dict[tuple[str, int], list[frozenset[int]]] = {}  # (doc_id, leaf) -> leaf sets that hold it
    kept: list[tuple[int, Passage]] = []
    for turn, passage in sorted(enumerate(in_turn), key=lambda item: (-len(item[1].leaves), item[0])):
        leaves = frozenset(passage.leaves)
        if not any(leaves <= other for other in held.get((passage.doc_id, passage.leaves[0]), ())):
            kept.append((turn, passage))
            for leaf in leaves:
                held.setdefault((passage.doc_id, leaf), []).append(leaves)
    return [passage for _, passage in sorted(kept, key=lambda item: item[0])]


def fitting(passages: Sequence[Passage], count: Callable[[str], int], max_tokens: int) -> list[Passage]:
    """Passages by rank while they fit; the one that does not is shortened, the rest left out (P137)."""
    kept: list[Passage] = []
    left = max_tokens
    for passage in passages:
        cost = passage_tokens(passage, count)
        if cost > left:
            kept += shortened(passage, count, left)
            break
        kept.append(passage)
        left -= cost
    return kept


def passage_tokens(passage: Passage, count: Callable[[str], int]) -> int:
    """With its fence; tokens of joined texts are at most the sum."""
    return count(escape(passage.text)) + count(passage.doc_id) + count(passage.title) + 24


def shortened(passage: Passage, count: Callable[[str], int], max_tokens: int) -> list[Passage]:
    """The longest beginning, in tenths, that fits; nothing where not even one does."""
    for tenths in range(9, 0, -1):
        part = replace(passage, text=passage.text[: len(passage.text) * tenths // 10])
        if part.text.strip() and passage_tokens(part, count) <= max_tokens:
            return [part]
    return []


# --- citations


async def verified(
    quotes: Sequence[Cited], passages: Sequence[Passage], sources: Sources
) -> tuple[list[Citation], list[str]]:
    """Citations that hold, each once, and what was mended or dropped and why."""
    kept: dict[Citation, None] = {}
    remarks: list[str] = []
    for cited in quotes:
        found = locate(cited, passages)
        citation = cite(*found) if found else await cite_document(cited, passages, sources)
        if citation is None and (found := nearest(cited, passages)):
            citation = cite(*found)
            remarks.append(f"citation mended: {citation.quote[:80]!r} is said, not {cited.quote[:80]!r}")
        if citation is None:
            remarks.append(f"citation dropped: passage {cited.passage} does not say {cited.quote[:80]!r}")
        elif await holds(citation, sources):
            kept[citation] = None
        else:
            remarks.append(f"citation dropped: {citation.doc_id} no longer says {citation.quote[:80]!r}")
    return list(kept), remarks


def nearest(cited: Cited, passages: Sequence[Passage]) -> tuple[Passage, int, int] | None:
    """The sentence that holds most of the quote's words, at least NEAR of them, and all of its numbers."""
    wanted, numbers = set(terms(cited.quote)), set(NUMBER.findall(cited.quote))
    best, place = NEAR, None
    for passage in passages if len(wanted) >= FEWEST else ():
        for start, end in leaf_spans(passage.text, language="en", sentences_per_leaf=1).tolist():
            sentence = passage.text[start:end]
            share = len(wanted & set(terms(sentence))) / len(wanted)
            if share >= best and not numbers - set(NUMBER.findall(sentence)) and (share > best or not place):
                best, place = share, (passage, start, end)
    return place


def locate(cited: Cited, passages: Sequence[Passage]) -> tuple[Passage, int, int] | None:
    """Passage and place in its text; the named passage first, then the others: models mix numbers up."""
    for passage in (*named(cited, passages), *passages):
        place = find_quote(passage.text, cited.quote)
        if place:
            return passage, *place
    return None


def named(cited: Cited, passages: Sequence[Passage]) -> Sequence[Passage]:
    return passages[cited.passage - 1 : cited.passage] if cited.passage > 0 else []


def find_quote(text: str, quote: str) -> tuple[int, int] | None:
    """Where `text` says `quote`, whatever its case, white space, dashes and kind of quotation marks."""
    have, places = plain(text)
    for wanted, _ in (plain(quote), plain(quote.strip(EDGES))):
        start = have.find(wanted) if any(map(str.isalnum, wanted)) else -1
        while start >= 0:
            end = start + len(wanted)
            if whole_words(have, start, end):
                return places[start], places[end - 1] + 1
            start = have.find(wanted, start + 1)
    return None


def plain(text: str) -> tuple[str, list[int]]:
    """Text as quotes are compared, and where each of its characters stands in the original."""
    out: list[str] = []
    places: list[int] = []
    for place, character in enumerate(text.translate(LOOK_ALIKE)):
        if INVISIBLE.match(character) or (character.isspace() and (not out or out[-1] == " ")):
            continue
        lowered = character.lower()
        out.append(" " if character.isspace() else lowered if len(lowered) == 1 else character)
        places.append(place)
    while out and out[-1] == " ":
        out.pop()
        places.pop()
    return "".join(out), places


def whole_words(text: str, start: int, end: int) -> bool:
    """No letter or digit of a Latin-like word is cut; scripts without spaces have no such bounds."""
    before = start > 0 and joins(text[start - 1], text[start])
    after = end < len(text) and joins(text[end - 1], text[end])
    return not before and not after


def joins(left: str, right: str) -> bool:
    return left.isalnum() and right.isalnum() and max(left, right) < "\u2e80"


def cite(passage: Passage, start: int, end: int) -> Citation:
    """[start, end) of a passage's text as spans of its document, by the passage's own spans (P106)."""
    spans: list[tuple[int, int]] = []
    offset = 0
    for first, stop in passage.spans:
        low, high = max(start, offset), min(end, offset + stop - first)
        if low < high:
            spans.append((first + low - offset, first + high - offset))
        offset += stop - first
    return Citation(passage.doc_id, tuple(spans), passage.text[start:end])


async def cite_document(cited: Cited, passages: Sequence[Passage], sources: Sources) -> Citation | None:
    """A quote over the edge of the named passage: where its document says it."""
    for passage in named(cited, passages):
        text = await sources.text(passage.doc_id)
        place = find_quote(text, cited.quote) if text else None
        if text and place:
            return Citation(passage.doc_id, (place,), text[slice(*place)])
    return None


async def holds(citation: Citation, sources: Sources) -> bool:
    text = await sources.text(citation.doc_id)
    return text is not None and "".join(text[start:end] for start, end in citation.spans) == citation.quote


# --- bare answers

MARKER = re.compile(r"\[(?:sources?|passages?|citations?)?[:\s]*[\d,;\s-]+\]", re.IGNORECASE)


def bare(answer: str) -> str:
    """An answer without source markers; empty when nothing else was said (P125)."""
    text = MARKER.sub("", answer).strip()
    return text if any(map(str.isalnum, text)) else ""


def distinct(answers: Iterable[str]) -> list[str]:
    """Bare answers in order, each once whatever its case and spacing."""
    seen: dict[str, str] = {}
    for answer in map(bare, answers):
        if answer:
            seen.setdefault(" ".join(answer.casefold().split()).strip(".,;"), answer)
    return list(seen.values())
