"""The LLM as the endpoint calls it: the vLLM deployment through its handle, or a server behind a URL.

Loads neither vLLM nor torch: ingress replicas and carriers of steps stay small.
"""

import asyncio
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from tokenizers import Tokenizer

from serve.metrics import change
from serve.settings import Settings
from sproutrag.qa.llm import LLM, Completion, Message, OnText, Unreachable
from sproutrag.qa.openai import Endpoint, OpenAILLM, Stream, connect, error_object, object_of

LLM_APP = "llm"  # the Serve application
PREFIX = "LLMServer:"
EVENT, END = "data: ", "[DONE]"
FACTS_S = 5.0  # an engine that is up says what it is within this


@dataclass(frozen=True, slots=True)
class Facts:
    """What an engine tells of itself. tokenizer: its JSON."""

    model: str
    context_tokens: int
    tokenizer: str


class NotReady(Exception):
    """No engine answers yet; the message says what is known."""


def model_id(settings: Settings) -> str:
    """What replies and traces call the model, and what names its deployment."""
    return os.path.basename(os.path.normpath(settings.llm))


def deployment_of(model: str) -> str:
    """The name that Ray gives an engine's deployment."""
    return PREFIX + model.replace("/", "--").replace(".", "_")


class HandleLLM(OpenAILLM):
    """The same requests and replies as over HTTP, without HTTP in between."""

    def __init__(self, facts: Facts, *, deadline_s: float) -> None:
        endpoint = Endpoint(f"vLLM ({facts.model})", facts.model, facts.context_tokens, deadline_s=deadline_s)
        super().__init__(endpoint, counter_of(facts.tokenizer))
        self.facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return opened_handle, (self.facts, self.endpoint.deadline_s)

    async def _read(self, body: dict[str, Any], stream: Stream, max_tokens: int) -> None:
        """Leaving, also when cancelled, cancels the request on the replica."""
        place = self.endpoint.url
        try:
            replies = engine_handle(self.endpoint.model).reply.remote(body)
            try:
                async for events in replies:
                    for event in map(read_event, events):
                        if error := event.get("error") or (event.get("object") == "error" and event):
                            raise error_object(place, error)
                        stream.take(event)
                    if stream.is_hopeless(max_tokens):
                        stream.finish, stream.prompt_tokens = "length", None
                        return
            finally:
                replies.cancel()
        except (RayError, RayServeException, LookupError) as error:
            raise Unreachable(f"{place}: {type(error).__name__}: {str(error)[:200]}") from error
        if not stream.finish:
            raise Unreachable(f"{place}: the reply was cut after {len(stream.text)} characters")


@dataclass
class CountedLLM:
    """An LLM whose open calls are a gauge of the process."""

    llm: LLM

    @property
    def name(self) -> str:
        return self.llm.name

    @property
    def context_tokens(self) -> int:
        return self.llm.context_tokens

    def count_tokens(self, text: str) -> int:
        return self.llm.count_tokens(text)

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        json_schema: dict[str, Any] | None = None,
        on_text: OnText | None = None,
    ) -> Completion:
        change("sproutrag_open_llm_calls", +1)
        try:
            return await self.llm.complete(
                messages, max_tokens=max_tokens, json_schema=json_schema, on_text=on_text
            )
        finally:
            change("sproutrag_open_llm_calls", -1)


def read_event(line: str) -> dict[str, Any]:
    data = line.removeprefix(EVENT).strip()
    return object_of(data) if data and data != END else {}


def opened_handle(facts: Facts, deadline_s: float) -> HandleLLM:
    return HandleLLM(facts, deadline_s=deadline_s)


@cache
def counter_of(tokenizer: str) -> Any:
    """Counts tokens as the engine does; parsed once per process."""
    encode = Tokenizer.from_str(tokenizer).encode
    return lambda text: len(encode(text, add_special_tokens=False).ids)


@cache
def engine_handle(model: str) -> DeploymentHandle:
    return serve.get_deployment_handle(deployment_of(model), app_name=LLM_APP).options(stream=True)


async def open_engine(settings: Settings) -> LLM:
    """The LLM, once it answers. Raises NotReady."""
    if re.match("https?://", settings.llm):
        url, _, model = settings.llm.partition("#")
        try:
            endpoint = await asyncio.to_thread(
                connect, url, model=model, deadline_s=settings.llm_deadline_s, wait_s=FACTS_S
            )
        except Unreachable as error:
            raise NotReady(str(error)) from error
        return OpenAILLM(endpoint)
    model = model_id(settings)
    try:
        handle = serve.get_deployment_handle(deployment_of(model), app_name=LLM_APP)
        facts = await asyncio.wait_for(handle.facts.remote(), FACTS_S)
    except (RayError, RayServeException, LookupError, TimeoutError) as error:
        raise NotReady(f"vLLM is loading {model}, or not deployed ({type(error).__name__})") from error
    return HandleLLM(facts, deadline_s=settings.llm_deadline_s)
