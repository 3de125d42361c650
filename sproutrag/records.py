"""From one foreign record or file body to a Document, or to a Rejected that says what to do."""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from charset_normalizer import from_bytes

from sproutrag.documents import LONE_SURROGATE, Document

OWN_KEYS = ("lang", "language", "metadata")  # read by these names whatever the columns are called
JSON_KINDS = {dict: "object", list: "array", str: "string", int: "number", float: "number", bool: "boolean"}
LANGUAGE_CODE = re.compile(r"[a-z]{2,3}(?=[-_]|\Z)")
MARKDOWN_TITLE = re.compile(r"^ {0,3}#{1,6}[ \t]+(.+?)[ \t]*#*[ \t]*$", re.MULTILINE)
KEEP_ONE = "rename or remove all but one of them"
TITLE_SAMPLE = 4_096  # characters searched for a Markdown heading

MAGIC = (b"\x89PNG", b"%PDF-", b"PK\x03\x04", b"GIF8", b"\xff\xd8\xff", b"\x1f\x8b", b"\x7fELF", b"BZh9",
         b"PAR1", b"\xd0\xcf\x11\xe0", b"7z\xbc\xaf", b"\xfd7zXZ", b"OggS", b"SQLite format 3")  # fmt: skip
SIGNATURES = {  # longer marks first: UTF-32 begins like UTF-16
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
CONTROLS = bytes({*range(32), 127} - {9, 10, 12, 13, 27})
SAMPLE_BYTES = 64 << 10
BINARY_SHARE, BINARY_SHARE_UTF8 = 0.02, 0.3  # control bytes: noise has 11 %, legacy text none
LEGACY = [
    "gb18030",
    "big5",
    "shift_jis",
    "euc_jp",
    "euc_kr",
    "cp1251",
    "koi8_r",
    "cp1253",
    "cp1255",
    "cp1256",
]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that was set aside: where it is ("path:line"), what is wrong, and what to do next."""

    source: str
    reason: str
    hint: str
    doc_id: str = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """Which fields of a record are what. `metadata`: the only ones to keep; empty keeps all that are left."""

    text: str = "text"
    id: str = "doc_id"
    title: str = "title"
    metadata: tuple[str, ...] = ()


OUR_COLUMNS = Columns()


class Unreadable(Exception):
    """Why a file body or record cannot become a document; caught at the door and turned into Rejected."""

    def __init__(self, reason: str, hint: str, doc_id: str = "") -> None:
        super().__init__(reason)
        self.reason, self.hint, self.doc_id = reason, hint, doc_id

    def at(self, source: str) -> Rejected:
        return Rejected(source, self.reason, self.hint, self.doc_id)


def document_of(
    record: Mapping[str, Any], source: str, columns: Columns = OUR_COLUMNS
) -> Document | Rejected:
    """The document a record describes. Keys that are not ours go into metadata."""
    doc_id = ""
    try:
        doc_id = _identity(record, columns)
        text, repairs = _clean(_string(record, columns.text, doc_id))
        _check_visible(text, doc_id)
        title = _clean(_string(record, columns.title, doc_id, optional=True))[0]
    except Unreadable as problem:
        return problem.at(source)
    language, unknown = _language(record)
    metadata = _metadata(record, columns) | unknown | repairs
    return Document(doc_id, text, title or heading_of(text), language, _json(metadata), source)


def document_of_file(path: str, body: bytes, *, markdown: bool) -> Document | Rejected:
    """A text or Markdown file: the path is the id; an encoding other than UTF-8 is noted in the metadata."""
    try:
        text, encoding = decode(body)
    except Unreadable as problem:
        return problem.at(LONE_SURROGATE.sub("\ufffd", path))
    title = heading_of(text) if markdown else ""
    return document_of_text(path, text, title, {"encoding": encoding} if encoding != "utf-8" else {})


def document_of_text(path: str, text: str, title: str, metadata: Mapping[str, Any]) -> Document | Rejected:
    """The document that a file is, under its path; without a title, the name of the file is one."""
    doc_id = LONE_SURROGATE.sub("\ufffd", path)
    text, repairs = _clean(text)
    try:
        _check_visible(text, doc_id)
    except Unreadable as problem:
        return problem.at(doc_id)
    name = doc_id.rstrip("/").rsplit("/", 1)[-1].rsplit(".", 1)[0]
    return Document(
        doc_id, text, _clean(title)[0] or name, metadata=_json({**repairs, **metadata}), source=doc_id
    )


def parse_record(line: bytes, source: str, columns: Columns = OUR_COLUMNS) -> Document | Rejected:
    """One line of a JSON Lines file."""
    try:
        record = json.loads(line.decode("utf-8"), parse_constant=lambda name: None, object_pairs_hook=_object)
    except Unreadable as problem:
        return problem.at(source)
    except UnicodeDecodeError as error:
        return Rejected(
            source, f"not UTF-8 at byte {error.start} of the line", "convert the file with iconv -t UTF-8"
        )
    except json.JSONDecodeError as error:
        return Rejected(
            source, f"not JSON: {error.msg} at character {error.pos}", "write one JSON object per line"
        )
    except (ValueError, RecursionError) as error:
        return Rejected(source, f"JSON out of bounds: {error}", "shorten the number or flatten the nesting")
    if type(record) is not dict:
        return Rejected(
            source, f"expected object, got {_kind(record)}", 'write {"doc_id": …, "text": …} on each line'
        )
    return document_of(record, source, columns)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of two equal keys only the last would be kept, and nobody would know."""
    found = dict(pairs)
    if len(found) < len(pairs):
        reason = f"one object has more than one {_repeated([key for key, _ in pairs])}"
        raise Unreadable(reason, KEEP_ONE, str(found.get("doc_id", "")))
    return found


def repeated_columns(names: Sequence[str], path: str) -> Rejected | None:
    """As with keys of JSON, of two columns of one name only the last would be kept."""
    twice = _repeated(names)
    return Rejected(path, f"more than one column {twice}", KEEP_ONE) if twice else None


def _repeated(names: Sequence[str]) -> str:
    return ", ".join(sorted({repr(name) for name in names if names.count(name) > 1}))


def heading_of(text: str) -> str:
    """The first Markdown heading near the start, "" if there is none before any fenced code."""
    match = MARKDOWN_TITLE.search(text[:TITLE_SAMPLE].split("```", 1)[0].replace("\r\n", "\n"))
    return match[1].strip() if match else ""


def decode(body: bytes) -> tuple[str, str]:
    """(text, encoding): by signature, else UTF-8, else the declared fallback.

    The fallback is cp1252 where ASCII letters prevail (Latin script, where guessing does harm), else the best
    guess among LEGACY. Binary content is refused whatever the file is called.
    """
    refuse_binary(body)
    signed = [encoding for mark, encoding in SIGNATURES.items() if body.startswith(mark)]
    encoding = signed[0] if signed else "utf-8"
    try:
        return body.decode(encoding), "utf-8" if encoding == "utf-8-sig" else encoding
    except UnicodeDecodeError as error:
        place = error.start
    encoding = "" if signed else _legacy_encoding(body)
    try:
        return body.decode(encoding or "ascii"), encoding
    except UnicodeDecodeError:
        raise Unreadable(
            f"undecodable byte 0x{body[place]:02x} at offset {place}", "convert the file to UTF-8"
        ) from None


def refuse_binary(body: bytes) -> None:
    sample = body[:SAMPLE_BYTES]
    if sample.startswith(tuple(SIGNATURES)):
        return
    share = (len(sample) - len(sample.translate(None, CONTROLS))) / max(1, len(sample))
    if sample.startswith(MAGIC) or share > (BINARY_SHARE_UTF8 if _is_utf8(body) else BINARY_SHARE):
        raise Unreadable("binary content, not text", "extract the text first, or leave the file out")


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _legacy_encoding(body: bytes) -> str:
    sample = body[:SAMPLE_BYTES]
    if sum(byte > 127 for byte in sample) <= sum(65 <= byte & 0xDF <= 90 for byte in sample):
        return (
            "cp1252"
            if not body.translate(None, bytes({*range(256)} - {0x81, 0x8D, 0x8F, 0x90, 0x9D}))
            else "latin-1"
        )
    best = from_bytes(sample, cp_isolation=LEGACY).best()
    return best.encoding if best else ""


def _identity(record: Mapping[str, Any], columns: Columns) -> str:
    """Integers become their decimal string; any other string is kept untouched."""
    key = columns.id
    value = record.get(key)
    if value is None:
        named = f'rename "id" to "{key}"' if "id" in record else f'give every record a "{key}" of its own'
        raise Unreadable(f"missing {key}", f"{named}, or name another field with --id-column")
    if type(value) is int:
        return str(value)
    if type(value) is not str:
        raise Unreadable(f"{key} is {_kind(value)}, expected string", f"write the {key} as a string")
    if not value.strip():
        raise Unreadable(f"blank {key}", f'give every record a "{key}" of its own')
    return _clean(value)[0]


def _string(record: Mapping[str, Any], key: str, doc_id: str, *, optional: bool = False) -> str:
    value = record.get(key)
    if value is None and optional:
        return ""
    if value is None:
        raise Unreadable(f"missing {key}", f'give the record a "{key}" string', doc_id)
    if type(value) is not str:
        raise Unreadable(f"{key} is {_kind(value)}, expected string", f"write the {key} as a string", doc_id)
    return value


def _check_visible(text: str, doc_id: str) -> None:
    if not text.strip() or not any(
        unicodedata.category(c) not in ("Cc", "Cf", "Zs", "Zl", "Zp") for c in text
    ):
        raise Unreadable("text is empty: 0 sentences", "remove the record or fill in its text", doc_id)


def _clean(text: str) -> tuple[str, dict[str, int]]:
    """NUL removed and lone surrogates replaced, before any offset is taken; what was repaired is counted."""
    repairs = {}
    if nuls := text.count("\0"):
        text = text.replace("\0", "")
        repairs["removed_nul"] = nuls
    if not text.isascii():
        text, surrogates = LONE_SURROGATE.subn("\ufffd", text)
        if surrogates:
            repairs["replaced_surrogates"] = surrogates
    return text, repairs


def _language(record: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(primary subtag, rest): "zh-CN" is "zh"; a name such as "German" is kept as metadata only."""
    value = record.get("language") or record.get("lang")
    if not value:
        return "", {}
    match = LANGUAGE_CODE.match(value.strip().lower()) if type(value) is str else None
    return (match[0], {}) if match else ("", {"language": value})


def _metadata(record: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """`metadata` as an object, or as JSON text of one; anything else is kept under its own name."""
    if columns.metadata:
        record = {key: record[key] for key in columns.metadata if key in record}
    given = record.get("metadata")
    if type(given) is str:
        try:
            parsed = json.loads(given, parse_constant=lambda name: None)
        except (ValueError, RecursionError):
            parsed = given or None
        given = parsed
    own = given if type(given) is dict else {} if given is None else {"metadata": given}
    used = (columns.id, columns.text, columns.title, *OWN_KEYS)
    kept = columns.metadata or [key for key in record if key not in used]
    return {key: record[key] for key in kept if key in record and key != "metadata"} | own


def _json(metadata: Mapping[str, Any]) -> str:
    text = json.dumps(_plain(metadata), ensure_ascii=False, sort_keys=True)
    return LONE_SURROGATE.sub("\ufffd", text)


def _plain(value: Any) -> Any:
    """JSON types only: what Parquet brings beyond them becomes its text, NaN becomes null."""
    if type(value) is dict:
        return {str(key): _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [_plain(item) for item in value]
    if type(value) is float:
        return value if abs(value) < float("inf") else None
    return value if value is None or type(value) in (str, int, bool) else str(value)


def _kind(value: Any) -> str:
    return "null" if value is None else JSON_KINDS.get(type(value), type(value).__name__)
