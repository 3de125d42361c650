"""Documents read back out of an index, as they were given to it: a source from which to encode them again."""

from collections.abc import Iterator

from sproutrag.documents import Document
from sproutrag.ingest import Piece
from sproutrag.records import Rejected
from sproutrag.tables import as_given, open_table

STORED = "stored"  # format of a piece: rows [start, stop) of the newest `documents` of the index at its path
ROWS_PER_PIECE = 1024
ROWS_AT_ONCE = 16  # texts in memory
COLUMNS = ["doc_id", "title", "text", "language", "metadata", "source", "content_hash"]


def stored_pieces(db: str) -> list[Piece]:
    """Pieces of all stored documents, valid for as long as nobody writes."""
    rows = open_table(db, "documents").count_rows()
    return [
        Piece(db, STORED, start, min(start + ROWS_PER_PIECE, rows))
        for start in range(0, rows, ROWS_PER_PIECE)
    ]


def read_stored(piece: Piece) -> Iterator[Document | Rejected]:
    """Each document once, byte for byte the one that was indexed; a damaged text is Rejected."""
    table = open_table(piece.path, "documents")
    assert piece.stop is not None, piece
    rows = table.scanner(
        columns=COLUMNS, offset=piece.start, limit=piece.stop - piece.start, batch_size=ROWS_AT_ONCE
    )
    seen = set()
    for batch in rows.to_batches():
        for row in batch.to_pylist():
            document = as_given(row)
            if document is None:
                yield Rejected(
                    row["source"] or piece.path,
                    "the stored text is not the one that was indexed",
                    "index it again from its source",
                    row["doc_id"],
                )
            elif document.id not in seen:
                seen.add(document.id)
                yield document
