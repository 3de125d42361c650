"""The retriever deployment as question answering sees it: one snapshot, one tenant's documents.

Small and picklable: it travels with every step of a question to wherever the step runs.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from ray import serve
from ray.serve.handle import DeploymentHandle

from sproutrag.search import Passage

APP = "sproutrag"  # the Serve application


@cache
def retriever_handle() -> DeploymentHandle:
    return serve.get_deployment_handle("Retriever", app_name=APP)


@dataclass(frozen=True, slots=True)
class ServedCorpus:
    """Retriever and Sources. where: what the tenant may see, and what the request asks for of that."""

    snapshot: int
    where: str | None
    request_id: str

    async def retrieve(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return await asyncio.gather(*(self.search(query, k) for query in queries))

    async def search(self, query: str, k: int) -> list[Passage]:
        reply = retriever_handle().search.remote(
            query,
            k=k,
            mode="hybrid",
            doc=None,
            where=self.where,
            snapshot=self.snapshot,
            request_id=self.request_id,
        )
        return (await reply)[1]

    async def text(self, doc_id: str) -> str | None:
        return await retriever_handle().text.remote(doc_id, where=self.where, snapshot=self.snapshot)
