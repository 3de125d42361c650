"""Small files of formats of their own, written byte by byte, and reading them as the indexing job does."""

import io
import zipfile
from pathlib import Path

from sproutrag.documents import Document
from sproutrag.ingest import list_pieces, read_piece
from sproutrag.records import Rejected

PROSE = "The ferry leaves at nine in the morning. Passengers should bring a coat against the wind."
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
            archive.writestr(path, text, zipfile.ZIP_STORED if path == "mimetype" else None)
    return out.getvalue()


def docx_of(body: str) -> bytes:
    word = "application/vnd.openxmlformats-officedocument.wordprocessingml"
    kinds = {"document": "document.main", "styles": "styles"}
    xml = '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    xml += "".join(
        f'<Override PartName="/word/{part}.xml" ContentType="{word}.{kind}+xml"/>'
        for part, kind in kinds.items()
    )
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


def epub_of(*sections: str, title: str = "A Book", encrypted: str = "") -> bytes:
    items = "".join(
        f'<item id="s{i}" href="s{i}.xhtml" media-type="application/xhtml+xml"/>'
        for i in range(len(sections))
    )
    spine = "".join(f'<itemref idref="s{i}"/>' for i in range(len(sections)))
    files = '<rootfiles><rootfile full-path="OPS/b.opf"/></rootfiles>'
    title = f'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></metadata>'
    parts = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": f"<container>{files}</container>",
        "OPS/b.opf": f"<package>{title}<manifest>{items}</manifest><spine>{spine}</spine></package>",
    }
    if encrypted:
        parts["META-INF/encryption.xml"] = f'<encryption><CipherReference URI="{encrypted}"/></encryption>'
    chapters = {f"OPS/s{i}.xhtml": text for i, text in enumerate(sections) if text}
    return zip_of(**parts, **chapters)
