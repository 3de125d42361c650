"""Every option of the endpoint, once: name, default, meaning. A file, the environment, then the command line.

`infra/sproutrag.yaml` is written from here (`python -m serve.settings`), a test compares them.
"""

import ipaddress
import textwrap
from typing import Any, Literal

from pydantic import Field
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

PREFIX = "SPROUTRAG_"  # SPROUTRAG_MAX_K=50 wins over the file


class SettingsProblem(Exception):
    """A configuration that cannot be served; the message says which option, what is wrong and what to do."""

    exit_status = 2  # wrong usage


class Settings(BaseSettings):
    """What the deployments are told. Strings that are empty mean "not set"."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", env_ignore_empty=True, frozen=True)

    db: str = Field("", description="Directory or URI of the index.")
    encoder: str = Field("", description="The encoder that built the index, where the index's own name for it is not found.")
    llm: str = Field("", description="Name or directory of an LLM for vLLM, or the URL of an OpenAI-compatible server "
                     "(http://host:8000/v1, #model behind it chooses one). Empty: the default of this machine.")  # fmt: skip

    host: str = Field("127.0.0.1", description="Address to listen on. Any but a loopback address needs `keys`.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    keys: str = Field("", description="YAML file of API keys: a list of {name, sha256, not_after?, concurrent?, where?}. Read again when it changes.")
    allow_anonymous: bool = Field(False, description="Serve on a public address without keys.")
    cors_origins: list[str] = Field([], description="Origins whose pages may call the API; none by default.")

    max_body_bytes: int = Field(1 << 20, gt=0, description="Largest request body, bytes.")
    body_timeout_s: float = Field(10.0, gt=0, description="Seconds a client may take to send a body.")
    max_question_chars: int = Field(4000, gt=0, description="Longest question or query, characters.")
    max_k: int = Field(100, gt=0, description="Most leaves that a request may ask for.")
    concurrent_per_key: int = Field(8, gt=0, description="Questions and chats at once of one key, on each ingress replica.")
    concurrent_questions: int = Field(64, gt=0, description="Questions at once on each ingress replica, of all keys.")
    concurrent_searches: int = Field(256, gt=0, description="Other requests at once on each ingress replica.")
    deadline_s: float = Field(300.0, gt=0, description="Most seconds for a question; a request may ask for fewer.")
    search_deadline_s: float = Field(30.0, gt=0, description="Most seconds for a search.")

    ingress_min_replicas: int = Field(1, ge=1, description="Ingress replicas at least.")
    ingress_max_replicas: int = Field(1, ge=1, description="Ingress replicas at most.")
    retriever_min_replicas: int = Field(1, ge=1, description="Retriever replicas at least.")
    retriever_max_replicas: int = Field(1, ge=1, description="Retriever replicas at most.")
    retriever_ongoing: int = Field(16, ge=1, description="Requests in flight on a retriever replica that autoscaling aims at.")
    retriever_cpus: float = Field(1.0, ge=0, description="CPUs that Ray reserves for a retriever replica.")
    retriever_gpus: float = Field(0.0, ge=0, description="GPUs, or a part of one, for the encoder of a retriever replica.")
    batch_size: int = Field(16, ge=1, description="Queries encoded together at most.")
    batch_wait_s: float = Field(0.002, ge=0, description="Seconds a query may wait for others to be encoded with.")
    cache_bytes: int = Field(1 << 30, gt=0, description="Memory for opened documents (text, tree, vectors) on each retriever replica.")
    snapshot_poll_s: float = Field(10.0, gt=0, description="Seconds between two looks for a newly published snapshot.")

    llm_min_replicas: int = Field(1, ge=0, description="vLLM replicas at least.")
    llm_max_replicas: int = Field(1, ge=1, description="vLLM replicas at most.")
    llm_ongoing: int = Field(16, ge=1, description="Requests in flight on a vLLM replica that autoscaling aims at.")
    llm_context_tokens: int = Field(0, ge=0, description="Prompt and reply together; 0: the model's own limit, on a CPU 8192.")
    tensor_parallel: int = Field(1, ge=1, description="GPUs that share one vLLM replica.")
    engine: dict[str, Any] = Field({}, description="Further arguments of vLLM's engine, by its names.")
    llm_deadline_s: float = Field(300.0, gt=0, description="Seconds for one LLM call.")
    calls_in_flight: int = Field(64, ge=1, description="LLM calls at once of each process that makes them.")

    executor: Literal["tasks", "inline"] = Field("tasks", description="Steps of a question run as Ray tasks on any node, or inside the ingress.")
    carriers: int = Field(1, ge=1, description="Processes per ingress replica that carry out the tasks.")

    json_logs: bool = Field(True, description="One JSON object per line on standard error; false: words.")
    otlp_endpoint: str = Field("", description="OpenTelemetry collector for traces (http://host:4318); empty: none.")
    health_period_s: float = Field(5.0, gt=0, description="Seconds between two health checks of a replica.")
    health_timeout_s: float = Field(30.0, gt=0, description="Seconds until a replica that does not answer them is replaced.")

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
