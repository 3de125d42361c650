"""The index as a server reads it, over a small real one."""

from pathlib import Path

import pytest

from serve.reading import HELD, Reading
from sproutrag.documents import Document
from sproutrag.encoder import SentenceEncoder
from sproutrag.snapshots import DocumentNotFound, NoIndex, NoSnapshot
from sproutrag.storage import commit, publish, write_documents
from tests.qa.real_index import real_index

TEXT = "One lamp. Two keepers. Three boats. Four winds. Five islands."


def publish_one(folder: Path, number: int) -> None:
    encoder = SentenceEncoder.from_pretrained(str(folder / "tiny"))
    document = Document(f"n{number}", f"News number {number}. {TEXT}", metadata='{"tenant": "red"}')
    written = write_documents(str(folder / "db"), encoder.encode([document]), fingerprint=encoder.fingerprint)
    publish(str(folder / "db"), commit(str(folder / "db"), [written], run_id=f"n{number}"))


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    real_index(tmp_path, [Document("a", TEXT, title="A", metadata='{"tenant": "blue"}')])
    reading = Reading(str(tmp_path / "db"), encoder=str(tmp_path / "tiny"), cache_bytes=1 << 20)
    assert reading.move_on() and not reading.move_on()
    return reading


def searched(reading: Reading, query: str, **named: object) -> tuple[int, list[str]]:
    asked: dict = {"k": 3, "mode": "hybrid", "doc": None, "where": None, "snapshot": None} | named
    [encoded] = reading.encode([query])
    snapshot, passages = reading.search(query, encoded, **asked)
    return snapshot, [passage.doc_id for passage in passages]


def test_a_question_stays_on_its_snapshot_while_others_move_on(reading: Reading, tmp_path: Path) -> None:
    publish_one(tmp_path, 1)
    assert reading.move_on()
    assert searched(reading, "news number")[0] == 2
    snapshot, found = searched(reading, "news number", snapshot=1)
    assert (snapshot, set(found)) == (1, {"a"})


def test_only_a_few_snapshots_stay_open_and_a_closed_one_is_opened_again(
    reading: Reading, tmp_path: Path
) -> None:
    for number in range(HELD + 1):
        publish_one(tmp_path, number)
        reading.move_on()
        searched(reading, "news")
    assert len(reading.open) == HELD and 1 not in reading.open
    hits, misses = reading.shelf_counts()
    assert searched(reading, "lamp", snapshot=1)[0] == 1
    assert sum(reading.shelf_counts()) > hits + misses, "what is counted never falls"


def test_a_snapshot_that_never_was_is_named_as_such(reading: Reading) -> None:
    with pytest.raises(NoSnapshot):
        searched(reading, "lamp", snapshot=9)


def test_an_index_that_is_not_there_yet_is_found_once_it_is(tmp_path: Path) -> None:
    reading = Reading(str(tmp_path / "db"), encoder=str(tmp_path / "tiny"), cache_bytes=1 << 20)
    with pytest.raises(NoIndex):
        reading.move_on()
    with pytest.raises(NoIndex, match="run `sproutrag index"):
        reading.at(None)
    real_index(tmp_path, [Document("a", TEXT)])
    assert reading.move_on() and searched(reading, "lamp")[0] == 1


def test_a_hidden_document_is_told_in_the_words_of_one_that_is_not_there(reading: Reading) -> None:
    for where in ("tenant = 'red'", None):
        doc = "a" if where else "nowhere"
        for read in (reading.document, reading.tree):
            more = {"query": ""} if read == reading.tree else {}
            with pytest.raises(DocumentNotFound):
                read(doc, where=where, snapshot=None, **more)
        assert reading.text(doc, where=where, snapshot=None) is None
    with pytest.raises(DocumentNotFound):
        searched(reading, "lamp", doc="a", where="tenant = 'red'")
    assert searched(reading, "lamp", where="tenant = 'red'") == (1, [])


def test_a_tree_is_told_in_slices_of_one_order_with_the_beams_path(reading: Reading) -> None:
    tree = reading.tree("a", query="three boats", where=None, snapshot=None)
    n = len(tree["leaves"])
    assert [node["slice"][1] - node["slice"][0] for node in tree["nodes"][:n]] == [1] * n
    for node in tree["nodes"][n:]:
        first, second = (tree["nodes"][child]["slice"] for child in node["children"])
        assert node["slice"] == [first[0], second[1]] and first[1] == second[0]
    assert {step["node"] for step in tree["path"] if step["kept"]} >= set(tree["evidence"])


def test_counts_of_the_whole_index_are_kept_from_who_sees_a_part(reading: Reading) -> None:
    assert reading.snapshots(counted=True)["snapshots"][0]["documents"] == 1
    assert reading.snapshots(counted=False)["snapshots"][0]["documents"] is None
