"""An engine without a model: speaks OpenAI's chat completions, takes an engine's time, says what it is told.

Like a batching engine it reads prompts one after the other, writes up to `slots` replies at a time, each at
the same pace, and lets the rest wait. What it says comes from a function; so do the faults that a test wants.
Run as a process of its own: python -m pipelines.llm_simulator MODULE:FUNCTION ABOUT [--port 0] ..., where
FUNCTION(ABOUT) gives what speaks.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Annotated, Any, Literal

import tyro
import uvicorn
from tyro.conf import Positional, arg

from sproutrag.qa.openai import tokens_by_bytes

Fault = Literal[
    "", "500", "429", "400", "401", "hang", "cut", "drop", "error object", "error event", "no usage",
    "usage in every chunk", "not streamed", "not json", "ignores max_tokens",
]  # fmt: skip
PIECE = 12  # characters of a chunk: some three tokens
START_S = 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    fault: Fault = ""


Speak = Callable[[dict[str, Any]], Reply]  # from the body of a request


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast the engine is. The defaults are those of a mid-size GPU with a 4B model."""

    prompt_token_s: float = 0.00005
    output_token_s: float = 0.01
    slots: int = 64
    context_tokens: int = 32768


@dataclass
class Log:
    """What the engine saw; tests and benchmarks compare it with what callers billed."""

    calls: int = 0
    finished: int = 0
    dropped: int = 0  # callers that left before the end
    prompt_tokens: int = 0
    completion_tokens: int = 0
    at_once: int = 0
    most_at_once: int = 0
    busy_s: float = 0.0  # of engine time, summed over replies
    bodies: list[dict[str, Any]] = field(default_factory=list)


class Simulator:
    """An ASGI application."""

    def __init__(self, speak: Speak, pace: Pace, *, keep_bodies: bool = False) -> None:
        self.speak, self.pace, self.keep_bodies = speak, pace, keep_bodies
        self.log = Log()
        self.slots = asyncio.Semaphore(pace.slots)
        self.reading = asyncio.Lock()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/v1/models":
            model = {"id": "simulated", "object": "model", "max_model_len": self.pace.context_tokens}
            await answer_json(send, {"object": "list", "data": [model]})
        elif scope["path"] == "/log":
            await answer_json(send, asdict(self.log))
        else:
            await self.until_left(json.loads(await body_of(receive)), receive, send)

    async def until_left(self, body: dict[str, Any], receive: Any, send: Any) -> None:
        """Reply, unless the caller leaves first."""
        reply = asyncio.ensure_future(self.reply(body, send))
        left = asyncio.ensure_future(receive())
        await asyncio.wait({reply, left}, return_when=asyncio.FIRST_COMPLETED)
        for task in (reply, left):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await reply
            return
        self.log.dropped += 1

    async def reply(self, body: dict[str, Any], send: Any) -> None:
        self.log.calls += 1
        if self.keep_bodies:
            self.log.bodies.append(body)
        reply = self.speak(body)
        if reply.fault == "hang":
            await asyncio.sleep(3600)
        prompt_tokens = sum(tokens_by_bytes(message["content"]) for message in body["messages"])
        if prompt_tokens + body["max_tokens"] > self.pace.context_tokens:
            asked = prompt_tokens + body["max_tokens"]
            message = f"the request needs {asked} tokens, the limit is {self.pace.context_tokens}"
            await answer_json(send, {"error": {"message": message, "code": 400}}, status=400)
        elif not await answered_with_fault(send, reply):
            async with self.slot():
                await self.read(prompt_tokens)
                await self.write(send, reply, prompt_tokens, body["max_tokens"])

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        async with self.slots:
            self.log.at_once += 1
            self.log.most_at_once = max(self.log.most_at_once, self.log.at_once)
            began = time.monotonic()
            try:
                yield
            finally:
                self.log.at_once -= 1
                self.log.busy_s += time.monotonic() - began

    async def read(self, prompt_tokens: int) -> None:
        async with self.reading:
            await asyncio.sleep(prompt_tokens * self.pace.prompt_token_s)
        self.log.prompt_tokens += prompt_tokens

    async def write(self, send: Any, reply: Reply, prompt_tokens: int, max_tokens: int) -> None:
        text, finish = reply.text, "stop"
        if tokens_by_bytes(text) > max_tokens and reply.fault != "ignores max_tokens":
            text, finish = text.encode()[: 3 * max_tokens].decode(errors="ignore"), "length"
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 0}
        if reply.fault == "not streamed":
            usage["completion_tokens"] = tokens_by_bytes(text)
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
            await answer_json(send, {"choices": [choice], "usage": usage})
            return
        await start(send, 200, "text/event-stream")
        async for piece in self.spoken(text):
            usage["completion_tokens"] = usage["completion_tokens"] + tokens_by_bytes(piece)
            extra = {"usage": dict(usage)} if reply.fault == "usage in every chunk" else {}
            await event(send, {"choices": [{"index": 0, "delta": {"content": piece}}]} | extra)
            if reply.fault == "cut":
                raise ConnectionAbortedError
            if reply.fault == "error event":
                await event(send, {"error": {"message": "the engine died", "code": 500}})
                return await end(send)
        await event(send, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        if reply.fault != "no usage":
            await event(send, {"choices": [], "usage": usage})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True})
        self.log.finished += 1
        await end(send)

    async def spoken(self, text: str) -> AsyncIterator[str]:
        """The text piece by piece, at the engine's pace; a late piece does not delay the rest."""
        began, tokens = time.monotonic(), 0
        for place in range(0, len(text), PIECE):
            piece = text[place : place + PIECE]
            tokens += tokens_by_bytes(piece)
            await asyncio.sleep(max(0.0, began + tokens * self.pace.output_token_s - time.monotonic()))
            self.log.completion_tokens += tokens_by_bytes(piece)
            yield piece


# --- HTTP


async def body_of(receive: Any) -> bytes:
    whole, more = b"", True
    while more:
        part = await receive()
        whole, more = whole + part.get("body", b""), part.get("more_body", False)
    return whole


async def answered_with_fault(send: Any, reply: Reply) -> bool:
    """Whether the fault of this reply is one that comes instead of it."""
    if reply.fault in {"500", "429", "400", "401"}:
        await answer_json(
            send, {"error": {"message": reply.text, "code": int(reply.fault)}}, status=int(reply.fault)
        )
    elif reply.fault == "error object":
        await answer_json(send, {"error": {"message": reply.text, "code": 500}})
    elif reply.fault == "not json":
        await start(send, 200, "application/json")
        await end(send, b"<html>")
    elif reply.fault == "drop":
        raise ConnectionAbortedError
    else:
        return False
    return True


async def start(send: Any, status: int, content_type: str) -> None:
    headers = [(b"content-type", content_type.encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def end(send: Any, body: bytes = b"") -> None:
    await send({"type": "http.response.body", "body": body})


async def event(send: Any, content: dict[str, Any]) -> None:
    await send(
        {"type": "http.response.body", "body": f"data: {json.dumps(content)}\n\n".encode(), "more_body": True}
    )


async def answer_json(send: Any, content: dict[str, Any], status: int = 200) -> None:
    await start(send, status, "application/json")
    await end(send, json.dumps(content).encode())


# --- running it


@dataclass(frozen=True, kw_only=True)
class Options:
    speak: Annotated[Positional[str], arg(metavar="MODULE:FUNCTION")]
    about: Positional[str] = ""
    port: int = 0
    pace: Pace = field(default_factory=Pace)


def server_of(app: Simulator) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    )


def listening(port: int = 0) -> socket.socket:
    place = socket.create_server(("127.0.0.1", port))
    place.listen(1024)
    return place


@contextmanager
def simulator_thread(speak: Speak, **pace: Any) -> Iterator[tuple[str, Log]]:
    """A simulator in this process: its URL and its log."""
    app, place = Simulator(speak, Pace(**pace), keep_bodies=True), listening()
    server = server_of(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{place.getsockname()[1]}/v1", app.log
    finally:
        server.should_exit = True
        thread.join(START_S)
        place.close()


@contextmanager
def simulator_process(speak: str, about: str, **pace: Any) -> Iterator[str]:
    """A simulator in a process of its own, so that its work is not taken for ours: its URL."""
    flags = [word for key, value in pace.items() for word in (f"--pace.{key.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "pipelines.llm_simulator", speak, about, *flags]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    ) as child:
        try:
            assert child.stdout
            url = child.stdout.readline().strip()
            if not url:
                raise RuntimeError(f"{' '.join(command)} ended with {child.wait()}: see its messages above")
            yield url
        finally:
            child.terminate()


def main(options: Options) -> None:
    module, name = options.speak.split(":")
    speak, place = getattr(import_module(module), name)(options.about), listening(options.port)
    print(f"http://127.0.0.1:{place.getsockname()[1]}/v1", flush=True)
    server_of(Simulator(speak, options.pace)).run(sockets=[place])


if __name__ == "__main__":
    main(tyro.cli(Options))
