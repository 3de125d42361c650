"""What the API takes and gives, as OpenAPI describes it, with an example of each."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sproutrag.options import SearchOptions
from sproutrag.qa.options import MethodName, ReasoningOptions

Span = Annotated[list[int], Field(min_length=2, max_length=2)]
Text = Annotated[str, Field(min_length=1)]
EXAMPLE_PASSAGE = {
    "doc_id": "lighthouse.txt",
    "title": "The lighthouse",
    "node": 4,
    "leaves": [4],
    "spans": [[312, 371]],
    "text": "The lamp was first lit in 1854 and is visible for 17 miles.",
    "score": 0.72,
}
EXAMPLE_CITATION = {
    "doc_id": "lighthouse.txt",
    "spans": [[312, 342]],
    "quote": "The lamp was first lit in 1854",
}


def example(**fields: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [fields]})


class Asked(BaseModel):
    """A request: what it does not name is refused, so that a misspelt option is not overlooked."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class SearchRequest(Asked):
    model_config = example(query="When was the lamp first lit?", k=5, where="year >= 1850")

    query: Text
    k: int = Field(SearchOptions.k, ge=1, description="Leaves to return.")
    mode: Literal["hybrid", "tree", "leaves"] = "hybrid"
    doc: str | None = Field(None, description="Search in this document only.")
    where: str | None = Field(None, description="Condition on metadata, as of `sproutrag search --where`.")
    snapshot: int | None = Field(None, ge=1, description="Search this snapshot; by default the newest.")


class PassageBody(BaseModel):
    model_config = example(**EXAMPLE_PASSAGE)

    doc_id: str
    title: str
    node: int = Field(description="Node of the document's tree.")
    leaves: list[int]
    spans: list[Span] = Field(description="Half-open code-point offsets into the document's text.")
    text: str
    score: float
    reranked: bool = False
    pages: list[int] = []
    sections: list[int] = []


class SearchReply(BaseModel):
    model_config = example(snapshot=3, passages=[EXAMPLE_PASSAGE], seconds=0.012)

    snapshot: int
    passages: list[PassageBody]
    seconds: float


class LimitsBody(Asked):
    """What the question may cost; less than the server's own limits, never more."""

    max_depth: int = Field(ReasoningOptions.max_depth, ge=1, le=8)
    max_calls: int = Field(ReasoningOptions.max_calls, ge=1, le=ReasoningOptions.max_calls)
    max_tokens: int = Field(ReasoningOptions.max_tokens, ge=1, le=ReasoningOptions.max_tokens)
    max_seconds: float | None = Field(None, ge=0.001)


class AskRequest(Asked):
    model_config = example(question="Who runs each of the mills, and since when?")

    question: Text
    k: int = Field(ReasoningOptions.k, ge=1, description="Leaves for each question that is looked up.")
    where: str | None = Field(None, description="Condition on metadata, as of `sproutrag ask --where`.")
    method: MethodName = ReasoningOptions.method
    limits: LimitsBody = Field(default_factory=LimitsBody)


class CitationBody(BaseModel):
    doc_id: str
    spans: list[Span]
    quote: str


class AskReply(BaseModel):
    """As `sproutrag ask --json` prints it. Every citation is a slice of the stored text."""

    model_config = example(
        question="When was the lamp first lit?",
        answer="In 1854.",
        answers=["1854"],
        citations=[EXAMPLE_CITATION],
        answered=True,
        partial=False,
        open=[],
        warnings=[],
        usage={"calls": 2, "prompt_tokens": 1310, "completion_tokens": 88},
        trace={"format": 1},
    )

    question: str
    answer: str
    answers: list[str]
    citations: list[CitationBody]
    answered: bool
    partial: bool
    open: list[dict[str, str]] = Field(description="Sub-questions without an answer, and why.")
    warnings: list[str]
    usage: dict[str, Any]
    trace: dict[str, Any] = Field(description="The whole reasoning tree (`sproutrag trace` draws it).")


class DocumentBody(BaseModel):
    model_config = example(
        doc_id="a.txt", title="A", text="One. Two.", metadata={}, snapshot=3, leaves=[[0, 9]]
    )

    doc_id: str
    title: str
    text: str
    metadata: dict[str, Any]
    snapshot: int
    leaves: list[Span] = Field(description="Span of each leaf.")


class NodeBody(BaseModel):
    node: int
    children: list[int] = Field(description="None or two, the earlier first.")
    slice: Span = Field(description="Its leaves as a half-open slice of `order`.")
    height: float = Field(description="Affinity at which the children were joined; 0 of a leaf.")


class StepBody(BaseModel):
    node: int
    depth: int
    score: float
    kept: bool = Field(description="The beam went on from here, or it is evidence.")


class TreeBody(BaseModel):
    model_config = example(
        doc_id="a.txt",
        snapshot=3,
        leaves=[[0, 4], [5, 9]],
        order=[0, 1],
        nodes=[
            {"node": 0, "children": [], "slice": [0, 1], "height": 0.0},
            {"node": 1, "children": [], "slice": [1, 2], "height": 0.0},
            {"node": 2, "children": [0, 1], "slice": [0, 2], "height": 0.31},
        ],
        root=2,
    )

    doc_id: str
    snapshot: int
    leaves: list[Span]
    order: list[int] = Field(description="The leaves in an order in which each node is one slice.")
    nodes: list[NodeBody]
    root: int | None = Field(description="null: the document has no text.")
    path: list[StepBody] = Field([], description="With `query`: each node that the beam scored.")
    evidence: list[int] = Field([], description="With `query`: the nodes that a search returns.")


class SnapshotBody(BaseModel):
    id: int
    published: str
    documents: int | None = Field(description="null for a key that sees a part of the index.")
    nodes: int | None


class SnapshotsBody(BaseModel):
    model_config = example(
        current=3,
        snapshots=[{"id": 3, "published": "2026-11-30T02:14:07+00:00", "documents": 1200, "nodes": 61000}],
    )

    current: int = Field(description="The one that is served.")
    snapshots: list[SnapshotBody]


class PartBody(BaseModel):
    ready: bool
    detail: str


class ReadyBody(BaseModel):
    model_config = example(
        ready=True,
        retriever={"ready": True, "detail": "snapshot 3"},
        llm={"ready": True, "detail": "qwen2.5-coder-0.5b"},
    )

    ready: bool
    retriever: PartBody
    llm: PartBody


class ProblemBody(BaseModel):
    """RFC 9457, and what to do next."""

    model_config = example(
        type="about:blank",
        title="Too many questions at once",
        status=429,
        detail="This key may ask 8 at a time.",
        next="Wait for one to end.",
        request_id="0b0c",
    )

    type: str
    title: str
    status: int
    detail: str
    next: str
    request_id: str


# --- OpenAI's shapes, as far as they mean something here


class ChatPart(BaseModel):
    type: str
    text: str = ""


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ChatPart] | None = None


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatRequest(BaseModel):
    """The last user message is the question. Sampling options are taken and not used."""

    model_config = ConfigDict(
        extra="allow",
        allow_inf_nan=False,
        json_schema_extra={
            "examples": [
                {"model": "sproutrag", "messages": [{"role": "user", "content": "When was the lamp lit?"}]}
            ]
        },
    )

    model: str = Field(description="`sproutrag`, or what /v1/models lists.")
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None


class ChatReply(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, int]


class ModelBody(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelsBody(BaseModel):
    model_config = example(
        object="list", data=[{"id": "sproutrag", "object": "model", "created": 0, "owned_by": "sproutrag"}]
    )

    object: Literal["list"] = "list"
    data: list[ModelBody]
