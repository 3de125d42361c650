"""The LLM application: vLLM behind ray.serve.llm. Callers use engines.py, which needs no vLLM."""

import inspect
import json
import os
from collections.abc import AsyncGenerator
from typing import Any

import ray
import torch
from ray import serve
from ray.serve.llm import LLMConfig, LLMServer, build_llm_deployment
from ray.serve.llm.openai_api_models import ChatCompletionRequest

from serve.app import with_llm
from serve.engines import PREFIX, Facts, model_id
from serve.settings import Settings, SettingsProblem, read_settings
from sproutrag.qa.engine_settings import CPU_CONTEXT, ENVIRONMENT, engine_arguments
from sproutrag.qa.models import find_llm, is_url
from sproutrag.qa.weights import PACKAGED_LLMS

RUNS_CODE = {"trust_remote_code", "load_format", "hf_overrides", "worker_cls", "worker_extension_cls"}


class Engine(LLMServer):
    """Takes plain JSON, so that callers need not load vLLM's types."""

    async def reply(self, body: dict[str, Any]) -> AsyncGenerator[list[str], None]:
        """Server-sent events of one streamed chat completion, several at a time. An error is an event."""
        async for part in await self.chat(ChatCompletionRequest(**body)):
            items = part if type(part) is list else [part]
            yield [item if type(item) is str else event_of(item) for item in items]

    async def facts(self) -> Facts:
        """What callers count tokens with: the engine's own tokenizer and limit."""
        client = self.engine._engine_client
        tokenizer = client.get_tokenizer()
        tokenizer = await tokenizer if inspect.isawaitable(tokenizer) else tokenizer
        limit = int(client.model_config.max_model_len)
        return Facts(self._llm_config.model_id, limit, tokenizer.backend_tokenizer.to_str())


def event_of(reply: Any) -> str:
    return f"data: {json.dumps(reply.model_dump(mode='json'))}\n\n"


def build(args: dict[str, Any]) -> serve.Application:
    """The import path of `serve deploy`: args are settings, or {config: FILE}."""
    return build_llm(with_llm(read_settings(**args)))


def weights_of(settings: Settings) -> str:
    """A directory, or a name on the hub, which vLLM fetches where it runs."""
    name = settings.llm
    return find_llm(name) if name.lower() in PACKAGED_LLMS or os.path.isdir(name) else name


def runs_on_gpu(settings: Settings) -> bool:
    """The node that builds the application need not be the one that runs it."""
    if settings.llm_device != "auto":
        return settings.llm_device == "cuda"
    return torch.cuda.is_available() or (ray.is_initialized() and ray.cluster_resources().get("GPU", 0) > 0)


def build_llm(settings: Settings) -> serve.Application:
    if is_url(settings.llm):
        raise SettingsProblem(
            f"llm {settings.llm} is a server of its own: deploy no `llm` application beside it"
        )
    if forbidden := RUNS_CODE & settings.engine.keys():
        raise SettingsProblem(
            f"engine: {', '.join(sorted(forbidden))} could run code out of a model's directory"
        )
    on_gpu = runs_on_gpu(settings)
    context_tokens = settings.llm_context_tokens or (0 if on_gpu else CPU_CONTEXT)
    arguments = engine_arguments(on_gpu=on_gpu, context_tokens=context_tokens or None)
    arguments |= {"tensor_parallel_size": settings.tensor_parallel} | settings.engine
    config = LLMConfig(
        model_loading_config={"model_id": model_id(settings), "model_source": weights_of(settings)},
        engine_kwargs={name: value for name, value in arguments.items() if value is not None},
        deployment_config={
            "autoscaling_config": {
                "min_replicas": settings.llm_min_replicas,
                "max_replicas": settings.llm_max_replicas,
                "target_ongoing_requests": settings.llm_ongoing,
            },
            "max_ongoing_requests": 4 * settings.llm_ongoing,
            "health_check_period_s": settings.health_period_s,
            "health_check_timeout_s": max(settings.health_timeout_s, 60.0),  # a CPU may be busy that long
            "graceful_shutdown_timeout_s": settings.llm_deadline_s,
        },
        placement_group_config=None if on_gpu else {"bundles": [{"CPU": 1}]},
        runtime_env={"env_vars": ENVIRONMENT},
        log_engine_metrics=on_gpu,
    )
    return build_llm_deployment(config, name_prefix=PREFIX, deployment_cls=Engine)
