"""What a job leaves on the machine it ran on."""

import os
from pathlib import Path

import pytest

from sproutrag import private_ray
from sproutrag.leases import create_locked
from sproutrag.private_ray import OWNER, SCRATCH, remove_abandoned


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


def test_ray_that_is_slow_to_start_on_a_busy_machine_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tries = []

    def slow(scratch: str, **quiet: object) -> None:
        tries.append(scratch)
        if len(tries) < 3:
            raise Exception("The current node timed out during startup. This could happen because ...")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(private_ray, "start_private_ray", slow)
    private_ray.start_ray(str(tmp_path))
    assert len(tries) == 3 and capsys.readouterr().err.count("trying again") == 2
    tries[:] = []
    monkeypatch.setattr(private_ray, "STARTS", 2)
    with pytest.raises(Exception, match="timed out"):
        private_ray.start_ray(str(tmp_path))
