"""Quality of retrieved leaves and of answers.

Recall and precision are ir_measures' R@k and P@k; their product is ours.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass

import ir_measures
import numpy as np
from ir_measures import P, Qrel, R, ScoredDoc

from sproutrag.lexical import words

CUTOFFS = (1, 3, 5)  # leaves
RESAMPLES = 2000


def information_efficiency(found: Mapping[int, Sequence[Hashable]], relevant: Set[Hashable]) -> float:
    """Recall@k times precision@k of one query, mean over the cut-offs: found[k] holds at most k leaves.

    A list shorter than k is not forgiven.
    """
    hits = {k: len(relevant & set(leaves)) for k, leaves in found.items()}
    return float(np.mean([n / len(relevant) * n / k for k, n in hits.items()]))


def recall_and_precision(
    runs: Mapping[str, Sequence[str]], relevant: Mapping[str, Set[str]], *, cutoffs: Sequence[int] = CUTOFFS
) -> dict[str, float]:
    """Means over queries under ir_measures' names ("R@5"). Keys are query ids, items are leaf names."""
    qrels = [Qrel(query, leaf, 1) for query, leaves in relevant.items() for leaf in leaves]
    run = [
        ScoredDoc(query, leaf, -rank) for query, leaves in runs.items() for rank, leaf in enumerate(leaves)
    ]
    measures = [measure @ k for k in cutoffs for measure in (R, P)]
    return {str(name): value for name, value in ir_measures.calc_aggregate(measures, qrels, run).items()}


ARTICLES = frozenset({"a", "an", "the"})


def token_f1(answers: Sequence[str], gold: Sequence[str]) -> float:
    """Harmonic mean of the precision and recall of words, items of a list together.

    As SQuAD counts, but pairs of characters where a script has no spaces. Without a gold answer: 1 for no
    answer, else 0.
    """
    given, wanted = (
        Counter(w for text in texts for w in words(text) if w not in ARTICLES) for texts in (answers, gold)
    )
    if not given or not wanted:
        return float(not given and not wanted)
    shared = (given & wanted).total()
    return 2 * shared / (given.total() + wanted.total())


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of paired differences with its 95 % interval."""

    mean: float
    low: float
    high: float


def paired_difference(ours: np.ndarray, theirs: np.ndarray, *, rng: np.random.Generator) -> Difference:
    """ours - theirs over the same queries, (q,) each; percentile bootstrap over queries."""
    differences = np.asarray(ours) - np.asarray(theirs)
    draws = rng.integers(len(differences), size=(RESAMPLES, len(differences)))
    low, high = np.quantile(differences[draws].mean(axis=1), [0.025, 0.975])
    return Difference(float(differences.mean()), float(low), float(high))
