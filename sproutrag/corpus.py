"""An index as question answering sees it: passages for queries, and the stored text that proves citations.

Both come from the one snapshot that the index handle holds, whatever is published in the meantime.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from sproutrag.index import TreeIndex
from sproutrag.search import Passage
from sproutrag.snapshots import DocumentNotFound

TEXTS_KEPT = 256  # documents whose text is kept for the next citation


class Corpus:
    """Retriever and Sources over a TreeIndex; searches run in threads."""

    def __init__(self, index: TreeIndex, *, mode: str = "hybrid", where: str | None = None) -> None:
        self.index = index
        self.mode = mode
        self.where = where
        self.texts: OrderedDict[str, str] = OrderedDict()

    async def retrieve(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return await asyncio.gather(*(asyncio.to_thread(self.search, query, k) for query in queries))

    def search(self, query: str, k: int) -> list[Passage]:
        return self.index.search(query, k=k, mode=self.mode, where=self.where)

    async def text(self, doc_id: str) -> str | None:
        if self.where is not None and doc_id not in self.index.matching_documents(self.where):
            return None
        if doc_id not in self.texts:
            try:
                stored = await asyncio.to_thread(self.index.document, doc_id)
            except DocumentNotFound:
                return None
            self.texts[doc_id] = stored.document.text
            if len(self.texts) > TEXTS_KEPT:
                self.texts.popitem(last=False)
        return self.texts[doc_id]
