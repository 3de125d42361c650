"""Every option of the endpoint, once: the command line wins over the environment, that over the file.

`infra/sproutrag.yaml` is written from here (`python -m serve.settings`); a test compares them.
"""

import ipaddress
import json
import textwrap
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

PREFIX = "SPROUTRAG_"  # of the environment: SPROUTRAG_MAX_K=50


class SettingsProblem(Exception):
    """Settings that cannot be served; the message says which option, what is wrong and what to do."""

    exit_status = 2  # wrong usage


class Settings(BaseSettings):
    """What the deployments are told. An empty string means "not set"."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    db: str = ""
    """Directory or URI of the index."""
    encoder: str = ""
    """The encoder that built the index, where it is not to be found by the name that the index records."""
    llm: str = ""
    """Name or directory of an LLM that vLLM runs here, or the URL of an OpenAI-compatible server
    (http://host:8000/v1; #model behind it chooses one). Empty: the default of this machine."""

    host: str = "127.0.0.1"
    """Address to listen on. Any but a loopback address needs `keys`."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    keys: str = ""
    """YAML file of API keys: a list of {name, sha256, not_after?, concurrent?, where?}; read again when it
    changes. sha256 is of the key; `where` lets a key see only the documents that match it."""
    allow_anonymous: bool = False
    """Serve on a public address without keys."""
    cors_origins: list[str] = []
    """Origins whose pages may call the API (https://intranet.example)."""

    max_body_bytes: int = Field(1 << 20, gt=0)
    """Largest request body, in bytes."""
    body_timeout_s: float = Field(10.0, gt=0)
    """Seconds that a client may take to send a body."""
    max_question_chars: int = Field(4000, gt=0, le=10_000)
    """Longest question or query, in characters."""
    max_k: int = Field(100, gt=0)
    """Most leaves that a request may ask for."""
    concurrent_per_key: int = Field(8, gt=0)
    """Questions at once of one key on each ingress replica; a key's own `concurrent` wins."""
    concurrent_questions: int = Field(64, gt=0)
    """Questions at once on each ingress replica, of all keys together."""
    concurrent_searches: int = Field(256, gt=0)
    """Searches, documents and trees at once on each ingress replica."""
    deadline_s: float = Field(300.0, gt=0)
    """Most seconds for a question; a request may ask for fewer."""
    search_deadline_s: float = Field(30.0, gt=0)
    """Most seconds for a search, a document or a tree."""

    ingress_min_replicas: int = Field(1, ge=1)
    """Ingress replicas, at least."""
    ingress_max_replicas: int = Field(1, ge=1)
    """Ingress replicas, at most."""
    retriever_min_replicas: int = Field(1, ge=1)
    """Retriever replicas, at least."""
    retriever_max_replicas: int = Field(1, ge=1)
    """Retriever replicas, at most."""
    retriever_ongoing: int = Field(16, ge=1)
    """Requests in flight on each retriever replica that autoscaling aims at."""
    retriever_cpus: float = Field(1.0, ge=0)
    """CPUs that Ray reserves for a retriever replica."""
    retriever_gpus: float = Field(0.0, ge=0)
    """GPUs, or a part of one, for the encoder of a retriever replica."""
    batch_size: int = Field(16, ge=1)
    """Queries that are encoded together, at most."""
    batch_wait_s: float = Field(0.0, ge=0)
    """Seconds that a query waits for others to be encoded with; at 0 those that came while others were
    encoded are the next batch."""
    cache_bytes: int = Field(1 << 30, gt=0)
    """Memory for opened documents (text, tree, vectors) of each retriever replica, in bytes."""
    snapshot_poll_s: float = Field(10.0, gt=0)
    """Seconds between two looks for a newly published snapshot."""

    llm_min_replicas: int = Field(1, ge=0)
    """vLLM replicas, at least."""
    llm_max_replicas: int = Field(1, ge=1)
    """vLLM replicas, at most."""
    llm_ongoing: int = Field(16, ge=1)
    """Requests in flight on each vLLM replica that autoscaling aims at."""
    llm_context_tokens: int = Field(0, ge=0)
    """Prompt and reply together; 0: the model's own limit, and 8192 without a GPU."""
    llm_device: Literal["auto", "cuda", "cpu"] = "auto"
    """What vLLM runs on; auto: a GPU, if this machine or its Ray cluster has one."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs that share one vLLM replica."""
    engine: dict[str, Any] = {}
    """Further arguments of vLLM's engine, by its names."""
    llm_deadline_s: float = Field(300.0, gt=0)
    """Seconds for one LLM call."""
    calls_in_flight: int = Field(64, ge=1)
    """LLM calls at once of each process that makes them."""

    executor: Literal["tasks", "inline"] = "tasks"
    """tasks: the steps of a question are Ray tasks, on any node; inline: they run in the ingress."""
    carriers: int = Field(1, ge=1)
    """Processes for these tasks, for each ingress replica."""

    json_logs: bool = True
    """One JSON object per line on standard error; false: words."""
    otlp_endpoint: str = ""
    """OpenTelemetry collector that traces go to (http://host:4318)."""
    health_period_s: float = Field(5.0, gt=0)
    """Seconds between two health checks of a replica."""
    health_timeout_s: float = Field(30.0, gt=0)
    """Seconds after which a replica that does not answer them is replaced."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls)


def read_settings(config: str = "", **given: Any) -> Settings:
    """`given` wins over the environment, that over the YAML file `config`, that over the defaults."""
    if config and not Path(config).is_file():
        raise SettingsProblem(f"{config}: no such file; infra/sproutrag.yaml shows every option")

    class FromFile(Settings):
        model_config = SettingsConfigDict(yaml_file=config or None)

    try:
        found = FromFile(**given)
    except ValidationError as error:
        raise SettingsProblem(told(error, config)) from None
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise SettingsProblem(f"{config} is no YAML mapping of options: {error}") from None
    settings = Settings(**found.model_dump())
    refuse_nonsense(settings)
    return settings


def told(error: ValidationError, config: str) -> str:
    """Each option that cannot be read: which, what it was, what it should be."""
    lines = []
    for problem in error.errors():
        name = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":
            lines.append(f"{name}: no such option")
        else:
            lines.append(f"{name}: {json.dumps(problem['input'], default=str)[:80]}: {problem['msg']}")
    file = f"{config}, " if config else ""
    where = f"{file}{PREFIX}... or command line"
    return f"settings ({where}): {'; '.join(lines)}. infra/sproutrag.yaml describes every option"


def refuse_nonsense(settings: Settings) -> None:
    if not settings.db:
        raise SettingsProblem("no index: say `--db DIR`, or `db` in the file, or SPROUTRAG_DB")
    for kind in ("ingress", "retriever", "llm"):
        least, most = getattr(settings, f"{kind}_min_replicas"), getattr(settings, f"{kind}_max_replicas")
        if least > most:
            raise SettingsProblem(f"{kind}_min_replicas {least} exceeds {kind}_max_replicas {most}")
    if not settings.keys and not settings.allow_anonymous and not is_loopback(settings.host):
        raise SettingsProblem(
            f"host {settings.host} can be reached from outside and there are no API keys: name a file of "
            "keys (`keys`; `sproutrag serve --new-key NAME` makes one), or say allow_anonymous: true if "
            "everybody may read the index and use the LLM"
        )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def documented() -> str:
    """The settings file with every option at its default, each with its meaning."""
    parts = ["# Every option of the endpoint, at its default. Each can also be set in the environment, as"]
    parts.append(f"# {PREFIX}<NAME IN CAPITALS>; the command line of `sproutrag serve` wins over both.")
    for name, field in Settings.model_fields.items():
        meaning = textwrap.wrap(" ".join((field.description or "").split()), 100)
        value = json.dumps(field.get_default())
        parts += ["", *(f"# {line}" for line in meaning), f"{name}: {value}"]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).parents[1].joinpath("infra/sproutrag.yaml").write_text(documented(), encoding="utf-8")
