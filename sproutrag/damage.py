"""Which files of a table cannot be read: found by reading every one of them to its end."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import fsspec
import lance


class Unreadable(NamedTuple):
    """A fragment (its number) or an index (its name) that cannot be read, its files, and why."""

    which: int | str
    files: str
    reason: str


def unreadable_fragments(table: lance.LanceDataset) -> Iterator[Unreadable]:
    """Fragments with a data or deletion file that is gone, cut off or damaged; O(bytes) in bounded memory."""
    for fragment in table.get_fragments():
        if reason := failure(partial(read_all, fragment)):
            paths = [f"data/{file.path}" for file in fragment.data_files()]
            marks = fragment.deletion_file()
            gone = missing(table.uri, [*paths, *([marks] if marks else [])])
            yield Unreadable(fragment.fragment_id, ", ".join(gone or paths), reason)


def unreadable_indices(table: lance.LanceDataset) -> Iterator[Unreadable]:
    """Indices that cannot be loaded whole."""
    for index in table.describe_indices():
        if reason := failure(partial(table.prewarm_index, index.name)):
            uuids = [f"_indices/{segment.uuid}" for segment in index.segments]
            yield Unreadable(index.name, ", ".join(uuids), reason)


def read_all(fragment: lance.LanceFragment) -> None:
    for _ in fragment.to_batches():
        pass


def failure(read: Callable[[], object]) -> str:
    """Why reading failed, in one line; "" if it did not."""
    try:
        read()
    except (
        BaseException
    ) as error:  # the boundary: broken files raise anything, panics of native code included
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return f"{type(error).__name__}: {error}".splitlines()[0].split(", /")[0][
            :300
        ]  # less Rust's own place
    return ""


def missing(uri: str, paths: list[str]) -> list[str]:
    files, root = fsspec.url_to_fs(uri)
    return [path for path in paths if not files.exists(f"{root}/{path}")]
