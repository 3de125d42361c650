"""What was set aside, once more: `sproutrag quarantine retry`."""

import os
from dataclasses import replace

import fsspec

from pipelines.index import columns_of, index, prepare, writing
from pipelines.reports import Retried
from sproutrag import quarantine
from sproutrag.options import IndexOptions, QuarantineOptions
from sproutrag.snapshots import DocumentNotFound, Snapshot, current_snapshot, name_some

GONE_HINT = "bring the file back or go where its path holds; with `index --delete-missing` the row goes"


def retry(options: QuarantineOptions) -> Retried:
    """Read the files of what was set aside again, and try these documents as if for the first time."""
    rows = chosen_rows(options)
    files = sorted({quarantine.file_of(row.problem.source) for row in rows})
    there = {path for path in files if exists(path)}
    gone = [row.problem for row in rows if quarantine.file_of(row.problem.source) not in there]
    not_retryable = [replace(one, reason=gone_reason(one), hint=GONE_HINT) for one in gone]
    if not there:
        return Retried(None, not_retryable)
    command = f"quarantine retry {name_some(options.docs)}".strip()
    asked = IndexOptions(sources=tuple(sorted(there)), db=options.db, workers=options.workers)
    with writing(options.db, command, wait_s=options.wait) as lock:
        run = replace(
            prepare(asked, command),
            sources=(current_snapshot(options.db) or Snapshot()).sources,
            columns=columns_of(options),
            retried=frozenset(row.problem.doc_id for row in rows),
        )
        return Retried(index(run, lock=lock), not_retryable)


def chosen_rows(options: QuarantineOptions) -> list[quarantine.Row]:
    """The rows that are named by doc_id or place, or all."""
    rows = quarantine.read_rows(options.db)
    names = {name for row in rows for name in (row.problem.doc_id, row.problem.source)}
    if unknown := [name for name in options.docs if name not in names]:
        raise DocumentNotFound(
            f"nothing is set aside as {name_some(unknown)}: `sproutrag quarantine list --db {options.db}`"
        )
    asked = frozenset(options.docs)
    return [row for row in rows if not asked or asked & {row.problem.doc_id, row.problem.source}]


def exists(path: str) -> bool:
    files, inner = fsspec.url_to_fs(path)
    return bool(files.exists(inner))


def gone_reason(problem: quarantine.Problem) -> str:
    return f"not retryable: {quarantine.file_of(problem.source)} is not there (seen from {os.getcwd()})"
