"""The client against a server in a thread that speaks the protocol and fails on demand."""

import asyncio
import pickle
import socket
import time

import pytest

from pipelines.llm_simulator import Reply, simulator_thread
from sproutrag.qa.llm import Message, Refused, Unreachable
from sproutrag.qa.openai import Endpoint, OpenAILLM, connect, tokens_by_bytes

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FAULTS = {
    "500": (Unreachable, "500: .*said so"),
    "429": (Unreachable, "429"),
    "400": (Refused, "400: .*said so"),
    "401": (Refused, "OPENAI_API_KEY"),
    "cut": (Unreachable, "cut after|RemoteProtocolError|ReadError"),
    "drop": (Unreachable, "."),
    "error object": (Unreachable, "said so"),
    "error event": (Unreachable, "the engine died"),
    "not json": (Unreachable, "JSON"),
}


@pytest.fixture(scope="module")
def server():
    """Says what the last message asks for: `fault|text`."""

    def speak(body):
        fault, _, text = body["messages"][-1]["content"].partition("|")
        return Reply(text, fault)

    with simulator_thread(speak, prompt_token_s=0, output_token_s=0.0002, context_tokens=4096) as (url, log):
        yield url, log


def ask(url, content, *, max_tokens=500, schema=None, deadline_s=20.0, thinking=None):
    async def once():
        llm = OpenAILLM(connect(url, deadline_s=deadline_s, thinking=thinking))
        try:
            return await llm.complete([Message("user", content)], max_tokens=max_tokens, json_schema=schema)
        finally:
            await llm.close()

    return asyncio.run(once())


def test_reply_and_its_usage_come_from_the_engine(server):
    url, log = server
    seen = log.prompt_tokens, log.completion_tokens
    completion = ask(url, '|{"city":"Graz"}', schema=SCHEMA)
    assert (completion.text, completion.finish) == ('{"city":"Graz"}', "stop")
    usage = completion.usage
    assert not usage.estimated and usage.calls == 1 and usage.seconds > 0
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        log.prompt_tokens - seen[0],
        log.completion_tokens - seen[1],
    )


def test_request_is_deterministic_constrained_and_streamed(server):
    url, log = server
    ask(url, "|yes", schema=SCHEMA, max_tokens=7, thinking=False)
    body = log.bodies[-1]
    assert (body["temperature"], body["max_tokens"], body["stream"]) == (0, 7, True)
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert body["chat_template_kwargs"] == {"enable_thinking": False}


def test_a_reply_is_heard_as_it_is_written(server):
    async def heard():
        parts: list[str] = []
        llm = OpenAILLM(connect(server[0]))
        completion = await llm.complete(
            [Message("user", "|so it goes on")], max_tokens=9, on_text=parts.append
        )
        await llm.close()
        return parts, completion.text

    parts, text = asyncio.run(heard())
    assert len(parts) > 1 and "".join(parts) == text == "so it goes on"


def test_limit_is_the_engines_own(server):
    endpoint = connect(server[0])
    assert (endpoint.model, endpoint.context_tokens) == ("simulated", 4096)
    with pytest.raises(Refused, match="the limit is 4096"):
        ask(server[0], "|" + "x" * 13000)
    with pytest.raises(Refused, match="serves simulated, not other"):
        connect(server[0], model="other")


def test_url_without_v1_is_the_same_server(server):
    assert connect(server[0].removesuffix("/v1")) == connect(server[0] + "/")


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_becomes_one_of_two_errors_and_is_billed(server, fault):
    kind, message = FAULTS[fault]
    with pytest.raises(kind, match=message) as caught:
        ask(server[0], f"{fault}|said so, and then much more that never arrives because the stream ends")
    assert caught.value.usage.calls == 1
    assert (caught.value.usage.completion_tokens > 0) == (fault in ("cut", "error event"))
    assert caught.value.usage.estimated == (fault in ("cut", "error event"))


def test_server_that_never_answers_is_left_at_the_deadline(server):
    url, log = server
    dropped, began = log.dropped, time.monotonic()
    with pytest.raises(Unreachable, match=r"within 0\.3 s"):
        ask(url, "hang|", deadline_s=0.3)
    assert time.monotonic() - began < 5
    assert eventually(lambda: log.dropped == dropped + 1)


def test_cancelled_caller_closes_the_request(server):
    url, log = server
    dropped = log.dropped

    async def leave():
        llm = OpenAILLM(connect(url))
        task = asyncio.create_task(llm.complete([Message("user", "|" + "word " * 600)], max_tokens=2000))
        while not log.at_once and not task.done():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return llm

    asyncio.run(leave())
    assert eventually(lambda: log.dropped == dropped + 1)
    seen = log.completion_tokens
    time.sleep(0.2)
    assert log.completion_tokens == seen


def test_refused_connection_says_where_and_what_to_look_at():
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
    with pytest.raises(Unreachable, match=f"no LLM answers at .*{port}.*is the server up"):
        connect(f"http://127.0.0.1:{port}")
    llm = OpenAILLM(Endpoint(f"http://127.0.0.1:{port}/v1", "m", 100))
    with pytest.raises(Unreachable, match="ConnectError"):
        asyncio.run(llm.complete([Message("user", "x")], max_tokens=1))


def test_truncated_reply_says_length(server):
    completion = ask(server[0], "|" + "one two three " * 20, max_tokens=10)
    assert completion.finish == "length" and 0 < completion.usage.completion_tokens <= 12


@pytest.mark.parametrize("piece", [" ", "ab"], ids=["white space", "letters"])
def test_reply_that_loops_is_left_early(server, piece):
    url, log = server
    dropped, seen = log.dropped, log.completion_tokens
    completion = ask(url, "|{" + piece * 3000, max_tokens=2000)
    assert completion.finish == "length" and completion.usage.estimated
    assert completion.usage.completion_tokens < 200
    assert eventually(lambda: log.dropped == dropped + 1)
    assert log.completion_tokens - seen < 600


def test_huge_reply_of_a_server_without_limits_is_left():
    def speak(body):
        return Reply("".join(chr(97 + i * 7919 % 26) + str(i) for i in range(40_000)), "ignores max_tokens")

    with simulator_thread(speak, prompt_token_s=0, output_token_s=0) as (url, _):
        completion = ask(url, "x", max_tokens=20)
    assert completion.finish == "length" and len(completion.text) < 20 * 32 + 200


def test_empty_schema_is_refused_before_it_reaches_the_engine(server):
    url, log = server
    calls = log.calls
    with pytest.raises(Refused, match="empty JSON schema"):
        ask(url, "|x", schema={})
    assert log.calls == calls


def test_usage_in_every_chunk_counts_once_and_missing_usage_is_estimated(server):
    once = ask(server[0], "usage in every chunk|twelve words and some more of them").usage
    none = ask(server[0], "no usage|twelve words and some more of them").usage
    assert not once.estimated and none.estimated
    assert none.completion_tokens == tokens_by_bytes("twelve words and some more of them")
    assert abs(once.completion_tokens - none.completion_tokens) <= 3  # chunks round up one by one


def test_server_that_does_not_stream_is_understood(server):
    completion = ask(server[0], "not streamed|all at once")
    assert (completion.text, completion.finish, completion.usage.estimated) == ("all at once", "stop", False)


def test_thinking_is_billed_and_not_part_of_the_reply(server):
    completion = ask(server[0], '|<think>maybe {"a":1}</think>{"city":"Graz"}')
    assert completion.text == '{"city":"Graz"}'
    assert completion.usage.completion_tokens > 2 * tokens_by_bytes(completion.text)


def test_copy_in_another_process_and_another_loop_opens_its_own_connections(server):
    llm = pickle.loads(pickle.dumps(OpenAILLM(connect(server[0]))))
    for _ in range(2):
        completion = asyncio.run(llm.complete([Message("user", "|hello")], max_tokens=9))
        assert completion.text == "hello"


def test_many_at_once_get_their_own_replies(server):
    async def all_of_them():
        llm = OpenAILLM(connect(server[0]))
        asked = [llm.complete([Message("user", f"|secret {i}")], max_tokens=9) for i in range(50)]
        return [completion.text for completion in await asyncio.gather(*asked)]

    assert asyncio.run(all_of_them()) == [f"secret {i}" for i in range(50)]


def eventually(true, within_s=20.0):
    until = time.monotonic() + within_s
    while not true() and time.monotonic() < until:
        time.sleep(0.02)
    return true()
