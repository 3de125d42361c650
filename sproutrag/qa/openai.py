"""An LLM behind a URL that speaks OpenAI's chat completions: vLLM, Ray Serve, or another server.

Replies are streamed, so that a cut, a loop or a cancelled caller ends the request at once: leaving the stream
closes the connection, and the engine stops.
"""

import asyncio
import json
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakKeyDictionary

import httpx2

from sproutrag.qa.llm import Completion, LLMError, Message, OnText, Refused, Unreachable, Usage
from sproutrag.qa.replies import runs_in_circles, without_thinking

CONNECT_S = 10.0
TRY_AGAIN = {408, 409, 425, 429}  # statuses below 500 that another attempt may change
KEYS_OF_STOPS: dict[str, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}
LONGEST_TOKEN = 32  # characters; a server that ignores max_tokens is left at this many per token
LOOK_EVERY = 64  # characters between two looks for a loop


def tokens_by_bytes(text: str) -> int:
    """A token per three bytes: a third too many for English, right for Chinese; what fits by it fits."""
    return math.ceil(len(text.encode("utf-8", "replace")) / 3)


@dataclass(frozen=True)
class Endpoint:
    """Where and as whom: all that a worker needs to open its own connections."""

    url: str  # up to and including /v1
    model: str
    context_tokens: int
    api_key: str = ""
    thinking: bool | None = None  # None: as the server does by itself
    deadline_s: float = 300.0


@dataclass
class Stream:
    """What has come of one reply so far."""

    text: str = ""
    finish: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    looked_at: int = 0
    on_text: OnText | None = None

    def take(self, event: dict[str, Any]) -> None:
        """One chunk. Usage may come in every chunk or in the last one: the last counts (P149)."""
        if usage := event.get("usage"):
            self.prompt_tokens = int(usage.get("prompt_tokens") or 0)
            self.completion_tokens = int(usage.get("completion_tokens") or 0)
        for choice in event.get("choices") or []:
            part = choice.get("delta") or choice.get("message") or {}
            self.say(part.get("content") or "")
            self.finish = choice.get("finish_reason") or self.finish

    def say(self, text: str) -> None:
        self.text += text
        if text and self.on_text:
            self.on_text(text)

    def is_hopeless(self, max_tokens: int) -> bool:
        """It loops (P119), or is longer than any reply of so many tokens."""
        if len(self.text) > LONGEST_TOKEN * max_tokens + LOOK_EVERY:
            return True
        if len(self.text) - self.looked_at < LOOK_EVERY:
            return False
        self.looked_at = len(self.text)
        return runs_in_circles(self.text)


@dataclass
class OpenAILLM:
    """Safe to share between tasks and event loops; a copy in another process opens its own connections."""

    endpoint: Endpoint
    count_tokens: Callable[[str], int] = tokens_by_bytes
    clients: WeakKeyDictionary[Any, httpx2.AsyncClient] = field(default_factory=WeakKeyDictionary, repr=False)

    @property
    def name(self) -> str:
        return self.endpoint.model

    @property
    def context_tokens(self) -> int:
        return self.endpoint.context_tokens

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenAILLM, (self.endpoint, self.count_tokens)

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        json_schema: dict[str, Any] | None = None,
        on_text: OnText | None = None,
    ) -> Completion:
        if json_schema is not None and not json_schema:
            raise Refused("an empty JSON schema has killed engines: name the fields")
        body = self._body(messages, max_tokens, json_schema)
        stream, began = Stream(on_text=on_text), time.monotonic()
        try:
            async with asyncio.timeout(self.endpoint.deadline_s):
                await self._read(body, stream, max_tokens)
        except TimeoutError:
            error = Unreachable(f"{self.endpoint.url}: no whole reply within {self.endpoint.deadline_s:g} s")
            raise self._billed(error, messages, stream, began) from None
        except LLMError as error:
            raise self._billed(error, messages, stream, began) from error.__cause__
        usage = self._usage(messages, stream, began)
        finish = KEYS_OF_STOPS.get(stream.finish, "length")
        return Completion(without_thinking(stream.text), usage, finish)

    def _body(
        self, messages: Sequence[Message], max_tokens: int, json_schema: dict[str, Any] | None
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if json_schema:
            named = {"name": "reply", "schema": json_schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        if self.endpoint.thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self.endpoint.thinking}
        return body

    async def _read(self, body: dict[str, Any], stream: Stream, max_tokens: int) -> None:
        """Fill `stream` until the reply ends or is not worth waiting for."""
        url = f"{self.endpoint.url}/chat/completions"
        async with reaching(url), self._client().stream("POST", url, json=body) as response:
            if response.status_code != 200:
                raise refusal(url, response.status_code, (await response.aread()).decode(errors="replace"))
            async for event in events_of(response):
                if error := event.get("error") or (event.get("object") == "error" and event):
                    raise error_object(url, error)
                stream.take(event)
                if stream.is_hopeless(max_tokens):
                    stream.finish, stream.prompt_tokens = "length", None
                    return
            if not stream.finish:
                raise Unreachable(f"{url}: the reply was cut after {len(stream.text)} characters")

    def _client(self) -> httpx2.AsyncClient:
        """One pool of connections per event loop, which it cannot outlive."""
        loop = asyncio.get_running_loop()
        if loop not in self.clients:
            self.clients[loop] = httpx2.AsyncClient(
                headers=key_header(self.endpoint.api_key),
                timeout=httpx2.Timeout(None, connect=CONNECT_S),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),
            )
        return self.clients[loop]

    async def close(self) -> None:
        """Close the connections of this event loop."""
        if client := self.clients.pop(asyncio.get_running_loop(), None):
            await client.aclose()

    def _billed(self, error: LLMError, messages: Sequence[Message], stream: Stream, began: float) -> LLMError:
        """The error with what it cost: nothing but a call where no token came."""
        if stream.text:
            error.usage = self._usage(messages, stream, began)
        else:
            error.usage = Usage(calls=1, seconds=time.monotonic() - began)
        return error

    def _usage(self, messages: Sequence[Message], stream: Stream, began: float) -> Usage:
        usage = Usage(calls=1, seconds=time.monotonic() - began)
        if stream.prompt_tokens is None:
            usage.estimated = True
            usage.prompt_tokens = sum(self.count_tokens(message.content) for message in messages)
            usage.completion_tokens = self.count_tokens(stream.text)
        else:
            usage.prompt_tokens, usage.completion_tokens = stream.prompt_tokens, stream.completion_tokens
        return usage


@asynccontextmanager
async def reaching(url: str) -> AsyncIterator[None]:
    """Whatever goes wrong below HTTP is Unreachable."""
    try:
        yield
    except httpx2.InvalidURL as error:
        raise Refused(f"{url} is not a URL: {error}") from error
    except (httpx2.TransportError, httpx2.DecodingError, json.JSONDecodeError) as error:
        raise Unreachable(f"{url}: {type(error).__name__}: {error or 'no more is known'}") from error


async def events_of(response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    """The chunks of a streamed reply; a server that does not stream gives one."""
    if "text/event-stream" not in response.headers.get("content-type", ""):
        yield object_of(await response.aread())
        return
    async for event in httpx2.EventSource(response):
        if event.data.strip() == "[DONE]":
            return
        if event.data:
            yield object_of(event.data)


def object_of(text: str | bytes) -> dict[str, Any]:
    found = json.loads(text)
    return found if type(found) is dict else {}


def key_header(api_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def refusal(url: str, status: int, body: str) -> LLMError:
    said = " ".join(body.split())[:300] or "no reason given"
    if status in (401, 403):
        return Refused(f"{url}: {status}: {said}; set OPENAI_API_KEY to a key that this server knows")
    again = status >= 500 or status in TRY_AGAIN
    return (Unreachable if again else Refused)(f"{url}: {status}: {said}")


def error_object(url: str, error: Any) -> LLMError:
    """An error that came with status 200, as from Ray Serve; its code decides, and none counts as 500."""
    code = error.get("code") if type(error) is dict else None
    status = int(str(code)) if str(code).isdigit() else 500
    return refusal(url, status, json.dumps(error))


def connect(
    url: str,
    *,
    model: str = "",
    thinking: bool | None = None,
    deadline_s: float = 300.0,
    wait_s: float = CONNECT_S,
) -> Endpoint:
    """Ask the server which models it has and how much they read (P137). `model`: "" takes its first."""
    url = url.rstrip("/")
    url = url if url.endswith("/v1") else f"{url}/v1"
    api_key = os.environ.get("OPENAI_API_KEY", "")
    try:
        response = httpx2.get(f"{url}/models", headers=key_header(api_key), timeout=wait_s)
        if response.status_code != 200:
            raise refusal(f"{url}/models", response.status_code, response.text)
        served = object_of(response.content).get("data") or []
    except (httpx2.TransportError, json.JSONDecodeError) as error:
        raise Unreachable(
            f"no LLM answers at {url} ({type(error).__name__}: {error}); is the server up?"
        ) from error
    known = {str(each.get("id")): each for each in served}
    if not known or (model and model not in known):
        raise Refused(f"{url} serves {', '.join(known) or 'no model'}, not {model or 'any'}")
    chosen = model or next(iter(known))
    context_tokens = int(known[chosen].get("max_model_len") or SMALLEST_CONTEXT)
    return Endpoint(url, chosen, context_tokens, api_key, thinking, deadline_s)


SMALLEST_CONTEXT = 8192  # tokens; assumed of a server that does not say its limit
