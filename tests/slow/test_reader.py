"""Readers that search without a pause while the index is updated ten times under them."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from pipelines.actors import IndexDocuments
from sproutrag import journal
from sproutrag.documents import Document
from sproutrag.encoder import SentenceEncoder
from sproutrag.index import TreeIndex
from sproutrag.indices import build_indices
from sproutrag.retention import prune
from sproutrag.retriever import MODES
from sproutrag.search import Passage
from sproutrag.storage import commit, publish
from tests.tiny_models import tiny_bert

pytestmark = pytest.mark.slow

UPDATES, DOCUMENTS, SENTENCES = 10, 40, 6
TOPICS = ["rain", "rent", "roots", "notice", "tenants", "leaves"]


@dataclass
class History:
    """What each run published: run_id -> doc_id -> generation. Written before the run publishes."""

    index: Callable[[list[Document]], object]
    db: str
    encoder: SentenceEncoder
    documents: dict[str, int] = field(default_factory=dict)
    known: dict[str, dict[str, int]] = field(default_factory=dict)

    def publish(self, generation: int, rng: np.random.Generator) -> None:
        """Half of the documents move to this generation, one is new, one goes; then only this one is kept."""
        ids = [f"paper-{i}" for i in range(DOCUMENTS)] if generation == 0 else sorted(self.documents)
        gone = [] if generation == 0 else [ids.pop(int(rng.integers(len(ids))))]
        moved = ids if generation == 0 else rng.permutation(ids)[: DOCUMENTS // 2].tolist()
        moved = [*moved, f"late-{generation}"]
        written = self.index([paper(id, generation) for id in moved])
        kept = {id: g for id, g in self.documents.items() if id not in gone}
        self.documents = kept | dict.fromkeys(moved, generation)
        self.known[str(generation)] = self.documents
        head = commit(self.db, [written], run_id=str(generation), remove=gone)  # type: ignore[list-item]
        build_indices(self.db)
        publish(self.db, head)
        journal.empty(self.db)
        prune(self.db, keep=1)


def paper(id: str, generation: int) -> Document:
    """Each sentence says whose it is and how old."""
    lines = [f"Sentence {i} of {id} at generation {generation} about {TOPICS[i]}." for i in range(SENTENCES)]
    return Document(id, " ".join(lines), language="en")


@pytest.fixture
def history(tmp_path: Path) -> History:
    encoder, db = tiny_bert(tmp_path / "encoder", window=512), str(tmp_path / "db")
    worker = IndexDocuments(db=db, encoder=encoder, threads=1)
    history = History(lambda documents: worker.index(documents, size=0).written, db, worker.encoder)
    history.publish(0, np.random.default_rng(0))
    return history


def read(index: TreeIndex, history: History, stop: threading.Event, *, follow: bool) -> Counter[str]:
    """Search until told to stop, check each answer; returns how many answers came from each run."""
    answers: Counter[str] = Counter()
    turn = 0
    while not stop.is_set() or not answers:
        index = index.latest() if follow else index
        query, mode = f"generation about {TOPICS[turn % len(TOPICS)]}", MODES[turn % len(MODES)]
        require_one_snapshot(index, index.search(query, k=6, mode=mode), history)
        answers[index.snapshot.run_id] += 1
        turn += 1
    return answers


def require_one_snapshot(index: TreeIndex, found: list[Passage], history: History) -> None:
    expected = history.known[index.snapshot.run_id]
    assert found
    for passage in found:
        stored = index.document(passage.doc_id)
        assert stored.tree.n_leaves == len(stored.spans) > max(passage.leaves)
        assert stored.document.text == paper(passage.doc_id, expected[passage.doc_id]).text
        assert passage.text == "".join(stored.document.text[start:stop] for start, stop in passage.spans)
        assert f"of {passage.doc_id} at generation {expected[passage.doc_id]}" in passage.text


def test_searches_during_ten_updates_see_one_snapshot_each_and_move_on(history: History) -> None:
    stop = threading.Event()
    opened = [TreeIndex.open(history.db, encoder=history.encoder) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        followers = [pool.submit(read, index, history, stop, follow=True) for index in opened[:2]]
        keeper = pool.submit(read, opened[2], history, stop, follow=False)
        try:
            for generation in range(1, UPDATES + 1):
                history.publish(generation, np.random.default_rng(generation))
        finally:
            stop.set()
        assert list(keeper.result()) == ["0"], "who holds a snapshot stays on it"
        for follower in followers:
            seen = follower.result()
            assert len(seen) > UPDATES / 2, f"followed only to {seen}"
    assert opened[0].latest().snapshot.run_id == str(UPDATES)
