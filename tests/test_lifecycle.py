"""Any sequence of runs, deaths, deletions, clean-ups, rollbacks and readers, against plain dictionaries."""

import shutil
import tempfile

import lance
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sproutrag.commits import replace_rows
from sproutrag.readers import ReadLease, hold_snapshot
from sproutrag.retention import delete_documents, prune, rollback, versions
from sproutrag.snapshots import current_snapshot
from sproutrag.storage import commit, stored_hashes
from sproutrag.tables import open_table, tables_exist
from sproutrag.verification import verify
from tests.small_index import encoded, index, write

IDS = "abcd"
Corpus = dict[str, tuple[int, str]]  # doc_id -> leaves, word
DOCUMENTS = st.dictionaries(
    st.sampled_from(IDS), st.tuples(st.integers(1, 4), st.sampled_from(["oak", "elm", "ash"])), max_size=3
)


def encode(corpus: Corpus) -> list:
    return [encoded(id, n, word=word) for id, (n, word) in corpus.items()]


def found(nodes: lance.LanceDataset, word: str) -> dict[str, int]:
    """doc_id -> leaves that full-text search finds this word in."""
    hits = nodes.to_table(columns=["doc_id", "_score"], full_text_query=word, limit=99)["doc_id"].to_pylist()
    return {id: hits.count(id) for id in hits}


class Lifecycle(RuleBasedStateMachine):
    """head: what is committed. published: snapshot id -> what its readers see."""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.mkdtemp()
        self.db = f"{self.folder}/db"
        self.runs = 0
        self.head: Corpus = {}
        self.published: dict[int, Corpus] = {}
        self.readers: list[tuple[ReadLease, lance.LanceDataset, Corpus]] = []

    def teardown(self) -> None:
        for lease, _, _ in self.readers:
            lease.close()
        shutil.rmtree(self.folder)

    def next_run(self) -> str:
        self.runs += 1
        return str(self.runs)

    def note_publication(self) -> None:
        if current := current_snapshot(self.db):
            self.published.setdefault(current.id, dict(self.head))
            assert self.published[current.id] == self.head

    def is_published(self) -> bool:
        return bool(self.published)

    @rule(added=DOCUMENTS, removed=st.sets(st.sampled_from(IDS), max_size=2))
    def run(self, added: Corpus, removed: set[str]) -> None:
        removed -= added.keys()
        index(self.db, encode(added), self.next_run(), remove=tuple(removed))
        self.head = {id: one for id, one in self.head.items() if id not in removed} | added
        self.note_publication()

    @rule(added=DOCUMENTS.filter(bool))
    def die_writing(self, added: Corpus) -> None:
        write(self.db, encode(added))

    @rule(added=DOCUMENTS.filter(bool))
    def die_before_documents(self, added: Corpus) -> None:
        written = write(self.db, encode(added))
        replace_rows(self.db, "nodes", written.nodes, list(added), {"run_id": self.next_run()})

    @rule(added=DOCUMENTS.filter(bool))
    def die_before_publishing(self, added: Corpus) -> None:
        commit(self.db, [write(self.db, encode(added))], run_id=self.next_run())
        self.head |= added

    @precondition(lambda self: self.head and self.published)
    @rule(data=st.data(), purge=st.booleans())
    def delete(self, data: st.DataObject, purge: bool) -> None:
        ids = data.draw(st.sets(st.sampled_from(sorted(self.head)), min_size=1))
        purge = purge and not self.readers
        deleted = delete_documents(self.db, sorted(ids), purge=purge)
        assert deleted.before["documents"] == len(ids) and deleted.after == {"documents": 0, "nodes": 0}
        self.head = {id: one for id, one in self.head.items() if id not in ids}
        if purge:
            self.published = {}
        self.note_publication()

    @precondition(is_published)
    @rule(keep=st.integers(1, 3))
    def prune(self, keep: int) -> None:
        freed = prune(self.db, keep=keep)
        held = {lease.snapshot.id for lease, _, _ in self.readers}
        self.note_publication()
        self.published = {
            id: self.published[id]
            for id in self.published
            if id in held or id in sorted(self.published)[-keep:]
        }
        assert freed.kept == tuple(sorted(self.published))

    @precondition(is_published)
    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.published)))
        rollback(self.db, id)
        self.head = dict(self.published[id])
        self.note_publication()

    @precondition(is_published)
    @rule(data=st.data())
    def open_reader(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.published)))
        lease = hold_snapshot(self.db, id)
        nodes = open_table(self.db, "nodes", lease.snapshot.nodes_version)
        self.readers.append((lease, nodes, self.published[id]))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def close_reader(self, data: st.DataObject) -> None:
        lease, _, _ = self.readers.pop(data.draw(st.integers(0, len(self.readers) - 1)))
        lease.close()

    @precondition(is_published)
    @rule(word=st.sampled_from(["oak", "elm", "ash"]))
    def search(self, word: str) -> None:
        """Whoever opens the index now sees the current snapshot, whatever was committed beside it."""
        snapshot = current_snapshot(self.db)
        nodes = open_table(self.db, "nodes", snapshot.nodes_version)
        assert found(nodes, word) == self.expected(self.published[snapshot.id], word)

    @invariant()
    def readers_keep_their_answers(self) -> None:
        for _, nodes, corpus in self.readers:
            assert nodes.count_rows() == sum(2 * n - 1 for n, _ in corpus.values())
            assert found(nodes, "oak") == self.expected(corpus, "oak")

    @invariant()
    def what_is_published_is_sound(self) -> None:
        if self.published:
            assert [entry["id"] for entry in versions(self.db)] == sorted(self.published, reverse=True)
            assert {problem.kind for problem in verify(self.db).problems} <= {"index"}
        if tables_exist(self.db):
            assert stored_hashes(self.db).keys() == self.head.keys()

    @staticmethod
    def expected(corpus: Corpus, word: str) -> dict[str, int]:
        return {id: n for id, (n, own) in corpus.items() if own == word}


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(max_examples=12, stateful_step_count=12, deadline=None)
