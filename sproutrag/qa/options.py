"""What the commands of question answering can be told. A field is default, type and help."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional, arg

MethodName = Literal[
    "apt-rag", "llm-only", "naive-rag", "fixed-plan", "width-2", "width-6", "no-lateral", "no-batching"
]


@dataclass(frozen=True, kw_only=True)
class ReasoningOptions:
    """How a question is answered, and what it may cost."""

    db: str
    """Directory or URI of the index."""
    llm: str | None = None
    """Name of an LLM (`sproutrag models list`), a model directory, or the URL of an OpenAI-compatible server
    (http://host:8000/v1); without it, the default of this machine."""
    method: MethodName = "apt-rag"
    """apt-rag, or a baseline to compare it with."""
    k: Annotated[int, arg(aliases=["-k"])] = 20
    """Leaves retrieved for each question that is looked up."""
    max_depth: int = 4
    """Levels of decomposition, at most 8."""
    max_calls: int = 300
    """LLM calls for a question."""
    max_tokens: int = 2_000_000
    """Prompt tokens for a question; replies may use a tenth as many."""
    max_seconds: float = 600.0
    """Time for a question."""
    where: str | None = None
    """Search only documents whose metadata match, for example: year >= 2020 and country = 'DE'."""
    encoder: str | None = None
    """The encoder that built the index, when it is not to be found by the name that the index records."""


@dataclass(frozen=True, kw_only=True)
class AskOptions(ReasoningOptions):
    """Answer a question from the index: reuse, retrieve or decompose, with citations that the text proves.

    When a limit is reached, the best answer from what is there is given and marked partial.
    """

    question: Positional[str]
    """What you want to know."""
    trace: str | None = None
    """Write the whole reasoning tree to this file, as JSON (`sproutrag trace` draws it)."""
    json: bool = False
    """Print {answer, answers, citations, answered, partial, open, warnings, usage, trace, ...} as JSON."""


@dataclass(frozen=True, kw_only=True)
class AnswerOptions(ReasoningOptions):
    """Answer a file of questions, many at once; a run that was stopped goes on where it was.

    Exit status 3: done, but some questions or lines were set aside; the next run tries those questions again.
    """

    questions: Positional[str]
    """A jsonl file with query_id and question on each line."""
    out: str
    """Append each answer to this jsonl file as it comes: {query_id, question, answer, answers, citations,
    answered, partial, usage, ...}; a question that it answers already is not asked again."""
    in_flight: int = 16
    """Questions at once."""
    traces: str | None = None
    """Write the reasoning tree of each question into this directory, as JSON."""
    dry_run: bool = False
    """Only say what there is to do and what it may cost; asks nothing and writes nothing."""
    json: bool = False
    """Print the report as one JSON object."""


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """Draw the trace of a question, in the terminal or as one self-contained page."""

    file: Positional[str]
    """What `sproutrag ask --trace FILE` or `sproutrag answer --traces DIR` wrote."""
    html: str | None = None
    """Write a page to this file instead of drawing in the terminal."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Serve search, questions and a page over HTTP until Ctrl-C; search is there first, the LLM follows.

    Every other setting is in a YAML file (--config; infra/sproutrag.yaml shows all) or in the environment.
    """

    db: str | None = None
    """Directory or URI of the index."""
    llm: str | None = None
    """Name of an LLM (`sproutrag models list`), a model directory, or the URL of an OpenAI-compatible server
    (http://host:8000/v1); without it, the default of this machine."""
    encoder: str | None = None
    """The encoder that built the index, when it is not to be found by the name that the index records."""
    host: str | None = None
    """Address to listen on; without it, this machine only. Any other needs API keys."""
    port: int | None = None
    """Port to listen on; without it, 8000."""
    keys: str | None = None
    """YAML file of API keys."""
    config: str | None = None
    """YAML file of settings; what is said here wins over it."""
    new_key: str | None = None
    """Only make an API key of this name: prints it once, and its entry for the file of keys."""
