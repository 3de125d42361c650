"""Sources to documents at the door: real files in every format, and what is wrong with real files."""

import csv
import gzip
import json
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sproutrag import files, pieces
from sproutrag.documents import Document
from sproutrag.ingest import Piece, SourceError, list_pieces, read_piece, survey
from sproutrag.records import Rejected, decode


def read(*sources, **options):
    return [row for piece in list_pieces([str(s) for s in sources], **options) for row in read_piece(piece)]


def write_lines(path: Path, *lines: str | bytes | dict) -> Path:
    encoded = [
        line if isinstance(line, bytes) else (json.dumps(line) if isinstance(line, dict) else line).encode()
        for line in lines
    ]
    path.write_bytes(b"".join(line + b"\n" for line in encoded))
    return path


def only(rows):
    assert len(rows) == 1, rows
    return rows[0]


# listing


def test_ids_of_files_are_the_paths_as_given(tmp_path, monkeypatch):
    (tmp_path / "docs/a").mkdir(parents=True)
    (tmp_path / "docs/a/readme.md").write_text("# Title here\n\nSome text.")
    (tmp_path / "docs/b.txt").write_text("Other text.")
    (tmp_path / "docs/.hidden").mkdir()
    (tmp_path / "docs/.hidden/c.txt").write_text("Not ours.")
    monkeypatch.chdir(tmp_path)
    for source in ("docs", "./docs/", "docs/*", "docs/**/*"):
        rows = read(source)
        assert {(row.id, row.title, row.source) for row in rows} == {
            ("docs/a/readme.md", "Title here", "docs/a/readme.md"),
            ("docs/b.txt", "b", "docs/b.txt"),
        }, source
    assert only(read(tmp_path / "docs/b.txt")).id == str(tmp_path / "docs/b.txt")


def test_same_name_in_two_folders_is_two_documents(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "readme.md").write_text(f"Text of {folder}.")
    assert len({row.id for row in read(tmp_path)}) == 2


def test_a_file_named_twice_is_read_once(tmp_path):
    (tmp_path / "a.txt").write_text("Text.")
    only(read(tmp_path, tmp_path / "a.txt", tmp_path / "*.txt"))


@pytest.mark.parametrize(
    "name", ["it's.txt", "emoji 🎉.txt", 'say "hi".txt', "a[1].txt", "a:b.txt", "50%.txt", "统一.txt"]
)
def test_odd_file_names_pass_untouched(tmp_path, name):
    (tmp_path / name).write_text("Text.")
    assert only(read(tmp_path / name)).id == str(tmp_path / name)
    assert only(read(tmp_path)).id == str(tmp_path / name)


def test_missing_source_says_which(tmp_path):
    for source in (tmp_path / "nothing", tmp_path / "*.jsonl", "memory://nothing/here"):
        with pytest.raises(SourceError, match=r"nothing|jsonl"):
            list_pieces([str(source)])


def test_directory_without_documents_is_an_error(tmp_path):
    (tmp_path / "logo.png").write_bytes(b"\x89PNG")
    with pytest.raises(SourceError, match="nothing to read"):
        list_pieces([str(tmp_path)])


def test_unknown_files_in_a_directory_are_counted_and_named_ones_rejected(tmp_path):
    (tmp_path / "a.txt").write_text("Text.")
    (tmp_path / "logo.png").write_bytes(b"\x89PNG")
    found = survey([str(tmp_path)])
    assert [p.path for p in found.pieces] == [str(tmp_path / "a.txt")] and found.skipped == [
        str(tmp_path / "logo.png")
    ]
    rejected = only(read(tmp_path / "logo.png"))
    assert rejected.reason == "unknown file type" and ".jsonl" in rejected.hint


def test_file_systems_by_uri(tmp_path):
    memory = fsspec.filesystem("memory")
    memory.pipe("/corpus/deep/a.txt", b"Text in memory.")
    memory.pipe("/corpus/b.jsonl", b'{"doc_id": "b", "text": "Line."}')
    rows = read("memory://corpus")
    assert {row.id for row in rows} == {"memory://corpus/deep/a.txt", "b"}
    assert only(read("memory://corpus/*.jsonl")).source == "memory://corpus/b.jsonl:1"
    (tmp_path / "a.txt").write_text("Local.")
    assert only(read(f"file://{tmp_path}")).id == f"file://{tmp_path}/a.txt"


def test_arrow_file_system(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("Local through Arrow.")
    monkeypatch.setattr(files, "ARROW_SCHEMES", ("file",))
    assert only(read(f"file://{tmp_path}")).text == "Local through Arrow."
    assert only(read(f"file://{tmp_path}/a.txt")).text == "Local through Arrow."


def test_a_file_that_disappears_is_rejected_and_the_rest_goes_on(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("Text.")
    pieces = list_pieces([str(tmp_path)])
    (tmp_path / "a.txt").unlink()
    rows = [row for piece in pieces for row in read_piece(piece)]
    assert isinstance(rows[0], Rejected) and "No such file" in rows[0].reason and rows[1].text == "Text."


# JSON Lines


def test_record_fields(tmp_path):
    record = {
        "doc_id": 'it\'s "é🎉"',
        "text": "A.\r\nB. ",
        "title": "T",
        "lang": "zh-CN",
        "page": 3,
        "metadata": {"b": 1, "a": [None]},
    }
    document = only(read(write_lines(tmp_path / "d.jsonl", record)))
    assert document == Document(
        record["doc_id"], "A.\r\nB. ", "T", "zh", '{"a": [null], "b": 1, "page": 3}', f"{tmp_path}/d.jsonl:1"
    )


def test_missing_last_newline_loses_no_record(tmp_path):
    (tmp_path / "d.jsonl").write_bytes(b'{"doc_id":"x","text":"Only line"}')
    assert only(read(tmp_path)).text == "Only line"


def test_byte_order_mark_blank_lines_and_crlf(tmp_path):
    (tmp_path / "d.jsonl").write_bytes(
        b'\xef\xbb\xbf{"doc_id":"x","text":"One"}\r\n\r\n{"doc_id":"y","text":"Two"}\r\n'
    )
    assert [(row.id, row.source[-2:]) for row in read(tmp_path)] == [("x", ":1"), ("y", ":3")]


def test_lone_surrogate_does_not_poison_the_corpus(tmp_path):
    path = write_lines(
        tmp_path / "d.jsonl", '{"doc_id":"p1","text":"a\\udc9ab"}', '{"doc_id":"p2","text":"Fine."}'
    )
    first, second = read(path)
    assert first.text == "a\ufffdb" and json.loads(first.metadata) == {"replaced_surrogates": 1}
    assert second.text == "Fine." and second.metadata == "{}"
    pa.array([first.text, first.metadata]).cast(pa.large_string())


def test_control_character_nul_is_removed_before_offsets(tmp_path):
    document = only(
        read(write_lines(tmp_path / "d.jsonl", '{"doc_id":"n1","text":"Prof\\u0000it rose. Costs fell."}'))
    )
    assert document.text == "Profit rose. Costs fell." and json.loads(document.metadata) == {"removed_nul": 1}


def test_metadata_of_changing_types_keeps_its_values(tmp_path):
    metadata = [{"lang": None}] * 5 + [
        {"lang": {"code": "fr"}},
        {"lang": [1, "x"]},
        "free text",
        7,
        '{"z": 1, "a": 2}',
        None,
    ]
    lines = [{"doc_id": i, "text": "T.", "metadata": value} for i, value in enumerate(metadata)]
    rows = read(write_lines(tmp_path / "d.jsonl", *lines))
    assert [row.metadata for row in rows[4:]] == [
        '{"lang": null}', '{"lang": {"code": "fr"}}', '{"lang": [1, "x"]}', '{"metadata": "free text"}',
        '{"metadata": 7}',         '{"a": 2, "z": 1}', "{}",
    ]  # fmt: skip
    assert rows[3].id == "3"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'["a","b"]', "expected object, got array"),
        (b"null", "expected object, got null"),
        (b'"text"', "expected object, got string"),
        (b'{"doc_id":"x","text":"cut', "not JSON"),
        (b"{'doc_id': 'x'}", "not JSON"),
        (b'{"text":"no id"}', "missing doc_id"),
        (b'{"id":"x","text":"no doc_id"}', "missing doc_id"),
        (b'{"doc_id":" ","text":"x"}', "blank doc_id"),
        (b'{"doc_id":1.5,"text":"x"}', "doc_id is number"),
        (b'{"doc_id":true,"text":"x"}', "doc_id is boolean"),
        (b'{"doc_id":"x"}', "missing text"),
        (b'{"doc_id":"x","text":null}', "missing text"),
        (b'{"doc_id":"x","text":["a"]}', "text is array, expected string"),
        (b'{"doc_id":"x","text":""}', "text is empty"),
        (b'{"doc_id":"x","text":" \\n\\u200b\\u0000"}', "text is empty"),
        (b'{"doc_id":"x","text":"T","title":{}}', "title is object"),
        (b'{"doc_id":"x","text":"caf\xe9"}', "not UTF-8 at byte 25"),
        (b"[" * 100_000, "JSON out of bounds"),
        (b'{"doc_id":"x","n":' + b"9" * 5_000 + b"}", "JSON out of bounds"),
        (b'{"doc_id":"\xff\xfe', "not UTF-8"),
    ],
)
def test_one_bad_line_is_set_aside_with_its_place(tmp_path, line, reason):
    good = {"doc_id": "good", "text": "Fine."}
    before, bad, after = read(write_lines(tmp_path / "d.jsonl", good, line, good))
    assert before.text == after.text == "Fine."
    assert (
        isinstance(bad, Rejected)
        and reason in bad.reason
        and bad.hint
        and bad.source == f"{tmp_path}/d.jsonl:2"
    )


def test_not_a_number_becomes_null(tmp_path):
    path = write_lines(
        tmp_path / "d.jsonl", b'{"doc_id":"x","text":"T.","score":NaN,"metadata":{"s":-Infinity}}'
    )
    assert only(read(path)).metadata == '{"s": null, "score": null}'


def test_utf16_json_lines_are_named_as_such(tmp_path):
    (tmp_path / "d.jsonl").write_bytes('{"doc_id":"x","text":"T"}\n'.encode("utf-16"))
    assert "UTF-16" in only(read(tmp_path)).reason


def test_line_longer_than_the_limit_is_skipped_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "MAX_RECORD_BYTES", 100)
    path = write_lines(
        tmp_path / "d.jsonl", {"doc_id": "x", "text": "y" * 1000}, {"doc_id": "z", "text": "Fine."}
    )
    bad, good = read(path)
    assert "longer than 100 bytes" in bad.reason and good.source.endswith(":2")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    texts=st.lists(st.text(alphabet="aé\n双 ", max_size=30), min_size=1, max_size=12),
    piece_bytes=st.integers(1, 200),
)
def test_pieces_of_any_size_read_every_line_once(tmp_path, texts, piece_bytes):
    lines = [{"doc_id": str(i), "text": f"T{text}"} for i, text in enumerate(texts)]
    path = write_lines(tmp_path / "d.jsonl", *lines)
    rows = read(path, piece_bytes=piece_bytes)
    assert rows == read(path) and [row.text for row in rows] == [line["text"] for line in lines]
    assert [row.source for row in rows] == [f"{path}:{i + 1}" for i in range(len(texts))]


def test_compressed_lines(tmp_path):
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(b'{"doc_id":"x","text":"Zipped."}\n'))
    assert only(read(tmp_path)).text == "Zipped."
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(b'{"doc_id":"x","text":"Zipped."}\n' * 99)[:-12])
    assert "cannot be read" in read(tmp_path)[-1].reason


# Parquet and CSV


def test_parquet_by_row_groups(tmp_path):
    table = pa.table(
        {
            "doc_id": list(range(100)),
            "text": [f"Text {i}." for i in range(100)],
            "n": [{"a": i} for i in range(100)],
        }
    )
    pq.write_table(table, tmp_path / "d.parquet", row_group_size=7)
    whole = read(tmp_path)
    assert [row.id for row in whole] == [str(i) for i in range(100)]
    assert whole[41].source == f"{tmp_path}/d.parquet:42" and whole[41].metadata == '{"n": {"a": 41}}'
    for piece_bytes in (1_000, 333):
        assert len(list_pieces([str(tmp_path)], piece_bytes=piece_bytes)) > 2
        assert read(tmp_path, piece_bytes=piece_bytes) == whole


def test_parquet_without_our_columns_and_with_bad_rows(tmp_path):
    pq.write_table(pa.table({"id": ["a"], "body": ["b"]}), tmp_path / "a.parquet")
    pq.write_table(
        pa.table({"doc_id": ["x", "y", None], "text": [None, "Fine.", "No id."]}), tmp_path / "b.parquet"
    )
    (tmp_path / "c.parquet").write_bytes(b"not parquet at all")
    columns, no_text, fine, no_id, broken = read(tmp_path)
    assert "columns are 'id', 'body'" in columns.reason
    assert no_text.reason == "missing text" and no_text.doc_id == "x" and fine.text == "Fine."
    assert no_id.source.endswith("b.parquet:3") and "cannot be read" in broken.reason


def test_csv_quotes_and_line_breaks(tmp_path):
    with open(tmp_path / "d.csv", "w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows(
            [["doc_id", "text", "year"], ["007", 'A "b",\r\nc.', "1999"], ["é", "Next.", ""]]
        )
    first, second = read(tmp_path)
    assert (first.id, first.text, first.metadata) == ("007", 'A "b",\r\nc.', '{"year": "1999"}')
    assert first.source.endswith("d.csv:2") and second.source.endswith("d.csv:4")


def test_csv_faults(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"doc_id,text\nx\ny,a,b,c\nz,caf\xe9\nok,Fine.\n")
    (tmp_path / "b.csv").write_bytes(b"doc_id;text\nx;y\n")
    (tmp_path / "c.csv").write_bytes(b"")
    reasons = [row.reason if isinstance(row, Rejected) else row.text for row in read(tmp_path)]
    assert reasons[:4] == ["missing text", "4 fields, the header has 2", "not UTF-8", "Fine."]
    assert "doc_id;text" in reasons[4] and "columns are none" in reasons[5]


def test_a_field_of_ten_megabytes(tmp_path):
    (tmp_path / "d.csv").write_text("doc_id,text\nx," + "word " * 2_000_000)
    assert len(only(read(tmp_path)).text) == 10_000_000


# text and Markdown


def test_one_latin1_file_among_fifty_does_not_stop_the_rest(tmp_path):
    for i in range(50):
        (tmp_path / f"{i:02}.txt").write_text(f"File {i}.")
    (tmp_path / "23.txt").write_bytes(b"caf\xe9")
    rows = read(tmp_path)
    assert (
        len(rows) == 50
        and rows[23].text == "café"
        and json.loads(rows[23].metadata) == {"encoding": "cp1252"}
    )


def test_image_renamed_to_txt_is_detected_by_content(tmp_path):
    (tmp_path / "notes.txt").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    (tmp_path / "noise.md").write_bytes(bytes(range(256)) * 4)
    assert [row.reason for row in read(tmp_path)] == ["binary content, not text"] * 2


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("utf-8", "Grüße, 世界."),
        ("utf-8-sig", "Grüße."),
        ("utf-16", "Grüße, 世界."),
        ("utf-32", "Grüße."),
        ("cp1252", "Die Gebühr beträgt 10 € – “fällig”."),
        ("gb18030", "甲方负责交付，乙方负责验收。双方每月对账，逾期另议。"),
        ("shift_jis", "これはテストです。次の文です。"),
        ("cp1251", "Привет, мир. Договор вступает в силу с момента подписания сторонами."),
    ],
)
def test_declared_encodings(encoding, text):
    assert decode(text.encode(encoding))[0] == text


def test_undecodable_bytes_are_quarantined_with_their_offset(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfea")
    assert "at offset 2" in only(read(tmp_path)).reason


def test_text_is_unaltered(tmp_path):
    body = "  Line one\r\n\r\nLine\ttwo \u200f\u061c\u200c\n\n"
    (tmp_path / "a.txt").write_bytes(body.encode())
    assert only(read(tmp_path)).text == body


def test_empty_files_are_rejected_with_a_reason(tmp_path):
    for name, body in (("a.txt", b""), ("b.md", b" \n\n"), ("c.txt", b"\xef\xbb\xbf")):
        (tmp_path / name).write_bytes(body)
    assert [row.reason for row in read(tmp_path)] == ["text is empty: 0 sentences"] * 3


def test_text_file_beyond_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "MAX_RECORD_BYTES", 10)
    (tmp_path / "a.txt").write_text("x" * 11)
    assert "larger than 10 bytes" in only(read(tmp_path)).reason


def test_reading_streams(tmp_path):
    write_lines(tmp_path / "d.jsonl", *[{"doc_id": i, "text": "T."} for i in range(1000)])
    rows = read_piece(Piece(str(tmp_path / "d.jsonl"), "jsonl"))
    assert next(rows).id == "0"


def test_an_unclosed_quote_does_not_swallow_rows_in_silence(tmp_path):
    (tmp_path / "a.csv").write_text('doc_id,text\na,"shut" not\nb,Fine.\nc,"open\nd,Gone.\n')
    bad, fine, swallowed = read(tmp_path)
    assert "not CSV" in bad.reason and bad.source.endswith("a.csv:2")
    assert fine.text == "Fine."
    assert "not CSV" in swallowed.reason and swallowed.source.endswith("a.csv:4")


def test_a_header_that_is_not_csv_is_set_aside(tmp_path):
    (tmp_path / "a.csv").write_text('doc_id,"te"xt\nx,y\n')
    assert [row.reason.split(":")[0] for row in read(tmp_path)] == [
        "not CSV",
        "no column doc_id and text; columns are 'x', 'y'",
    ]


@pytest.mark.parametrize("source", ["", "s3:///", "nonsense://x"])
def test_a_source_that_names_nothing_is_refused(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("A file that an empty source would find below the root.")
    with pytest.raises(SourceError):
        list_pieces([source])
