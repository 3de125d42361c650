"""The process that answers: one index, one engine and one event loop for all of its questions."""

import json
import time
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from ray.actor import ActorHandle

from sproutrag.corpus import Corpus
from sproutrag.index import TreeIndex
from sproutrag.qa.baselines import SYSTEMS
from sproutrag.qa.budget import Limits
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.llm import Usage
from sproutrag.qa.models import open_llm
from sproutrag.qa.question import QuestionNode
from sproutrag.qa.trace import outcome

QUESTION = pa.schema([("query_id", pa.string()), ("question", pa.large_string())])
ANSWER = pa.schema([("answer", pa.large_string()), ("told", pa.large_string())])  # both JSON
CALLS_PER_QUESTION = 4  # in flight, so that siblings need not wait for each other
DEATHS_PER_QUESTION = 2  # one may be a neighbour's fault, or the machine's


class AnswerQuestions:
    """QUESTION rows of one question each -> ANSWER rows. Never raises for what a question does.

    attempts: handle of the run's Attempts actor.
    """

    def __init__(
        self,
        *,
        db: str,
        encoder: str | None,
        where: str | None,
        snapshot: int,
        llm: str,
        method: str,
        limits: Limits,
        at_once: int,
        attempts: ActorHandle,
    ) -> None:
        self.corpus = Corpus(TreeIndex.open(db, encoder=encoder, snapshot=snapshot), where=where)
        self.dispatcher = Dispatcher(open_llm(llm), max_in_flight=CALLS_PER_QUESTION * at_once)
        self.snapshot, self.method, self.limits, self.attempts = snapshot, method, limits, attempts

    async def __call__(self, batch: pa.Table) -> pa.Table:
        [row] = batch.to_pylist()
        began = time.monotonic()
        told = await self.answer(row["query_id"], row["question"])
        answer = row | told | row | {"seconds": round(time.monotonic() - began, 3)}
        trace = answer.pop("trace", None)
        whole = answer | {"trace": trace} if trace else {}
        return pa.table({"answer": [dumped(answer)], "told": [dumped(whole)]}, schema=ANSWER)

    async def answer(self, query_id: str, question: str) -> dict[str, Any]:
        if await self.attempts.begin.remote(query_id) >= DEATHS_PER_QUESTION:
            return self.lost("its worker died each time it was asked")
        try:
            root = await SYSTEMS[self.method](
                question,
                dispatcher=self.dispatcher,
                retriever=self.corpus,
                sources=self.corpus,
                limits=self.limits,
            )
            told = self.told(root)
        except Exception as error:  # of one question; the others go on
            told = self.lost(f"{type(error).__name__}: {error}")
        await self.attempts.finish.remote(query_id)
        return told

    def told(self, root: QuestionNode) -> dict[str, Any]:
        told = outcome(root, model=self.dispatcher.llm.name, snapshot=self.snapshot, method=self.method)
        failure = {"failure": root.failure} if root.failure else {}
        return told | self.origin() | failure

    def lost(self, reason: str) -> dict[str, Any]:
        nothing = {"answer": "", "answers": [], "citations": [], "answered": False, "partial": True}
        return nothing | {"usage": asdict(Usage()), "failure": reason} | self.origin()

    def origin(self) -> dict[str, Any]:
        return {"model": self.dispatcher.llm.name, "snapshot": self.snapshot, "method": self.method}


def dumped(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
