"""Damage done to real tables, as a bad disk, a foreign tool or a bug would."""

import json
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

from sproutrag.snapshots import list_snapshots
from sproutrag.tables import DOCUMENTS, one_of, open_table, table_uri


def point_snapshot_at_heads(db: str, **changes: object) -> None:
    """As damage on disk would: the current record now shows the damaged tables."""
    path = Path(db) / "snapshots" / f"{list_snapshots(db)[-1]:06d}.json"
    record = json.loads(path.read_text())
    heads = {f"{name}_version": open_table(db, name).version for name in ("documents", "nodes")}
    path.write_text(json.dumps(record | heads | changes))


def damage_document(db: str, id: str, **changes: object) -> None:
    """Replace columns of one document's row, then hide that anything happened."""
    table = open_table(db, "documents")
    (row,) = table.to_table(filter=one_of("doc_id", [id])).to_pylist()
    table.delete(one_of("doc_id", [id]))
    lance.write_dataset(
        pa.Table.from_pylist([row | changes], schema=DOCUMENTS), table_uri(db, "documents"), mode="append"
    )
    point_snapshot_at_heads(db)


def damage_nodes(db: str, condition: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Rewrite the matching node rows, then bring the full-text index up to date."""
    table = open_table(db, "nodes")
    rows = table.to_table(filter=condition)
    table.delete(condition)
    lance.write_dataset(change(rows).cast(table.schema), table_uri(db, "nodes"), mode="append")
    open_table(db, "nodes").optimize.optimize_indices()
    point_snapshot_at_heads(db)


def with_vectors(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[pa.Table], pa.Table]:
    def rewrite(rows: pa.Table) -> pa.Table:
        vectors = change(np.stack(rows["vector"].to_numpy()))
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        return rows.set_column(rows.schema.get_field_index("vector"), "vector", column)

    return rewrite


def with_column(name: str, values: Callable[[list], list]) -> Callable[[pa.Table], pa.Table]:
    def rewrite(rows: pa.Table) -> pa.Table:
        field = rows.schema.field(name)
        column = pa.array(values(rows[name].to_pylist()), field.type)
        return rows.set_column(rows.schema.get_field_index(name), field, column)

    return rewrite
