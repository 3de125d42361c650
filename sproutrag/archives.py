"""Documents that are zip archives: Word (docx) and EPUB. Nothing is unpacked to disk; sizes have limits."""

import io
import posixpath
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

import mammoth
from lxml import etree

from sproutrag.markup import body_of, parse, text_of
from sproutrag.pages import SECTION_STARTS, Extracted, join_pages
from sproutrag.records import Unreadable, decode, heading_of

MAX_ENTRIES = 20_000
MAX_TEXT_BYTES = 64 << 20  # unpacked, without media; a thousand pages of Word have 10 MB
MEDIA = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".emf", ".wmf", ".webp", ".mp3", ".mp4",
         ".ttf", ".otf", ".woff", ".woff2", ".bin")  # fmt: skip
MEDIA_RATIO = 50  # an uncompressed drawing may shrink so far
RESAVE = "open it in the program it is made for and save it again"
OTHERS = {
    "xl/": ("a spreadsheet (xlsx)", "save the sheets as CSV"),
    "ppt/": ("a presentation (pptx)", "export it as PDF"),
    "content.xml": ("an OpenDocument file", "save it as docx or PDF"),
}
TITLE_STYLES = "p[style-name='Title'] => h1:fresh\np[style-name='Subtitle'] => h2:fresh"
DUBLIN_CORE = "{http://purl.org/dc/elements/1.1/}"


class Section(NamedTuple):
    """One item of an EPUB's spine, in reading order."""

    path: str
    properties: str


def extract_zip(body: bytes) -> Extracted:
    """What the archive holds is told by its entries."""
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        _check(archive)
        names = archive.namelist()
        if "META-INF/container.xml" in names:
            return extract_epub(archive)
        if any(name.startswith("word/document") for name in names):
            return extract_docx(archive, body)
    for part, (what, hint) in OTHERS.items():
        if any(name.startswith(part) for name in names):
            raise Unreadable(what, hint)
    raise Unreadable("a zip archive", "unpack it and index the folder")


def _check(archive: zipfile.ZipFile) -> None:
    """Limits on declared sizes, which hold: `zipfile` never reads more of an entry than it declares."""
    entries = archive.infolist()
    if len(entries) > MAX_ENTRIES:
        raise Unreadable(f"{len(entries)} entries, the limit is {MAX_ENTRIES}", "split the document")
    if any(entry.flag_bits & 1 for entry in entries):
        raise Unreadable("encrypted with a password", "save a copy without one")
    size = sum(entry.file_size for entry in entries if not _is_media(entry))
    if size > MAX_TEXT_BYTES:
        raise Unreadable(f"{size} bytes when unpacked, the limit is {MAX_TEXT_BYTES}", "split the document")


def _is_media(entry: zipfile.ZipInfo) -> bool:
    """By its name, and as hard to compress: text under the name of a picture would get past the limit."""
    return entry.filename.lower().endswith(MEDIA) and entry.file_size < MEDIA_RATIO * entry.compress_size


def extract_docx(archive: zipfile.ZipFile, body: bytes) -> Extracted:
    """Headings, lists, tables, footnotes; tracked insertions are in, deletions and comments are not."""
    no_images = mammoth.images.img_element(lambda image: {})
    page = mammoth.convert_to_html(io.BytesIO(body), style_map=TITLE_STYLES, convert_image=no_images).value
    if not page:
        raise Unreadable("no text in this document", "if its pages are pictures, recognise the text first")
    root = parse(page)
    for link in root.xpath("//a[starts-with(@href, '#') and normalize-space() = '↑']"):
        link.drop_tree()  # mammoth's way back from a footnote
    text = text_of(body_of(root))
    title = _property(archive, "docProps/core.xml", "title") or heading_of(text)
    return Extracted(text, title, {"format": "docx"})


def _property(archive: zipfile.ZipFile, path: str, name: str) -> str:
    """An entry of the Dublin Core properties, "" where there is none."""
    if path not in archive.namelist():
        return ""
    found = next(_xml(archive.read(path)).iter(DUBLIN_CORE + name), None)
    return "" if found is None else " ".join("".join(found.itertext()).split())


def _xml(body: bytes) -> Any:
    """Entities are not expanded: ten nested ones would be a billion characters."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True, recover=True)
    root = etree.fromstring(body, parser)
    if root is None:
        raise Unreadable("its table of contents is not XML", RESAVE)
    return root


def extract_epub(archive: zipfile.ZipFile) -> Extracted:
    """The sections of the spine in reading order; `section_starts` counts them."""
    package = _package(archive)
    pages: list[str] = []
    unread: dict[int, str] = {}
    for number, section in enumerate(_spine(archive, package), start=1):
        try:
            root = parse(decode(archive.read(section.path))[0])
            pages.append("" if "nav" in section.properties.split() else text_of(body_of(root)))
        except Exception as error:  # one broken section must not lose the others
            unread[number] = f"section {number} ({section.path}) cannot be read: {str(error)[:200]}"
            pages.append("")
    text, starts = join_pages(pages, separator="\n\n")
    if not text:
        raise Unreadable(next(iter(unread.values()), "no text in this book"), RESAVE)
    metadata: dict[str, object] = {"format": "epub", SECTION_STARTS: starts}
    title = _property(archive, package, "title")
    return Extracted(text, title, metadata | ({"unread_sections": [*unread]} if unread else {}), unread)


def _package(archive: zipfile.ZipFile) -> str:
    """Path of the package document, which lists the parts of the book."""
    container = _xml(archive.read("META-INF/container.xml"))
    return next(file.get("full-path", "") for file in container.iter("{*}rootfile"))


def _spine(archive: zipfile.ZipFile, package: str) -> Iterator[Section]:
    """Each section once, so that no book is longer than its archive."""
    root = _xml(archive.read(package))
    protected, seen = _protected(archive), set[str]()
    items = {item.get("id"): item for item in root.iter("{*}item")}
    for reference in root.iter("{*}itemref"):
        item = items.get(reference.get("idref"))
        if item is None:
            continue
        path = posixpath.normpath(posixpath.join(posixpath.dirname(package), unquote(item.get("href", ""))))
        if path in seen:
            continue
        seen.add(path)
        if path in protected:
            raise Unreadable("protected: its text is encrypted (DRM)", "index a copy without protection")
        yield Section(path, item.get("properties", ""))


def _protected(archive: zipfile.ZipFile) -> set[str]:
    """Encrypted parts; embedded fonts often are, which does no harm."""
    if "META-INF/encryption.xml" not in archive.namelist():
        return set()
    marked = _xml(archive.read("META-INF/encryption.xml")).iter("{*}CipherReference")
    return {unquote(reference.get("URI", "")) for reference in marked}
