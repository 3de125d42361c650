"""How words and vectors become one score per leaf: pure arrays, the same for any number of documents.

A query names a document and asks something of it. So a leaf is scored by what its document holds of the
query, and by what the leaf and the nodes above it hold of the rest: the query less what the title says.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import fsspec
import numpy as np

from sproutrag.lexical import LEAF_LENGTH, NODE_LENGTH, Postings, counts_of, rarity, saturated, shares
from sproutrag.search import Forest, node_sums


@dataclass(frozen=True, slots=True)
class Weights:
    """What each kind of evidence counts for, beside 1 for the share of the query's information in the leaf.

    Chosen once over eight data sets together (README, Retrieval); `calibrate` replaces them by queries.
    """

    document: float = 1.0  # match of its whole and of its best leaf
    dense: float = 0.5  # cosine
    path: float = 0.25  # share in the leaf's parent; half of it for the parent's parent
    size_prior: float = 0.02  # per log of a node's number of leaves


def weights_uri(db: str) -> str:
    return f"{db.rstrip('/')}/weights.json"


def read_weights(db: str, *, fingerprint: str) -> Weights:
    """What `calibrate` stored with the index for this encoder, else the defaults: another one's cosines count
    for something else."""
    files, path = fsspec.url_to_fs(weights_uri(db))
    stored = json.loads(files.cat_file(path)) if files.exists(path) else {}
    return Weights(**stored["weights"]) if stored.get("fingerprint") == fingerprint else Weights()


def write_weights(db: str, weights: Weights, *, fingerprint: str) -> None:
    files, path = fsspec.url_to_fs(weights_uri(db))
    record = {"fingerprint": fingerprint, "weights": asdict(weights)}
    files.pipe_file(path, json.dumps(record, indent=2).encode())


@dataclass(frozen=True, slots=True)
class Matches:
    """Where the query's words occur in routed documents. t terms, N leaves, D documents.

    counts (t, N), lengths (N,), titled (t, D): the title has the term, repeats (t,): times in the query.
    """

    counts: np.ndarray
    lengths: np.ndarray
    titled: np.ndarray
    repeats: np.ndarray


def match(queried: Sequence[int], documents: Sequence[Postings]) -> Matches:
    terms, repeats = np.unique(np.array(queried, dtype=np.uint32), return_counts=True)
    return Matches(
        counts=counts_of(terms, documents),
        lengths=np.concatenate([d.lengths for d in documents]),
        titled=np.stack([(terms[:, None] == d.title).any(1) for d in documents], axis=1),
        repeats=repeats,
    )


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What a query's terms are worth and how long texts usually are, as some documents have it. t terms.

    among_documents, among_leaves (t,): for choosing between whole documents and their leaves, titles counted;
    inside (t,): within a document; best_document, best_leaf: the scores that others are relative to.
    """

    among_documents: np.ndarray
    among_leaves: np.ndarray
    inside: np.ndarray
    document_length: float
    leaf_length: float
    best_document: float = 1.0
    best_leaf: float = 1.0


def yardstick(found: Matches, forest: Forest) -> Yardstick:
    """Taken from the routed documents: what all of them have in common does not choose between them."""
    whole, lengths = whole_documents(found, forest)
    holding = (found.counts > 0).sum(1)
    raw = Yardstick(
        among_documents=worth(whole, found.repeats),
        among_leaves=worth(found.counts + found.titled[:, forest.leaf_tree], found.repeats),
        inside=worth(found.counts, found.repeats) * (holding > 0),
        document_length=float(lengths.mean()),
        leaf_length=float(found.lengths.mean()),
    )
    document, leaf = (max(float(scores.max(initial=0)), 1e-9) for scores in bm25(found, forest, raw))
    return replace(raw, best_document=document, best_leaf=leaf)


def worth(counts: np.ndarray, repeats: np.ndarray) -> np.ndarray:
    """(t, m) counts in m texts -> (t,)."""
    return repeats * rarity((counts > 0).sum(1), counts.shape[1])


def whole_documents(found: Matches, forest: Forest) -> tuple[np.ndarray, np.ndarray]:
    """Counts (t, D), titles included, and lengths (D,)."""
    first = forest.first_leaf[:-1]
    counts = np.add.reduceat(found.counts, first, axis=1) + found.titled
    return counts, np.add.reduceat(found.lengths, first)


def bm25(found: Matches, forest: Forest, usual: Yardstick) -> tuple[np.ndarray, np.ndarray]:
    """(D,) scores of whole documents and (D,) of their best leaves, each with the title."""
    whole, lengths = whole_documents(found, forest)
    documents = usual.among_documents @ saturated(whole, lengths, usual=usual.document_length, b=NODE_LENGTH)
    titled = found.counts + found.titled[:, forest.leaf_tree]
    leaves = usual.among_leaves @ saturated(titled, found.lengths, usual=usual.leaf_length, b=NODE_LENGTH)
    return documents, np.maximum.reduceat(leaves, forest.first_leaf[:-1])


def document_scores(found: Matches, forest: Forest, usual: Yardstick) -> np.ndarray:
    """(D,) how well each document matches, as a whole and in its best leaf: the mean of the two.

    Both are BM25 with the title, relative to the best document. A long article may hold all words of a query
    by chance, a single leaf hardly; a contract that the query names holds them nowhere all at once.
    """
    documents, leaves = bm25(found, forest, usual)
    return (documents / usual.best_document + leaves / usual.best_leaf) / 2


def importance_of(found: Matches, usual: Yardstick) -> np.ndarray:
    """(t, D): what each term is worth inside a document; 0 where its title has it or no leaf has it."""
    return usual.inside[:, None] * ~found.titled


def leaf_shares(found: Matches, forest: Forest, usual: Yardstick) -> np.ndarray:
    """(N,): share of the query's remaining information in each leaf."""
    held = saturated(found.counts, found.lengths, usual=usual.leaf_length, b=LEAF_LENGTH)
    return shares(held, importance_of(found, usual)[:, forest.leaf_tree])


def path_shares(found: Matches, forest: Forest, usual: Yardstick) -> np.ndarray:
    """(N,): the same share of the leaf's parent, read as one text, and half that of the parent's parent.

    Leaves that answer together hold a query's words between them. Text length counts, so that large nodes do
    not win by size.
    """
    parent = parents(forest, forest.leaf_node)
    above = parents(forest, parent)
    wanted, place = np.unique(np.concatenate([parent, above]), return_inverse=True)
    counts = node_sums(forest, found.counts)[:, wanted]
    lengths = node_sums(forest, found.lengths)[wanted]
    held = saturated(counts, lengths, usual=usual.leaf_length, b=NODE_LENGTH)
    share = shares(held, importance_of(found, usual)[:, forest.tree[wanted]])[place]
    return share[: len(parent)] + 0.5 * share[len(parent) :]


def parents(forest: Forest, nodes: np.ndarray) -> np.ndarray:
    """The parent of each node; the node itself right below a root, which the document's score speaks for."""
    above = forest.parent[nodes]
    return np.where((above < 0) | (forest.parent[above] < 0), nodes, above)


def fuse(
    weights: Weights, *, leaf: np.ndarray, document: np.ndarray, dense: np.ndarray, path: np.ndarray
) -> np.ndarray:
    """(N,) scores, monotone in each part. What is not finite counts as no evidence (P110)."""
    parts = ((1.0, leaf), (weights.document, document), (weights.dense, dense), (weights.path, path))
    return sum(weight * np.nan_to_num(part, nan=0.0, posinf=0.0, neginf=0.0) for weight, part in parts)
