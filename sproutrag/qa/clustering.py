"""Which questions are answered in one call: those whose evidence overlaps, as far as the prompt has room."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.sparse import csr_array


def cluster_by_evidence(
    evidence: Sequence[frozenset],
    prompt_tokens: Callable[[Sequence[int]], int],
    *,
    min_overlap: float,
    max_tokens: int,
) -> list[list[int]]:
    """Few groups in which every pair overlaps (Jaccard > min_overlap) and the joint prompt fits.

    evidence[i] is a set of (doc_id, leaf). First fit, most conflicts first, ties in order: largest-first
    colouring of the conflict graph. A question too long by itself stays alone. `prompt_tokens` must not
    give a group more than the sum of its members. O(n^2) bits; it is asked about groups only where that sum
    is over.
    """
    conflicts = conflict_matrix(evidence, min_overlap)
    alone = [prompt_tokens([i]) for i in range(len(evidence))]
    groups: list[list[int]] = []
    sums: list[int] = []
    blocked: list[np.ndarray] = []  # of each group: who conflicts with a member
    for i in np.argsort(-conflicts.sum(axis=1), kind="stable").tolist():
        for g, group in enumerate(groups):
            if blocked[g][i]:
                continue
            if sums[g] + alone[i] <= max_tokens or prompt_tokens([*group, i]) <= max_tokens:
                group.append(i)
                sums[g] += alone[i]
                blocked[g] |= conflicts[i]
                break
        else:
            groups.append([i])
            sums.append(alone[i])
            blocked.append(conflicts[i].copy())
    return [sorted(group) for group in groups]


def conflict_matrix(evidence: Sequence[frozenset], min_overlap: float) -> np.ndarray:
    """(n, n) bool: pairs whose Jaccard similarity is not above min_overlap; the diagonal is False.

    Two questions without any evidence conflict: there is nothing to share.
    """
    n = len(evidence)
    columns: dict[object, int] = {}
    pairs = [
        (i, columns.setdefault(leaf, len(columns))) for i, leaves in enumerate(evidence) for leaf in leaves
    ]
    rows, places = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    incidence = csr_array((np.ones(len(pairs)), (rows, places)), shape=(n, max(len(columns), 1)))
    shared = (incidence @ incidence.T).toarray()
    sizes = np.array([len(leaves) for leaves in evidence], dtype=np.float64)
    either = np.maximum(sizes[:, None] + sizes - shared, 1)
    conflicts = shared / either <= min_overlap
    np.fill_diagonal(conflicts, False)
    return conflicts
