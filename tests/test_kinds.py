"""What a file is: its content decides, not its name. Records under the columns that the user names."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sproutrag.ingest import survey
from sproutrag.pieces import Piece
from sproutrag.records import Columns
from tests.small_files import docx_of, epub_of, only, paragraph, pdf_of, read, read_bytes, refused


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (pdf_of("A PDF."), "A PDF."),
        (docx_of(paragraph("A docx.")), "A docx."),
        (epub_of("<p>A book."), "A book."),
        (b"<!-- x --><!DOCTYPE html><p>A page.", "A page."),
        (b'{"doc_id": "x", "text": "A record."}\n', "A record."),
    ],
)
def test_a_document_under_a_wrong_name_is_read_as_what_it_is(tmp_path, body, text):
    for name in ("a.txt", "a.csv", "named.log"):
        assert only(read_bytes(tmp_path, body, name)).text == text, name


def test_files_that_pass_for_text_are_refused_as_what_they_are(tmp_path):
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        entry = tarfile.TarInfo("a.txt")
        entry.size = 20_000
        archive.addfile(entry, io.BytesIO(b"Some text here. " * 1_250))
    cases = {rb"{\rtf1\ansi Hello.\par}": "RTF", b"%!PS-Adobe-3.0\n(Hi) show": "PostScript",
             tar.getvalue(): "tar", b"\x89PNG\r\n\x1a\n" + bytes(range(256)): "binary"}  # fmt: skip
    for body, what in cases.items():
        assert what in refused(read_bytes(tmp_path, body, "notes.txt")).reason


def test_a_gzip_without_its_ending_is_read(tmp_path):
    lines = gzip.compress(b'{"doc_id":"1","text":"Packed."}\n')
    assert only(read_bytes(tmp_path, lines, "d.jsonl")).text == "Packed."
    assert only(read_bytes(tmp_path, gzip.compress(pdf_of("A PDF.")), "d.txt")).text == "A PDF."


def test_a_picture_under_the_name_of_a_page_is_refused(tmp_path):
    row = refused(read_bytes(tmp_path, b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "logo.html"))
    assert row.reason == "binary content, not text"


def test_files_without_an_ending_are_read_only_if_certainly_documents(tmp_path):
    (tmp_path / "report").write_bytes(pdf_of("A PDF."))
    (tmp_path / "Makefile").write_text("all:\n")
    found = survey([str(tmp_path)])
    assert [Path(p.path).name for p in found.pieces] == ["report"] and len(found.skipped) == 1


def test_lines_compressed_with_zstd_whatever_the_name(tmp_path):
    lines = b"".join(b'{"doc_id":"%d","text":"Packed."}\n' % i for i in range(2_000))
    packed = pa.compress(lines, codec="zstd", asbytes=True)
    for name in ("d.jsonl.zst", "d.jsonl"):
        (tmp_path / name).write_bytes(packed)
        assert len(read(tmp_path / name, piece_bytes=100)) == 2_000
    (tmp_path / "d.jsonl.zst").write_bytes(packed[:-20])
    assert "cannot be read" in read(tmp_path / "d.jsonl.zst")[-1].reason


def test_columns_are_read_under_the_names_given(tmp_path):
    columns = Columns(text="body", id="key", title="head", metadata=("year",))
    rows = [{"key": "a", "body": "Text.", "head": "T", "year": "1999", "text": "other", "secret": "x"}]
    (tmp_path / "d.jsonl").write_text(json.dumps(rows[0]))
    (tmp_path / "d.csv").write_text(",".join(rows[0]) + "\n" + ",".join(rows[0].values()))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    for name in ("d.jsonl", "d.csv", "d.parquet"):
        document = only(read(tmp_path / name, columns=columns))
        assert (document.id, document.text, document.title) == ("a", "Text.", "T")
        assert document.metadata == '{"year": "1999"}'
    everything = only(read(tmp_path / "d.csv", columns=Columns(text="body", id="key")))
    assert json.loads(everything.metadata).keys() == {"head", "year", "text", "secret"}


def test_a_missing_column_says_which_and_how_to_name_another(tmp_path):
    (tmp_path / "d.csv").write_text("key,body\na,Text.")
    row = refused(read(tmp_path / "d.csv", columns=Columns(text="body", id="key", metadata=("year",))))
    assert row.reason == "no column year; columns are 'key', 'body'" and "--metadata-columns" in row.hint
    assert "--id-column" in refused(read(tmp_path / "d.csv")).hint


def test_a_piece_keeps_its_columns_on_the_way_to_a_worker():
    piece = Piece("a.csv", "csv", columns=Columns(text="body", metadata=("year", "place")))
    assert Piece.from_json(piece.to_json()) == piece
