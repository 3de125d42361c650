"""What becomes of old snapshots: list them, go back to one, clean up, delete with nothing left behind.

All but the listing hold the writer lock. Readers are never disturbed: the files of a snapshot that somebody
reads stay, and so do those of the snapshots that are kept.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import lance
from lance import CleanupStats

from sproutrag import journal
from sproutrag.commits import settle
from sproutrag.disk import is_full
from sproutrag.indices import INDICES, build_indices, indexed_fragments
from sproutrag.lock import POLL_S, WriterLock, writer_lock
from sproutrag.quarantine import forget
from sproutrag.readers import live_readers
from sproutrag.snapshots import (
    DocumentNotFound,
    IndexBusy,
    NoIndex,
    Snapshot,
    current_snapshot,
    is_tag,
    list_snapshots,
    name_some,
    read_snapshot,
    remove_snapshot,
    tag_of,
)
from sproutrag.storage import commit, head, publish
from sproutrag.tables import TABLES, filters, open_table, restore

MAX_FRAGMENTS = 32  # a run adds one or a few; with more, merging them is cheaper than opening each per query
TIERS = (1 << 15, 1 << 20)  # rows that merged fragments have at most
MAX_DELETED = 0.05  # share of a table's rows that are dead weight; with a tenth, searches take 1.3 x as long
FOREVER = timedelta(days=36500)


@dataclass(frozen=True, slots=True)
class Freed:
    """What a clean-up did. held: the readers whose snapshots had to stay although they were not kept."""

    snapshots: tuple[int, ...]  # ids that are gone
    kept: tuple[int, ...]
    held: tuple[str, ...]
    compacted: tuple[str, ...]
    versions: int  # of both tables
    bytes: int
    failed: str = (
        ""  # why the tables were not maintained beside it; what is listed here was done all the same
    )


@dataclass(frozen=True, slots=True)
class Deleted:
    """The proof: rows of these documents per table, before and after, read from the tables themselves."""

    doc_ids: tuple[str, ...]
    before: dict[str, int]
    after: dict[str, int]
    documents: int  # that are left
    snapshot: int
    purged: Freed | None


# --- versions, rollback


def versions(db: str) -> list[dict]:
    """The snapshots that are kept, newest first: what each holds, who made it, when, by what command."""
    ids = list_snapshots(db)
    if not ids:
        raise NoIndex(f"{db} holds no snapshots: run `sproutrag index SOURCE... --db {db}`")
    readers = [holder.snapshot for holder in live_readers(db)]
    return [describe(read_snapshot(db, id), ids[-1], readers.count(id)) for id in reversed(ids)]


def describe(snapshot: Snapshot, current: int, readers: int) -> dict:
    return {
        "id": snapshot.id,
        "current": snapshot.id == current,
        "created_at": snapshot.created_at,
        **snapshot.counts,
        "by": snapshot.by,
        "command": snapshot.command,
        "fingerprint": snapshot.fingerprint,
        "run_id": snapshot.run_id,
        "readers": readers,
    }


def rollback(db: str, id: int, *, wait_s: float = 0.0) -> Snapshot:
    """Publish what snapshot `id` holds as a new snapshot, which readers then follow and later runs build on.

    The heads of both tables go back too, so nothing of what came after can return with the next commit. Like
    a run it decides with the commit of `documents`; killed before that, it never happened.
    """
    with writer_lock(db, command=f"rollback {id}", wait_s=wait_s) as lock:
        target, current = read_snapshot(db, id), current_snapshot(db)
        run_id = uuid.uuid4().hex
        settle(db, run_id)
        if current and current.id == id and head(db).versions == current.versions:
            return current
        lock.require()
        noted = {"run_id": run_id, "encoder": target.encoder}
        nodes_version = restore(db, "nodes", target.nodes_version, noted)
        belongs = noted | {"nodes_version": str(nodes_version)}
        restore(db, "documents", target.documents_version, belongs)
        restored = replace(
            head(db),
            run_id=run_id,
            sources=target.sources,
            encoder=target.encoder,
            command=f"rollback {id}",
        )
        return publish(db, restored)


# --- clean-up


def prune(db: str, *, keep: int = 1, wait_s: float = 0.0) -> Freed:
    """Keep the newest `keep` snapshots and remove what only others need: rows, versions, indices, files.

    Also what killed runs left: holding the lock, nobody can be about to commit it.
    """
    with writer_lock(db, command=f"prune --keep {keep}", wait_s=wait_s) as lock:
        if not list_snapshots(db):
            raise NoIndex(f"{db} holds no snapshots: nothing to clean up")
        return clean_up(db, keep=keep, lock=lock)


def clean_up(db: str, *, keep: int, lock: WriterLock) -> Freed:
    """`prune` for who holds the lock already."""
    assert keep >= 1, keep
    first = remove_unused(
        db, keep=keep, unpublished=True
    )  # deletes only: works on a full disk, and makes room
    try:
        settle(db, run_id="")
        compacted = [f"compacted {name}" for name in TABLES if compact(open_table(db, name))]
        build_indices(db)
        lock.require()
        publish_again(db, command="clean-up")
    except OSError as error:
        if not is_full(error):
            raise
        return replace(first, failed=f"no room on the disk to maintain the tables: {error}".splitlines()[0])
    return join(first, remove_unused(db, keep=keep, compacted=compacted))


def join(first: Freed, then: Freed) -> Freed:
    return replace(
        then,
        snapshots=first.snapshots + then.snapshots,
        versions=first.versions + then.versions,
        bytes=first.bytes + then.bytes,
    )


def compact(table: lance.LanceDataset, *, max_deleted: float = MAX_DELETED) -> bool:
    """Merge small fragments and drop deleted rows where that pays; large fragments stay as they are.

    Small ones are merged tier by tier, each time there are more than MAX_FRAGMENTS of them: a small fragment
    is copied once for each tier, not each night. Rows that are dead weight go when they are more than
    `max_deleted` of the table, from the fragments that hold so many.
    """
    *tiers, largest = TIERS
    done = [merge(table, tier, materialize_deletions=False) for tier in tiers if has_many(table, tier)]
    fragments = table.get_fragments()
    dead = sum(fragment.num_deletions for fragment in fragments)
    rows = sum(fragment.physical_rows for fragment in fragments)
    if dead > max_deleted * rows or has_many(table, largest):
        done.append(merge(table, largest, materialize_deletions_threshold=max_deleted))
    return any(done)


def has_many(table: lance.LanceDataset, tier: int) -> bool:
    return sum(fragment.physical_rows < tier for fragment in table.get_fragments()) > MAX_FRAGMENTS


def merge(table: lance.LanceDataset, tier: int, **options: float) -> bool:
    done = table.optimize.compact_files(target_rows_per_fragment=tier, num_threads=1, **options)
    return done.fragments_removed > 0


def publish_again(db: str, *, command: str) -> Snapshot:
    """Publish the head as it is; the same snapshot where nothing moved."""
    current = current_snapshot(db) or Snapshot()
    noted = replace(
        head(db), run_id=current.run_id, sources=current.sources, encoder=current.encoder, command=command
    )
    return publish(db, noted)


def remove_unused(db: str, *, keep: int, compacted: Sequence[str] = (), unpublished: bool = False) -> Freed:
    """Records go first, then readers are asked again: who came meanwhile is seen, or saw the record go.

    What an interrupted run finished stays for the next one; `unpublished`: so do all newer versions.
    """
    reading = {holder.snapshot for holder in live_readers(db)}
    ids = list_snapshots(db)
    gone = [id for id in ids[:-keep] if id not in reading]
    for id in gone:
        remove_snapshot(db, id)
    kept = list_snapshots(db)
    readers = live_readers(db)
    needed = {read_snapshot(db, id).versions for id in kept} | {reader.versions for reader in readers}
    tags = {tag_of(id) for id in kept}
    journal.keep_young(db)
    pending = journal.pending_files(db) if journal.is_pending(db) else dict.fromkeys(TABLES)
    freed = []
    for place, name in enumerate(TABLES):
        table, versions = open_table(db, name), {pair[place] for pair in needed}
        if unpublished:
            versions |= {entry["version"] for entry in table.versions() if entry["version"] > max(versions)}
        freed.append(remove_versions(table, keep=versions, tags=tags, pending=pending[name]))
    return Freed(
        snapshots=tuple(gone),
        kept=tuple(kept),
        held=tuple(f"{one} reads {one.snapshot}" for one in readers if one.snapshot not in ids[-keep:]),
        compacted=tuple(compacted),
        versions=sum(stats.old_versions for stats in freed),
        bytes=sum(stats.bytes_removed for stats in freed),
    )


def remove_versions(
    table: lance.LanceDataset, *, keep: set[int], tags: set[str], pending: set[str] | None = None
) -> CleanupStats:
    """Remove all versions but these and the head, tags but these, and files that no version knows.

    pending: data files that wait for the next run; while there are any, young files of nobody stay as well.
    """
    for tag in [tag for tag in table.tags.list() if is_tag(tag) and tag not in tags]:
        table.tags.delete(tag)
    present = {entry["version"] for entry in table.versions()}
    unused = sorted(present - keep - {table.version} - versions_with(table, pending or set(), present - keep))
    which = {"versions": unused} if unused else {"older_than": FOREVER}  # an empty list is refused
    return table.cleanup_old_versions(
        **which, delete_unverified=pending is None, error_if_tagged_old_versions=False
    )


def versions_with(table: lance.LanceDataset, files: set[str], versions: set[int]) -> set[int]:
    """Those versions, unpublished ones of a run that died, whose removal would take these files along."""
    return {version for version in versions if files and files & files_of(table.checkout_version(version))}


def files_of(table: lance.LanceDataset) -> set[str]:
    return {file.path for fragment in table.get_fragments() for file in fragment.data_files()}


# --- deletion


def delete_documents(db: str, doc_ids: Sequence[str], *, purge: bool = False, wait_s: float = 0.0) -> Deleted:
    """Delete these documents and publish the index without them; unknown ids are refused, all or none.

    `purge`: then the text is gone from storage too. The tables are rewritten, indices built anew, and every
    older snapshot is removed, for they share files. Waits up to `wait_s` for the lock, then for readers of
    older snapshots; while one of them stays, IndexBusy names it, and the same command again ends the work.
    """
    ids = list(dict.fromkeys(doc_ids))
    command = f"delete{' --purge' if purge else ''} {name_some(ids)}"
    with writer_lock(db, command=command, wait_s=wait_s) as lock:
        require_known(db, ids, everywhere=purge)
        settle(db, run_id="")
        before = rows_of(db, ids)
        lock.require()
        current = current_snapshot(db) or Snapshot()
        removal = commit(
            db, [], run_id=uuid.uuid4().hex, remove=ids, sources=current.sources, command=command
        )
        snapshot = publish(db, removal)
        forget(db, ids)
        purged = purge_storage(db, lock=lock, wait_s=wait_s) if purge else None
        return Deleted(
            doc_ids=tuple(ids),
            before=before,
            after=rows_of(db, ids),
            documents=snapshot.counts["documents"],
            snapshot=list_snapshots(db)[-1],
            purged=purged,
        )


def require_known(db: str, ids: Sequence[str], *, everywhere: bool) -> None:
    """Each id is in the index, or, `everywhere`, in some snapshot that is kept."""
    snapshots = list_snapshots(db)
    if not snapshots:
        raise NoIndex(f"{db} holds no snapshots: nothing to delete")
    unknown = set(ids) - known_ids(open_table(db, "documents"), ids)
    for id in snapshots if everywhere and unknown else ():
        unknown -= known_ids(open_table(db, "documents", read_snapshot(db, id).documents_version), ids)
    if unknown:
        raise DocumentNotFound(f"no document {name_some(sorted(unknown))} in {db}: nothing was deleted")


def known_ids(documents: lance.LanceDataset, ids: Sequence[str]) -> set[str]:
    found = [documents.to_table(columns=["doc_id"], filter=asked) for asked in filters("doc_id", ids)]
    return {id for table in found for id in table["doc_id"].to_pylist()}


def rows_of(db: str, ids: Sequence[str]) -> dict[str, int]:
    return {
        name: sum(open_table(db, name).count_rows(condition) for condition in filters("doc_id", ids))
        for name in TABLES
    }


def purge_storage(db: str, *, lock: WriterLock, wait_s: float) -> Freed:
    """Leave nothing on disk but what the current snapshot shows; the next run encodes again what is lost."""
    journal.empty(db)
    rewritten = [f"compacted {name}" for name in TABLES if compact(open_table(db, name), max_deleted=0)]
    for name in TABLES:
        build_anew(open_table(db, name), name)
    lock.require()
    publish_again(db, command="purge")
    freed = remove_unused(db, keep=1, compacted=rewritten)
    deadline = time.monotonic() + wait_s
    while freed.held:
        if time.monotonic() > deadline:
            raise IndexBusy(
                f"deleted, but the text is still in storage for {freed.held[0]}: "
                "close that reader, then run the same command again"
            )
        time.sleep(POLL_S)
        freed = remove_unused(db, keep=1, compacted=rewritten)
    return freed


def build_anew(table: lance.LanceDataset, name: str) -> None:
    """Indices know words and ids of deleted rows until they are built again."""
    assert not any(fragment.num_deletions for fragment in table.get_fragments()), name
    existing = indexed_fragments(table)
    for index in [index for index in INDICES if index.table == name and index.column in existing]:
        if index.column == "vector" and not table.count_rows():  # nothing to train it on
            table.drop_index(index.column)
        else:
            index.build(table)
