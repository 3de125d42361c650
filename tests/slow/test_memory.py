"""Memory over many small updates in one process."""

import gc
from pathlib import Path

import pytest

from tests.small_index import encoded, index

pytestmark = pytest.mark.slow

WARM_UP, ROUNDS = 60, 240
MOST_PER_UPDATE = 100  # KiB; what a version of both tables costs in caches is far less


def resident() -> int:
    """KiB of this process."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


def test_memory_does_not_grow_with_the_number_of_updates(tmp_path: Path) -> None:
    """P080."""
    db = str(tmp_path / "db")
    sizes = []
    for i in range(WARM_UP + ROUNDS):
        index(db, [encoded(f"d{i % 20}", 2 + i % 3)], str(i))
        if i >= WARM_UP and i % 60 == 0:
            sizes.append(resident())
    slope = (sizes[-1] - sizes[0]) / (60 * (len(sizes) - 1))
    assert slope < MOST_PER_UPDATE, f"{slope:.0f} KiB per update: {sizes}"
