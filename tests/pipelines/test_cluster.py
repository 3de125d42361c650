"""What a job leaves on the machine it ran on."""

import os
from pathlib import Path

from pipelines.cluster import OWNER, SCRATCH, remove_abandoned
from sproutrag.leases import create_locked


def test_the_scratch_folder_of_a_killed_run_goes_with_the_next(tmp_path: Path) -> None:
    alive, dead, foreign = (tmp_path / f"{SCRATCH}{name}" for name in ("alive", "dead", "foreign"))
    foreign.mkdir()
    handle = create_locked(str(alive / OWNER), b"")
    os.close(create_locked(str(dead / OWNER), b""))
    remove_abandoned(str(tmp_path))
    assert sorted(tmp_path.iterdir()) == [alive, foreign]
    os.close(handle)
    remove_abandoned(str(tmp_path))
    assert list(tmp_path.iterdir()) == [foreign]
