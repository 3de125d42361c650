"""The retriever deployment: encoder, snapshots and opened documents of one replica."""

import asyncio
import time
from typing import Any

from ray import serve

from serve.logs import REQUEST_ID, log, start_logging
from serve.metrics import count, gauge, observe
from serve.reading import Encoded, Reading
from serve.settings import Settings
from sproutrag.search import Passage
from sproutrag.snapshots import IndexProblem


class Retriever:
    """Searches run in threads, queries that come together are encoded together."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.settings = Settings(**options)
        start_logging(self.settings)
        self.reading = Reading(
            self.settings.db,
            encoder=self.settings.encoder or None,
            cache_bytes=self.settings.cache_bytes,
        )
        self.encode.set_max_batch_size(self.settings.batch_size)
        self.encode.set_batch_wait_timeout_s(self.settings.batch_wait_s)
        self.counted = (0, 0)
        self.searching = 0
        self.move_on()
        self.polling = asyncio.get_event_loop().create_task(self.follow())

    async def follow(self) -> None:
        """Look for a newer snapshot until the replica ends; requests under way stay on theirs."""
        while True:
            await asyncio.sleep(self.settings.snapshot_poll_s)
            await asyncio.to_thread(self.move_on)
            self.tell_gauges()

    def move_on(self) -> None:
        try:
            if self.reading.move_on():
                log("snapshot", snapshot=self.reading.newest, db=self.settings.db)
        except Exception as error:  # the boundary: a broken publish must not end what is served
            log("snapshot not opened", db=self.settings.db, error=f"{type(error).__name__}: {error}")

    def tell_gauges(self) -> None:
        if not self.reading.newest:
            return
        gauge("sproutrag_snapshot_id", self.reading.newest)
        gauge("sproutrag_snapshot_age_seconds", time.time() - self.reading.published())
        hits, misses = self.reading.shelf_counts()
        count("sproutrag_cache_hits_total", hits - self.counted[0])
        count("sproutrag_cache_misses_total", misses - self.counted[1])
        count("sproutrag_documents_walked_total", hits + misses - sum(self.counted))
        self.counted = (hits, misses)

    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.0)
    async def encode(self, queries: list[str]) -> list[Encoded]:
        began = time.perf_counter()
        encoded = await asyncio.to_thread(self.reading.encode, queries)
        observe("sproutrag_stage_seconds", time.perf_counter() - began, stage="encode")
        return encoded

    async def search(
        self,
        query: str,
        *,
        k: int,
        mode: str,
        doc: str | None,
        where: str | None,
        snapshot: int | None,
        request_id: str,
    ) -> tuple[int, list[Passage]]:
        REQUEST_ID.set(request_id)
        alone = self.searching == 0  # nobody to be encoded with: the search does it, without another hop
        self.searching += 1
        try:
            together = not alone and any(map(str.isalnum, query))
            encoded = await self.encode(query) if together else None
            began = time.perf_counter()
            found = await asyncio.to_thread(
                self.reading.search, query, encoded, k=k, mode=mode, doc=doc, where=where, snapshot=snapshot
            )
        finally:
            self.searching -= 1
        seconds = time.perf_counter() - began
        observe("sproutrag_stage_seconds", seconds, stage="search")
        log("search", leaves=k, passages=len(found[1]), snapshot=found[0], seconds=round(seconds, 4))
        return found

    async def snapshot_for(self, where: str | None) -> int:
        """The newest snapshot; raises WhereError before any LLM is asked."""
        index = await asyncio.to_thread(self.reading.at, None)
        if where is not None:
            await asyncio.to_thread(index.matching_documents, where)
        return index.snapshot.id

    async def document(self, doc_id: str, *, where: str | None, snapshot: int | None) -> dict[str, Any]:
        return await asyncio.to_thread(self.reading.document, doc_id, where=where, snapshot=snapshot)

    async def tree(
        self, doc_id: str, *, query: str, where: str | None, snapshot: int | None
    ) -> dict[str, Any]:
        return await asyncio.to_thread(self.reading.tree, doc_id, query=query, where=where, snapshot=snapshot)

    async def text(self, doc_id: str, *, where: str | None, snapshot: int | None) -> str | None:
        return await asyncio.to_thread(self.reading.text, doc_id, where=where, snapshot=snapshot)

    async def snapshots(self, *, counted: bool) -> dict[str, Any]:
        return await asyncio.to_thread(self.reading.snapshots, counted=counted)

    async def ready(self) -> dict[str, Any]:
        """A real search; what is not well is said, not raised."""
        try:
            number = await asyncio.to_thread(self.reading.probe)
        except IndexProblem as error:
            return {"ready": False, "detail": str(error), "snapshot": None}
        return {"ready": True, "detail": f"snapshot {number}", "snapshot": number}

    async def check_health(self) -> None:
        """Serve's own probe: the real path, or the replica is replaced. An index that is not there is no
        fault of the replica."""
        async with asyncio.timeout(self.settings.health_timeout_s):
            await self.ready()


def deployed_retriever(settings: Settings) -> Any:
    """The deployment, bound to its settings."""
    replicas = {
        "min_replicas": settings.retriever_min_replicas,
        "max_replicas": settings.retriever_max_replicas,
        "target_ongoing_requests": settings.retriever_ongoing,
    }
    deployment = serve.deployment(
        name="Retriever",
        autoscaling_config=replicas,
        max_ongoing_requests=8 * max(settings.retriever_ongoing, settings.batch_size),
        health_check_period_s=settings.health_period_s,
        health_check_timeout_s=settings.health_timeout_s,
        graceful_shutdown_timeout_s=settings.search_deadline_s,
        ray_actor_options={"num_cpus": settings.retriever_cpus, "num_gpus": settings.retriever_gpus},
    )(Retriever)
    return deployment.bind(settings.model_dump())
