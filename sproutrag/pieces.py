"""Readers of one piece each: records from lines, tables and files, streamed with flat memory."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from sproutrag.documents import Document
from sproutrag.extract import EXTRACTORS, extract
from sproutrag.files import open_file, open_raw
from sproutrag.kinds import BYTE_ORDER_MARK, FORMATS
from sproutrag.pages import Extracted
from sproutrag.records import (
    OUR_COLUMNS,
    Columns,
    Rejected,
    Unreadable,
    document_of,
    document_of_file,
    document_of_text,
    parse_record,
    repeated_columns,
)

MAX_RECORD_BYTES = 256 << 20  # one line or file, after decompression; a longer one is set aside
PARQUET_ROWS = 64  # rows held at a time


@dataclass(frozen=True, slots=True)
class Piece:
    """A whole file, or bytes [start, stop) of it; `line` is the number of the line that holds `start`.

    `format` is what the name promises; of a whole file, the content decides.
    """

    path: str
    format: str
    start: int = 0
    stop: int | None = None
    line: int = 1
    columns: Columns = OUR_COLUMNS

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Piece":
        fields = json.loads(text)
        columns = fields.pop("columns")
        return cls(**fields, columns=Columns(**columns | {"metadata": tuple(columns["metadata"])}))


def _read_jsonl(piece: Piece) -> Iterator[Document | Rejected]:
    """The lines that start in [start, stop)."""
    number = piece.line
    with open_file(piece.path) as file:
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
                yield parse_record(
                    line.removeprefix(BYTE_ORDER_MARK) if first else line, source, piece.columns
                )


def _skip_line(file: IO[bytes]) -> None:
    while (part := file.readline(1 << 20)) and not part.endswith(b"\n"):
        pass


def _read_parquet(piece: Piece) -> Iterator[Document | Rejected]:
    """The row groups whose first byte is in [start, stop); rows are numbered through the file from 1."""
    file, unpack = open_raw(piece.path)
    with file:
        if unpack:
            yield Rejected(piece.path, "compressed Parquet file", "decompress it: Parquet compresses inside")
            return
        table = pq.ParquetFile(file)
        if refused := _unusable(table.schema_arrow.names, piece):
            if not piece.start:
                yield refused
            return
        row = 1
        for group in range(table.num_row_groups):
            facts = table.metadata.row_group(group)
            if _first_byte(facts) in range(piece.start, piece.stop or 1 << 62):
                for offset, record in _rows(table, group):
                    yield document_of(record, f"{piece.path}:{row + offset}", piece.columns)
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


def _read_csv(piece: Piece, delimiter: str = ",") -> Iterator[Document | Rejected]:
    """A header line names the fields; quoted fields may hold line breaks, which stay as they are."""
    csv.field_size_limit(MAX_RECORD_BYTES)
    with io.TextIOWrapper(open_file(piece.path), "utf-8-sig", "surrogateescape", newline="") as file:
        rows = csv.reader(file, delimiter=delimiter, strict=True)
        names: list[str] = []
        while True:
            source = f"{piece.path}:{rows.line_num + 1}"
            try:
                row = next(rows, None)
            except csv.Error as error:  # reading goes on with the line after it
                yield Rejected(source, f"not CSV: {error}", "check the quotes from this line on")
                continue
            if not names and (refused := _unusable(row or [], piece)):
                yield refused
                return
            if row is None:
                return
            if not names:
                names = row
            elif row:
                yield _csv_document(names, row, source, piece.columns)


def _csv_document(
    names: Sequence[str], row: Sequence[str], source: str, columns: Columns
) -> Document | Rejected:
    if len(row) > len(names):
        return Rejected(
            source, f"{len(row)} fields, the header has {len(names)}", "quote fields that hold commas"
        )
    if any("\udc80" <= c <= "\udcff" for field in row for c in field if not field.isascii()):
        return Rejected(source, "not UTF-8", "save the file as UTF-8", row[names.index(columns.id)])
    return document_of(dict(zip(names, row, strict=False)), source, columns)


def _unusable(names: Sequence[str], piece: Piece) -> Rejected | None:
    """Why no record can be read under this header: columns that are not there, or there twice."""
    return _missing(names, piece) or repeated_columns(names, piece.path)


def _missing(names: Sequence[str], piece: Piece) -> Rejected | None:
    columns = piece.columns
    title = () if columns.title == OUR_COLUMNS.title else (columns.title,)
    lacking = [name for name in (columns.id, columns.text, *title, *columns.metadata) if name not in names]
    if not lacking:
        return None
    found = ", ".join(map(repr, names)) or "none"
    return Rejected(
        piece.path,
        f"no column {' and '.join(lacking)}; columns are {found}",
        "say which columns to read with --id-column, --text-column, --title-column, --metadata-columns",
    )


def _read_text(piece: Piece) -> Iterator[Document | Rejected]:
    body = _body(piece)
    markdown = piece.format == "markdown"
    yield body if isinstance(body, Rejected) else document_of_file(piece.path, body, markdown=markdown)


def _body(piece: Piece) -> bytes | Rejected:
    with open_file(piece.path) as file:
        body = file.read(MAX_RECORD_BYTES + 1)
    if len(body) > MAX_RECORD_BYTES:
        return Rejected(piece.path, f"larger than {MAX_RECORD_BYTES} bytes", "split the document")
    return body


def _read_whole(piece: Piece, kind: str) -> Iterator[Document | Rejected]:
    """A file that is one document in a format of its own."""
    body = _body(piece)
    if isinstance(body, Rejected):
        yield body
        return
    try:
        found = extract(body, kind)
    except Unreadable as problem:
        yield problem.at(piece.path)
        return
    document = document_of_text(piece.path, found.text, found.title, found.metadata)
    yield document
    yield from _unread_pages(document.source, found)


def _unread_pages(source: str, found: Extracted) -> Iterator[Rejected]:
    """Each page that could not be read is set aside by itself, so that the report names it."""
    for page, reason in found.unread.items():
        place = f"{source}:page {page}"
        yield Rejected(place, reason, "repair or re-create the file; its other pages are indexed", place)


def _read_unknown(piece: Piece) -> Iterator[Document | Rejected]:
    """A file that was named, whose ending and first bytes say nothing: text, or nothing of ours."""
    for row in _read_text(piece):
        if isinstance(row, Rejected) and row.reason.startswith("binary"):
            known = ", ".join(sorted(FORMATS))
            row = Rejected(piece.path, "unknown file type", f"convert it to one of {known}")
        yield row


READERS: dict[str, Callable[[Piece], Iterator[Document | Rejected]]] = {
    "jsonl": _read_jsonl,
    "parquet": _read_parquet,
    "csv": _read_csv,
    "tsv": partial(_read_csv, delimiter="\t"),
    "text": _read_text,
    "markdown": _read_text,
    "unknown": _read_unknown,
    **{kind: partial(_read_whole, kind=kind) for kind in EXTRACTORS},
}
