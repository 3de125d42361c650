"""Weights of the search chosen by queries with gold evidence, and what that gains on unseen queries."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sproutrag.baselines import ranked_system
from sproutrag.datasets import Query
from sproutrag.metrics import information_efficiency
from sproutrag.retriever import TreeRetriever
from sproutrag.scoring import Weights

# Few steps around the defaults, each of which is an order of belief: none, half, as is, double.
STEPS = (0.0, 0.5, 1.0, 2.0)
PARTS = ("dense", "document", "path", "size_prior")  # in the order of what they change most
FEWEST = 20  # queries; with fewer the defaults stay


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Weights from all queries. The means compare the defaults with weights that the other half chose."""

    weights: Weights
    default_mean: float
    crossfitted_mean: float


def calibrate(
    retriever: TreeRetriever,
    queries: Sequence[Query],
    relevant: Sequence[frozenset],
    *,
    rng: np.random.Generator,
) -> Calibrated:
    """Coordinate search over `STEPS` times the defaults. Leaves the retriever's weights as they were.

    Each half of the queries is also scored with the weights that the other half chose, so the gain that is
    reported is not one of memory.
    """
    measured = measure(retriever, queries, relevant)
    default = measured(Weights())
    if len(queries) < FEWEST:
        return Calibrated(Weights(), float(default.mean()), float(default.mean()))
    halves = np.array_split(rng.permutation(len(queries)), 2)
    crossfitted = np.empty(len(queries))
    for seen, unseen in (halves, halves[::-1]):
        crossfitted[unseen] = measured(choose(measured, seen))[unseen]
    everything = np.arange(len(queries))
    return Calibrated(choose(measured, everything), float(default.mean()), float(crossfitted.mean()))


def choose(measured: Callable[[Weights], np.ndarray], seen: np.ndarray) -> Weights:
    """One pass over the parts; a step off the default has to gain more than one paired standard error."""
    weights = Weights()
    for part in PARTS:
        now = measured(weights)[seen]
        options = [replace(weights, **{part: step * getattr(Weights(), part)}) for step in STEPS]
        gains = [measured(option)[seen] - now for option in options]
        surplus = [gain.mean() - gain.std() / np.sqrt(len(seen)) for gain in gains]
        if max(surplus) > 0:
            weights = options[int(np.argmax(surplus))]
    return weights


def measure(
    retriever: TreeRetriever, queries: Sequence[Query], relevant: Sequence[frozenset]
) -> Callable[[Weights], np.ndarray]:
    """Weights -> information efficiency of each query, each set of weights searched once."""
    known: dict[Weights, np.ndarray] = {}
    system = ranked_system(retriever)

    def measured(weights: Weights) -> np.ndarray:
        if weights not in known:
            before, retriever.weights = retriever.weights, weights
            try:
                found = [system(query.text) for query in queries]
            finally:
                retriever.weights = before
            known[weights] = np.array(list(map(information_efficiency, found, relevant)))
        return known[weights]

    return measured
