"""File bodies of document formats to text: the one place that expects foreign parsers to fail."""

import codecs
import re
from collections.abc import Callable
from functools import partial

from sproutrag.archives import extract_zip
from sproutrag.markup import main_content, parse, text_of, title_of
from sproutrag.pages import Extracted
from sproutrag.pdf import extract_pdf
from sproutrag.records import SIGNATURES, Unreadable, decode, refuse_binary

DECLARED = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})"
    rb"|<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w.:-]{1,40})",
    re.I,
)
DECLARED_WITHIN = 4_096  # bytes; browsers look at the first 1024
READ_AS = {  # labels that name a subset of what such pages hold (WHATWG Encoding Standard)
    "iso8859-1": "cp1252",
    "ascii": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "iso8859-9": "cp1254",
}
MAX_PAGE_BYTES = 64 << 20  # its tree takes ten times as much
WRONG_SHARE = 0.01  # of the characters undecodable: the declaration is wrong
NAMES = {"html": "HTML", "pdf": "PDF", "docx": "docx", "epub": "EPUB", "zip": "zip archive"}
REFUSED = {  # their bytes may pass for text
    "ole": ("an Office file of the old format, or encrypted", "save it as docx without a password"),
    "rtf": ("an RTF file", "save it as docx"),
    "postscript": ("a PostScript file", "convert it to PDF (ps2pdf IN OUT)"),
    "tar": ("a tar archive", "unpack it and index the folder"),
}


def extract(body: bytes, kind: str) -> Extracted:
    """The text of a file. Whatever a parser dies of becomes Unreadable, which says what to do."""
    if not body:
        raise Unreadable("the file is empty", "fill it in, or leave it out")
    try:
        return EXTRACTORS[kind](body)
    except Unreadable:
        raise
    except Exception as error:  # the boundary: parsers of foreign formats fail in every way there is
        reason = f"cannot be read as {NAMES[kind]}: {type(error).__name__}: {str(error)[:200]}"
        raise Unreadable(reason, "open it in the program it is made for and save it again") from error


def _refuse(body: bytes, kind: str) -> Extracted:
    raise Unreadable(*REFUSED[kind])


def extract_html(body: bytes) -> Extracted:
    """The main text; how many characters of navigation were left out is noted in the metadata."""
    if len(body) > MAX_PAGE_BYTES:
        raise Unreadable(f"larger than {MAX_PAGE_BYTES} bytes", "split the page")
    page, encoding = decode_html(body)
    root = parse(page)
    title = title_of(root)
    main, left_out = main_content(root)
    text = text_of(main)
    if not text:
        raise Unreadable("no text on this page: scripts build it, or it is empty", "save it from a browser")
    metadata: dict[str, object] = {"format": "html", "left_out_characters": left_out}
    return Extracted(text, title, metadata | ({"encoding": encoding} if encoding != "utf-8" else {}))


def decode_html(body: bytes) -> tuple[str, str]:
    """(page, encoding): by signature, UTF-8 where it is that, as declared, else as any text file."""
    refuse_binary(body)
    declared = _declared(body)
    if not declared or body.startswith(tuple(SIGNATURES)):
        return decode(body)
    try:
        return body.decode("utf-8" if not body.isascii() else declared), "utf-8"
    except UnicodeDecodeError:
        page = body.decode(declared, "replace")
    return (page, declared) if page.count("\ufffd") <= WRONG_SHARE * len(page) else decode(body)


def _declared(body: bytes) -> str:
    match = DECLARED.search(body[:DECLARED_WITHIN])
    if not match:
        return ""
    try:
        name = codecs.lookup((match[1] or match[2]).decode("ascii")).name
    except LookupError:
        return ""
    return "utf-8" if name.startswith(("utf-16", "utf-32")) else READ_AS.get(name, name)


EXTRACTORS: dict[str, Callable[[bytes], Extracted]] = {
    "html": extract_html,
    "pdf": extract_pdf,
    "docx": extract_zip,
    "epub": extract_zip,
    "zip": extract_zip,
    **{kind: partial(_refuse, kind=kind) for kind in REFUSED},
}
