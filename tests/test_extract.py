"""File bodies to text: encodings of pages, and what is refused with what to do."""

import pytest

from tests.small_files import only, read_bytes, refused


@pytest.mark.parametrize(
    ("declared", "encoding"),
    [("gb2312", "gb18030"), ("shift_jis", "cp932"), ("utf-8", "utf-8"), ("windows-1251", "cp1251")],
)
def test_declared_encoding_of_a_page_that_is_not_english(tmp_path, declared, encoding):
    text = "Договор вступает в силу." if "1251" in declared else "本文。次の文。"
    page = f"<html><meta charset={declared}><title>{text[:2]}</title><article><p>{text}</article>"
    document = only(read_bytes(tmp_path, page.encode(encoding), "p.htm"))
    assert document.text == text and document.title == text[:2]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "gbk", "utf-8-sig"])
def test_encoding_of_a_page_that_declares_none(tmp_path, encoding):
    text = "读者每次可以借五本书。" * 10 if encoding == "gbk" else "Déjà vu à l'école. Où est-il?"
    page = f"<html><title>{text[:4]}</title><p>{text}</p></html>"
    document = only(read_bytes(tmp_path, page.encode(encoding), "p.html"))
    assert document.text == text and document.title == text[:4]


def test_pages_without_text_or_too_deep_to_read_are_refused(tmp_path):
    empty = refused(read_bytes(tmp_path, b"<html><body><script>render()</script></body>"))
    deep = refused(read_bytes(tmp_path, b"<html><p>first" + b"<div>" * 5_000 + b"deep"))
    assert "no text" in empty.reason and "too deep" in deep.reason
