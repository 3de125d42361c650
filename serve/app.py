"""The application: an ingress over a retriever. `serve deploy` imports `serve.app:build`."""

from typing import Any

from ray import serve

from serve.ingress import deployed_ingress
from serve.keys import read_keys
from serve.retriever import deployed_retriever
from serve.settings import Settings, read_settings
from sproutrag.qa.models import default_llm


def build(args: dict[str, Any]) -> serve.Application:
    """args: settings, or {config: FILE} and settings that win over it."""
    return build_app(with_llm(read_settings(**args)))


def build_app(settings: Settings) -> serve.Application:
    if settings.keys:
        read_keys(settings.keys)  # a broken file is told here, not by replicas that die
    return deployed_ingress(settings, deployed_retriever(settings))


def with_llm(settings: Settings) -> Settings:
    """The default LLM of this machine where none is named."""
    return settings if settings.llm else settings.model_copy(update={"llm": default_llm()})
