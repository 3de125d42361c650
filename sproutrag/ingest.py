"""Sources to documents: lists what can be read and reads it piece by piece with flat memory. No Ray.

SourceError     a source that is not there or holds nothing to read; everything smaller is a Rejected.
"""

import csv
import io
import os
import posixpath
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import fsspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem

from sproutrag.documents import LONE_SURROGATE, Document
from sproutrag.records import Rejected, document_of, document_of_file, parse_record, repeated_columns

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".md": "markdown",
    ".markdown": "markdown",
}
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
ARROW_SCHEMES = ("s3", "gs", "gcs", "hdfs", "abfs", "abfss")  # Arrow reads these without further packages
MAX_RECORD_BYTES = 256 << 20  # one line or text file; a longer one is set aside
PARQUET_ROWS = 64  # rows held at a time
READ_ERRORS = (OSError, EOFError, zlib.error, pa.ArrowException)


class SourceError(Exception):
    """A source that cannot be listed; the message names it and says what to do."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A whole file, or bytes [start, stop) of it; `line` is the number of the line that holds `start`."""

    path: str
    format: str
    start: int = 0
    stop: int | None = None
    line: int = 1


class Survey(NamedTuple):
    """What a listing found: pieces to read, and files left out for their unknown ending."""

    pieces: list[Piece]
    skipped: list[str]


def list_pieces(sources: Sequence[str], *, piece_bytes: int = 64 << 20) -> list[Piece]:
    """Pieces of all files below the sources, each file once, in the order given and then by name."""
    return survey(sources, piece_bytes=piece_bytes).pieces


def survey(sources: Sequence[str], *, piece_bytes: int = 64 << 20) -> Survey:
    """`list_pieces`, with the files of unknown kind that a directory or glob brought along."""
    pieces: dict[str, list[Piece]] = {}
    skipped: list[str] = []
    for source in sources:
        known = 0
        for path, named in _files(source):
            kind = format_of(path)
            known += bool(kind) or named
            if not named and (not kind or LONE_SURROGATE.search(path)):
                skipped.append(LONE_SURROGATE.sub("\ufffd", path))
            elif path not in pieces:
                pieces[path] = _pieces_of(path, kind or "unknown", piece_bytes)
        if not known:
            raise SourceError(f"nothing to read in {source}: looked for {', '.join(sorted(FORMATS))}")
    return Survey([piece for group in pieces.values() for piece in group], skipped)


def read_piece(piece: Piece) -> Iterator[Document | Rejected]:
    """Documents of a piece in order, each bad record as Rejected in its place. Never raises for bad input."""
    try:
        yield from READERS[piece.format](piece)
    except READ_ERRORS as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        yield Rejected(
            piece.path, f"cannot be read: {reason}", "check that the file is there, whole and readable"
        )


def format_of(path: str) -> str:
    """The format by the ending of the name, "" if unknown; .gz, .bz2, .xz and .zst are looked through."""
    stem, ending = posixpath.splitext(path.lower())
    if ending in COMPRESSED:
        ending = posixpath.splitext(stem)[1]
        return FORMATS.get(ending, "") if ending != ".parquet" else ""
    return FORMATS.get(ending, "")


def filesystem_of(path: str) -> tuple[Any, str]:
    """(fsspec file system, path in it). Object stores go through Arrow, everything else through fsspec."""
    if "://" not in path:
        return LocalFileSystem(), os.path.abspath(path)
    scheme = path.split("://", 1)[0]
    try:
        if scheme in ARROW_SCHEMES:
            found, inner = pyarrow.fs.FileSystem.from_uri(path.replace("gcs://", "gs://", 1))
            return ArrowFSWrapper(found), inner
        return fsspec.core.url_to_fs(path)
    except (ValueError, ImportError) as error:
        raise SourceError(f"cannot open {path}: {error}") from error


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


def _pieces_of(path: str, kind: str, piece_bytes: int) -> list[Piece]:
    """Large JSON Lines and Parquet files in ranges of bytes; other formats are read whole."""
    if kind not in ("jsonl", "parquet") or path.lower().endswith(COMPRESSED):
        return [Piece(path, kind)]
    files, inner = filesystem_of(path)
    try:
        size = files.size(inner)
        if size <= piece_bytes:
            return [Piece(path, kind)]
        if kind == "parquet":
            return [Piece(path, kind, at, min(at + piece_bytes, size)) for at in range(0, size, piece_bytes)]
        return list(_line_pieces(path, kind, size, piece_bytes))
    except OSError:
        return [Piece(path, kind)]  # reading it will say why


def _line_pieces(path: str, kind: str, size: int, piece_bytes: int) -> Iterator[Piece]:
    """One sequential read of the file counts its lines, so that every record can name its own."""
    line = 1
    with _open(path) as file:
        for start in range(0, size, piece_bytes):
            yield Piece(path, kind, start, min(start + piece_bytes, size), line)
            left = piece_bytes
            while left and (block := file.read(min(left, 1 << 20))):
                line += block.count(b"\n")
                left -= len(block)


def _open(path: str) -> IO[bytes]:
    files, inner = filesystem_of(path)
    if path.lower().endswith(COMPRESSED):
        return files.open(inner, "rb", compression="infer")
    return files.open(inner, "rb")


def _read_jsonl(piece: Piece) -> Iterator[Document | Rejected]:
    """The lines that start in [start, stop)."""
    number = piece.line
    with _open(piece.path) as file:
        if piece.start:
            file.seek(piece.start - 1)
            if file.read(1) != b"\n":  # the line that holds `start` began before this piece
                _skip_line(file)
                number += 1
        while piece.stop is None or file.tell() < piece.stop:
            line = file.readline(MAX_RECORD_BYTES)
            if not line:
                return
            source, first = f"{piece.path}:{number}", number == 1
            number += 1
            if len(line) == MAX_RECORD_BYTES and not line.endswith(b"\n"):
                _skip_line(file)
                yield Rejected(source, f"line longer than {MAX_RECORD_BYTES} bytes", "split the document")
            elif first and line.startswith((b"\xff\xfe", b"\xfe\xff")):
                yield Rejected(
                    source, "UTF-16, expected UTF-8", "convert the file with iconv -f UTF-16 -t UTF-8"
                )
                return
            elif line.strip():
                yield parse_record(line.removeprefix(b"\xef\xbb\xbf") if first else line, source)


def _skip_line(file: IO[bytes]) -> None:
    while (part := file.readline(1 << 20)) and not part.endswith(b"\n"):
        pass


def _read_parquet(piece: Piece) -> Iterator[Document | Rejected]:
    """The row groups whose first byte is in [start, stop); rows are numbered through the file from 1."""
    with _open(piece.path) as file:
        table = pq.ParquetFile(file)
        columns = table.schema_arrow.names
        if refused := _missing(columns, piece.path):
            if not piece.start:
                yield refused
            return
        row = 1
        for group in range(table.num_row_groups):
            facts = table.metadata.row_group(group)
            if _first_byte(facts) in range(piece.start, piece.stop or 1 << 62):
                for offset, record in _rows(table, group):
                    yield document_of(record, f"{piece.path}:{row + offset}")
            row += facts.num_rows


def _first_byte(group: Any) -> int:
    column = group.column(0)
    return min(column.data_page_offset, column.dictionary_page_offset or column.data_page_offset)


def _rows(table: pq.ParquetFile, group: int) -> Iterator[tuple[int, dict[str, Any]]]:
    offset = 0
    for batch in table.iter_batches(batch_size=PARQUET_ROWS, row_groups=[group]):
        for i in range(len(batch)):
            yield offset + i, {name: _cell(batch.column(name)[i]) for name in batch.schema.names}
        offset += len(batch)


def _cell(scalar: pa.Scalar) -> Any:
    """The Python value; text that is not UTF-8 comes back with surrogates, which the door replaces."""
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes().decode("utf-8", "replace")


def _read_csv(piece: Piece) -> Iterator[Document | Rejected]:
    """A header line names the fields; quoted fields may hold line breaks, which stay as they are."""
    csv.field_size_limit(MAX_RECORD_BYTES)
    with io.TextIOWrapper(_open(piece.path), "utf-8-sig", "surrogateescape", newline="") as file:
        rows = csv.reader(file, delimiter="\t" if piece.format == "tsv" else ",", strict=True)
        names: list[str] = []
        while True:
            source = f"{piece.path}:{rows.line_num + 1}"
            try:
                row = next(rows, None)
            except csv.Error as error:  # reading goes on with the line after it
                yield Rejected(source, f"not CSV: {error}", "check the quotes from this line on")
                continue
            if not names and (
                refused := _missing(row or [], piece.path) or repeated_columns(row or [], piece.path)
            ):
                yield refused
                return
            if row is None:
                return
            if not names:
                names = row
            elif row:
                yield _csv_document(names, row, source)


def _csv_document(names: Sequence[str], row: Sequence[str], source: str) -> Document | Rejected:
    if len(row) > len(names):
        return Rejected(
            source, f"{len(row)} fields, the header has {len(names)}", "quote fields that hold commas"
        )
    if any("\udc80" <= c <= "\udcff" for field in row for c in field if not field.isascii()):
        return Rejected(source, "not UTF-8", "save the file as UTF-8", row[names.index("doc_id")])
    return document_of(dict(zip(names, row, strict=False)), source)


def _missing(names: Sequence[str], path: str) -> Rejected | None:
    lacking = [name for name in ("doc_id", "text") if name not in names]
    if not lacking:
        return repeated_columns(names, path)
    found = ", ".join(map(repr, names)) or "none"
    return Rejected(path, f"no column {' and '.join(lacking)}; columns are {found}", "rename the columns")


def _read_text(piece: Piece) -> Iterator[Document | Rejected]:
    with _open(piece.path) as file:
        body = file.read(MAX_RECORD_BYTES + 1)
    if len(body) > MAX_RECORD_BYTES:
        yield Rejected(piece.path, f"larger than {MAX_RECORD_BYTES} bytes", "split the document")
    else:
        yield document_of_file(piece.path, body, markdown=piece.format == "markdown")


def _refuse(piece: Piece) -> Iterator[Document | Rejected]:
    known = ", ".join(sorted(FORMATS))
    yield Rejected(piece.path, "unknown file type", f"convert it to one of {known}")


READERS = {
    "jsonl": _read_jsonl,
    "parquet": _read_parquet,
    "csv": _read_csv,
    "tsv": _read_csv,
    "text": _read_text,
    "markdown": _read_text,
    "unknown": _refuse,
}
