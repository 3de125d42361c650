"""How documents get into an index: workers write fragments, the driver commits them and publishes a snapshot.

Fragments are invisible until committed. There is one transaction per table and run, `nodes` first. The commit
of `documents` names the version of `nodes` that belongs to it, so that one commit decides: whatever `nodes`
holds beyond it is half a run, and the next commit takes it back. Readers follow snapshots (snapshots.py).
"""

import datetime as dt
import getpass
import json
import socket
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.commit import CommitConflictError
from lance.fragment import write_fragments as write_lance_fragments

from sproutrag.snapshots import (
    ConcurrentWriter,
    Snapshot,
    Unstorable,
    current_snapshot,
    name_some,
    refuse_mixture,
    tag_of,
    write_snapshot,
)
from sproutrag.tables import (
    TABLES,
    document_rows,
    ensure_table,
    filters,
    history,
    node_rows,
    open_table,
    table_exists,
    table_uri,
    tables_exist,
    tag_version,
    vectors_of,
)
from sproutrag.tree import build_tree
from sproutrag.verification import require_sound

if TYPE_CHECKING:
    from sproutrag.encoder import EncodedDocument

COUNTS = ("documents", "nodes", "leaves", "tokens")
COMMIT_ATTEMPTS = 5  # a compaction may win the race for a fragment; then the deletions are looked up again
RUN_LOOKBACK = 100  # versions searched for a run that already committed, about 1 ms each


# --- on the workers


@dataclass(frozen=True, slots=True)
class Written:
    """Fragments on disk that no version refers to yet; plain enough for JSON (`asdict`, `Written(**x)`)."""

    documents: Sequence[str]  # fragment metadata, JSON
    nodes: Sequence[str]
    doc_ids: Sequence[str]
    hashes: Sequence[str]  # of the documents' content, in the same order
    fingerprint: str
    dimension: int
    counts: dict[str, int]  # documents, nodes, leaves, tokens


def write_documents(db: str, encoded: Sequence["EncodedDocument"], *, fingerprint: str) -> Written:
    """Build the documents' trees and write both as fragments that nobody sees before the commit."""
    trees = [build_tree(one.affinity) for one in encoded]
    rows = document_rows(encoded, trees, fingerprint=fingerprint)
    return write_fragments(db, rows, node_rows(encoded, trees))


def write_fragments(db: str, documents: pa.Table, nodes: pa.Table) -> Written:
    """Write both tables' rows, at least one file each per call, and commit nothing.

    Safe on any number of workers and safe to repeat: what is never committed is never seen. Creates the
    tables, empty, where there are none.
    """
    refuse_bad_vectors(nodes)
    (fingerprint,) = documents["fingerprint"].unique().to_pylist()
    require_fingerprint(db, fingerprint)
    leaves = pc.sum(documents["n_leaves"]).as_py()
    assert nodes.num_rows == 2 * leaves - documents.num_rows, (nodes.num_rows, leaves, documents.num_rows)
    return Written(
        documents=write_files(db, "documents", documents),
        nodes=write_files(db, "nodes", nodes),
        doc_ids=documents["doc_id"].to_pylist(),
        hashes=documents["content_hash"].to_pylist(),
        fingerprint=fingerprint,
        dimension=nodes.schema.field("vector").type.list_size,
        counts={
            "documents": documents.num_rows,
            "nodes": nodes.num_rows,
            "leaves": leaves,
            "tokens": pc.sum(documents["n_tokens"]).as_py(),
        },
    )


def write_files(db: str, name: str, rows: pa.Table) -> list[str]:
    ensure_table(db, name, rows.schema)
    fragments = write_lance_fragments(rows, table_uri(db, name), schema=rows.schema, mode="append")
    return [json.dumps(fragment.to_json()) for fragment in fragments]


def refuse_bad_vectors(nodes: pa.Table) -> None:
    """A NaN compares as nothing and would win or vanish at random in a search: it must not get in."""
    finite = np.isfinite(vectors_of(nodes)).all(axis=1)
    if not finite.all():
        ids = nodes["doc_id"].filter(pa.array(~finite)).unique().to_pylist()
        raise Unstorable(
            f"vectors that are not finite in {name_some(ids)}: set these documents aside, look at the encoder"
        )


# --- on the driver


def commit(
    db: str,
    written: Sequence[Written],
    *,
    run_id: str,
    remove: Sequence[str] = (),
    sources: Sequence[str] = (),
    encoder: str = "",
    command: str = "",
) -> Snapshot:
    """Make what was written the new head of both tables, replacing these documents whole; `remove` deletes.

    One transaction per table. Repeating it with the same run_id changes nothing, and so does an empty run.
    Returns the head, not yet published. `sources` and `encoder` (a name or an absolute directory, for readers
    to load the same one) are noted in it, and `command`, what its user asked for.
    """
    added = list(chain.from_iterable(w.doc_ids for w in written))
    if twice := [id for id, times in Counter(added).items() if times > 1]:
        raise Unstorable(
            f"{name_some(twice)} would be written twice in run {run_id}: give every document its own doc_id"
        )
    require_fingerprint(db, *(w.fingerprint for w in written))
    if tables_exist(db):
        settle(db, run_id)
    if tables_exist(db) and (added or remove):
        stored = stored_hashes(db)
        outgoing = [id for id in {*added, *remove} if id in stored]
        nodes = chain.from_iterable(w.nodes for w in written)
        documents = chain.from_iterable(w.documents for w in written)
        nodes_version = replace_rows(db, "nodes", nodes, outgoing, {"run_id": run_id})
        belongs = {"run_id": run_id, "nodes_version": str(nodes_version)}
        replace_rows(db, "documents", documents, outgoing, belongs)
    return replace(
        head(db),
        run_id=run_id,
        sources=tuple(sources),
        encoder=encoder or encoder_of(db),
        command=command,
    )


def replace_rows(
    db: str, name: str, fragments: Iterable[str], outgoing: Sequence[str], properties: dict
) -> int:
    """One transaction: the outgoing documents' rows leave, the fragments come in. Returns the version."""
    new = [lance.FragmentMetadata.from_json(text) for text in fragments]
    for _ in range(COMMIT_ATTEMPTS):
        table = open_table(db, name)
        if version := version_of_run(table, properties["run_id"]):
            return version
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
    """Take back what an earlier run committed to `nodes` before it died short of `documents`."""
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


def encoder_of(db: str) -> str:
    current = current_snapshot(db)
    return current.encoder if current else ""


def head(db: str) -> Snapshot:
    """The newest version of both tables as an unpublished snapshot; all zero where there are no tables."""
    if not tables_exist(db):
        return Snapshot(counts=dict.fromkeys(COUNTS, 0))
    documents, nodes = open_table(db, "documents"), open_table(db, "nodes")
    columns = documents.to_table(columns=["n_leaves", "n_tokens", "coverage", "fingerprint"])
    fingerprints = columns["fingerprint"].unique().to_pylist()
    refuse_mixture(db, fingerprints)
    leaves, tokens = (pc.sum(columns[c]).as_py() or 0 for c in ("n_leaves", "n_tokens"))
    return Snapshot(
        documents_version=documents.version,
        nodes_version=nodes.version,
        fingerprint=fingerprints[0] if fingerprints else "",
        dimension=nodes.schema.field("vector").type.list_size,
        counts=dict(zip(COUNTS, (columns.num_rows, nodes.count_rows(), leaves, tokens), strict=True)),
        coverage=pc.mean(columns["coverage"]).as_py() if columns.num_rows else 1.0,
    )


def stored_hashes(db: str) -> dict[str, str]:
    """doc_id -> content hash of all that is committed, published or not: what the next run compares with."""
    if not table_exists(db, "documents"):
        return {}
    columns = open_table(db, "documents").to_table(columns=["doc_id", "content_hash"])
    return dict(zip(columns["doc_id"].to_pylist(), columns["content_hash"].to_pylist(), strict=True))


def require_fingerprint(db: str, *fingerprints: str) -> None:
    """Refuse to mix vectors of two encoders; cheap enough to ask before any document is encoded."""
    refuse_mixture(db, [*stored_fingerprint(db), *fingerprints])


def stored_fingerprint(db: str) -> list[str]:
    if not table_exists(db, "documents"):
        return []
    return open_table(db, "documents").to_table(columns=["fingerprint"], limit=1)["fingerprint"].to_pylist()


# --- for the readers


def publish(db: str, snapshot: Snapshot) -> Snapshot:
    """Check the head and make it the current snapshot by one atomic write.

    `snapshot` is what `commit` returned. Indices may have been built since and are published with it; another
    run may not have committed. A head that is current already is not published again.
    """
    latest = head(db)
    current = current_snapshot(db)
    if not current and not latest.counts["documents"]:
        return latest
    if current and current.versions == latest.versions:
        return current
    for name, version in zip(TABLES, snapshot.versions, strict=True):
        if others := commits_since(open_table(db, name), version):
            raise ConcurrentWriter(
                f"run {others[0][1]['run_id']} committed to {db} after run {snapshot.run_id}: "
                "let it finish, then run again"
            )
    require_sound(db, latest)
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    published = replace(
        snapshot,
        id=(current.id if current else 0) + 1,
        documents_version=latest.documents_version,
        nodes_version=latest.nodes_version,
        created_at=now,
        rates=snapshot.rates or (current.rates if current else None),
        by=f"{getpass.getuser()}@{socket.gethostname()}",
    )
    for name, version in zip(TABLES, published.versions, strict=True):
        tag_version(open_table(db, name), tag_of(published.id), version)
    write_snapshot(db, published)
    return published
