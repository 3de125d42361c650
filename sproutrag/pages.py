"""Pages of an extracted text: where each begins. In the metadata, so hash, storage and filters have them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sproutrag.documents import LONE_SURROGATE, Spans

PAGE_STARTS = "page_starts"  # metadata key: offset of each page of a PDF, ascending from 0
SECTION_STARTS = "section_starts"  # the same of an EPUB's sections, which are not the pages of any print
NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Extracted:
    """The text of one file in a format of its own. `unread`: 1-based page -> why it could not be read."""

    text: str
    title: str
    metadata: Mapping[str, object]
    unread: Mapping[int, str] = field(default_factory=dict)


def join_pages(pages: Sequence[str], *, separator: str) -> tuple[str, list[int]]:
    """(text, start of each page). A page without text is empty: it begins where the next one does."""
    bodies = [LONE_SURROGATE.sub("\ufffd", page.replace("\0", "")).strip() for page in pages]
    text = separator.join(filter(None, bodies))
    starts: list[int] = []
    start = 0
    for body in bodies:
        starts.append(min(start, len(text)))
        start += len(body) + len(separator) if body else 0
    return text, starts


def page_starts(metadata: str, key: str = PAGE_STARTS) -> np.ndarray:
    """(pages,) int64 offsets; empty where the format has none."""
    if key not in metadata:
        return NONE
    found = json.loads(metadata).get(key)
    whole = type(found) is list and all(type(start) is int for start in found) and found == sorted(found)
    return np.array(found if whole else [], dtype=np.int64)


def pages_of(starts: np.ndarray, spans: Spans | Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """1-based numbers of the pages that hold a character of the spans, ascending; () without pages."""
    if not len(starts):
        return ()
    holds_text = np.append(np.diff(starts) > 0, True)
    edges = np.searchsorted(starts, np.reshape(spans, (-1, 2)) - [0, 1], side="right")
    pages = {page for first, last in edges.tolist() for page in range(max(first, 1), last + 1)}
    return tuple(sorted(page for page in pages if holds_text[page - 1]))


def places(metadata: str, spans: Spans) -> tuple[str, ...]:
    """Where each span is, as `cite` says it; () where the format has no such places."""
    pages, sections = page_starts(metadata), page_starts(metadata, SECTION_STARTS)
    if not len(pages) + len(sections):
        return ()
    return tuple(cite(pages_of(pages, [span]), pages_of(sections, [span])) for span in spans.tolist())


def cite(pages: Sequence[int], sections: Sequence[int]) -> str:
    """`page 3`, `pages 3, 4`, `section 2`; "" without either."""
    numbers, noun = (pages, "page") if pages else (sections, "section")
    return f"{noun}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}" if numbers else ""
