"""Formats of their own: real small files, written here byte by byte or by the library that defines them."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pypdf import PdfWriter

from sproutrag import archives, pdf
from sproutrag.documents import Document, content_hash, leaf_spans
from sproutrag.ingest import Piece, list_pieces, read_piece, survey
from sproutrag.markup import main_content, parse, text_of
from sproutrag.pages import join_pages, page_starts, pages_of
from sproutrag.records import Columns, Rejected

PROSE = "The ferry leaves at nine in the morning. Passengers should bring a coat against the wind."
MENU = "<ul><li><a href=/>Home</a></li><li><a href=/a>About</a></li><li><a href=/c>Contact</a></li></ul>"
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"


def read(*sources: Path, **options: object) -> list[Document | Rejected]:
    return [row for piece in list_pieces([str(s) for s in sources], **options) for row in read_piece(piece)]


def read_bytes(tmp_path: Path, body: bytes, name: str = "file") -> list[Document | Rejected]:
    (tmp_path / name).write_bytes(body)
    return read(tmp_path / name)


def only(rows: list) -> Document:
    assert len(rows) == 1 and isinstance(rows[0], Document), rows
    return rows[0]


def refused(rows: list) -> Rejected:
    assert len(rows) == 1 and isinstance(rows[0], Rejected) and rows[0].hint, rows
    return rows[0]


def pdf_of(*contents: str | bytes, title: str = "") -> bytes:
    """A PDF with one page per content: a line of text each, or the raw content stream."""
    count = len(contents)
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(count))
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", f"<</Type/Pages/Kids[{kids}]/Count {count}>>".encode(),
               b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>"]  # fmt: skip
    for i, content in enumerate(contents):
        line = f"BT /F 12 Tf 50 700 Td ({content!s}) Tj ET".encode()
        stream = content if isinstance(content, bytes) else line
        objects.append(
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F 3 0 R>>>>"
            + f"/Contents {5 + 2 * i} 0 R>>".encode()
        )
        objects.append(b"<</Length %d>>\nstream\n%s\nendstream" % (len(stream), stream))
    objects.append(f"<</Title({title})>>".encode())
    out, places = io.BytesIO(b""), []
    out.write(b"%PDF-1.4\n")
    for number, body in enumerate(objects, start=1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    out.writelines(b"%010d 00000 n \n" % place for place in places)
    trailer = b"trailer<</Size %d/Root 1 0 R/Info %d 0 R>>\nstartxref\n%d\n%%%%EOF"
    return out.getvalue() + trailer % (len(objects) + 1, len(objects), start)


def zip_of(**parts: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in parts.items():
            archive.writestr(path, text)
    return out.getvalue()


def docx_of(body: str) -> bytes:
    xml = '<Default Extension="xml" ContentType="application/xml"/>'
    types = f'<Types xmlns="{PACKAGE}/content-types">{xml}</Types>'
    link = f'<Relationship Id="r" Type="{OFFICE}/officeDocument" Target="word/document.xml"/>'
    names = '<w:style w:type="paragraph" w:styleId="H1"><w:name w:val="heading 1"/></w:style>'
    return zip_of(**{
        "[Content_Types].xml": types,
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships">{link}</Relationships>',
        "word/_rels/document.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
        f'<Relationship Id="s" Type="{OFFICE}/styles" Target="styles.xml"/></Relationships>',
        "word/styles.xml": f'<w:styles xmlns:w="{WORD}">{names}</w:styles>',
        "word/document.xml": f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>',
    })  # fmt: skip


def paragraph(text: str, style: str = "") -> str:
    look = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{look}<w:r><w:t>{text}</w:t></w:r></w:p>"


def epub_of(*sections: str, encrypted: str = "") -> bytes:
    items = "".join(f'<item id="s{i}" href="s{i}.xhtml"/>' for i in range(len(sections)))
    spine = "".join(f'<itemref idref="s{i}"/>' for i in range(len(sections)))
    files = '<rootfiles><rootfile full-path="OPS/b.opf"/></rootfiles>'
    title = '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>A Book</dc:title></metadata>'
    parts = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": f"<container>{files}</container>",
        "OPS/b.opf": f"<package>{title}<manifest>{items}</manifest><spine>{spine}</spine></package>",
    }
    if encrypted:
        parts["META-INF/encryption.xml"] = f'<encryption><CipherReference URI="{encrypted}"/></encryption>'
    chapters = {f"OPS/s{i}.xhtml": text for i, text in enumerate(sections) if text}
    return zip_of(**parts, **chapters)


# HTML


def test_a_plain_page_keeps_headings_lists_and_code_and_loses_its_menu(tmp_path):
    page = f"""<!doctype html><title>The ferry | Site</title><nav>{MENU}</nav>
        <div class=top>{MENU}</div><h1>The ferry</h1><p>{PROSE}<br>Children go <b>free</b>.</p>
        <ol><li>One rule.<li>Two.<ul><li>Nested.</ul></ol><pre>code  here\n  indented</pre>
        <footer>All rights reserved.</footer><script>var x;</script>"""
    document = only(read_bytes(tmp_path, page.encode(), "p.html"))
    assert document.title == "The ferry"
    assert document.text == (
        f"# The ferry\n\n{PROSE}\nChildren go free.\n\n1. One rule.\n2. Two.\n  - Nested.\n\n"
        "```\ncode  here\n  indented\n```"
    )
    assert json.loads(document.metadata) == {"format": "html", "left_out_characters": 52}


def test_a_table_becomes_rows_under_their_header(tmp_path):
    page = "<html><table><tr><th>Route<th>Fare<tr><td>North|East<td>4</table><p>Next."
    assert only(read_bytes(tmp_path, page.encode())).text == (
        "| Route | Fare |\n|---|---|\n| North\\|East | 4 |\n\nNext."
    )


def test_a_page_that_is_a_list_of_links_is_kept():
    assert "Contact" in text_of(main_content(parse(f"<body>{MENU}<p>Hi."))[0])


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p>one<p>two <div>three<td>four", "one\n\ntwo\n\nthree\n\nfour"),
        ("<p>a &nbsp; b < 5 &bogus;</p", "a \xa0 b < 5 &bogus;"),
        ("<title>T</title><main>in the head <p>of the tree</main>", "in the head\n\nof the tree"),
        ("<title/><p>after an empty title", "after an empty title"),
        ("<p>x<!-- unseen --> y<span hidden>no</span></p>", "x y"),
    ],
)
def test_malformed_pages(page, text):
    assert text_of(main_content(parse(page))[0]) == text


@pytest.mark.parametrize(
    ("declared", "encoding"),
    [("gb2312", "gb18030"), ("shift_jis", "cp932"), ("utf-8", "utf-8"), ("windows-1251", "cp1251")],
)
def test_declared_encoding_of_a_page_that_is_not_english(tmp_path, declared, encoding):
    text = "Договор вступает в силу." if "1251" in declared else "本文。次の文。"
    page = f"<html><meta charset={declared}><title>{text[:2]}</title><article><p>{text}</article>"
    document = only(read_bytes(tmp_path, page.encode(encoding), "p.htm"))
    assert document.text == text and document.title == text[:2]


def test_pages_without_text_or_too_deep_to_read_are_refused(tmp_path):
    empty = refused(read_bytes(tmp_path, b"<html><body><script>render()</script></body>"))
    deep = refused(read_bytes(tmp_path, b"<html><p>first" + b"<div>" * 5_000 + b"deep"))
    assert "no text" in empty.reason and "too deep" in deep.reason


words = st.text(alphabet="abcdé双", min_size=1, max_size=5)
tags = st.sampled_from(["p", "div", "b", "h2", "ul", "li", "table", "tr", "td", "th", "pre", "dl"])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(words, tags.map("<{}>".format), tags.map("</{}>".format)), max_size=30))
def test_no_visible_word_is_lost_whatever_the_markup(pieces):
    root = parse("<body><p>start " + " ".join(pieces))
    assert sorted(w for w in text_of(root).split() if w.isalpha()) == sorted("".join(
        text + " " for text in root.itertext()).split())  # fmt: skip


# PDF


def test_evidence_from_a_pdf_names_its_pages(tmp_path):
    path = tmp_path / "r.pdf"
    path.write_bytes(pdf_of("First page here.", "", "Third page here.", title="A Report"))
    document = only(read(path))
    assert (document.title, document.text) == ("A Report", "First page here.\nThird page here.")
    assert page_starts(document).tolist() == [0, 17, 17]
    assert pages_of(document, [(0, 5)]) == [1] and pages_of(document, [(17, 20)]) == [3]
    assert pages_of(document, leaf_spans(document.text))[::2] == [1, 3]
    other = Document(document.id, document.text, document.title, "", '{"page_starts": [0]}')
    assert content_hash(other) != content_hash(document)


def test_documents_without_pages_have_none():
    for metadata in ("{}", '{"page_starts": "x"}', '{"page_starts": [3, 1]}'):
        assert pages_of(Document("a", "Text.", metadata=metadata), np.array([[0, 5]])) == []


@given(st.lists(st.text(alphabet="ab \0\ud800", max_size=6), min_size=1, max_size=6))
def test_every_page_begins_where_its_start_says(pages):
    text, starts = join_pages(pages, separator="\n")
    ends = [*starts[1:], len(text)]
    expected = [page.replace("\0", "").replace("\ud800", "\ufffd").strip() for page in pages]
    assert [text[a:b].strip() for a, b in zip(starts, ends, strict=True)] == expected


def test_one_broken_page_does_not_lose_the_others_and_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(pdf, "MAX_PAGE_CHARS", 20)
    body = pdf_of("Good one.", "A page that is far too long.", "Last.")
    document, page = read_bytes(tmp_path, body, "r.pdf")
    assert document.text == "Good one.\nLast." and json.loads(document.metadata)["unread_pages"] == [2]
    assert page.source.endswith("r.pdf:page 2") and "page 2 cannot be read" in page.reason and page.hint


def test_scanned_encrypted_and_broken_pdfs_say_what_to_do(tmp_path):
    assert "ocrmypdf" in refused(read_bytes(tmp_path, pdf_of(b"0 0 10 10 re f"), "scan.pdf")).hint
    for password, opens in (("secret", False), ("", True)):
        writer = PdfWriter(clone_from=io.BytesIO(pdf_of("Locked text.")))
        writer.encrypt(password, owner_password="owner", algorithm="AES-256")
        writer.write(tmp_path / "e.pdf")
        row = read(tmp_path / "e.pdf")
        assert only(row).text == "Locked text." if opens else "qpdf --decrypt" in refused(row).hint
    for body in (b"%PDF-1.4 nothing more", pdf_of("x")[:150], b"not a PDF"):
        assert "cannot be read as PDF" in refused(read_bytes(tmp_path, body, "b.pdf")).reason


# docx and EPUB


def test_docx_keeps_headings_tables_and_insertions(tmp_path):
    cells = "".join(f"<w:tc>{paragraph(text)}</w:tc>" for text in ("Route", "Fare"))
    inserted = "<w:p><w:ins><w:r><w:t>Inserted.</w:t></w:r></w:ins></w:p>"
    table = f"<w:tbl><w:tr>{cells}</w:tr></w:tbl>"
    body = paragraph("Ferry", "H1") + paragraph(PROSE) + inserted + table
    document = only(read_bytes(tmp_path, docx_of(body), "d.docx"))
    assert document.text == f"# Ferry\n\n{PROSE}\n\nInserted.\n\n| Route | Fare |"
    assert document.title == "Ferry"


def test_epub_sections_count_as_pages(tmp_path):
    book = epub_of("<html><title/><h1>One</h1><p>First.</p></html>", "", "<p>Third&nbsp;text.</p>")
    document, section = read_bytes(tmp_path, book, "b.epub")
    assert document.text == "# One\n\nFirst.\n\nThird\xa0text." and document.title == "A Book"
    assert pages_of(document, [(0, 5)]) == [1] and pages_of(document, [(15, 20)]) == [3]
    assert "section 2 (OPS/s1.xhtml)" in section.reason


def test_protected_broken_and_other_archives_are_refused(tmp_path, monkeypatch):
    cases = [
        (epub_of("<p>Text.", encrypted="OPS/s0.xhtml"), "DRM"),
        (docx_of("<w:p>")[:-30], "cannot be read as zip"),
        (docx_of("<w:p>"), "cannot be read as"),
        (zip_of(**{"xl/workbook.xml": "<x/>"}), "spreadsheet"),
        (zip_of(**{"a.txt": "Text."}), "a zip archive"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600, "old format"),
    ]
    for body, reason in cases:
        assert reason in refused(read_bytes(tmp_path, body, "f.docx")).reason
    monkeypatch.setattr(archives, "MAX_TEXT_BYTES", 10_000)
    bomb = docx_of(paragraph("0" * 1_000_000))
    assert len(bomb) < 5_000 and "when unpacked" in refused(read_bytes(tmp_path, bomb, "f.docx")).reason


# the content decides, not the name


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


# columns


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
