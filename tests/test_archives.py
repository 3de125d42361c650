"""docx and EPUB: what they say, and archives that would unpack to more than memory holds."""

import io
import zipfile

from sproutrag import archives
from sproutrag.pages import SECTION_STARTS, page_starts, pages_of
from tests.small_files import (
    OFFICE,
    PACKAGE,
    PROSE,
    docx_of,
    epub_of,
    only,
    paragraph,
    read_bytes,
    refused,
    zip_of,
)


def test_docx_keeps_headings_tables_and_insertions(tmp_path):
    cells = "".join(f"<w:tc>{paragraph(text)}</w:tc>" for text in ("Route", "Fare"))
    inserted = "<w:p><w:ins><w:r><w:t>Inserted.</w:t></w:r></w:ins></w:p>"
    table = f"<w:tbl><w:tr>{cells}</w:tr></w:tbl>"
    body = paragraph("Ferry", "H1") + paragraph(PROSE) + inserted + table
    document = only(read_bytes(tmp_path, docx_of(body), "d.docx"))
    assert document.text == f"# Ferry\n\n{PROSE}\n\nInserted.\n\n| Route | Fare |"
    assert document.title == "Ferry"


def test_epub_passages_name_their_sections(tmp_path):
    book = epub_of("<html><title/><h1>One</h1><p>First.</p></html>", "", "<p>Third&nbsp;text.</p>")
    document, section = read_bytes(tmp_path, book, "b.epub")
    assert document.text == "# One\n\nFirst.\n\nThird\xa0text." and document.title == "A Book"
    starts = page_starts(document.metadata, SECTION_STARTS)
    assert pages_of(starts, [(0, 5)]) == (1,) and pages_of(starts, [(15, 20)]) == (3,)
    assert not len(page_starts(document.metadata)), "a section is not a page of print"
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


def test_text_under_the_name_of_a_picture_does_not_unpack_to_gigabytes(tmp_path):
    """A docx says itself which entry is its main part, an EPUB which are its sections."""
    link = f'<Relationship Id="r" Type="{OFFICE}/officeDocument" Target="word/d.png"/>'
    spine = '<manifest><item id="a" href="x.png"/></manifest><spine><itemref idref="a"/></spine>'
    files = '<container><rootfile full-path="b.opf"/></container>'
    parts = {"_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships">{link}</Relationships>'}
    book = {"META-INF/container.xml": files, "b.opf": f"<package>{spine}</package>"}
    for names, bomb in ((parts | {"word/document.xml": "<x/>"}, "word/d.png"), (book, "x.png")):
        out = io.BytesIO(zip_of(**names))
        with zipfile.ZipFile(out, "a", zipfile.ZIP_DEFLATED) as archive, archive.open(bomb, "w") as entry:
            for _ in range(80):
                entry.write(b"0" * (1 << 20))
        assert "when unpacked" in refused(read_bytes(tmp_path, out.getvalue(), "b.docx")).reason


def test_entities_are_not_expanded(tmp_path):
    page = '<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "xx"><!ENTITY b "&a;&a;">]><p>&b; end</p>'
    assert only(read_bytes(tmp_path, epub_of(page))).text == "&b; end"


def test_archives_without_text_say_so(tmp_path):
    assert "no text" in refused(read_bytes(tmp_path, docx_of("<w:p/>"))).reason
    assert "no text" in refused(read_bytes(tmp_path, epub_of("<p> </p>"))).reason
