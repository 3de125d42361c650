"""The seams of question answering: an LLM, a retriever, and the stored text that citations are checked
against.

LLMError
├── Unreachable       no reply came: refused, cut, timed out, or the server failed; worth another attempt
├── Refused           the engine will not take this request (too long, bad schema); the same again is useless
└── MalformedReply    a reply came that is not what the prompt asks for
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sproutrag.search import Passage

OnText = Callable[[str], None]  # called with each new part of a reply, thinking included; must not raise


class LLMError(Exception):
    """A call without a usable reply; the message says what happened and where. `usage` is what it cost."""

    def __init__(self, message: str, usage: "Usage | None" = None) -> None:
        super().__init__(message)
        self.usage = usage or Usage()


class Unreachable(LLMError):
    pass


class Refused(LLMError):
    pass


class MalformedReply(LLMError):
    pass


@dataclass(frozen=True, slots=True)
class Message:
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(slots=True)
class Usage:
    """What calls cost. `wasted_*` is the part that bought nothing (malformed, cut or repeated), included in
    the totals. `estimated`: some counts are ours, because the engine gave none."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    wasted_calls: int = 0
    wasted_tokens: int = 0  # prompt and completion
    seconds: float = 0.0  # waiting for replies, summed over calls
    estimated: bool = False

    def add(self, other: "Usage") -> None:
        self.calls += other.calls
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.wasted_calls += other.wasted_calls
        self.wasted_tokens += other.wasted_tokens
        self.seconds += other.seconds
        self.estimated |= other.estimated


@dataclass(frozen=True, slots=True)
class Completion:
    """One reply. text: without thinking. finish: "length" means that it was cut at max_tokens."""

    text: str
    usage: Usage = field(default_factory=Usage)
    finish: Literal["stop", "length"] = "stop"


class LLM(Protocol):
    """name: what traces call the model. context_tokens: the engine's own limit, prompt and reply together."""

    @property
    def name(self) -> str: ...

    @property
    def context_tokens(self) -> int: ...

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        json_schema: dict[str, Any] | None = None,
        on_text: OnText | None = None,
    ) -> Completion:
        """One reply at temperature 0. Raises LLMError; a cancelled caller closes the request.

        on_text: hears the reply as it is written, where the engine lets it be heard.
        """
        ...

    def count_tokens(self, text: str) -> int: ...


class Retriever(Protocol):
    async def retrieve(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """For each query the best passages, `k` leaves together."""
        ...


class Sources(Protocol):
    async def text(self, doc_id: str) -> str | None:
        """The stored text of a document, of the same snapshot that is searched; None if it is not there."""
        ...
