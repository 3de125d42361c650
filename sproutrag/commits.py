"""Transactions on the two tables: a run's one commit to each, and what a run that died left half done."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile

import lance
import numpy as np
import pyarrow as pa
from lance.commit import CommitConflictError

from sproutrag.snapshots import ConcurrentWriter, Snapshot, current_snapshot
from sproutrag.tables import filters, history, open_table, table_uri, tables_exist

COMMIT_ATTEMPTS = 5  # a compaction may win the race for a fragment; then the deletions are looked up again
RUN_LOOKBACK = 100  # versions searched for a run that already committed, about 1 ms each


def replace_rows(
    db: str,
    name: str,
    fragments: Iterable[str],
    outgoing: Sequence[str],
    properties: dict,
    *,
    schema: pa.Schema | None = None,
) -> int:
    """One transaction: the outgoing documents' rows leave, the fragments come in. Returns the version.

    With a `schema` all rows leave, and the fragments are of that schema.
    """
    new = [lance.FragmentMetadata.from_json(text) for text in fragments]
    for _ in range(COMMIT_ATTEMPTS):
        table = open_table(db, name)
        if version := version_of_run(table, properties["run_id"]):
            return version
        if schema:
            operation = lance.LanceOperation.Overwrite(schema, new)
        else:
            emptied, changed = delete_documents(table, outgoing)
            if not (new or emptied or changed):
                return table.version
            operation = lance.LanceOperation.Update(
                removed_fragment_ids=emptied,
                updated_fragments=changed,
                new_fragments=new,
                update_mode="rewrite_rows",
            )
        transaction = lance.Transaction(
            read_version=table.version, operation=operation, transaction_properties=properties
        )
        try:
            return lance.LanceDataset.commit(table, transaction).version
        except CommitConflictError as conflict:
            if not conflict.retryable:
                raise
    raise ConcurrentWriter(
        f"{table_uri(db, name)} kept changing during {COMMIT_ATTEMPTS} attempts to commit it: "
        "let one writer finish, then run again"
    )


def delete_documents(table: lance.LanceDataset, doc_ids: Sequence[str]) -> tuple[list[int], list]:
    """Prepare the deletion: fragments that end up empty (ids) and fragments with new deletion vectors."""
    offsets = defaultdict(list)
    for condition in filters("doc_id", doc_ids):
        for batch in table.scanner(columns=[], filter=condition, with_row_address=True).to_batches():
            addresses = batch["_rowaddr"].to_numpy().astype(np.uint64)
            for fragment_id in np.unique(addresses >> 32).tolist():
                here = addresses[addresses >> 32 == fragment_id]
                offsets[fragment_id].append((here & 0xFFFFFFFF).astype(np.int64))
    fragments = {fragment.fragment_id: fragment for fragment in table.get_fragments()}
    kept = {id: fragments[id].delete_rows(np.concatenate(rows).tolist()) for id, rows in offsets.items()}
    emptied = [id for id, fragment in kept.items() if fragment is None]
    return emptied, [fragment for fragment in kept.values() if fragment is not None]


def settle(db: str, run_id: str) -> None:
    """Take back what an earlier run committed to `nodes` before it died short of `documents`.

    Before anything is written, as that run may have changed the table's schema.
    """
    if not tables_exist(db):
        return
    newer = commits_since(open_table(db, "nodes"), settled_nodes_version(db))
    foreign = [version for version, properties in newer if properties["run_id"] != run_id]
    if foreign:
        open_table(db, "nodes", version=foreign[-1] - 1).restore()


def settled_nodes_version(db: str) -> int:
    """The version of `nodes` that the head of `documents` belongs to; index building may have followed."""
    snapshot = current_snapshot(db) or Snapshot(documents_version=1, nodes_version=1)
    newer = commits_since(open_table(db, "documents"), snapshot.documents_version)
    return int(newer[0][1]["nodes_version"]) if newer else snapshot.nodes_version


def commits_since(table: lance.LanceDataset, version: int) -> list[tuple[int, dict[str, str]]]:
    """Runs that changed rows after this version, newest first: (their version, what they wrote beside it)."""
    newer = takewhile(lambda entry: entry[0] > version, history(table))
    return [(committed, properties) for committed, properties in newer if "run_id" in properties]


def version_of_run(table: lance.LanceDataset, run_id: str) -> int | None:
    """The version that this run committed, if it did."""
    recent = islice(history(table), RUN_LOOKBACK)
    return next((version for version, properties in recent if properties.get("run_id") == run_id), None)


def drop_fragments(table: lance.LanceDataset, fragment_ids: Sequence[int]) -> int:
    """Take fragments out of the table, whatever they hold; reads none of their files. Returns the version."""
    operation = lance.LanceOperation.Delete(
        updated_fragments=[], deleted_fragment_ids=list(fragment_ids), predicate="unreadable"
    )
    transaction = lance.Transaction(read_version=table.version, operation=operation)
    return lance.LanceDataset.commit(table, transaction).version
