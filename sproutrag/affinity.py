"""What windows say about leaves, joined to whole documents: mean vectors and one sparse affinity."""

import numpy as np
from scipy.sparse import csr_array

from sproutrag.windows import Windows

# Attention is scaled so that 1 means "as much as if it were spread evenly". Leaves that share no window
# because each fills one get this instead: weaker than anything measured, so such a seam is joined last.
SEAM = 1e-6


def unit(vectors: np.ndarray) -> np.ndarray:
    """(..., d) -> (..., d) float32 of length 1; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-12)).astype(np.float32, copy=False)


def join_vectors(vectors: np.ndarray, windows: Windows) -> np.ndarray:
    """(rows of all windows, d) -> (n, d), unit norm: the mean over the windows that hold a leaf."""
    sizes = windows.sizes
    leaf = np.repeat(windows.ranges[:, 0] - (sizes.cumsum() - sizes), sizes) + np.arange(sizes.sum())
    shape = len(windows.leaves.lengths), len(leaf)
    gather = csr_array((np.ones(len(leaf), np.float32), (leaf, np.arange(len(leaf)))), shape=shape)
    return unit(gather @ vectors)


def join_blocks(blocks: list[np.ndarray], windows: Windows) -> csr_array:
    """(n, n) over the leaves of all documents: the mean over the windows that hold both leaves, and seams."""
    n = len(windows.leaves.lengths)
    pairs = [np.nonzero(~np.eye(len(block), dtype=bool)) for block in blocks]
    empty = [np.empty(0, np.int64)]
    firsts = windows.ranges[:, 0]
    row = np.concatenate(empty + [i + first for (i, _), first in zip(pairs, firsts, strict=True)])
    column = np.concatenate(empty + [j + first for (_, j), first in zip(pairs, firsts, strict=True)])
    value = np.concatenate([np.empty(0), *(block[at] for block, at in zip(blocks, pairs, strict=True))])
    before = seams(windows)
    row, column = np.concatenate([row, before, before + 1]), np.concatenate([column, before + 1, before])
    value = np.maximum(np.concatenate([value, np.full(2 * len(before), SEAM)]), SEAM).astype(np.float32)
    total = csr_array((value, (row, column)), shape=(n, n))
    count = csr_array((np.ones_like(value), (row, column)), shape=(n, n))
    total.sum_duplicates()
    count.sum_duplicates()
    return csr_array((total.data / count.data, total.indices, total.indptr), shape=(n, n))


def seams(windows: Windows) -> np.ndarray:
    """Leaves that share no window with the next leaf of their document."""
    stops = windows.ranges[:-1, 1]
    apart = stops[stops == windows.ranges[1:, 0]]
    return apart[~np.isin(apart, windows.document_starts)] - 1


def rows_of(affinity: csr_array, first: int, stop: int) -> csr_array:
    """The square block of one document out of the block-diagonal affinity of several; shares its memory."""
    begin, end = affinity.indptr[first], affinity.indptr[stop]
    own = (
        affinity.data[begin:end],
        affinity.indices[begin:end] - first,
        affinity.indptr[first : stop + 1] - begin,
    )
    return csr_array(own, shape=(stop - first, stop - first))
