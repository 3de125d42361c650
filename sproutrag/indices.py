"""Search indices of the two tables: built when a table is large enough to profit, extended when rows were added."""

from collections.abc import Callable
from dataclasses import dataclass

import lance

from sproutrag.tables import open_table, tables_exist

VECTOR_METRIC = "cosine"  # queries must use the same metric: another one is answered by brute force, silently

# One index serves a corpus in many languages: ICU finds word boundaries in all of them, Chinese included.
FULL_TEXT = {
    "base_tokenizer": "icu",
    "language": "English",  # of the stemmer; other languages match in full, lower-cased forms
    "stem": True,
    "remove_stop_words": False,  # "to be or not to be", "The Who": BM25 weighs frequent words down by itself
    "ascii_folding": True,
    "lower_case": True,
    "max_token_length": 40,
    "with_position": False,
}

VECTOR_INDEX_ROWS = 100_000
ROWS_PER_PARTITION = 4096
STALE_PARTITIONS = 4  # retrain when the table has outgrown its partitions this many times
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

    New rows extend an index; only a vector index that was trained on far fewer rows is trained again. Each step is
    a version of its table that readers see with the next snapshot. A failure is raised.
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
    if index.column == "vector" and rows > STALE_PARTITIONS * trained_rows(table):
        index.build(table)
        return [f"trained {name} again over {rows} rows"]
    fresh = [f for f in table.get_fragments() if f.fragment_id not in existing[index.column]]
    if not fresh:
        return []
    table.optimize.optimize_indices(index_names=[index.column])
    return [f"extended {name} by {sum(f.count_rows() for f in fresh)} rows"]


def indexed_fragments(table: lance.LanceDataset) -> dict[str, set[int]]:
    """Index name (the column's) -> fragments that it knows; the others are searched without it."""
    return {
        index.name: {fragment for segment in index.segments for fragment in segment.fragment_ids}
        for index in table.describe_indices()
    }


def trained_rows(table: lance.LanceDataset) -> int:
    """Rows that the vector index was made for, from its number of partitions."""
    return ROWS_PER_PARTITION * len(table.get_ivf_model("vector").centroids)


def build_vectors(table: lance.LanceDataset) -> None:
    partitions = max(1, table.count_rows() // ROWS_PER_PARTITION)
    table.create_index(
        "vector", "IVF_FLAT", name="vector", metric=VECTOR_METRIC, num_partitions=partitions, replace=True
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
