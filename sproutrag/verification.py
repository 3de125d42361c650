"""Is an index what it claims to be? Recomputed from the stored text, spans and merges; needs no encoder.

A check yields one Problem for each fault that it finds and nothing where all is well. QUICK checks run before
every publication and read a few columns; THOROUGH ones read everything.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sproutrag.damage import unreadable_fragments, unreadable_indices
from sproutrag.documents import coverage
from sproutrag.indices import INDICES, index_freshness
from sproutrag.snapshots import BrokenIndex, NoIndex, Snapshot, current_snapshot, name_some, read_snapshot
from sproutrag.tables import as_given, lexical_texts, one_of, open_table, tree_of
from sproutrag.tree import Tree, progressive_embeddings

REPAIR = "run `sproutrag verify --repair`"
UNPUBLISHED = f"nothing was published; readers stay on the last snapshot; {REPAIR}"
INDEX_AGAIN = f"{REPAIR}: what is broken is encoded again from the stored text"
ROLL_BACK = f"{REPAIR}, or roll back to a snapshot that verifies"
EXTEND = f"{REPAIR}, or `sproutrag index` again: both extend the indices"
DOCUMENTS_AT_ONCE = 200
VECTOR_TOLERANCE = 1e-5  # float32 means of unit vectors, computed in another order
UNIT_TOLERANCE = 1e-3
SHOWN = 100  # problems per kind; a table of ten million broken rows needs no ten million lines


@dataclass(frozen=True, slots=True)
class Problem:
    """kind: holes, orphans, duplicates, text, coverage, tree, slices, vectors, width, full_text, index,
    fingerprint, counts, files or unreadable."""

    kind: str
    what: str
    where: str
    next: str


@dataclass(frozen=True, slots=True)
class Verification:
    snapshot: int
    documents: int
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class Subject:
    """The two tables as one snapshot sees them."""

    snapshot: Snapshot
    documents: lance.LanceDataset
    nodes: lance.LanceDataset


Check = Callable[[Subject], Iterator[Problem]]


def verify(db: str, *, snapshot: int | None = None) -> Verification:
    """All checks on the current snapshot, or the numbered one. Reads every byte of it once."""
    record = current_snapshot(db) if snapshot is None else read_snapshot(db, snapshot)
    if record is None:
        raise NoIndex(f"{db} holds no index: run `sproutrag index SOURCE... --db {db}`")
    problems = problems_of(db, record, THOROUGH)
    return Verification(record.id, record.counts.get("documents", 0), tuple(problems))


def require_sound(db: str, snapshot: Snapshot) -> None:
    """Refuse to go on with tables that contradict each other; the cheap form of `verify`."""
    if problems := problems_of(db, snapshot, QUICK):
        raise BrokenIndex(f"{db}: {problems[0].what} in {problems[0].where}: {UNPUBLISHED}")


def problems_of(db: str, snapshot: Snapshot, checks: Sequence[Check]) -> list[Problem]:
    try:
        subject = Subject(
            snapshot,
            open_table(db, "documents", snapshot.documents_version),
            open_table(db, "nodes", snapshot.nodes_version),
        )
    except (OSError, ValueError) as error:
        return [unreadable(error, f"{db}, versions {snapshot.versions}")]
    problems = [problem for check in checks for problem in findings(check, subject)]
    if all(problem.kind != "unreadable" for problem in problems):
        return problems
    named = list(islice(files_readable(subject), SHOWN))
    return [*named, *(problem for problem in problems if not named or problem.kind != "unreadable")]


def findings(check: Check, subject: Subject) -> Iterator[Problem]:
    """What one check finds; a check that cannot read is itself a finding."""
    try:
        yield from islice(check(subject), SHOWN)
    except Exception as error:  # the boundary: broken files raise anything, and the other checks go on
        yield unreadable(error, f"{check.__name__.replace('_', ' ')}, snapshot {subject.snapshot.id}")


def unreadable(error: Exception, where: str) -> Problem:
    reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return Problem("unreadable", reason, where, ROLL_BACK)


def files_readable(subject: Subject) -> Iterator[Problem]:
    """Reads every file, so it is asked only once something could not be read."""
    for table in (subject.documents, subject.nodes):
        for _, files, reason in unreadable_fragments(table):
            yield Problem("files", f"{files} cannot be read: {reason}", table.uri, ROLL_BACK)


# --- quick: between the tables


def documents_once(subject: Subject) -> Iterator[Problem]:
    ids = subject.documents.to_table(columns=["doc_id"])
    counts = ids.group_by("doc_id").aggregate([("doc_id", "count")])
    if twice := counts.filter(pc.greater(counts["doc_id_count"], 1))["doc_id"].to_pylist():
        what = f"{len(twice)} doc_ids name more than one document"
        yield Problem("duplicates", what, name_some(twice), INDEX_AGAIN)


def one_tree_each(subject: Subject) -> Iterator[Problem]:
    """Every document has a tree and every tree a document; node 0 stands for a tree."""
    documents = subject.documents.to_table(columns=["doc_id"])["doc_id"].combine_chunks()
    trees = subject.nodes.to_table(columns=["doc_id"], filter="node = 0")["doc_id"].combine_chunks()
    if missing := documents.filter(pc.invert(pc.is_in(documents, value_set=trees))).to_pylist():
        yield Problem("holes", f"{len(missing)} documents have no tree", name_some(missing), INDEX_AGAIN)
    if strangers := trees.filter(pc.invert(pc.is_in(trees, value_set=documents))).to_pylist():
        yield Problem(
            "orphans", f"{len(strangers)} trees belong to no document", name_some(strangers), ROLL_BACK
        )


def nodes_counted(subject: Subject) -> Iterator[Problem]:
    """2n-1 nodes for n leaves, over all documents; a thorough look says which documents differ."""
    leaves = subject.documents.to_table(columns=["n_leaves"])["n_leaves"]
    expected, found = 2 * (pc.sum(leaves).as_py() or 0) - len(leaves), subject.nodes.count_rows()
    if found != expected:
        kind = "holes" if found < expected else "orphans"
        what = f"{found} nodes where the documents' leaves make {expected}"
        yield Problem(kind, what, f"snapshot {subject.snapshot.id}", ROLL_BACK)


# --- thorough: the snapshot's record, the indices


def nodes_owned(subject: Subject) -> Iterator[Problem]:
    """No node belongs to a document that is not there, whether or not a whole tree is left of it."""
    documents = subject.documents.to_table(columns=["doc_id"])["doc_id"].combine_chunks()
    owners = subject.nodes.to_table(columns=["doc_id"], filter="node > 0")["doc_id"].unique()
    if strangers := owners.filter(pc.invert(pc.is_in(owners, value_set=documents))).to_pylist():
        yield Problem(
            "orphans", f"nodes of {len(strangers)} unknown documents", name_some(strangers), ROLL_BACK
        )


def record_true(subject: Subject) -> Iterator[Problem]:
    columns = subject.documents.to_table(columns=["n_tokens", "n_leaves"])
    leaves, tokens = (pc.sum(columns[name]).as_py() or 0 for name in ("n_leaves", "n_tokens"))
    found = {"documents": columns.num_rows, "leaves": leaves, "tokens": tokens}
    claimed = {name: subject.snapshot.counts.get(name) for name in found}
    if claimed != found:
        where = f"record of snapshot {subject.snapshot.id}"
        yield Problem("counts", f"the record says {claimed}, the tables hold {found}", where, ROLL_BACK)


def one_encoder(subject: Subject) -> Iterator[Problem]:
    stored = subject.documents.to_table(columns=["fingerprint"])["fingerprint"].unique().to_pylist()
    if others := [fingerprint for fingerprint in stored if fingerprint != subject.snapshot.fingerprint]:
        what = f"documents of encoder {name_some(others)} in an index of {subject.snapshot.fingerprint!r}"
        yield Problem("fingerprint", what, f"snapshot {subject.snapshot.id}", ROLL_BACK)


def vectors_wide(subject: Subject) -> Iterator[Problem]:
    width, claimed = subject.nodes.schema.field("vector").type.list_size, subject.snapshot.dimension
    if width != claimed:
        what = f"vectors of {width} values where the record says {claimed}"
        yield Problem("width", what, f"snapshot {subject.snapshot.id}", ROLL_BACK)


def indices_fresh(subject: Subject) -> Iterator[Problem]:
    """Every index that pays is there, knows every row, and its files can be read."""
    for name, table in (("documents", subject.documents), ("nodes", subject.nodes)):
        known = {index["column"]: index["unindexed_rows"] for index in index_freshness(table, name)}
        for column, rows in known.items():
            if rows:
                yield Problem("index", f"{rows} rows are not indexed", f"{name}.{column}", EXTEND)
        rows = table.count_rows()
        for index in INDICES:
            if index.table == name and index.column not in known and rows >= max(index.min_rows, 1):
                yield Problem("index", f"no index over {rows} rows", f"{name}.{index.column}", EXTEND)
        for column, files, reason in unreadable_indices(table):
            yield Problem("index", f"{files} cannot be read: {reason}", f"{name}.{column}", REPAIR)


# --- thorough: document by document


def documents_whole(subject: Subject) -> Iterator[Problem]:
    """Text, spans, tree, nodes and vectors of each document agree."""
    for row, nodes in documents_with_nodes(subject):
        if nodes.num_rows:  # no tree at all is a quick check's business
            yield from document_faults(row, nodes)


def documents_with_nodes(subject: Subject) -> Iterator[tuple[dict, pa.Table]]:
    """Each row of `documents` with its rows of `nodes`, some hundred documents in memory."""
    ids = subject.documents.to_table(columns=["doc_id"])["doc_id"].unique().to_pylist()
    for start in range(0, len(ids), DOCUMENTS_AT_ONCE):
        condition = one_of("doc_id", ids[start : start + DOCUMENTS_AT_ONCE])
        nodes = subject.nodes.to_table(filter=condition)
        places = places_of(nodes["doc_id"])
        for row in subject.documents.to_table(filter=condition).to_pylist():
            own = nodes.take(places.get(row["doc_id"], pa.array([], pa.int64())))
            yield row, own.sort_by("node")


def document_faults(row: dict, nodes: pa.Table) -> list[Problem]:
    """`document_problems`, also of a row whose columns hold what no code of ours writes."""
    try:
        return list(document_problems(row, nodes))
    except Exception as error:  # the boundary: one document beyond reading must not hide the others
        reason = f"its rows make no sense: {type(error).__name__}: {error}"
        return [Problem("tree", reason, f"document {row['doc_id']!r}", INDEX_AGAIN)]


def places_of(ids: pa.ChunkedArray) -> dict[str, pa.Array]:
    """doc_id -> the rows that carry it."""
    rows = pa.table({"id": ids, "row": np.arange(len(ids))}).group_by("id").aggregate([("row", "list")])
    return dict(zip(rows["id"].to_pylist(), (lists.values for lists in rows["row_list"]), strict=True))


def document_problems(row: dict, nodes: pa.Table) -> Iterator[Problem]:
    """What depends on something broken is not asked: one fault, one problem."""
    where = f"document {row['doc_id']!r}"

    def problem(kind: str, what: str, next: str = INDEX_AGAIN) -> Problem:
        return Problem(kind, what, where, next)

    document = as_given(row)
    if document is None:
        yield problem("text", "the stored text is not the one that was indexed")
        return
    spans = np.asarray(row["spans"], dtype=np.int64).reshape(-1, 2)
    if (reason := spans_fault(spans, row, document.text)) is not None:
        yield problem("coverage", reason)
        return
    if (reason := tree_fault(row)) is not None:
        yield problem("tree", reason)
        return
    tree = tree_of(row)
    numbers = nodes["node"].to_numpy()
    if not np.array_equal(numbers, np.arange(tree.n_nodes)):
        missing = sorted(set(range(tree.n_nodes)) - set(numbers.tolist()))
        kind = "holes" if missing else "duplicates"
        yield problem(kind, f"nodes {missing[:5]} are missing" if missing else "nodes are stored twice")
        return
    starts, sizes = nodes["start"].to_numpy(), nodes["n_leaves"].to_numpy()
    if not np.array_equal(np.column_stack([starts, starts + sizes]), tree.slices):
        yield problem("slices", "slices of the leaf order are not those of the tree")
    if (reason := vectors_fault(nodes["vector"], tree)) is not None:
        yield problem("vectors", reason)
    expected = [*lexical_texts(document, spans), *[None] * (tree.n_leaves - 1)]
    if nodes["text"].to_pylist() != expected:
        yield problem("full_text", "full-text search does not see the text of every leaf")


def spans_fault(spans: np.ndarray, row: dict, text: str) -> str | None:
    """Leaves are ascending, disjoint, inside the text, and hold every character that is not space."""
    edges = spans.ravel()
    if len(spans) != row["n_leaves"]:
        return f"{len(spans)} spans for {row['n_leaves']} leaves"
    if len(edges) and (edges[0] < 0 or edges[-1] > len(text) or (np.diff(edges) < 0).any()):
        return "spans overlap or lie outside the text"
    if (share := coverage(text, spans)) != 1.0 or row["coverage"] != share:
        return f"leaves cover {share:.6f} of the text, {row['coverage']:.6f} was recorded"
    return None


def tree_fault(row: dict) -> str | None:
    """n-1 merges of earlier nodes, every node but the root once a child; the rest follows from them."""
    merges = np.asarray(row["merges"], dtype=np.int64).reshape(-1, 2)
    affinity = np.asarray(row["affinity"], dtype=np.float32)
    n = row["n_leaves"]
    if len(merges) != n - 1 or len(affinity) != n - 1:
        return f"{len(merges)} merges with {len(affinity)} affinities for {n} leaves"
    if not np.array_equal(np.sort(merges, axis=None), np.arange(2 * n - 2)):
        return "merges do not use every node exactly once"
    if (merges >= n + np.arange(n - 1)[:, None]).any():
        return "a merge uses a node that does not exist yet"
    if not np.isfinite(affinity).all() or (np.diff(affinity) > 0).any():
        return "affinity rises from one merge to the next"
    tree = tree_of(row)
    if row["leaf_order"] != tree.order.tolist() or row["depth"] != tree.depth:
        return "leaf order or depth is not that of the merges"
    return None


def vectors_fault(column: pa.ChunkedArray, tree: Tree) -> str | None:
    if column.null_count:
        return f"{column.null_count} nodes have no vector"
    vectors = np.stack(column.to_numpy())
    if not np.isfinite(vectors).all():
        return f"{int((~np.isfinite(vectors)).any(axis=1).sum())} vectors are not finite"
    leaves = vectors[: tree.n_leaves]
    if np.abs(np.linalg.norm(leaves, axis=1) - 1).max() > UNIT_TOLERANCE:
        return "leaf vectors are not of length 1"
    if not np.allclose(vectors, progressive_embeddings(leaves, tree), rtol=0, atol=VECTOR_TOLERANCE):
        return "a node's vector is not the mean of its two children's"
    return None


QUICK: tuple[Check, ...] = (documents_once, one_tree_each, nodes_counted)
THOROUGH: tuple[Check, ...] = (
    documents_once,
    nodes_owned,
    one_tree_each,
    record_true,
    one_encoder,
    vectors_wide,
    indices_fresh,
    documents_whole,
)
