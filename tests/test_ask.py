"""`sproutrag ask` from the command line to a server that speaks the protocol, over a real index."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.llm_simulator import Reply, simulator_thread
from sproutrag.ask import limits_of
from sproutrag.cli import DONE, WRONG_USAGE, run
from sproutrag.corpus import Corpus
from sproutrag.documents import Document
from sproutrag.index import TreeIndex
from sproutrag.qa.answer import answer_question
from sproutrag.qa.budget import Limits
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.options import AskOptions
from sproutrag.storage import commit, publish, write_documents
from tests.qa.oracle import OURS, Gold, Oracle, read_documents, read_gold
from tests.qa.real_index import real_index

GOLDS = {gold.question: gold for gold in read_gold(OURS)}
GOLD = next(gold for gold in GOLDS.values() if gold.id == "plan-4")


class Speaker:
    """The oracle behind HTTP; `faults` are spent one per request."""

    def __init__(self, gold: Gold) -> None:
        self.oracle = Oracle(gold)
        self.faults: list[str] = []

    def __call__(self, body: dict[str, Any]) -> Reply:
        schema = body["response_format"]["json_schema"]["schema"]
        text = json.dumps(self.oracle.reply(body["messages"][-1]["content"], schema))
        return Reply(text, self.faults.pop(0) if self.faults else "")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> TreeIndex:
    return real_index(tmp_path_factory.mktemp("ask"), read_documents(OURS))


@pytest.fixture
def engine() -> Iterator[tuple[str, Any, Speaker]]:
    speaker = Speaker(GOLD)
    with simulator_thread(speaker, prompt_token_s=0, output_token_s=0) as (url, log):
        yield url, log, speaker


def ask(index: TreeIndex, url: str, *words: str) -> int:
    encoder = str(Path(index.db).parent / "tiny")
    return run(["ask", GOLD.question, "--db", index.db, "--encoder", encoder, "--llm", url, *words])


def test_answer_citations_usage_and_trace(
    index: TreeIndex, engine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, log, _ = engine
    assert ask(index, url, "--json", "--trace", str(tmp_path / "trace.json")) == DONE
    told = json.loads(capsys.readouterr().out)
    assert told["answers"] == GOLD.answers and not told["partial"]
    texts = {document.id: document.text for document in read_documents(OURS)}
    for citation in told["citations"]:
        assert citation["quote"] == "".join(texts[citation["doc_id"]][s:e] for s, e in citation["spans"])
    usage = told["usage"]
    assert usage["calls"] == log.calls
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (log.prompt_tokens, log.completion_tokens)
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["trace"]
    assert trace["snapshot"] == index.snapshot.id
    assert trace["root"]["children"][1]["bill"]["calls"][0]["prompt"].startswith("contextualize@")


def test_the_commands_defaults_are_the_librarys() -> None:
    assert limits_of(AskOptions(question="?", db="x")) == Limits()


def test_answer_for_people(index: TreeIndex, engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(index, engine[0]) == DONE
    printed = capsys.readouterr()
    assert "Heron: Danish" in printed.out and "[1] plan-page-" in printed.out
    assert "calls," in printed.err


@pytest.mark.parametrize("words", [["--max-depth", "9"], ["--max-calls", "0"], ["-k", "0"]])
def test_senseless_limit_is_wrong_usage(
    index: TreeIndex, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(index, "http://127.0.0.1:9/v1", *words) == WRONG_USAGE
    assert "give a number" in (said := capsys.readouterr().err) or "deepest" in said


@pytest.mark.parametrize("fault", ["500", "cut", "drop", "error event", "not json"])
def test_engine_that_fails_now_and_then_costs_attempts_but_no_answer(
    index: TreeIndex, engine: Any, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url, _, speaker = engine
    speaker.faults = [fault, "", fault, "", "", fault]
    assert ask(index, url, "--json") == DONE
    told = json.loads(capsys.readouterr().out)
    assert told["answers"] == GOLD.answers and not told["partial"]
    assert told["usage"]["wasted_calls"] >= 3


def test_engine_that_dies_for_good_leaves_a_partial_answer_with_reasons(
    index: TreeIndex, engine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    url, _, speaker = engine
    speaker.faults = [""] * 6 + ["500"] * 200
    assert ask(index, url, "--json", "--max-seconds", "30") == DONE
    told = json.loads(capsys.readouterr().out)
    assert told["partial"]
    assert "500" in json.dumps(told["open"]) + json.dumps(told["warnings"])


def test_index_that_moves_on_during_a_question_changes_nothing_in_it(tmp_path: Path) -> None:
    documents = read_documents(OURS)
    index = real_index(tmp_path, documents)

    class Moving(Oracle):
        """Publishes a snapshot in which every text has changed, at the third call."""

        def reply(self, user: str, schema: dict[str, Any]) -> Any:
            if len(self.calls) == 3:
                changed = [Document(d.id, "Nothing is left.", d.title) for d in documents]
                written = write_documents(
                    index.db, index.encoder.encode(changed), fingerprint=index.encoder.fingerprint
                )
                publish(index.db, commit(index.db, [written], run_id="2"))
            return super().reply(user, schema)

    corpus = Corpus(index)
    root = asyncio.run(
        answer_question(GOLD.question, dispatcher=Dispatcher(Moving(GOLD)), retriever=corpus, sources=corpus)
    )
    assert root.answers == GOLD.answers and not root.partial
    assert TreeIndex.open(index.db).snapshot.id > index.snapshot.id
    texts = {document.id: document.text for document in documents}
    assert all(texts[c.doc_id][s:e] for c in root.citations for s, e in c.spans)
