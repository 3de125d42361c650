"""Which weights are chosen, on measurements made up so that the right choice is known."""

from collections.abc import Callable

import numpy as np

from sproutrag.calibration import choose
from sproutrag.scoring import Weights

QUERIES = 40
EVERY = np.arange(QUERIES)
Measured = Callable[[Weights], np.ndarray]


def best_at(dense: float, *, on: np.ndarray = EVERY) -> Measured:
    """Efficiency falls with the distance of the dense weight from its best, for the queries `on` only."""

    def measured(weights: Weights) -> np.ndarray:
        efficiency = np.ones(QUERIES)
        efficiency[on] -= abs(weights.dense - dense)
        return efficiency

    return measured


def test_the_step_that_gains_is_taken_and_the_other_weights_stay() -> None:
    for step in (0.0, 0.5, 1.0, 2.0):
        dense = step * Weights().dense
        assert choose(best_at(dense), EVERY) == Weights(dense=dense)


def test_a_gain_within_one_standard_error_is_none() -> None:
    noise = np.resize([1.0, -1.0], QUERIES)

    def measured(weights: Weights) -> np.ndarray:
        moved = weights != Weights()
        return moved * (noise + 0.1)  # the standard error is 0.16

    assert choose(measured, EVERY) == Weights()


def test_queries_that_were_not_seen_decide_nothing() -> None:
    seen, unseen = EVERY[::2], EVERY[1::2]
    assert choose(best_at(0.0, on=unseen), seen) == Weights()
    assert choose(best_at(0.0, on=unseen), unseen) == Weights(dense=0.0)
