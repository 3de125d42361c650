"""Search inside trees, as arrays: leaf and node scores, the beam, and evidence that never overlaps.

Knows nothing of tables, encoders or Ray; TreeRetriever feeds it.
"""

import re
from dataclasses import dataclass

# Format characters that carry layout, not words: soft hyphen, U+061C and the bidirectional marks, ZWSP/ZWNJ/ZWJ,
# word joiner and invisible operators, BOM. Kept in stored text, ignored wherever words are compared.
INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")


@dataclass(frozen=True, slots=True)
class Passage:
    """A retrieved node: leaves of one document in document order. `text` joins `spans`; the best score comes first."""

    doc_id: str
    title: str
    node: int
    leaves: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]  # half-open code-point offsets, adjacent ones merged
    text: str
    score: float


def visible(text: str) -> str:
    """`text` without invisible format characters, for matching words only: offsets are not kept."""
    return INVISIBLE.sub("", text)


def lexical_text(text: str, start: int, stop: int) -> str:
    """What full-text search sees of the leaf text[start:stop] (P019, P020)."""
    return visible(text[start:stop])
