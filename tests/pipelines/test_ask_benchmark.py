"""The benchmark's own parts: the engine's time, the plans it plays, and its figures on a small scale."""

import asyncio
import json
import time
from pathlib import Path

from pipelines.ask_benchmark import Recorder, calls_figures, play
from pipelines.llm_simulator import Reply, simulator_process, simulator_thread
from pipelines.plan_player import PlanIndex, PlanPlayer
from sproutrag.options import BenchOptions
from sproutrag.qa.llm import Message
from sproutrag.qa.openai import OpenAILLM, connect

PLANS = str(Path(__file__).parents[1] / "data" / "plans")


def test_engine_reads_one_by_one_and_writes_together():
    with simulator_thread(
        lambda body: Reply("x" * 30), prompt_token_s=0.01, output_token_s=0.02, slots=2
    ) as (url, log):

        async def ask(n):
            llm = OpenAILLM(connect(url))
            asked = [llm.complete([Message("user", "abc" * 5)], max_tokens=50) for _ in range(n)]
            return await asyncio.gather(*asked)

        began = time.monotonic()
        asyncio.run(ask(4))
        took = time.monotonic() - began
    assert log.most_at_once == 2 and log.calls == log.finished == 4
    assert took >= 2 * 10 * 0.02  # two rounds of ten tokens
    assert log.prompt_tokens == 4 * 5


def test_gold_plans_are_played_to_their_answers():
    player, index = PlanPlayer(PLANS), PlanIndex(PLANS)
    for tree in player.trees:
        root = asyncio.run(play(tree["question"], player, index))
        assert all(node.answered for node in root.walk()), tree["question"]
        assert any(node.citations for node in root.walk())


def test_simulator_in_its_own_process_speaks_for_a_plan():
    player = PlanPlayer(PLANS)
    question = player.trees[0]["question"]
    with simulator_process("pipelines.plan_player:speaker", PLANS, output_token_s=0) as url:
        recorder = Recorder(OpenAILLM(connect(url)))
        root = asyncio.run(play(question, recorder, PlanIndex(PLANS)))
    assert root.answered and len(recorder.requests) > 2
    body = {"messages": [{"content": recorder.requests[0][0][-1].content}], "response_format": None}
    body["response_format"] = {"json_schema": {"schema": recorder.requests[0][2]}}
    assert "strategy" in json.loads(player.speak(body).text)


def test_batching_saves_calls():
    figures = {f.figure: f for f in calls_figures(BenchOptions(suite="ask", plans=PLANS))}
    assert figures["calls_over_no_batching"].ratio <= 1
