"""A few rounds of crash.py; by hand it does more: `python tests/slow/crash.py --rounds 50`."""

from pathlib import Path

import pytest

from tests.slow.crash import Place, run_rounds, summary

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("fork", "rounds"), [(False, 1), (True, 8)], ids=["with Ray", "what is on disk"])
def test_after_a_kill_at_any_moment_the_next_run_makes_the_index_whole(
    tmp_path: Path, fork: bool, rounds: int
) -> None:
    done = run_rounds(rounds, Place(str(tmp_path), fork=fork), seed=7)
    assert not any(round_.faults for round_ in done), summary(done)
