"""One index, engine and server for all tests of the endpoint: a start takes half a minute."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.llm_simulator import simulator_process
from pipelines.serve_process import serving
from tests.qa.oracle import OURS
from tests.qa.real_index import real_index
from tests.serve.endpoint import documents, wait_until_ready, write_keys


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("endpoint")
    real_index(folder, documents())
    write_keys(folder / "keys.yaml")
    return folder


@pytest.fixture(scope="package")
def engine() -> Iterator[str]:
    with simulator_process("tests.serve.talker:of_plans", str(OURS), output_token_s=0.001) as url:
        yield url


@pytest.fixture(scope="package")
def server(place: Path, engine: str) -> Iterator[str]:
    limits = {
        "keys": place / "keys.yaml",
        "snapshot_poll_s": 0.5,
        "body_timeout_s": 2,
        "max_body_bytes": 100_000,
    }
    with serving(str(place / "db"), encoder=str(place / "tiny"), llm=engine, **limits) as (url, _):
        wait_until_ready(url)
        yield url
