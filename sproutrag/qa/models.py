"""LLMs by name: a URL, a directory, a packaged model or one on the hub, and which of them is the default."""

import os
import re
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from sproutrag.models import WANTED_FILES, ModelNotFound, ModelRow, cached_path, usable
from sproutrag.qa.engine_settings import CPU_CONTEXT
from sproutrag.qa.llm import LLM
from sproutrag.qa.openai import OpenAILLM, connect
from sproutrag.qa.weights import PACKAGED_LLMS, get_packaged, model_folder

CPU_LLM = "qwen2.5-coder-0.5b"
GPU_LLM = "Qwen/Qwen3-4B-Instruct-2507"
HUB_LLMS = {
    GPU_LLM: "default where there is a GPU",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "better answers, one 80 GB GPU",
}


def is_llm(name: str) -> bool:
    return name.lower() in PACKAGED_LLMS or name in HUB_LLMS


def is_url(name: str) -> bool:
    return re.match(r"https?://", name) is not None


def default_llm() -> str:
    return GPU_LLM if torch.cuda.is_available() else CPU_LLM


def open_llm(name: str | None = None, *, thinking: bool | None = None, deadline_s: float = 300.0) -> LLM:
    """An LLM that is ready. A URL may name the model behind `#`: http://host:8000/v1#org/model.

    thinking: None leaves it to the model; True and False are for models that do both, as Qwen3 does.
    """
    name = name or default_llm()
    if is_url(name):
        url, _, model = name.partition("#")
        return OpenAILLM(connect(url, model=model, thinking=thinking, deadline_s=deadline_s))
    path = find_llm(name)
    from sproutrag.qa.vllm_engine import VLLMEngine  # an extra, and it takes ten seconds to load

    context_tokens = None if torch.cuda.is_available() else CPU_CONTEXT
    return VLLMEngine(path, name=short_name(name), context_tokens=context_tokens, thinking=thinking)


async def close_llm(llm: Any) -> None:
    """Give back what an LLM holds: connections or an engine."""
    closed = llm.close() if hasattr(llm, "close") else None
    if closed is not None:
        await closed


def find_llm(name: str) -> str:
    """Directory of an LLM: a directory, a packaged one, or a hub name (fetched once)."""
    if os.path.isdir(name):
        return usable(os.path.abspath(name))
    if name.lower() in PACKAGED_LLMS:
        return get_packaged(name.lower(), PACKAGED_LLMS[name.lower()])
    try:
        return usable(snapshot_download(name, allow_patterns=[*WANTED_FILES, "*.jinja"]))
    except HFValidationError as error:
        raise ModelNotFound(
            f"{name!r} is neither a URL, a directory nor a model name; see `sproutrag models list`"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelNotFound(
            f"LLM {name!r} is not on this machine and the hub did not give it ({type(error).__name__}): run "
            f"`sproutrag models get {name}` where there is network, or pass a directory or a server's URL; "
            f"without a hub {CPU_LLM!r} works"
        ) from error


def short_name(name: str) -> str:
    return os.path.basename(os.path.normpath(name))


def list_llms() -> list[ModelRow]:
    """Known LLMs; any other directory, hub name or URL works as well."""
    packaged = [
        ModelRow(name, packaged_use(name), packaged_place(name), f"run `sproutrag models get {name}`")
        for name in PACKAGED_LLMS
    ]
    hub = [
        ModelRow(name, f"LLM: {use}", cached_path(name), f"run `sproutrag models get {name}`")
        for name, use in HUB_LLMS.items()
    ]
    return packaged + hub


def packaged_use(name: str) -> str:
    return (
        "LLM: default without a GPU; proves the machinery" if name == CPU_LLM else "LLM: three times slower"
    )


def packaged_place(name: str) -> str:
    folder = model_folder(name)
    return str(folder) if folder.is_dir() else ""
