"""Pages of an extracted text: where each begins. In the metadata, so hash, storage and filters have them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sproutrag.documents import LONE_SURROGATE, Document, Spans

PAGE_STARTS = "page_starts"  # metadata key: offset of each page (PDF) or section (EPUB), ascending from 0


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


def page_starts(document: Document) -> np.ndarray:
    """(pages,) int64 offsets; empty where the format has no pages."""
    if PAGE_STARTS not in document.metadata:
        return np.empty(0, dtype=np.int64)
    found = json.loads(document.metadata).get(PAGE_STARTS)
    whole = type(found) is list and all(type(start) is int for start in found) and found == sorted(found)
    return np.array(found if whole else [], dtype=np.int64)


def pages_of(document: Document, spans: Spans) -> list[int]:
    """1-based numbers of the pages that the spans touch, ascending; [] where the format has no pages."""
    starts = page_starts(document)
    if not len(starts):
        return []
    edges = np.asarray(spans, dtype=np.int64).reshape(-1, 2) - [0, 1]
    pages = np.searchsorted(starts, edges, side="right")
    return sorted({page for first, last in pages.tolist() for page in range(max(first, 1), last + 1)})
