"""The OpenAPI document against the server: random requests get declared answers and never a 5xx."""

import subprocess
import sys

import httpx2
import pytest

from tests.serve.endpoint import header

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def test_schemathesis_finds_no_server_error_and_no_violation_of_the_schema(server: str) -> None:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server}/openapi.json"]
    command += ["--checks", CHECKS, "--max-examples", "25", "--seed", "11", "--workers", "1"]
    command += ["--header", f"Authorization: {header('all')['Authorization']}", "--request-timeout", "60"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]


def test_every_route_of_the_api_is_described_with_an_example(server: str) -> None:
    api = httpx2.get(f"{server}/openapi.json").json()
    for path, methods in api["paths"].items():
        for method, route in methods.items():
            assert route.get("description") or route.get("summary"), path
            for status, reply in route["responses"].items():
                assert reply.get("description"), (path, method, status)
    shapes = api["components"]["schemas"]
    assert all("examples" in shapes[name] for name in ("SearchRequest", "AskRequest", "ChatRequest"))
