"""Search indices of the two tables: built where a table is large enough to profit, extended by new rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lance

from sproutrag.tables import open_table, tables_exist

VECTOR_METRIC = "cosine"  # queries must use the same metric: another one is answered by brute force, silently

# One index serves a corpus in many languages: ICU finds word boundaries in all of them, Chinese included.
FULL_TEXT: dict[str, Any] = {
    "base_tokenizer": "icu",
    "language": "English",  # of the stemmer; other languages match in full, lower-cased forms
    "stem": True,
    "remove_stop_words": False,  # "to be or not to be", "The Who": BM25 weighs frequent words down by itself
    "ascii_folding": True,
    "lower_case": True,
    "max_token_length": 40,
    "with_position": False,
}

# Nodes x 384 on two AVX2 cores, 50 nearest, median ms (recall@50 in brackets): all rows / IVF_FLAT / IVF_SQ
#    10,000:  12 / 2.1 (1.00) / 3.1 (1.00)
#    50,000:  84 / 9.8 (1.00) / 7.6 (1.00)
#   200,000: 394 / 24  (1.00) / 8.9 (1.00)    32 partitions probed; 8 probed: 11 (0.981) / 5.6 (0.988)
# IVF_SQ takes a quarter of the space of IVF_FLAT; PQ needed 20 s to build at 10,000, HNSW_SQ 16 s at 50,000.
VECTOR_INDEX_ROWS = 20_000  # about 30 ms without an index
VECTOR_INDEX = "IVF_SQ"  # 8 bits a value; how many partitions a query probes, the retriever says
ROWS_PER_PARTITION = 4096
MERGED_UNTIL = 8  # times the rows that come in: a larger part of the index is left as it is
OUTGROWN = 4  # train again when there are this many times the rows that the partitions were made for
SCALAR_INDEX_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Index:
    """One index we want: on which column, from how many rows on it pays, and how it is made."""

    table: str
    column: str
    min_rows: int
    build: Callable[[lance.LanceDataset], object]


def build_indices(db: str) -> list[str]:
    """Bring all indices up to date and say what was done, one phrase each; empty where nothing was to do.

    New rows extend an index; only a vector index trained on far fewer rows is trained again. Each step is a
    version of its table that readers see with the next snapshot. A failure is raised.
    """
    return [done for index in INDICES if tables_exist(db) for done in update_index(db, index)]


def update_index(db: str, index: Index) -> list[str]:
    table = open_table(db, index.table)
    name = f"{index.table}.{index.column}"
    rows = table.count_rows()
    existing = indexed_fragments(table)
    if index.column not in existing:
        if rows < index.min_rows:
            return []
        index.build(table)
        return [f"built {name} over {rows} rows"]
    if index.column == "vector" and rows > OUTGROWN * trained_rows(table):
        index.build(table)
        return [f"trained {name} again over {rows} rows"]
    fresh = [f for f in table.get_fragments() if f.fragment_id not in existing[index.column]]
    if not fresh:
        return []
    added = sum(fragment.count_rows() for fragment in fresh)
    joined = {"num_indices_to_merge": parts_to_merge(table, added)} if index.column == "vector" else {}
    table.optimize.optimize_indices(index_names=[index.column], **joined)
    return [f"extended {name} by {added} rows"]


def parts_to_merge(table: lance.LanceDataset, added: int) -> int:
    """How many of the newest parts of the vector index join the new rows, so that there are never many.

    Every search opens every part. Parts grow geometrically, so that a row is moved a few times, not nightly.
    """
    parts = table.stats.index_stats("vector")["num_indexed_rows_per_delta"]
    rows = added
    for number, part in enumerate(reversed(parts)):
        if part > MERGED_UNTIL * rows:
            return number
        rows += part
    return len(parts)


def indexed_fragments(table: lance.LanceDataset) -> dict[str, set[int]]:
    """Index name (the column's) -> fragments that it knows; the others are searched without it."""
    return {
        index.name: {fragment for segment in index.segments for fragment in segment.fragment_ids}
        for index in table.describe_indices()
    }


def index_freshness(table: lance.LanceDataset, name: str) -> list[dict]:
    """What is indexed, and how many rows are not (these are searched one by one)."""
    known = indexed_fragments(table)
    return [
        {
            "table": name,
            "column": index.name,
            "type": index.index_type,
            "rows": index.num_rows_indexed,
            "unindexed_rows": sum(
                f.count_rows() for f in table.get_fragments() if f.fragment_id not in known[index.name]
            ),
            "bytes": index.total_size_bytes,
        }
        for index in table.describe_indices()
    ]


def trained_rows(table: lance.LanceDataset) -> int:
    """Rows that the vector index was made for, from its number of partitions."""
    return ROWS_PER_PARTITION * len(table.get_ivf_model("vector").centroids)


def build_vectors(table: lance.LanceDataset) -> None:
    partitions = max(1, table.count_rows() // ROWS_PER_PARTITION)
    table.create_index(
        "vector", VECTOR_INDEX, name="vector", metric=VECTOR_METRIC, num_partitions=partitions, replace=True
    )


def build_lookup(table: lance.LanceDataset) -> None:
    table.create_scalar_index("doc_id", "BTREE", name="doc_id", replace=True)


def build_full_text(table: lance.LanceDataset) -> None:
    table.create_scalar_index("text", "INVERTED", name="text", replace=True, **FULL_TEXT)


INDICES = (
    Index("documents", "doc_id", SCALAR_INDEX_ROWS, build_lookup),
    Index("nodes", "doc_id", SCALAR_INDEX_ROWS, build_lookup),
    Index("nodes", "text", 1, build_full_text),
    Index("nodes", "vector", VECTOR_INDEX_ROWS, build_vectors),
)
