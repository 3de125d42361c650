"""vLLM as part of this process, for batch jobs and machines without a server: no HTTP in between.

The engine lives in child processes that end with `close`. It belongs to the event loop of its first request.
"""

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import torch
from vllm import AsyncEngineArgs, SamplingParams
from vllm.exceptions import VLLMClientError, VLLMError
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM

from sproutrag.qa.engine_settings import ENVIRONMENT, engine_arguments
from sproutrag.qa.llm import Completion, LLMError, Message, OnText, Refused, Unreachable, Usage
from sproutrag.qa.replies import runs_in_circles, without_thinking

LOOK_EVERY = 32  # tokens between two looks for a loop


class VLLMEngine:
    """One model; requests that are in flight together share its batches and the cache of their prefixes."""

    def __init__(
        self, path: str, *, name: str, context_tokens: int | None, thinking: bool | None = None
    ) -> None:
        """Takes up to a minute. context_tokens: None takes the model's own limit."""
        for key, value in ENVIRONMENT.items():
            os.environ.setdefault(key, value)
        on_gpu = torch.cuda.is_available()
        arguments = AsyncEngineArgs(
            model=path,
            reasoning_parser="qwen3" if thinking else "",
            disable_log_stats=True,
            **engine_arguments(on_gpu=on_gpu, context_tokens=context_tokens),
        )
        self.name, self.thinking = name, thinking
        self.engine = AsyncLLM.from_engine_args(arguments)
        self.tokenizer: Any = self.engine.get_tokenizer()
        self.context_tokens = int(self.engine.model_config.max_model_len)
        self.engine_pids = engine_processes(self.engine)
        self.guard = guard_against_orphans(self.engine_pids)

    def count_tokens(self, text: str) -> int:
        return len(self.tokenizer.encode(text, add_special_tokens=False))

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
        prompt = self._prompt(messages)
        if len(prompt) + max_tokens > self.context_tokens:
            raise Refused(
                f"{len(prompt)} prompt tokens and {max_tokens} for the reply exceed {self.context_tokens}"
            )
        usage, began = Usage(calls=1, prompt_tokens=len(prompt)), time.monotonic()
        try:
            text, finish = await self._generate(prompt, max_tokens, json_schema, usage, on_text)
        except (VLLMError, ValueError) as error:
            raise failure(error, usage, began) from error
        usage.seconds = time.monotonic() - began
        return Completion(without_thinking(text), usage, finish)

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        chat = [{"role": message.role, "content": message.content} for message in messages]
        options = {} if self.thinking is None else {"enable_thinking": self.thinking}
        encoded = self.tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=False, **options
        )
        return self.tokenizer.encode(encoded, add_special_tokens=False)

    async def _generate(
        self,
        prompt: list[int],
        max_tokens: int,
        json_schema: dict[str, Any] | None,
        usage: Usage,
        on_text: OnText | None,
    ) -> tuple[str, Literal["stop", "length"]]:
        """Text and how it ended. Leaving the stream, also when cancelled, aborts the request."""
        sampling = SamplingParams(
            temperature=0,
            max_tokens=max_tokens,
            structured_outputs=StructuredOutputsParams(json=json_schema) if json_schema else None,
            output_kind=RequestOutputKind.DELTA,
        )
        text, looked_at = "", 0
        async with aclosing(
            self.engine.generate({"prompt_token_ids": prompt}, sampling, uuid4().hex)
        ) as outputs:
            async for output in outputs:
                part = output.outputs[0]
                text += part.text
                if on_text and part.text:
                    on_text(part.text)
                usage.completion_tokens += len(part.token_ids)
                if part.finish_reason:
                    return text, "stop" if part.finish_reason == "stop" else "length"
                if usage.completion_tokens - looked_at >= LOOK_EVERY:
                    looked_at = usage.completion_tokens
                    if runs_in_circles(text):
                        return text, "length"
        raise VLLMError("the engine ended the reply without a reason")

    def close(self) -> None:
        """End the engine and its processes; once more is nothing."""
        engine = vars(self).pop("engine", None)  # kept, it is shut down again as the interpreter goes
        if engine is None:
            return
        engine.shutdown()
        if self.guard:
            self.guard.kill()
            self.guard.wait()


def engine_processes(engine: AsyncLLM) -> list[int]:
    """Engine and workers, children before parents."""
    manager = getattr(getattr(engine.engine_core, "resources", None), "engine_manager", None)
    return [pid for process in getattr(manager, "processes", []) for pid in family_of(process.pid)]


def family_of(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # not on this system
        children = []
    return [*(member for child in children for member in family_of(int(child))), pid]


def guard_against_orphans(pids: Sequence[int]) -> subprocess.Popen[bytes] | None:
    """A shell that waits for the end of this process, however it comes, and then ends the engine's processes.

    A killed parent leaves vLLM's engine and workers running, with all their memory.
    """
    if not pids:
        return None
    last_word = f"read line; kill -9 {' '.join(map(str, pids))} 2>/dev/null"
    return subprocess.Popen(["sh", "-c", last_word], stdin=subprocess.PIPE, start_new_session=True)


def failure(error: Exception, usage: Usage, began: float) -> LLMError:
    """What the engine will not take is Refused; anything else is its own trouble."""
    usage.seconds = time.monotonic() - began
    kind = Refused if isinstance(error, VLLMClientError | ValueError) else Unreachable
    return kind(f"vLLM: {type(error).__name__}: {' '.join(str(error).split())[:300]}", usage)
