"""Real tables and a real encoder of random weights."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from sproutrag.documents import Document
from sproutrag.encoder import SentenceEncoder
from sproutrag.index import TreeIndex
from sproutrag.indices import build_indices
from sproutrag.readers import live_readers
from sproutrag.snapshots import DocumentNotFound, EncoderMismatch, ForkedReader, NoIndex
from sproutrag.storage import commit, publish, write_documents
from sproutrag.tables import DOCUMENTS as DOCUMENTS_SCHEMA
from sproutrag.tables import ensure_table, nodes_schema
from sproutrag.tree import build_tree
from sproutrag.where import WhereError
from tests.tiny_models import tiny_bert

RAIN = "Rain falls. The river rises.\n\nBoats wait in the harbour. Ropes creak."
REGEN = "Der Regen fällt. Der Fluss steigt. 🌧 Boote warten."
DOCUMENTS = [
    Document("a/readme.md", RAIN, "Rain", "en", '{"year": 2019}', "a/readme.md"),
    Document("b/readme.md", REGEN, "Regen", "de", '{"year": 2024}'),
    Document("it's", "One sentence.", "", "en"),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_bert(tmp_path_factory.mktemp("models") / "tiny", seed=1)


def add(db: str, path: str, documents: list[Document], run_id: str, remove: tuple[str, ...] = ()) -> None:
    encoder = SentenceEncoder.from_pretrained(path)
    written = write_documents(db, encoder.encode(documents), fingerprint=encoder.fingerprint)
    snapshot = commit(db, [written], run_id=run_id, remove=remove, encoder=path)
    build_indices(db)
    publish(db, snapshot)


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory, tiny: str) -> str:
    """Three documents in snapshot 1; in snapshot 2 one is changed and one is gone."""
    db = str(tmp_path_factory.mktemp("index") / "db")
    add(db, tiny, DOCUMENTS, "1")
    add(db, tiny, [replace(DOCUMENTS[0], text="No rain. No river.")], "2", remove=("b/readme.md",))
    return db


def test_a_stored_document_is_what_was_indexed(db, tiny):
    index = TreeIndex.open(db, snapshot=1)
    encoded = SentenceEncoder.from_pretrained(tiny).encode(DOCUMENTS)
    for document, e in zip(DOCUMENTS, encoded, strict=True):
        stored = index.document(document.id)
        assert stored.document == document
        assert np.array_equal(stored.spans, e.spans) and stored.n_tokens == e.n_tokens
        tree = build_tree(e.affinity)
        assert np.array_equal(stored.tree.merges, tree.merges)
        assert np.array_equal(stored.tree.slices, tree.slices)
        assert stored.coverage == 1.0


def test_a_reader_stays_on_its_snapshot(db):
    first, second = TreeIndex.open(db, snapshot=1), TreeIndex.open(db)
    assert (first.snapshot.id, second.snapshot.id) == (1, 2)
    assert first.document("a/readme.md").document.text.startswith("Rain falls.")
    assert second.document("a/readme.md").document.text == "No rain. No river."
    assert first.nodes.count_rows() == first.snapshot.counts["nodes"]


def test_an_unknown_document_comes_with_a_suggestion(db):
    index = TreeIndex.open(db)
    for asked, hint in [("readme.md", "a/readme.md"), ("a/readme.mb", "a/readme.md"), ("its", "it's")]:
        with pytest.raises(DocumentNotFound) as error:
            index.document(asked)
        assert repr(asked) in str(error.value) and f"did you mean {hint!r}" in str(error.value)
    with pytest.raises(KeyError):
        index.document("' OR '1'='1")


def test_where_nothing_was_indexed_the_message_says_what_to_run(tmp_path):
    place = str(tmp_path / "nothing")
    with pytest.raises(NoIndex, match=rf"{place} holds no index: run `sproutrag index .* --db {place}`"):
        TreeIndex.open(place)
    ensure_table(place, "documents", DOCUMENTS_SCHEMA)
    ensure_table(place, "nodes", nodes_schema(16))
    with pytest.raises(NoIndex, match="no run has finished"):
        TreeIndex.open(place)


def test_a_snapshot_that_is_not_there(db):
    with pytest.raises(NoIndex, match=r"snapshot 9 .* snapshots 1 to 2 are there"):
        TreeIndex.open(db, snapshot=9)


def test_another_encoder_is_refused_naming_both(db, tmp_path):
    other = tiny_bert(tmp_path / "other", seed=2)
    for encoder in (other, SentenceEncoder.from_pretrained(other)):
        with pytest.raises(EncoderMismatch, match=r"built with encoder 'tiny@\w+' but 'other@\w+' was given"):
            TreeIndex.open(db, encoder=encoder)


def test_the_same_encoder_is_accepted_by_name_or_loaded(db, tiny):
    loaded = SentenceEncoder.from_pretrained(tiny)
    assert TreeIndex.open(db, encoder=loaded).encoder is loaded
    assert TreeIndex.open(db, encoder=tiny).encoder.fingerprint == loaded.fingerprint


def test_an_encoder_that_changed_on_disk_is_refused_when_a_query_needs_it(tmp_path):
    path = tiny_bert(tmp_path / "changing", seed=3)
    db = str(tmp_path / "db")
    add(db, path, DOCUMENTS, "1")
    tiny_bert(tmp_path / "changing", seed=4)
    index = TreeIndex.open(db)
    assert index.document("it's").document == DOCUMENTS[2]
    with pytest.raises(EncoderMismatch, match="changing@"):
        _ = index.encoder


def test_nothing_but_a_query_needs_the_encoder(tmp_path, tiny):
    db = str(tmp_path / "db")
    add(db, tiny, DOCUMENTS[:1], "1")
    index = TreeIndex.open(db)
    index.stats()
    assert "encoder" not in vars(index) and "retriever" not in vars(index)


def test_stats(db):
    stats = TreeIndex.open(db, snapshot=1).stats()
    spans = [len(TreeIndex.open(db, snapshot=1).document(d.id).spans) for d in DOCUMENTS]
    assert stats["documents"] == 3 and stats["leaves"] == sum(spans)
    assert stats["nodes"] == 2 * sum(spans) - 3
    assert stats["languages"] == {"en": 2, "de": 1} and stats["coverage"] == 1.0
    assert stats["depth"]["min"] == 0 and stats["depth"]["max"] >= 1
    assert stats["snapshot"] == 1 and stats["fingerprint"].startswith("tiny@")
    assert all(size > 0 for size in stats["bytes"].values())
    assert [(i["column"], i["unindexed_rows"]) for i in stats["indices"]] == [("text", 0)]


def test_a_bad_filter_fails_before_a_model_is_loaded(db):
    index = TreeIndex.open(db)
    with pytest.raises(WhereError, match="expected a value"):
        index.search("rain", where="year =")
    assert "encoder" not in vars(index)


def test_filters_on_metadata_are_read_once(db):
    index = TreeIndex.open(db, snapshot=1)
    assert index.matching_documents("year > 2020") == {"b/readme.md"}
    assert index.matching_documents("year > 2020") is index.matching_documents("year > 2020")
    assert index.matching_documents("year IS NULL OR language = 'de'") == {"b/readme.md", "it's"}


def test_an_id_or_a_query_in_broken_bytes_is_answered(db):
    index = TreeIndex.open(db)
    with pytest.raises(DocumentNotFound):
        index.search("rain", doc="\udcff")
    known = index.documents.to_table(columns=["doc_id"])["doc_id"][0].as_py()
    scores, _ = index.retriever.trace("rain \udcff", known)
    assert np.isfinite(scores).all()


def test_a_long_lived_reader_moves_to_the_newest_snapshot_and_keeps_its_encoder(tmp_path, tiny):
    db = str(tmp_path / "db")
    add(db, tiny, DOCUMENTS[:1], "1")
    first = TreeIndex.open(db, encoder=tiny)
    assert first.latest() is first
    loaded = first.encoder
    add(db, tiny, DOCUMENTS[1:], "2")
    second = first.latest()
    assert (first.snapshot.id, second.snapshot.id) == (1, 2) and second.latest() is second
    assert second.encoder is loaded, "no weights are read again"
    assert second.document("it's").document.text == "One sentence."
    with pytest.raises(DocumentNotFound):
        first.document("it's")
    assert sorted(one.snapshot for one in live_readers(db)) == [1, 2]
    del first
    assert [one.snapshot for one in live_readers(db)] == [2], "the last reference lets go"


def test_a_process_forked_from_a_reader_is_told_so_instead_of_hanging(db, tiny):
    """P094: old handle and new one."""
    global inherited
    inherited = TreeIndex.open(db, encoder=tiny)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        for work in (search_inherited, TreeIndex.open):
            with pytest.raises(ForkedReader, match="spawn"):
                pool.submit(work, db).result(timeout=30)
    inherited.close()


def search_inherited(db: str):
    return inherited.search("rain")
