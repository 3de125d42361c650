"""When fragments are merged, and what is left alone: a small change must not copy a large table."""

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from sproutrag import retention
from sproutrag.retention import compact
from sproutrag.verification import verify
from tests.small_index import encoded, index

SMALL, LARGE = 4, 64  # rows of a test's tiers


@pytest.fixture(autouse=True)
def small_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "TIERS", (16, LARGE))
    monkeypatch.setattr(retention, "MAX_FRAGMENTS", 4)


def table_of(folder: Path, *sizes: int) -> lance.LanceDataset:
    """One fragment of each size."""
    for size in sizes:
        lance.write_dataset(pa.table({"a": np.arange(size)}), folder / "t.lance", mode="append")
    return lance.dataset(folder / "t.lance")


def sizes_of(table: lance.LanceDataset) -> list[int]:
    return [fragment.physical_rows for fragment in table.get_fragments()]


def files_of(table: lance.LanceDataset) -> list[str]:
    return [file.path for fragment in table.get_fragments() for file in fragment.data_files()]


def test_few_fragments_stay_and_many_small_ones_become_one_tier(tmp_path: Path) -> None:
    assert not compact(table_of(tmp_path / "few", SMALL, SMALL, SMALL, SMALL))
    table = table_of(tmp_path / "many", *[SMALL] * 5)
    assert compact(table) and sizes_of(table) == [5 * SMALL]


def test_nightly_fragments_are_merged_without_copying_the_large_ones(tmp_path: Path) -> None:
    """A table of large fragments, more of them than MAX_FRAGMENTS, after many small nights."""
    table = table_of(tmp_path, *[LARGE] * 6)
    large = files_of(table)
    copied = 0
    for _ in range(40):
        table = table_of(tmp_path, SMALL)
        before = set(files_of(table))
        compact(table)
        rows = {f.data_files()[0].path: f.physical_rows for f in table.get_fragments()}
        copied += sum(size for path, size in rows.items() if path not in before)
    assert files_of(table)[:6] == large, "never touched"
    assert len(sizes_of(table)) <= 6 + 2 * 5
    assert copied <= 3 * 40 * SMALL, f"each row is copied a few times in its life, not each night: {copied}"


def test_dead_rows_are_dropped_where_they_are_many_and_large_fragments_stay_large(tmp_path: Path) -> None:
    table = table_of(tmp_path, LARGE, LARGE, LARGE)
    first = files_of(table)[0]
    table.delete("a < 2")
    assert not compact(table), "three percent dead weight does not pay"
    table.delete(f"a >= {LARGE - 20}")
    table = table_of(tmp_path, LARGE)
    keep = files_of(table)[-1]
    assert compact(table)
    assert sum(f.num_deletions for f in table.get_fragments()) == 0 and first not in files_of(table)
    assert keep in files_of(table) and len(sizes_of(table)) <= 4


def test_documents_survive_tiers_of_compaction(tmp_path: Path) -> None:
    db = str(tmp_path / "db")
    for i in range(12):
        index(db, [encoded(f"d{i % 9}", 2 + i % 3)], str(i))
        for name in ("documents", "nodes"):
            compact(lance.dataset(f"{db}/{name}.lance"))
    index(db, [encoded("last")], "last")
    assert verify(db).ok and verify(db).documents == 10
