"""Records that would lose something silently are set aside."""

from pathlib import Path

import pytest

from sproutrag.ingest import list_pieces, read_piece
from sproutrag.records import Rejected, parse_record


@pytest.mark.parametrize(
    "line",
    [
        b'{"doc_id": "a", "text": "One.", "text": "Two."}',
        b'{"doc_id": "a", "text": "One.", "metadata": {"text": 1, "text": 2}}',
    ],
)
def test_a_key_that_stands_twice_is_not_dropped_silently(line: bytes) -> None:
    found = parse_record(line, "notes.jsonl:7")
    assert isinstance(found, Rejected) and found.source == "notes.jsonl:7"
    assert "more than one 'text'" in found.reason and "all but one" in found.hint


def test_a_column_that_stands_twice_is_not_dropped_silently(tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    path.write_text("doc_id,text,year,text\na,One.,1999,Two.\n")
    [found] = [item for piece in list_pieces([str(path)]) for item in read_piece(piece)]
    assert isinstance(found, Rejected) and found.source == str(path)
    assert found.reason == "more than one column 'text'"
