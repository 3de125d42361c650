"""Room on the disk."""

import errno
from pathlib import Path

import pytest

from sproutrag.disk import DiskFull, free_bytes, full_disk_explained, is_full, require_room


def test_a_full_disk_is_recognised_in_whatever_wraps_it() -> None:
    try:
        try:
            raise OSError(
                "LanceError(IO): Generic LocalFileSystem error: No space left on device (os error 28)"
            )
        except OSError as error:
            raise RuntimeError("the workers failed") from error
    except RuntimeError as wrapped:
        assert is_full(wrapped)
    assert is_full(OSError(errno.ENOSPC, "")) and is_full(OSError(errno.EDQUOT, ""))
    assert not is_full(OSError(errno.EACCES, "")) and not is_full(None)


def test_what_does_not_fit_is_refused_with_both_figures(tmp_path: Path) -> None:
    db = str(tmp_path / "not" / "there" / "yet")
    free = free_bytes(db)
    assert free and free_bytes("memory://db") is None
    require_room(db, 0)
    require_room("memory://db", 1 << 60)
    with pytest.raises(DiskFull, match=rf"{db}.*free disk space.*need 1,000,000,000.0 MB.*run again"):
        require_room(db, 10**15)


def test_the_message_says_where_how_much_is_kept_and_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(
            DiskFull, match=rf"{tmp_path} has .* MB left.*7 finished documents are kept.*Free space"
        ),
        full_disk_explained(str(tmp_path), kept=lambda db: 7),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(PermissionError), full_disk_explained(str(tmp_path), kept=lambda db: 7):
        raise PermissionError("not ours")
