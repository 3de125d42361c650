"""Documents as token windows of whole leaves, and windows as padded batches of near-equal length."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from sproutrag.documents import Document, detect_language, leaf_spans, trimmed

LEAVES_PER_CALL = 4096  # strings handed to the tokenizer at once: bounds its memory on huge documents
# Direction marks and byte-order marks steer rendering, not meaning; models without a normaliser would spend
# tokens on them (google/sentencepiece#1331). They stay in the text, in spans and in storage.
DIRECTION_MARKS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
BLANK = "."  # stands for a leaf of which the tokenizer leaves nothing, so that its vector exists


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Windows padded to one length.

    input_ids (B, T) int64; real (B, T) int64, 1 on tokens; leaf (B, T) int64, leaf within the window or -1;
    starts, stops: real tokens of each window; windows (B,): rows of `Windows.ranges`.
    """

    input_ids: Tensor
    real: Tensor
    leaf: Tensor
    starts: list[int]
    stops: list[int]
    windows: np.ndarray


@dataclass(frozen=True, slots=True)
class LeafTokens:
    """Tokens of consecutive leaves: leaf i is ids[starts[i]:starts[i+1]]."""

    ids: np.ndarray  # (t,) int32
    starts: np.ndarray  # (n+1,) int64

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)


@dataclass(frozen=True, slots=True)
class Windows:
    """All windows of some documents, in document order.

    languages: of each document, detected where it was not given; spans: one (n, 2) array per document;
    leaves: tokens of all leaves of all documents, end to end; document_starts (documents+1,): a document's
    first leaf; ranges (w, 2): leaves [first, stop) of a window.
    """

    languages: list[str]
    spans: list[np.ndarray]
    leaves: LeafTokens
    document_starts: np.ndarray
    ranges: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """(w,) leaves per window."""
        return self.ranges[:, 1] - self.ranges[:, 0]

    @property
    def lengths(self) -> np.ndarray:
        """(w,) tokens per window, without the model's own start and end tokens."""
        return self.leaves.starts[self.ranges[:, 1]] - self.leaves.starts[self.ranges[:, 0]]


class LeafTokenizer:
    """A fast tokenizer that sees leaves as plain text: control strings of the model have no power (P022)."""

    def __init__(self, tokenizer: Tokenizer, *, pad_id: int, left_padding: bool) -> None:
        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())  # ours: the flags below are not the caller's
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = True
        self.pad_id = pad_id
        self.left_padding = left_padding
        self.prefix, self.suffix = frame_of(self.tokenizer)

    @property
    def frame(self) -> int:
        """Tokens that the model's template adds around a window."""
        return len(self.prefix) + len(self.suffix)

    def encode(self, texts: Sequence[str]) -> LeafTokens:
        """One row of tokens per text, at least one token each, without the template."""
        ids: list[np.ndarray] = []
        lengths: list[np.ndarray] = []
        for start in range(0, len(texts), LEAVES_PER_CALL):
            rows = self.encode_some(texts[start : start + LEAVES_PER_CALL])
            lengths.append(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)))
            ids.append(np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(lengths[-1].sum())))
        starts = np.concatenate([[0], *lengths]).cumsum()
        return LeafTokens(np.concatenate([np.empty(0, np.int32), *ids]), starts)

    def encode_some(self, texts: Sequence[str]) -> list[list[int]]:
        plain = [text if text.isascii() else DIRECTION_MARKS.sub("", text) for text in texts]
        encodings = self.tokenizer.encode_batch_fast(plain, add_special_tokens=False)
        rows = [encoding.ids for encoding in encodings]
        if not all(rows):
            blank = self.tokenizer.encode(BLANK, add_special_tokens=False).ids
            rows = [row or blank for row in rows]
        return rows

    def read(
        self, documents: Sequence[Document], *, sentences_per_leaf: int, window: int, overlap: int
    ) -> Windows:
        """Cut documents into leaves and windows. No text is dropped: what is too long for a window is cut."""
        capacity = window - self.frame
        languages = [document.language or detect_language(document.text) for document in documents]
        spans = [
            leaf_spans(document.text, language=language, sentences_per_leaf=sentences_per_leaf)
            for document, language in zip(documents, languages, strict=True)
        ]
        leaves = self.encode(leaf_texts(documents, spans))
        while (leaves.lengths > capacity).any():
            spans = self.cut_long_leaves(documents, spans, leaves, capacity)
            leaves = self.encode(leaf_texts(documents, spans))
        document_starts = np.cumsum([0, *map(len, spans)])
        ranges = [
            window_ranges(leaves.starts[first : stop + 1], capacity=capacity, overlap=overlap) + first
            for first, stop in pairwise(document_starts)
        ]
        ranges = np.concatenate([np.empty((0, 2), np.int64), *ranges])
        return Windows(languages, spans, leaves, document_starts, ranges)

    def cut_long_leaves(
        self, documents: Sequence[Document], spans: list[np.ndarray], leaves: LeafTokens, capacity: int
    ) -> list[np.ndarray]:
        """Replace leaves longer than `capacity` tokens by pieces of at most half: windows can overlap."""
        lengths = iter(np.split(leaves.lengths, np.cumsum([len(s) for s in spans])[:-1]))
        cut: list[np.ndarray] = []
        for document, rows, n_tokens in zip(documents, spans, lengths, strict=True):
            if (n_tokens <= capacity).all():
                cut.append(rows)
                continue
            pieces = [
                self.cut_leaf(document.text, int(start), int(stop), max(1, capacity // 2))
                if long
                else [(start, stop)]
                for (start, stop), long in zip(rows, n_tokens > capacity, strict=True)
            ]
            cut.append(np.asarray(list(chain.from_iterable(pieces)), dtype=np.int32))
        return cut

    def cut_leaf(self, text: str, start: int, stop: int, most: int) -> list[tuple[int, int]]:
        """Spans of at most `most` tokens, cut where a token starts, after a space where one is near."""
        encoding: Encoding = self.tokenizer.encode(text[start:stop], add_special_tokens=False)
        offsets = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        before = np.concatenate([[0], np.maximum.accumulate(offsets[:, 1])[:-1]])
        clean = np.flatnonzero(offsets[:, 0] >= before)  # tokens that share no character with an earlier one
        after_space = clean[[i > 0 and text[start + i - 1].isspace() for i in offsets[clean, 0].tolist()]]
        cuts, token = [start], 0
        while token + most < len(offsets):
            token = last_between(after_space, token + most // 2, token + most) or (
                last_between(clean, token, token + most) or first_after(clean, token + most, len(offsets))
            )
            if token < len(offsets):
                cuts.append(start + int(offsets[token, 0]))
        if len(cuts) == 1:  # no token starts inside the leaf: halve it, so that the caller's loop always ends
            cuts.append((start + stop) // 2)
        pieces = [trimmed(text, *edges) for edges in zip(cuts, [*cuts[1:], stop], strict=True)]
        return [(first, last) for first, last in pieces if first < last]

    def query_windows(self, queries: LeafTokens, window: int) -> Windows:
        """Queries as windows of one leaf each, cut where they are longer than a window."""
        step = window - self.frame
        starts = [np.arange(a, max(b, a + 1), step) for a, b in pairwise(queries.starts)]
        cut = LeafTokens(queries.ids, np.concatenate([*starts, queries.starts[-1:]]))
        n = len(cut.starts) - 1
        return Windows([], [], cut, np.asarray([0, n]), np.column_stack([np.arange(n), np.arange(1, n + 1)]))

    def batches(self, windows: Windows, *, token_budget: int) -> Iterator[TokenBatch]:
        """Windows by falling length, as many per batch as the budget holds at the longest one's length."""
        order = np.argsort(-windows.lengths, kind="stable")
        lengths = windows.lengths[order] + self.frame
        start = 0
        while start < len(order):
            size = max(1, token_budget // int(lengths[start]))
            yield self.batch(windows, order[start : start + size])
            start += size

    def batch(self, windows: Windows, chosen: np.ndarray) -> TokenBatch:
        tokens = windows.leaves
        ranges = windows.ranges[chosen]
        lengths = tokens.starts[ranges[:, 1]] - tokens.starts[ranges[:, 0]] + self.frame
        shape = len(chosen), int(lengths.max())
        starts = shape[1] - lengths if self.left_padding else np.zeros_like(lengths)
        input_ids, leaf = np.full(shape, self.pad_id, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
        for row, (begin, length, (first, stop)) in enumerate(zip(starts, lengths, ranges, strict=True)):
            ids = tokens.ids[tokens.starts[first] : tokens.starts[stop]]
            input_ids[row, begin : begin + length] = np.concatenate([self.prefix, ids, self.suffix])
            inside = slice(begin + len(self.prefix), begin + length - len(self.suffix))
            leaf[row, inside] = np.repeat(np.arange(stop - first), np.diff(tokens.starts[first : stop + 1]))
        position = np.arange(shape[1])
        real = (position >= starts[:, None]) & (position < (starts + lengths)[:, None])
        return TokenBatch(
            torch.from_numpy(input_ids),
            torch.from_numpy(real.astype(np.int64)),
            torch.from_numpy(leaf),
            starts.tolist(),
            (starts + lengths).tolist(),
            chosen,
        )


def frame_of(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Tokens that the model's template puts before and after a text."""
    encoding = tokenizer.encode(BLANK, add_special_tokens=True)
    body = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
    return encoding.ids[: body[0]], encoding.ids[body[-1] + 1 :]


def leaf_texts(documents: Sequence[Document], spans: Sequence[np.ndarray]) -> list[str]:
    """Text of every leaf, after the first led by the space or line break that parts it from the leaf before.

    Byte-level vocabularies know words by the space before them, so leaves read as they do in running text.
    """
    texts: list[str] = []
    for document, rows in zip(documents, spans, strict=True):
        text, end = document.text, 0
        for start, stop in rows.tolist():
            gap = text[end:start] if end else ""
            texts.append((gap and ("\n" if "\n" in gap else " ")) + text[start:stop])
            end = stop
    return texts


def window_ranges(starts: np.ndarray, *, capacity: int, overlap: int) -> np.ndarray:
    """(w, 2) leaf ranges: as many whole leaves as fit; the next begins `overlap` leaves before the end.

    starts (n+1,): token offsets of the leaves. Every leaf is in a window; a window that could hold nothing
    new beside the shared leaves shares fewer.
    """
    n, first = len(starts) - 1, 0
    ranges: list[tuple[int, int]] = []
    while first < n:
        stop = int(np.searchsorted(starts, starts[first] + capacity, side="right")) - 1
        ranges.append((first, stop))
        if stop >= n:
            break
        first = max(first + 1, stop - overlap)
        while starts[stop + 1] - starts[first] > capacity:
            first += 1
    return np.asarray(ranges, dtype=np.int64).reshape(-1, 2)


def last_between(places: np.ndarray, low: int, high: int) -> int:
    """The last of the rising `places` in (low, high], else 0."""
    at = int(np.searchsorted(places, high, side="right")) - 1
    return int(places[at]) if at >= 0 and places[at] > low else 0


def first_after(places: np.ndarray, low: int, default: int) -> int:
    at = int(np.searchsorted(places, low, side="right"))
    return int(places[at]) if at < len(places) else default
