"""Sources to documents: lists what can be read, in pieces that readers take one by one. No Ray."""

import os
import posixpath
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sproutrag.documents import LONE_SURROGATE, Document
from sproutrag.files import READ_ERRORS, SourceError, filesystem_of, open_file, open_raw
from sproutrag.kinds import FORMATS, HEAD_BYTES, is_document, kind_by_name, kind_of
from sproutrag.pieces import READERS, Piece
from sproutrag.records import OUR_COLUMNS, Columns, Rejected

SPLITTABLE = ("jsonl", "parquet")


class Survey(NamedTuple):
    """What a listing found: pieces to read, and files left out for their unknown kind."""

    pieces: list[Piece]
    skipped: list[str]


def list_pieces(
    sources: Sequence[str], *, columns: Columns = OUR_COLUMNS, piece_bytes: int = 64 << 20
) -> list[Piece]:
    """Pieces of all files below the sources, each file once, in the order given and then by name."""
    return survey(sources, columns=columns, piece_bytes=piece_bytes).pieces


def survey(sources: Sequence[str], *, columns: Columns = OUR_COLUMNS, piece_bytes: int = 64 << 20) -> Survey:
    """`list_pieces`, with the files of unknown kind that a directory or glob brought along."""
    pieces: dict[str, list[Piece]] = {}
    skipped: list[str] = []
    for source in sources:
        known = 0
        for path, named in _files(source):
            kind = kind_by_name(path) or ("" if named else _kind_without_name(path))
            known += bool(kind) or named
            if not named and (not kind or LONE_SURROGATE.search(path)):
                skipped.append(LONE_SURROGATE.sub("\ufffd", path))
            elif path not in pieces:
                pieces[path] = _pieces_of(path, kind or "unknown", columns, piece_bytes)
        if not known:
            raise SourceError(f"nothing to read in {source}: looked for {', '.join(sorted(FORMATS))}")
    return Survey([piece for group in pieces.values() for piece in group], skipped)


def read_piece(piece: Piece) -> Iterator[Document | Rejected]:
    """Documents of a piece in order, each bad record as Rejected in its place. Never raises for bad input.

    What the file is, is told by its content: a PDF named .txt is read as PDF.
    """
    try:
        yield from READERS[piece.format if piece.stop else _kind_of_file(piece)](piece)
    except READ_ERRORS as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        yield Rejected(
            piece.path, f"cannot be read: {reason}", "check that the file is there, whole and readable"
        )


def _kind_of_file(piece: Piece) -> str:
    with open_file(piece.path) as file:
        return kind_of(file.read(HEAD_BYTES), piece.format, piece.columns)


def _kind_without_name(path: str) -> str:
    """The kind of a file whose name has no ending at all, "" if it is not certainly a document."""
    if posixpath.splitext(path)[1]:
        return ""
    try:
        with open_file(path) as file:
            head = file.read(HEAD_BYTES)
    except READ_ERRORS:
        return ""
    return "unknown" if is_document(head) else ""


def _files(source: str) -> Iterator[tuple[str, bool]]:
    """(path, was it named itself) of the files of a source, by name; hidden ones only when named."""
    if not source:
        raise SourceError("a source without a name: give a file or a directory, `.` for this one")
    files, inner = filesystem_of(source)
    try:
        if files.isfile(inner):
            yield _as_given(source), True
            return
        if files.isdir(inner):
            yield from ((path, False) for path in _below(source, inner, files.find(inner)))
            return
        matches = sorted(files.glob(inner)) if any(sign in inner for sign in "*?[") else []
    except READ_ERRORS as error:
        raise SourceError(f"cannot list {source}: {error}") from error
    if not matches:
        raise SourceError(f"no such file or directory: {source}; check the path, or quote the glob")
    prefix = _prefix(source, inner)
    for match in matches:
        path = _as_given(prefix(match))
        if _is_hidden(path, unless=source):
            continue
        if files.isdir(match):
            yield from ((found, False) for found in _below(path, match, files.find(match)))
        else:
            yield path, False


def _below(source: str, inner: str, found: Sequence[str]) -> Iterator[str]:
    root = inner.rstrip("/")
    for path in sorted(found):
        relative = path[len(root) :].lstrip("/")
        if not _is_hidden(relative):
            yield _as_given(source.rstrip("/") + "/" + relative)


def _is_hidden(path: str, *, unless: str = "") -> bool:
    """Is there a dot file or folder in the path that the pattern does not name?"""
    return any(part.startswith(".") and part not in ("..", *unless.split("/")) for part in path.split("/"))


def _prefix(source: str, inner: str) -> Any:
    """A function from a path in the file system back to the way the source was written."""
    if "://" in source:
        head = source[: len(source) - len(inner.lstrip("/"))]
        return lambda match: head + match.lstrip("/")
    if posixpath.isabs(source):
        return lambda match: match
    return lambda match: os.path.relpath(match)


def _as_given(path: str) -> str:
    """Normalised, but not made absolute: `./docs//a.md` is `docs/a.md`."""
    return path if "://" in path else posixpath.normpath(path.replace(os.sep, "/"))


def _pieces_of(path: str, kind: str, columns: Columns, piece_bytes: int) -> list[Piece]:
    """Large JSON Lines and Parquet files in ranges of bytes; other formats are read whole."""
    whole = [Piece(path, kind, columns=columns)]
    if kind not in SPLITTABLE:
        return whole
    files, inner = filesystem_of(path)
    try:
        size = files.size(inner)
        if size <= piece_bytes or not _is_plain(path, kind, columns):
            return whole
        if kind == "jsonl":
            return list(_line_pieces(path, size, columns, piece_bytes))
    except OSError:
        return whole  # reading it will say why
    starts = range(0, size, piece_bytes)
    return [Piece(path, kind, at, min(at + piece_bytes, size), columns=columns) for at in starts]


def _is_plain(path: str, kind: str, columns: Columns) -> bool:
    """Is the file not compressed, and what its name says?"""
    raw, unpack = open_raw(path)
    with raw:
        return unpack is None and kind_of(raw.read(HEAD_BYTES), kind, columns) == kind


def _line_pieces(path: str, size: int, columns: Columns, piece_bytes: int) -> Iterator[Piece]:
    """One sequential read of the file counts its lines, so that every record can name its own."""
    line = 1
    with open_file(path) as file:
        for start in range(0, size, piece_bytes):
            yield Piece(path, "jsonl", start, min(start + piece_bytes, size), line, columns)
            left = piece_bytes
            while left and (block := file.read(min(left, 1 << 20))):
                line += block.count(b"\n")
                left -= len(block)
