"""The recursion as Ray tasks: the same trees as without Ray, on one core, through the loss of a worker."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import ray

from pipelines.ask_benchmark import open_room
from pipelines.plan_player import PlanIndex, PlanPlayer
from sproutrag.qa.answer import answer_question
from sproutrag.qa.budget import Limits
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.question import QuestionNode
from sproutrag.qa.ray_dispatch import Crew, answer_on_ray, crew_of, hire
from sproutrag.qa.trace import outline, total_usage
from tests.qa.oracle import OURS, WIDE, Gold, Oracle, play, problems, read_documents, read_gold
from tests.qa.ray_room import OpenRoom, Owner
from tests.qa.scripted import WordIndex
from tests.qa.test_watch import check

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data" / "fanoutqa_synth"


@pytest.fixture(scope="module", autouse=True)
def one_core() -> Iterator[None]:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    scratch = Path(tempfile.mkdtemp(prefix="ray-"))  # short: it holds sockets
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
        _temp_dir=str(scratch),
        _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": environment},
    )
    yield
    ray.shutdown()
    shutil.rmtree(scratch, ignore_errors=True)


def golds() -> dict[str, Gold]:
    return {gold.id: gold for gold in read_gold(OURS)}


def on_ray(gold: Gold, room: OpenRoom, limits: Limits = WIDE) -> QuestionNode:
    with crew_of(room, size=2) as crew:
        return asyncio.run(answer_on_ray(gold.question, crew, limits=limits))


@pytest.mark.parametrize("folder", [OURS, SHARED], ids=["own plans", "186 plans"])
def test_ray_and_asyncio_grow_the_same_trees(folder: Path) -> None:
    if not folder.exists():
        pytest.skip(f"{folder} does not lie beside this checkout")
    player, index = PlanPlayer(str(folder)), PlanIndex(str(folder))
    questions = [tree["question"] for tree in player.trees]

    async def compare() -> None:
        slots = asyncio.Semaphore(8)

        async def one(question: str) -> None:
            async with slots:
                root = await answer_on_ray(question, crew, limits=WIDE)
            named = {"dispatcher": Dispatcher(player), "retriever": index, "sources": index}
            assert outline(root) == outline(await answer_question(question, **named, limits=WIDE))

        await asyncio.gather(*map(one, questions))

    with crew_of(partial(open_room, str(folder)), size=2) as crew:
        asyncio.run(compare())


def test_lost_worker_is_replaced_without_asking_or_billing_twice(tmp_path: Path) -> None:
    gold = golds()["plan-4"]
    log = tmp_path / "calls"
    phrase = "<question>\nGiven Lena Brandt: "  # deep inside one vertical child
    root = on_ray(gold, OpenRoom(gold, log, phrase))
    assert log.with_suffix(".died").exists()
    assert problems(gold, root) == []
    inline, _ = asyncio.run(play(gold, WordIndex(read_documents(OURS))))
    assert total_usage(root) == total_usage(inline)
    assert len(log.read_text().splitlines()) == total_usage(root).calls


def test_cancelled_question_stops_its_tasks_within_two_seconds(tmp_path: Path) -> None:
    gold = golds()["plan-4"]
    log = tmp_path / "calls"

    async def cancel_halfway() -> float:
        task = asyncio.create_task(answer_on_ray(gold.question, crew, limits=WIDE))
        while not log.exists() or len(log.read_text().splitlines()) < 8:
            await asyncio.sleep(0.05)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    with crew_of(OpenRoom(gold, log, delay_s=0.3), size=2) as crew:
        assert asyncio.run(cancel_halfway()) < 2
        time.sleep(2)
        calls = log.read_text()
        time.sleep(1)
        assert log.read_text() == calls, "calls go on after the question was cancelled"


def test_budget_is_shared_by_all_tasks(tmp_path: Path) -> None:
    gold = golds()["plan-4"]
    log = tmp_path / "calls"
    root = on_ray(gold, OpenRoom(gold, log), Limits(max_calls=9, patience=1e6))
    assert root.partial
    assert len(log.read_text().splitlines()) <= 9
    assert any("budget: 9 calls" in (n.failure or "") + str(n.notes) for n in root.walk())


def last_words(heard: list[tuple[str, dict]]) -> dict[tuple[str, str], dict]:
    return {(event, told.get("id", "")): told for event, told in heard if event != "answer"}


def test_who_watches_hears_the_same_on_ray_and_inline(tmp_path: Path) -> None:
    gold = golds()["plan-4"]
    afar: list[tuple[str, dict]] = []
    here: list[tuple[str, dict]] = []

    async def compare(crew: Crew) -> None:
        root = await answer_on_ray(
            gold.question, crew, limits=WIDE, watch=lambda *told: afar.append(told), key="r1"
        )
        index = WordIndex(read_documents(OURS))
        named = {"dispatcher": Dispatcher(Oracle(gold)), "retriever": index, "sources": index}
        await answer_question(gold.question, **named, limits=WIDE, watch=lambda *told: here.append(told))
        check(root, afar)

    with crew_of(OpenRoom(gold, tmp_path / "calls"), size=2) as crew:
        asyncio.run(compare(crew))
    assert last_words(afar) == last_words(here)
    assert len(afar) > 3 * len(last_words(afar)), "only the ends were heard"


@pytest.mark.parametrize("after", [0, 20])
def test_cancelled_question_leaves_nothing_in_the_books(after: int, tmp_path: Path) -> None:
    gold = golds()["plan-4"]
    heard: list[str] = []

    async def cancel_halfway(crew: Crew) -> None:
        asking = answer_on_ray(gold.question, crew, limits=WIDE, watch=lambda event, _: heard.append(event))
        task = asyncio.create_task(asking)
        await asyncio.sleep(0)
        while len(heard) < after:
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        told = len(heard)
        await asyncio.sleep(1)
        assert await crew.books.size.remote() == 0 and len(heard) == told

    with crew_of(OpenRoom(gold, tmp_path / "calls", delay_s=0.2), size=2) as crew:
        asyncio.run(cancel_halfway(crew))


def test_a_crew_without_a_block_ends_once_and_with_its_owner(tmp_path: Path) -> None:
    gold = golds()["plan-4"]
    hired = hire(OpenRoom(gold, tmp_path / "calls"), size=1)
    assert asyncio.run(answer_on_ray(gold.question, hired.crew, limits=WIDE)).answers == gold.answers
    hired.close()
    hired.close()
    with pytest.raises(ValueError, match="-books"):
        asyncio.run(answer_on_ray(gold.question, hired.crew, limits=WIDE))
    owner = ray.remote(num_cpus=0)(Owner).remote(OpenRoom(gold, tmp_path / "calls"))
    books = ray.get_actor(f"{ray.get(owner.crew_id.remote())}-books")
    assert ray.get(books.size.remote()) == 0
    ray.kill(owner)
    with pytest.raises(ray.exceptions.RayActorError):
        for _ in range(100):
            ray.get(books.size.remote())
            time.sleep(0.1)
