"""Is the endpoint ready: a real search, a real token. And what it counts, out of Ray's own exporter."""

import asyncio
import re
import time
from typing import Any

import httpx2
import ray

from serve.asking import Asker
from serve.corpora import retriever_handle
from serve.engines import NotReady
from sproutrag.qa.llm import LLMError, Message

GOOD_FOR_S = 5.0  # what was found just now is found again
TOKEN_GOOD_FOR_S = 30.0  # a token costs the engine something
PROBE_S = 20.0  # longest wait for either part
OURS = re.compile(r"(?:# (?:HELP|TYPE) )?ray_(?:sproutrag|serve|vllm)")


class Probes:
    """Remembers what it found for some seconds, so that probes cost the parts little."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker
        self.found: dict[str, tuple[float, dict[str, Any]]] = {}
        self.looking = asyncio.Lock()

    async def ready(self) -> dict[str, Any]:
        async with self.looking:
            retriever, llm = await asyncio.gather(
                self.remembered("retriever", self.search, GOOD_FOR_S),
                self.remembered("llm", self.token, TOKEN_GOOD_FOR_S),
            )
        return {"ready": retriever["ready"] and llm["ready"], "retriever": retriever, "llm": llm}

    async def remembered(self, part: str, look: Any, good_for_s: float) -> dict[str, Any]:
        """Trouble is looked at again sooner."""
        at, told = self.found.get(part, (0.0, {}))
        if told and time.monotonic() - at < (good_for_s if told["ready"] else GOOD_FOR_S / 5):
            return told
        try:
            async with asyncio.timeout(PROBE_S):
                ready, detail = await look()
        except TimeoutError:
            ready, detail = False, f"no answer within {PROBE_S:g} s"
        except Exception as error:  # the boundary: whatever it is, the part is not ready
            ready, detail = False, f"{type(error).__name__}: {error}"[:300]
        told = {"ready": ready, "detail": detail}
        self.found[part] = (time.monotonic(), told)
        return told

    async def search(self) -> tuple[bool, str]:
        told = await retriever_handle().ready.remote()
        return told["ready"], told["detail"]

    async def token(self) -> tuple[bool, str]:
        try:
            llm = (await self.asker.ready_engine()).llm
            await llm.complete([Message("user", "Say yes.")], max_tokens=1)
        except (NotReady, LLMError) as error:
            return False, str(error)
        return True, llm.name


async def scrape() -> str:
    """Lines of Ray's exporter on this node that are about the endpoint."""
    here = ray.get_runtime_context().get_node_id()
    [node] = [node for node in ray.nodes() if node["NodeID"] == here]
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    async with httpx2.AsyncClient(timeout=PROBE_S) as client:
        lines = (await client.get(url)).text.splitlines()
    return "\n".join([*(line for line in lines if OURS.match(line)), ""])
