"""`sproutrag ask`: one question against one snapshot of an index, answered in this process."""

import asyncio
import sys
import time
from typing import Any

from sproutrag.corpus import Corpus
from sproutrag.documents import LONE_SURROGATE
from sproutrag.index import TreeIndex
from sproutrag.qa.baselines import SYSTEMS
from sproutrag.qa.budget import Limits
from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.models import close_llm, open_llm
from sproutrag.qa.options import AskOptions, ReasoningOptions
from sproutrag.qa.question import QuestionNode
from sproutrag.qa.trace import outcome, write_trace


def main(options: AskOptions) -> dict[str, Any]:
    began = time.monotonic()
    limits = limits_of(options)
    index = TreeIndex.open(options.db, encoder=options.encoder)
    if options.where is not None:
        index.matching_documents(options.where)  # a filter that cannot be read fails before a model is loaded
    llm = open_llm(options.llm)
    dispatcher = Dispatcher(llm)
    root = asyncio.run(resolved(options, dispatcher, Corpus(index, where=options.where), limits))
    told = outcome(root, model=llm.name, snapshot=index.snapshot.id, method=options.method)
    told["seconds"] = round(time.monotonic() - began, 3)
    if options.trace:
        write_trace(options.trace, told)
        print(f"wrote {options.trace}", file=sys.stderr)
    return told


def limits_of(options: ReasoningOptions) -> Limits:
    return Limits(
        k=options.k,
        max_depth=options.max_depth,
        max_calls=options.max_calls,
        max_prompt_tokens=options.max_tokens,
        max_completion_tokens=max(options.max_tokens // 10, 1),
        max_seconds=options.max_seconds,
    )


async def resolved(
    options: AskOptions, dispatcher: Dispatcher, corpus: Corpus, limits: Limits
) -> QuestionNode:
    """The tree; Ctrl-C cancels the calls that are open and closes the LLM."""
    try:
        return await SYSTEMS[options.method](
            LONE_SURROGATE.sub("\ufffd", options.question),
            dispatcher=dispatcher,
            retriever=corpus,
            sources=corpus,
            limits=limits,
        )
    finally:
        await close_llm(dispatcher.llm)
