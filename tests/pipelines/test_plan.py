from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.actors import PARCEL, encode_each, pack, read_parcels, unseal
from pipelines.plan import FOUND, DuplicateDocuments, plan_run, reading_list, scan
from pipelines.progress import Progress
from sproutrag.documents import Document
from sproutrag.ingest import Piece, list_pieces

Writer = Callable[..., str]
Records = Callable[[int], list[dict]]


def never() -> None:
    raise AssertionError("a small scan needs no Ray")


def found_in(*sources: str) -> pa.Table:
    return scan(list_pieces(sources), start_ray=never, progress=Progress())


def row(
    doc_id: str, content_hash: str | None = "h", *, reason: str | None = None, source: str = "f:1"
) -> dict:
    return {"doc_id": doc_id, "content_hash": content_hash, "source": source, "size": 300, "piece": 0,
            "reason": reason, "hint": reason}  # fmt: skip


def found(*rows: dict) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=FOUND)


def test_new_changed_and_unchanged_are_told_apart_by_content() -> None:
    plan = plan_run(
        found(row("new"), row("changed"), row("same")),
        {"changed": "old", "same": "h", "gone": "h"},
        delete_missing=False,
    )
    assert plan.wanted["doc_id"].to_pylist() == ["new", "changed"]
    assert (plan.unchanged, plan.stale, plan.missing) == (1, {"changed"}, [])


def test_only_what_the_sources_no_longer_hold_is_missing() -> None:
    stored = {"same": "h", "gone": "h", "broken": "h"}
    readable = found(row("same"), row("broken", None, reason="bad encoding"))
    assert plan_run(readable, stored, delete_missing=True).missing == ["gone"]


def test_nothing_is_missing_while_some_input_has_no_readable_id() -> None:
    """The unreadable line may hold any stored document."""
    plan = plan_run(found(row("", None, reason="not JSON")), {"a": "h"}, delete_missing=True)
    assert plan.missing == []


def test_duplicates_are_refused_with_both_places(write_corpus: Writer) -> None:
    one = write_corpus([{"doc_id": "x", "text": "One."}, {"doc_id": "y", "text": "Two."}], "one.jsonl")
    two = write_corpus([{"doc_id": "z", "text": "Three."}, {"doc_id": "x", "text": "One."}], "two.jsonl")
    with pytest.raises(DuplicateDocuments) as refusal:
        plan_run(found_in(one, two), {}, delete_missing=False)
    assert "one.jsonl:1" in str(refusal.value) and "two.jsonl:2" in str(refusal.value)
    assert "'y'" not in str(refusal.value)


def test_of_many_duplicates_the_first_ten_are_named() -> None:
    rows = [row(f"d{i:02}", source=f"{file}:{i}") for file in "ab" for i in range(25)]
    with pytest.raises(DuplicateDocuments, match=r"(?s)25 doc_ids.*15 more") as refusal:
        plan_run(found(*rows), {}, delete_missing=False)
    assert str(refusal.value).count(" in a:") == 10


def test_a_huge_document_travels_alone_and_tiny_ones_together() -> None:
    documents = [Document(str(i), "x" * size) for i, size in enumerate([10, 10, 5000, 10, 10, 10])]
    parcels = [[d.id for d in parcel] for parcel, _ in pack(documents, size=1000)]
    assert parcels == [["0", "1"], ["2"], ["3", "4", "5"]]


def test_what_is_read_again_is_exactly_what_is_wanted(write_corpus: Writer, records: Records) -> None:
    sources = [write_corpus(records(60)[i::3], f"part{i}.jsonl") for i in range(3)]
    pieces = list_pieces(sources)
    inputs = scan(pieces, start_ray=never, progress=Progress())
    ids = inputs["doc_id"].to_pylist()
    stored = dict(zip(ids[::2], inputs["content_hash"].to_pylist()[::2], strict=True))
    plan = plan_run(inputs, stored, delete_missing=False)
    read = []
    for reading in reading_list(pieces, plan.wanted, size=10_000):
        for parcel in read_parcels(reading, parcel_size=2000):
            assert parcel.schema == PARCEL
            read += [d.id for sealed in parcel["documents"].to_pylist() for d in unseal(sealed)]
    assert sorted(read) == sorted(ids[1::2])


def test_documents_travel_unaltered(write_corpus: Writer) -> None:
    text = "Ünï © 文字。 \u200f مرحبا 👩‍👩‍👧 \t end"
    source = write_corpus([{"doc_id": "ü/1", "title": "T", "text": text, "lang": "de", "year": 2020}])
    pieces = list_pieces([source])
    plan = plan_run(scan(pieces, start_ray=never, progress=Progress()), {}, delete_missing=False)
    [reading] = reading_list(pieces, plan.wanted, size=10_000)
    parcels = pa.concat_tables(read_parcels(reading, parcel_size=99))
    [document] = unseal(parcels["documents"][0].as_py())
    assert (document.id, document.text, document.language) == ("ü/1", text, "de")
    assert document.source.endswith("corpus.jsonl:1")


def test_small_pieces_are_read_together(tmp_path: Path) -> None:
    pieces = [Piece(f"{i}.txt", "txt") for i in range(10)]
    rows = [row(str(i)) | {"piece": i} for i in range(10)]
    readings = reading_list(pieces, found(*rows), size=1000)
    assert [table.num_rows for table in readings] == [3, 3, 3, 1]


def test_one_document_that_the_encoder_cannot_read_takes_no_neighbour_with_it() -> None:
    calls = []

    def encode(documents: list[Document]) -> list:
        calls.append(len(documents))
        if any(d.id == "13" for d in documents):
            raise RuntimeError("index out of range in self")
        return []

    _, problems = encode_each(encode, [Document(str(i), "Text.", source=f"f:{i}") for i in range(32)])
    assert [(p.doc_id, p.source) for p in problems] == [("13", "f:13")]
    assert "index out of range" in problems[0].reason
    assert len(calls) == 11  # 1 + 2 for each halving
