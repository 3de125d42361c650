"""PDF: the text layer, and the page of every passage."""

import io
import json
import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfWriter

from sproutrag import pdf
from sproutrag.documents import Document, content_hash, leaf_spans
from sproutrag.pages import cite, join_pages, page_starts, pages_of, places
from tests.small_files import only, pdf_of, read, read_bytes, refused


def test_evidence_from_a_pdf_names_its_pages(tmp_path):
    path = tmp_path / "r.pdf"
    path.write_bytes(pdf_of("First page here.", "", "Third page here.", title="A Report"))
    document = only(read(path))
    assert (document.title, document.text) == ("A Report", "First page here.\nThird page here.")
    starts = page_starts(document.metadata)
    assert starts.tolist() == [0, 17, 17]
    assert pages_of(starts, [(0, 5)]) == (1,) and pages_of(starts, [(17, 20)]) == (3,)
    assert pages_of(starts, leaf_spans(document.text)) == (1, 3), "page 2 is empty"
    other = Document(document.id, document.text, document.title, "", '{"page_starts": [0]}')
    assert content_hash(other) != content_hash(document)


def test_documents_without_pages_have_none():
    for metadata in ("{}", '{"page_starts": "x"}', '{"page_starts": [3, 1]}'):
        spans = np.array([[0, 5]])
        assert pages_of(page_starts(metadata), spans) == places(metadata, spans) == ()


def test_a_sentence_that_goes_on_over_the_page_is_one_leaf_on_both_pages(tmp_path):
    body = pdf_of("It began in May. It ends when the tenant", "gives notice to the owner. Rent is due.")
    document = only(read_bytes(tmp_path, body, "l.pdf"))
    spans = leaf_spans(document.text, sentences_per_leaf=1)
    assert [document.text[a:b] for a, b in spans][1] == "It ends when the tenant\ngives notice to the owner."
    assert places(document.metadata, spans) == ("page 1", "pages 1, 2", "page 2")
    assert cite((), (4,)) == "section 4" and cite((), ()) == ""


def test_a_page_that_unpacks_to_gigabytes_is_refused(tmp_path):
    stream = zlib.compress(b"0 0 m " * (20 << 20), 9)
    flate = b"<</Length %d/Filter/FlateDecode>>\nstream\n%s" % (len(stream), stream)
    bomb = pdf_of(b"@").replace(b"<</Length 1>>\nstream\n@", flate)
    assert "page 1 cannot be read" in refused(read_bytes(tmp_path, bomb, "b.pdf")).reason


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
    assert refused(read_bytes(tmp_path, b"", "b.pdf")).reason == "the file is empty"
    for body in (b"%PDF-1.4 nothing more", pdf_of("x")[:150], b"not a PDF"):
        assert "cannot be read as PDF" in refused(read_bytes(tmp_path, body, "b.pdf")).reason
