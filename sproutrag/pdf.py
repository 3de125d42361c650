"""PDF: the text layer, page by page.

pypdf and not PDFium: it is pure Python, so a broken file raises an exception and does not end the process.
"""

import io
import logging
import re

from pypdf import PasswordType, PdfReader

from sproutrag.pages import PAGE_STARTS, Extracted, join_pages
from sproutrag.records import Unreadable

MAX_PAGES = 50_000
MAX_CHARS = 100_000_000
MAX_PAGE_CHARS = 2_000_000  # a page of print holds five thousand
NO_TITLE = re.compile(r"untitled|microsoft word - |.*\.(?:docx?|indd|tex|dvi|pdf|qxd|rtf)\Z", re.I)

logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it has a line for every oddity of a file


def extract_pdf(body: bytes) -> Extracted:
    """Pages are joined by one line break, so that a sentence may go on over the page."""
    reader = PdfReader(io.BytesIO(body))
    _unlock(reader)
    count = len(reader.pages)
    if count > MAX_PAGES:
        raise Unreadable(f"{count} pages, the limit is {MAX_PAGES}", "split the file")
    pages: list[str] = []
    unread: dict[int, str] = {}
    length = 0
    for number in range(1, count + 1):
        try:
            pages.append(_page_text(reader, number))
            length += len(pages[-1])
        except Exception as error:  # one broken page must not lose the others
            unread[number] = f"page {number} cannot be read: {type(error).__name__}: {str(error)[:200]}"
            pages.append("")
        if length > MAX_CHARS:
            raise Unreadable(f"more than {MAX_CHARS} characters", "split the file")
    text, starts = join_pages(pages, separator="\n")
    if not text:
        raise _without_text(count, unread)
    metadata: dict[str, object] = {"format": "pdf", PAGE_STARTS: starts}
    return Extracted(text, _title(reader), metadata | ({"unread_pages": [*unread]} if unread else {}), unread)


def _unlock(reader: PdfReader) -> None:
    """Many files are encrypted for their permissions only and open without a password."""
    if reader.is_encrypted and reader.decrypt("") == PasswordType.NOT_DECRYPTED:
        raise Unreadable("encrypted: opens only with a password", "save a copy without one (qpdf --decrypt)")


def _page_text(reader: PdfReader, number: int) -> str:
    text = reader.pages[number - 1].extract_text()
    if len(text) > MAX_PAGE_CHARS:
        raise Unreadable(f"{len(text)} characters on one page, the limit is {MAX_PAGE_CHARS}", "")
    return text


def _without_text(count: int, unread: dict[int, str]) -> Unreadable:
    if unread:
        return Unreadable(next(iter(unread.values())), "repair the file (qpdf IN OUT) or create it again")
    return Unreadable(
        f"no text layer on any of {count} pages: probably scanned",
        "recognise the text first (ocrmypdf IN OUT), then index the result",
    )


def _title(reader: PdfReader) -> str:
    """The title in the file's properties, if someone wrote one."""
    try:
        title = str((reader.metadata and reader.metadata.title) or "").strip()
    except Exception:  # properties are decoration: a broken entry must not lose the text
        return ""
    return "" if NO_TITLE.match(title) else title
