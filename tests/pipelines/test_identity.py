"""Who is who: ids, places, replacement and deletion, over whole runs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.reports import Report
from sproutrag.retention import delete_documents, rollback
from sproutrag.snapshots import current_snapshot
from sproutrag.storage import stored_hashes
from sproutrag.tables import TABLES, open_table
from sproutrag.verification import verify
from tests.small_index import node_counts

Writer = Callable[..., str]
Records = Callable[[int], list[dict]]
Job = Callable[..., Report]


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "db")


def texts(db: str) -> dict[str, str]:
    rows = open_table(db, "documents").to_table(columns=["doc_id", "text"]).to_pylist()
    return {row["doc_id"]: row["text"] for row in rows}


def found(db: str, word: str) -> set[str]:
    nodes = open_table(db, "nodes", current_snapshot(db).nodes_version)
    hits = nodes.to_table(columns=["doc_id", "_score"], full_text_query=word, limit=99)
    return set(hits["doc_id"].to_pylist())


def test_files_of_one_name_in_two_folders_are_two_documents(
    index_here: Job, tmp_path: Path, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P052."""
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        Path(folder).mkdir()
        Path(folder, "readme.md").write_text(f"# Readme\n\nThis one lies in folder {folder}.")
    assert index_here("a", "b").indexed == 2
    assert {id: text[-2] for id, text in texts(db).items()} == {"a/readme.md": "a", "b/readme.md": "b"}


def test_one_text_under_two_ids_is_two_documents(index_here: Job, write_corpus: Writer, db: str) -> None:
    """P053."""
    text = "The same words. Twice."
    index_here(write_corpus([{"doc_id": "k1", "text": text}, {"doc_id": "k2", "text": text}]))
    assert texts(db) == {"k1": text, "k2": text} and found(db, "twice") == {"k1", "k2"}


def test_one_id_in_two_indices_is_two_documents(
    index_here: Job, write_corpus: Writer, worker: object, tmp_path: Path
) -> None:
    """P062."""
    for colour in ("red", "blue"):
        worker.db = str(tmp_path / colour)  # type: ignore[attr-defined]
        index_here(write_corpus([{"doc_id": "d", "text": f"All is {colour}."}]), db=str(tmp_path / colour))
    assert [texts(str(tmp_path / c)) for c in ("red", "blue")] == [
        {"d": "All is red."},
        {"d": "All is blue."},
    ]


def test_of_a_document_replaced_and_deleted_nothing_is_left_and_its_old_text_never_returns(
    index_here: Job, write_corpus: Writer, db: str
) -> None:
    """P056, P058, P059: three versions, deleted, then the id comes back with other words."""
    other = {"doc_id": "e", "text": "Another document stays."}
    for word in ("oak", "elm", "ash"):
        index_here(write_corpus([{"doc_id": "d7", "text": f"The {word} is old. It is tall."}, other]))
        assert found(db, word) == {"d7"}
    deleted = delete_documents(db, ["d7"])
    assert deleted.after == dict.fromkeys(TABLES, 0)
    assert {word for word in ("oak", "elm", "ash") if found(db, word)} == set()
    index_here(write_corpus([{"doc_id": "d7", "text": "A willow weeps."}, other]))
    assert {word for word in ("oak", "elm", "ash", "willow") if found(db, word)} == {"willow"}
    assert node_counts(db).keys() == {"d7", "e"} and verify(db).ok


def test_a_night_on_which_the_encoder_fails_every_time_leaves_the_live_index_serving(
    index_here: Job,
    write_corpus: Writer,
    records: Records,
    worker: object,
    db: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P070: and going back is one command."""
    index_here(write_corpus(records(6)))
    before = stored_hashes(db)

    def fail(documents: object) -> None:
        raise RuntimeError("out of memory")

    changed = [record | {"text": "Changed. " + record["text"]} for record in records(6)]
    with monkeypatch.context() as patch:
        patch.setattr(worker.encoder, "encode", fail)  # type: ignore[attr-defined]
        report = index_here(write_corpus(changed))
    assert (report.quarantined, report.replaced) == (6, 0)
    assert stored_hashes(db) == before and verify(db).ok
    changed[0]["text"] += " Once more."
    assert index_here(write_corpus(changed)).replaced == 1
    assert rollback(db, 1).counts["documents"] == 6 and stored_hashes(db) == before
