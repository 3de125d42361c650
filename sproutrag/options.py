"""What each command can be told. A field is default, type and help; nothing else states a default.

The library never sees these objects: jobs and commands read them and pass plain keyword arguments on.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional, arg


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """Read documents, encode them, build their trees and publish a new snapshot of the index.

    A document whose content did not change since the last run costs no encoding; if none changed, nothing is
    written. Exit status 3: done, but some inputs were set aside (the report says which, why and what to do).
    """

    sources: Annotated[
        Positional[tuple[str, ...]], arg(metavar="SOURCE...", help_behavior_hint="(one or more)")
    ]
    """Files, directories, globs or URIs (s3://..., gs://...): jsonl, parquet, csv, txt and Markdown."""
    db: str
    """Directory or URI of the index; created when it does not exist."""
    encoder: str | None = None
    """Name of an encoder (`sproutrag models list`), a model directory, or a name on the Hugging Face hub;
    without it, the one that the index was built with, and all-MiniLM-L6-v2 for a new index."""
    workers: int = 0
    """Encoder processes; 0 chooses: one per GPU, or one per core where there are none."""
    delete_missing: bool = False
    """Also delete documents of the index that the sources no longer hold."""
    wait: float = 0.0
    """Seconds to wait for another command that is writing to this index before giving up."""
    json: bool = False
    """Print the report as one JSON object."""


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
class AskOptions:
    """Answer a question from the index: reuse, retrieve or decompose, with citations that the text proves.

    When a limit is reached, the best answer from what is there is given and marked partial.
    """

    question: Positional[str]
    """What you want to know."""
    db: str
    """Directory or URI of the index."""
    llm: str | None = None
    """Name of an LLM (`sproutrag models list`), a model directory, or the URL of an OpenAI-compatible server
    (http://host:8000/v1); without it, the default of this machine."""
    trace: str | None = None
    """Write the whole reasoning tree to this file, as JSON."""
    method: Literal[
        "apt-rag", "llm-only", "naive-rag", "fixed-plan", "width-2", "width-6", "no-lateral", "no-batching"
    ] = "apt-rag"
    """apt-rag, or a baseline to compare it with."""
    k: Annotated[int, arg(aliases=["-k"])] = 20
    """Leaves retrieved for each question that is looked up."""
    max_depth: int = 4
    """Levels of decomposition, at most 8."""
    max_calls: int = 300
    """LLM calls for this question."""
    max_tokens: int = 2_000_000
    """Prompt tokens for this question; replies may use a tenth as many."""
    max_seconds: float = 600.0
    """Time for this question."""
    where: str | None = None
    """Search only documents whose metadata match, for example: year >= 2020 and country = 'DE'."""
    encoder: str | None = None
    """The encoder that built the index, when it is not to be found by the name that the index records."""
    json: bool = False
    """Print {answer, answers, citations, answered, partial, open, warnings, usage, trace, ...} as JSON."""


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
    json: bool = False
    """Print one JSON object {ok, snapshot, documents, problems}."""


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

    suite: Positional[Literal["index", "search", "ask"]]
    """index: cost over a plain forward pass, Ray's overhead, growth; search: against a bare vector query;
    ask: speed, calls saved, overhead and memory of question answering, with a simulated engine."""
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
    calibrate: bool = False
    """Also choose the weights of the search by the queries, cross-fitted, and store them with the index."""
    json: bool = False
    """Print the table as JSON."""
