"""The two Lance tables: what the columns mean, rows from documents and trees, where the tables lie, filters.

`documents` has one row per document with its text and tree, `nodes` one row per tree node.
"""

import datetime as dt
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import fsspec
import lance
import numpy as np
import pyarrow as pa

from sproutrag.documents import LONE_SURROGATE, Document, Spans, content_hash, coverage, row_context
from sproutrag.search import lexical_text, visible
from sproutrag.snapshots import ForkedReader, NoIndex
from sproutrag.tree import Tree, progressive_embeddings

if TYPE_CHECKING:
    from sproutrag.encoder import EncodedDocument

TABLES = ("documents", "nodes")
INTS = pa.list_(pa.int32())
IDS_PER_FILTER = 1000  # in one IN (...): a 10k list still parses, but time per id grows beyond this
lance_process = 0  # pid of the process in which Lance has started its threads

DOCUMENTS = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        ("title", pa.string()),
        ("text", pa.large_string()),
        ("language", pa.string()),
        ("metadata", pa.large_string()),  # a JSON object
        ("source", pa.string()),
        ("content_hash", pa.string()),
        ("fingerprint", pa.string()),  # of the encoder
        ("spans", INTS),  # (n, 2) flat
        ("merges", INTS),  # (n-1, 2) flat
        ("affinity", pa.list_(pa.float32())),
        ("leaf_order", INTS),
        ("n_leaves", pa.int32()),
        ("depth", pa.int32()),  # edges on the longest path from the root
        ("n_tokens", pa.int64()),
        ("coverage", pa.float64()),
        ("indexed_at", pa.timestamp("us", tz="UTC")),
    ]
)


def nodes_schema(dimension: int) -> pa.Schema:
    """Schema of `nodes`: [start, start + n_leaves) is the node's slice of `leaf_order`."""
    return pa.schema(
        [
            pa.field("doc_id", pa.string(), nullable=False),
            ("node", pa.int32()),
            ("start", pa.int32()),
            ("n_leaves", pa.int32()),
            ("vector", pa.list_(pa.float32(), dimension)),
            ("text", pa.string()),  # what full-text search reads; null on internal nodes
        ]
    )


# --- from documents and trees to rows and back


def document_rows(
    encoded: Sequence["EncodedDocument"], trees: Sequence[Tree], *, fingerprint: str
) -> pa.Table:
    """One row per document; trees[i] belongs to encoded[i]."""
    documents = [e.document for e in encoded]
    now = dt.datetime.now(dt.UTC)
    columns = {
        "doc_id": [d.id for d in documents],
        "title": [d.title for d in documents],
        "text": [d.text for d in documents],
        "language": [e.language for e in encoded],
        "metadata": [d.metadata for d in documents],
        "source": [d.source for d in documents],
        "content_hash": [content_hash(d) for d in documents],
        "fingerprint": [fingerprint] * len(documents),
        "spans": list_column([e.spans for e in encoded], pa.int32()),
        "merges": list_column([t.merges for t in trees], pa.int32()),
        "affinity": list_column([t.affinity for t in trees], pa.float32()),
        "leaf_order": list_column([t.order for t in trees], pa.int32()),
        "n_leaves": [t.n_leaves for t in trees],
        "depth": [t.depth for t in trees],
        "n_tokens": [e.n_tokens for e in encoded],
        "coverage": [coverage(e.document.text, e.spans) for e in encoded],
        "indexed_at": [now] * len(documents),
    }
    return pa.table(columns, schema=DOCUMENTS)


def node_rows(encoded: Sequence["EncodedDocument"], trees: Sequence[Tree]) -> pa.Table:
    """2n-1 rows per document of n leaves, in the tree's numbering; the vectors are progressive embeddings."""
    sizes = [t.n_nodes for t in trees]
    slices = np.concatenate([t.slices for t in trees])
    vectors = np.concatenate(
        [progressive_embeddings(e.vectors, t) for e, t in zip(encoded, trees, strict=True)]
    )
    texts = chain.from_iterable(
        chain(lexical_texts(e.document, e.spans), [None] * (t.n_leaves - 1))
        for e, t in zip(encoded, trees, strict=True)
    )
    ids = pa.array([e.document.id for e in encoded], pa.string())
    columns = {
        "doc_id": ids.take(pa.array(np.repeat(np.arange(len(ids)), sizes))),
        "node": np.concatenate([np.arange(n, dtype=np.int32) for n in sizes]),
        "start": slices[:, 0],
        "n_leaves": slices[:, 1] - slices[:, 0],
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1]),
        "text": pa.array(texts, pa.string()),
    }
    return pa.table(columns, schema=nodes_schema(vectors.shape[1]))


def lexical_texts(document: Document, spans: Spans) -> Iterator[str]:
    """What full-text search knows of each leaf: the document's title, a table row's header, the visible text.

    The title lets a leaf be found by what its document is about: BM25 over leaves with titles routes best
    (DESIGN.md, first figures).
    """
    title = [visible(document.title)] if document.title else []
    for start, stop in spans.tolist():
        header = row_context(document.text, start)
        above = [lexical_text(document.text, *header)] if header else []
        yield "\n".join([*title, *above, lexical_text(document.text, start, stop)])


def list_column(arrays: Sequence[np.ndarray], type: pa.DataType) -> pa.ListArray:
    """Arrays of any shape, flattened, as one list column without a Python object per value."""
    offsets = np.zeros(len(arrays) + 1, dtype=np.int32)
    np.cumsum([a.size for a in arrays], out=offsets[1:])
    values = np.concatenate([a.ravel() for a in arrays]) if arrays else np.empty(0)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values).cast(type))


def document_of(row: dict) -> Document:
    """The document in one row of `documents`."""
    return Document(
        id=row["doc_id"],
        text=row["text"],
        title=row["title"],
        language=row["language"],
        metadata=row["metadata"],
        source=row["source"],
    )


def as_given(row: dict) -> Document | None:
    """The document as it came in, proven by its content hash; None where what is stored was damaged.

    The row holds the detected language where none was given, and the hash is of what was given.
    """
    if any(row[name] is None for name in ("title", "text", "language", "metadata")):
        return None
    stored = document_of(row)
    candidates = (stored, replace(stored, language=""))
    return next((one for one in candidates if content_hash(one) == row["content_hash"]), None)


def tree_of(row: dict) -> Tree:
    """The tree in one row of `documents`, its lists as NumPy arrays."""
    return Tree.from_merges(row["merges"], row["affinity"])


def spans_of(row: dict) -> Spans:
    """The leaves' spans in one row of `documents`."""
    return np.asarray(row["spans"], dtype=np.int32).reshape(-1, 2)


def vectors_of(nodes: pa.Table) -> np.ndarray:
    """(rows, d) float32: the vectors of these rows of `nodes`, none of them null; copies at most once."""
    column = nodes["vector"].combine_chunks()
    return column.flatten().to_numpy().reshape(len(column), column.type.list_size)


# --- on disk


def table_uri(db: str, name: str) -> str:
    return f"{db.rstrip('/')}/{name}.lance"


def size_of_table(db: str, name: str) -> int:
    """Bytes of one table on disk: data, indices and older versions."""
    files, root = fsspec.url_to_fs(table_uri(db, name))
    files.invalidate_cache()
    return files.du(root) if files.exists(root) else 0


def bytes_on_disk(db: str) -> int:
    return sum(size_of_table(db, name) for name in TABLES)


def open_table(db: str, name: str, version: int | None = None) -> lance.LanceDataset:
    refuse_fork()
    return lance.dataset(table_uri(db, name), version=version)


def refuse_fork() -> None:
    """Lance's threads do not come along into a forked process, which would wait for them for ever (P094)."""
    global lance_process
    if lance_process not in (0, os.getpid()):
        raise ForkedReader(
            f"this process was forked from process {lance_process}, which had opened an index: start "
            "processes with multiprocessing.get_context('spawn') and open the index in each"
        )
    lance_process = os.getpid()


def table_exists(db: str, name: str) -> bool:
    try:
        open_table(db, name)
    except ValueError as missing:  # pylance has no type of its own for this
        if "not found" in str(missing).lower():
            return False
        if "not a directory" in str(missing).lower():
            raise NoIndex(f"{db} is a file: give the directory of an index, or a new one") from missing
        raise
    return True


def tables_exist(db: str) -> bool:
    return all(table_exists(db, name) for name in TABLES)


def ensure_table(db: str, name: str, schema: pa.Schema) -> None:
    """Create the table, empty, where there is none; never replaces one, also when two create at once."""
    if table_exists(db, name):
        return
    try:
        lance.write_dataset(schema.empty_table(), table_uri(db, name), mode="create")
    except OSError:
        if not table_exists(db, name):
            raise


def one_of(column: str, values: Iterable[str]) -> str:
    """Filter `column IN (values)`; the only place where a string becomes part of a Lance filter.

    A quote is doubled; nothing else has a meaning inside a single-quoted literal there, backslash included.
    Lone surrogates are replaced as they were in what is stored.
    """
    literals = ("'" + LONE_SURROGATE.sub("\ufffd", value).replace("'", "''") + "'" for value in values)
    return f"{column} IN (" + ", ".join(literals) + ")"


def filters(column: str, values: Sequence[str]) -> Iterator[str]:
    """Filters that match these values together and are short enough to be parsed fast."""
    for start in range(0, len(values), IDS_PER_FILTER):
        yield one_of(column, values[start : start + IDS_PER_FILTER])


def remove_tables(db: str) -> None:
    """Start anew where nothing was committed: another encoder may have left empty tables of its width."""
    for name in TABLES:
        files, root = fsspec.url_to_fs(table_uri(db, name))
        if files.exists(root):
            files.rm(root, recursive=True)


def tag_version(table: lance.LanceDataset, tag: str, version: int) -> None:
    """Point a tag at this version, wherever a run that died may have pointed it."""
    if tag in table.tags.list():
        table.tags.update(tag, version)
    else:
        table.tags.create(tag, version)


def restore(db: str, name: str, version: int, properties: dict[str, str]) -> int:
    """Make an older version the head again, as a commit that carries properties. Returns the new version."""
    table = open_table(db, name)
    transaction = lance.Transaction(
        read_version=table.version,
        operation=lance.LanceOperation.Restore(version=version),
        transaction_properties=properties,
    )
    return lance.LanceDataset.commit(table, transaction).version


def history(table: lance.LanceDataset) -> Iterator[tuple[int, dict[str, str]]]:
    """Versions that led to this one, newest first, each with what its run wrote beside it.

    Goes round what a restore took back. The properties are empty for index building, compaction, and
    versions that were cleaned up. Not `get_transactions`: pylance 14 raises TypeError on a compaction that
    remapped an index (STACK.md 2.2).
    """
    version = table.version
    while version > 0:
        try:
            transaction = table.read_transaction(version)
        except (TypeError, OSError, ValueError):
            transaction = None
        yield version, dict(transaction.transaction_properties or {}) if transaction else {}
        restored = transaction and getattr(transaction.operation, "version", None)
        version = restored or version - 1
