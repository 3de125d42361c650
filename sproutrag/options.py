"""What each command can be told; the commands of question answering have theirs in qa/options.py.

A field is default, type and help; nothing else states a default.

The library never sees these objects: jobs and commands read them and pass plain keyword arguments on.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from sproutrag.qa.options import MethodName, ReasoningOptions


@dataclass(frozen=True, kw_only=True)
class ColumnOptions:
    """Which fields of a jsonl, csv or parquet record are what."""

    text_column: str = "text"
    """Field or column of records (jsonl, parquet, csv) that holds the text."""
    id_column: str = "doc_id"
    """The one that holds the document's id, which must be unique in the corpus."""
    title_column: str = "title"
    """The one that holds the title."""
    metadata_columns: tuple[str, ...] = ()
    """The ones to keep as metadata; without this option, all others."""


@dataclass(frozen=True, kw_only=True)
class IndexOptions(ColumnOptions):
    """Read documents, encode them, build their trees and publish a new snapshot of the index.

    A document whose content did not change since the last run costs no encoding; if none changed, nothing is
    written. Exit status 3: done, but some inputs were set aside (the report says which, why and what to do).
    """

    sources: Annotated[
        Positional[tuple[str, ...]], arg(metavar="SOURCE...", help_behavior_hint="(one or more)")
    ]
    """Files, directories, globs or URIs (s3://..., gs://...): jsonl (also compressed), parquet, csv, txt,
    Markdown, HTML, PDF, docx and EPUB. The content decides what a file is, not its name."""
    db: str
    """Directory or URI of the index; created when it does not exist."""
    encoder: str | None = None
    """Name of an encoder (`sproutrag models list`), a model directory, or a name on the Hugging Face hub;
    without it, the one that the index was built with, and all-MiniLM-L6-v2 for a new index."""
    workers: int = 0
    """Encoder processes; 0 chooses: one per GPU, or one per core where there are none."""
    delete_missing: bool = False
    """Also delete documents of the index that the sources no longer hold."""
    rebuild: bool = False
    """Encode all documents anew, with another encoder or other leaf settings if need be, beside the live
    index, and swap at the end. Stored documents that the sources lack are encoded from their stored text."""
    keep: int | None = None
    """After publishing keep the newest so many snapshots and free what only older ones need."""
    dry_run: bool = False
    """Only say what would be done and what it would cost; writes nothing."""
    wait: float = 0.0
    """Seconds to wait for another command that is writing to this index before giving up."""
    json: bool = False
    """Print the report as one JSON object."""


@dataclass(frozen=True, kw_only=True)
class QuarantineOptions(ColumnOptions):
    """Inputs that were set aside: list them, or try them again although they did not change.

    Exit status of retry: as of `index`; 3 where something is still set aside.
    """

    action: Positional[Literal["list", "retry"]]
    """list: place, reason, what to do, how often tried; retry: read their files again and try them."""
    docs: Annotated[Positional[tuple[str, ...]], arg(metavar="DOC...")] = ()
    """Only these: doc_ids, or places as `list` shows them; without it, all."""
    db: str
    """Directory or URI of the index."""
    workers: int = 0
    """For retry: encoder processes, as for `index`."""
    wait: float = 0.0
    """For retry: seconds to wait for another command that is writing to this index."""
    json: bool = False
    """Print JSON: a list of rows, or {report, not_retryable}."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Find evidence: passages of whole leaves with exact character spans into the stored text."""

    query: Positional[str]
    """What to look for, in any language that the encoder knows."""
    db: str
    """Directory or URI of the index."""
    k: Annotated[int, arg(aliases=["-k"])] = 5
    """Leaves to return; a passage of three leaves counts as three."""
    mode: Literal["tree", "leaves", "hybrid"] = "hybrid"
    """tree: dense scores in the trees; leaves: no trees; hybrid: dense and lexical scores in the trees."""
    doc: str | None = None
    """Search in this document only (a doc_id)."""
    where: str | None = None
    """Condition on document metadata, for example: year >= 2020 and country = 'DE'."""
    encoder: str | None = None
    """The encoder that built the index, when it is not to be found by the name that the index records."""
    json: bool = False
    """Print a JSON list of {doc_id, title, node, leaves, spans, text, score}."""


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Draw the tree of one document, in the terminal or as one self-contained page."""

    doc: Positional[str]
    """The document's doc_id."""
    db: str
    """Directory or URI of the index."""
    html: str | None = None
    """Write a page to this file instead of drawing in the terminal."""
    query: str | None = None
    """Light up the path and the scores of a search for this query."""
    json: bool = False
    """Print the tree as one JSON object."""


@dataclass(frozen=True, kw_only=True)
class StatsOptions:
    """Count what the current snapshot of an index holds."""

    db: str
    """Directory or URI of the index."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True)
class VersionsOptions:
    """List the snapshots of an index that are kept: when each was made, by whom, by what command.

    With --keep, first remove older ones, and the space that only they need; what a live reader reads stays.
    """

    db: str
    """Directory or URI of the index."""
    keep: int | None = None
    """Keep the newest so many snapshots and clean up behind them."""
    wait: float = 0.0
    """With --keep: seconds to wait for another command that is writing to this index."""
    json: bool = False
    """Print a JSON list, the newest first; with --keep an object {freed, versions}."""


@dataclass(frozen=True, kw_only=True)
class RollbackOptions:
    """Make an older snapshot the current one again, as a new snapshot; later runs build on it."""

    id: Positional[int]
    """Which snapshot (`sproutrag versions`)."""
    db: str
    """Directory or URI of the index."""
    wait: float = 0.0
    """Seconds to wait for another command that is writing to this index."""
    json: bool = False
    """Print the new snapshot as one JSON object."""


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Check everything that an index claims: documents, trees, vectors, full text, indices. Reads all of it.

    Exit status 1: problems were found; each says what, where and what to do next.
    """

    db: str
    """Directory or URI of the index."""
    snapshot: int | None = None
    """Which snapshot; without it, the current one."""
    repair: bool = False
    """Mend what is broken as a new snapshot: documents are encoded again from their stored text, orphans and
    unreadable files leave, indices are built again. What only a source can bring back is listed."""
    wait: float = 0.0
    """With --repair: seconds to wait for another command that is writing to this index."""
    json: bool = False
    """Print one JSON object {ok, snapshot, documents, problems}, with --repair also {repaired, left}."""


@dataclass(frozen=True, kw_only=True)
class DeleteOptions:
    """Delete documents, with proof: how many rows of each table held them before and after."""

    docs: Annotated[Positional[tuple[str, ...]], arg(metavar="DOC...", help_behavior_hint="(one or more)")]
    """The documents' doc_ids; if one is not in the index, nothing is deleted."""
    db: str
    """Directory or URI of the index."""
    purge: bool = False
    """Also remove the text from storage: rewrites the tables and indices, removes older snapshots."""
    wait: float = 0.0
    """Seconds to wait for other writers, and with --purge for readers of older snapshots."""
    json: bool = False
    """Print the proof as one JSON object."""


@dataclass(frozen=True, kw_only=True)
class ModelsOptions:
    """List the encoders and LLMs that are known by name, or fetch one so that later runs need no network."""

    action: Positional[Literal["list", "get"]]
    """list: names, what they are for and where they are; get: make one available here."""
    name: Positional[str | None] = None
    """For get: which one."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Measure this machine: every figure is a ratio of two values taken in the same run."""

    suite: Positional[Literal["index", "search", "nightly", "ask", "serve"]]
    """index: cost over a plain forward pass, Ray's overhead, growth; search: against a bare vector query;
    nightly: a re-run with nothing and with little changed, and searches after ten such nights; ask: speed,
    calls saved, overhead and memory of question answering, with a simulated engine; serve: the endpoint under
    load, against the same work without it."""
    source: str = "tests/data/corpus"
    """Corpus whose sentences the measured documents are made of."""
    encoder: str = "all-MiniLM-L6-v2"
    """Name of an encoder, a model directory, or a name on the Hugging Face hub."""
    plans: str = "tests/data/plans"
    """For ask: folder of gold plans (plan.jsonl, corpus.jsonl)."""
    only: tuple[str, ...] = ()
    """Measure these parts of the suite only; a wrong name lists them."""
    out: str | None = None
    """Also write the figures to this directory."""
    json: bool = False
    """Print the figures as JSON."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Measure retrieval against gold evidence: recall x precision of each system (information efficiency)."""

    data: tuple[str, ...]
    """Directories with corpus.jsonl and queries.jsonl."""
    out: str
    """Directory for the indices and the tables."""
    encoder: str = "all-MiniLM-L6-v2"
    """Name of an encoder, a model directory, or a name on the Hugging Face hub."""
    queries: int = 0
    """Only so many queries of each data set, drawn with a fixed seed; 0: all."""
    systems: tuple[str, ...] = ()
    """Only these rows, for example "tree (hybrid)" "flat dense leaves"; without it, all and the controls."""
    methods: tuple[MethodName, ...] = ()
    """Answer the queries by these methods of `sproutrag answer` and compare the answers, not retrieval: F1,
    citations, calls, tokens, seconds."""
    llm: str | None = None
    """For --methods: name, directory or URL of an LLM, as for `sproutrag answer`."""
    k: Annotated[int, arg(aliases=["-k"])] = ReasoningOptions.k
    """For --methods: leaves retrieved for each question that is looked up."""
    in_flight: int = 4
    """For --methods: questions at once."""
    calibrate: bool = False
    """Also choose the weights of the search by the queries, cross-fitted, and store them with the index."""
    json: bool = False
    """Print the table as JSON."""
