"""Words as search compares them, and how much of a query's information a leaf, a node or a document holds.

Pure NumPy and re; knows nothing of tables, trees or encoders.
"""

import re
import sys
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sproutrag.search import visible

SATURATION = 1.2  # BM25's k1: a second occurrence of a word says less than the first
LEAF_LENGTH, NODE_LENGTH = 0.4, 0.75  # BM25's b: leaves are cut to like sizes, nodes and documents are not

# Scripts that do not put spaces between words are read as overlapping pairs of characters.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
)
MARKS = "".join(c for c in map(chr, range(0x300, 0x3000)) if unicodedata.category(c).startswith("M"))
WORD = re.compile(rf"[{UNSPACED}]+|[^\W_{UNSPACED}][^\W_{UNSPACED}]*(?:[{MARKS}]+[^\W_{UNSPACED}]*)*")

# Words that ask or connect and name nothing. Frequency in the text alone does not tell, as some of them are
# common in queries only: on cuad 15.2 became 20.2 without them. One list, as corpora mix languages.
ASKING_AND_CONNECTING = """
a about after all also am an and any are as at be because been before being between both but by can could
did do does doing during each few for from had has have having he her here hers him his how i if in into is
it its just me more most my no nor not of off on once only or other our out over own same she should so some
such than that the their them then there these they this those through to too under until up very was we
were what when where which while who whom whose why will with would you your
aber als am an auch auf aus bei bin bis da das dass dem den der des die dies diese dieser durch ein eine
einem einen einer er es für hat haben hier ich ihr im in ist kann man mit nach nicht nur oder sein sich sie
sind so und uns unter von vor war warum was welche welchem welchen welcher welches wenn wer werden wie wird
wo zu zum zur über
au aux avec ce ces cette comment dans de des du elle en est et il la le les leur mais ne nous ou où par pas
pour pourquoi quand que quel quelle quelles quels qui sa ses son sont sur un une vous
al como con cuando cual cuál cuáles del donde dónde el ella en es esta este esto fue ha la las lo los no
para pero por porque qué que quien quién se son su sus un una y
什么 哪些 哪个 如何 怎么 怎样 为何 是否 多少 以及 我们 他们 这个 那个 的是 是什
من في على إلى عن ما ماذا هل كيف متى أين لماذا هذا هذه التي الذي مع أو أن كم
"""
ASCII_WORD = re.compile("[a-z0-9]+")
UNSPACED_CHARACTER = re.compile(f"[{UNSPACED}]")
FIRST_UNSPACED = UNSPACED[0]
ENDINGS = (
    ("sses", "ss"),
    ("ies", "i"),
    ("ing", ""),
    ("ed", ""),
    ("ly", ""),
    ("es", ""),
    ("s", ""),
    ("e", ""),
    ("y", "i"),
)
SHORTEST_STEM = 3


@dataclass(frozen=True, slots=True)
class Postings:
    """Words of one document. Entry i of term j: leaf[starts[j] + i] holds it count[starts[j] + i] times.

    terms (u,) uint32 ascending; starts (u+1,); lengths (n,) words per leaf; title: its terms, ascending.
    """

    terms: np.ndarray
    starts: np.ndarray
    leaf: np.ndarray
    count: np.ndarray
    lengths: np.ndarray
    title: np.ndarray

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self.__slots__)


# --- from text to terms


def terms(text: str) -> list[int]:
    """Term of each word of `text` that names something, in order; a word has the same term everywhere."""
    return [term for word in words(text) if (term := term_of(word))]


def naming(query: str) -> str:
    """The query's words that name something; full-text search need not read the long lists of the others."""
    return " ".join(match[0] for match in WORD.finditer(visible(query)) if terms(match[0]))


def words(text: str) -> list[str]:
    """Words in lower case without invisible characters; pairs of characters where a script has no spaces."""
    if text.isascii():
        return ASCII_WORD.findall(text.lower())
    found = WORD.findall(unicodedata.normalize("NFKC", visible(text)).casefold())
    return [word for run in found for word in (pairs(run) if run[0] >= FIRST_UNSPACED else (run,))]


def pairs(run: str) -> Sequence[str]:
    if len(run) < 3 or not UNSPACED_CHARACTER.match(run):
        return (run,)
    return [run[i : i + 2] for i in range(len(run) - 1)]


@lru_cache(maxsize=1 << 17)
def term_of(word: str) -> int:
    """32-bit number of the word's stem; 0 for words that ask or connect."""
    return 0 if word in IGNORED else zlib.crc32(stem(word).encode("utf-8", "surrogatepass")) or 1


def stem(word: str) -> str:
    """An English word less its inflection, so that "terminated" meets "terminates"; others as they are."""
    if word.isascii() and word.isalpha():
        for ending, instead in ENDINGS:
            if word.endswith(ending) and len(word) - len(ending) >= SHORTEST_STEM and not word.endswith("ss"):
                return word[: -len(ending)] + instead
    return word


IGNORED = frozenset(map(sys.intern, ASKING_AND_CONNECTING.split()))


def postings(title: str, leaves: Sequence[str]) -> Postings:
    """Count the words of a document's leaves, O(text)."""
    per_leaf = [terms(leaf) for leaf in leaves]
    counts = [Counter(found) for found in per_leaf]
    sizes = [len(c) for c in counts]
    term = np.fromiter((t for c in counts for t in c), dtype=np.uint32, count=sum(sizes))
    count = np.fromiter((n for c in counts for n in c.values()), dtype=np.float32, count=sum(sizes))
    leaf = np.repeat(np.arange(len(leaves), dtype=np.int32), sizes)
    order = np.argsort(term, kind="stable")
    distinct, starts = np.unique(term[order], return_index=True)
    return Postings(
        terms=distinct,
        starts=np.append(starts, len(term)),
        leaf=leaf[order],
        count=count[order],
        lengths=np.fromiter(map(len, per_leaf), dtype=np.float32, count=len(leaves)),
        title=np.unique(np.array(terms(title), dtype=np.uint32)),
    )


def without(query: str, explained: np.ndarray) -> str:
    """`query` less the words whose terms are in `explained` (ascending): what is left to ask."""
    known = set(explained.tolist())
    kept = [word_or_gap for word_or_gap in split(query) if not all_known(word_or_gap, known)]
    return " ".join("".join(kept).split())


def split(text: str) -> Iterator[str]:
    """Words as written and what stands between them, alternating; joined they are `text` as compared."""
    text = unicodedata.normalize("NFKC", visible(text))
    at = 0
    for match in WORD.finditer(text):
        yield text[at : match.start()]
        yield match[0]
        at = match.end()
    yield text[at:]


def all_known(word: str, known: set[int]) -> bool:
    found = terms(word)
    return bool(found) and known.issuperset(found)


# --- from terms to scores


def counts_of(queried: np.ndarray, documents: Sequence[Postings]) -> np.ndarray:
    """(t, N) float32: occurrences of each queried term in each leaf of the documents, end to end."""
    n_leaves = [len(document.lengths) for document in documents]
    counts = np.zeros((len(queried), sum(n_leaves)), dtype=np.float32)
    first = 0
    for document, n in zip(documents, n_leaves, strict=True):
        at = np.searchsorted(document.terms, queried)
        found = np.flatnonzero(np.append(document.terms, 0)[at] == queried)
        for row, place in zip(found.tolist(), at[found].tolist(), strict=True):
            entries = slice(document.starts[place], document.starts[place + 1])
            counts[row, first + document.leaf[entries]] = document.count[entries]
        first += n
    return counts


def rarity(holding: np.ndarray, total: int) -> np.ndarray:
    """BM25's weight of a term that `holding` of `total` texts contain: log(1 + (total - h + ½) / (h + ½))."""
    return np.log1p((total - holding + 0.5) / (holding + 0.5))


def saturated(counts: np.ndarray, lengths: np.ndarray, *, usual: float, b: float) -> np.ndarray:
    """(t, m) counts in texts of `lengths` (m,) -> [0, 1): BM25's term frequency without its factor."""
    return counts / (counts + SATURATION * (1 - b + b * lengths / max(usual, 1.0)))


def shares(held: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """(m,) in [0, 1): the part of a query's information that each text holds.

    held (t, m) saturated counts; importance (t, m): what each term is worth. Where nothing is asked, 0.
    """
    return (held * importance).sum(0) / np.maximum(importance.sum(0), 1e-9)
