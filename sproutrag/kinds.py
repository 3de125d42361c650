"""What a file is, by its first bytes and structure; its name decides only between kinds of plain text."""

import csv
import json
import posixpath
import re

from sproutrag.files import COMPRESSED
from sproutrag.records import Columns

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".pdf": "pdf",
    ".docx": "docx",
    ".epub": "epub",
}
DELIMITERS = {"csv": ",", "tsv": "\t"}
HEAD_BYTES = 64 << 10
PDF_HEADER_WITHIN = 1_024  # bytes; ISO 32000 readers accept rubbish before it
MARKS = {
    b"%PDF-": "pdf",
    b"PAR1": "parquet",
    b"PK\x03\x04": "zip",
    b"\xd0\xcf\x11\xe0": "ole",
    b"{\\rtf": "rtf",
    b"%!PS": "postscript",
}
TAR_MARK = slice(257, 262), b"ustar"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
HTML_START = re.compile(
    rb"\s*+(?:<\?xml[^>]*+>\s*+)?+(?:<!--(?:(?!-->).)*+-->\s*+)*+<(?:!doctype\s+html|html[\s>])",
    re.IGNORECASE | re.DOTALL,
)
TAG = re.compile(rb"</?[a-zA-Z][^<>]*>|<!doctype", re.I)
EPUB_HEAD = b"mimetypeapplication/epub+zip"  # the first entry of the archive, never compressed
DOCX_HEAD = b"[Content_Types].xml"


def kind_by_name(path: str) -> str:
    """The format by the ending of the name, "" if unknown; .gz, .bz2, .xz and .zst are looked through."""
    stem, ending = posixpath.splitext(path.lower())
    if ending in COMPRESSED:
        ending = posixpath.splitext(stem)[1]
        return FORMATS.get(ending, "") if ending != ".parquet" else ""
    return FORMATS.get(ending, "")


def kind_of(head: bytes, named: str, columns: Columns) -> str:
    """The kind of a file that begins with `head` (HEAD_BYTES, or all of it) and is `named` that kind."""
    head = head.removeprefix(BYTE_ORDER_MARK)
    if marked := kind_by_mark(head):
        return marked
    if named == "pdf" and b"%PDF-" in head[:PDF_HEADER_WITHIN]:
        return "pdf"
    if HTML_START.match(head):
        return "html"
    if named == "html":
        return "html" if TAG.search(head) or b"\0" in head else "text"
    return _kind_of_lines(head, named, columns) or named


def kind_by_mark(head: bytes) -> str:
    """The kind of a file that no text begins like, "" for all others."""
    place, mark = TAR_MARK
    if head[place] == mark:
        return "tar"
    return next((kind for mark, kind in MARKS.items() if head.lstrip().startswith(mark)), "")


def is_document(head: bytes) -> bool:
    """Is this certainly a document, whatever it is called?"""
    if head.startswith(b"PK\x03\x04"):
        return EPUB_HEAD in head[:100] or DOCX_HEAD in head[:100]
    return kind_by_mark(head) in ("pdf", "parquet") or HTML_START.match(head) is not None


def _kind_of_lines(head: bytes, named: str, columns: Columns) -> str:
    """Records under the name of another text format: told by a first line that holds our columns."""
    line = head.lstrip().split(b"\n", 1)[0]
    if named in ("csv", "tsv", "text", "unknown") and line.startswith(b"{"):
        return "jsonl" if _is_record(line, columns) else ""
    if named == "jsonl" and not line.startswith((b"{", b"[")):
        return next(
            (kind for kind, sign in (("csv", ","), ("tsv", "\t")) if _is_header(line, sign, columns)), ""
        )
    return ""


def _is_record(line: bytes, columns: Columns) -> bool:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return type(record) is dict and columns.id in record and columns.text in record


def _is_header(line: bytes, delimiter: str, columns: Columns) -> bool:
    names = next(csv.reader([line.decode("utf-8", "replace")], delimiter=delimiter), [])
    return columns.id in names and columns.text in names
