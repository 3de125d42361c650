"""The sample corpus keeps what its README promises: exact spans, many languages and formats, questions."""

import csv
import io
import json
from collections import Counter
from pathlib import Path

import pytest

from sproutrag.documents import Document
from sproutrag.ingest import read_piece
from sproutrag.kinds import kind_by_name
from sproutrag.pages import page_starts, pages_of
from sproutrag.pieces import Piece

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
FILES = {
    "contract": "supply-agreement.md",
    "handbook": "handbook.md",
    "policy": "privacy-policy.md",
    "article": "mulch-article.md",
    "story": "the-bell-diver.txt",
    "release notes": "release-notes.md",
    "questions and answers": "tool-library-faq.md",
    "tables": "ferry-tariffs.md",
    "report": "outage-report.txt",
    "Chinese rules": "library-rules.zh.md",
    "German statutes": "vereinssatzung.de.md",
    "Arabic guide": "museum-guide.ar.md",
    "French rules": "reglement-jardin.fr.txt",
}
EXTRACTED = {
    "web page": "quay-works-notice.html",
    "inspection": "pump-inspection.pdf",
    "tour plan": "choir-tour-plan.docx",
    "book": "two-keepers.epub",
}
ROW_KEYS = {"year", "department", "kind"}
TYPES = {"single": 26, "multi": 7, "list": 4, "table": 4, "unanswerable": 3}


def read_text(path: Path) -> str:
    return path.read_bytes().decode("utf-8")


def read_jsonl(path: Path) -> list[dict]:
    return [json.loads(line) for line in read_text(path).splitlines()]


def read_csv(path: Path) -> list[dict]:
    return list(csv.DictReader(io.StringIO(read_text(path), newline="")))


def file_text(name: str) -> str:
    return read_text(DATA / "corpus" / name)


def extracted(name: str) -> Document:
    (document,) = read_piece(Piece(f"{DATA}/corpus/{name}", kind_by_name(name)))
    assert isinstance(document, Document), document
    return document


RECORDS = read_jsonl(DATA / "corpus" / "records.jsonl")
GLOSSARY = read_csv(DATA / "corpus" / "glossary.csv")
QUESTIONS = read_jsonl(DATA / "questions.jsonl")
TEXTS = {f"tests/data/corpus/{name}": file_text(name) for name in FILES.values()}
TEXTS |= {f"tests/data/corpus/{name}": extracted(name).text for name in EXTRACTED.values()}
TEXTS |= {row["doc_id"]: row["text"] for row in RECORDS + GLOSSARY}
EVIDENCE = [(query["query_id"], span) for query in QUESTIONS for span in query["evidence"]]


def count_script(text: str, first: str, last: str) -> int:
    return sum(first <= character <= last for character in text)


def test_corpus_holds_the_listed_files_and_no_others() -> None:
    found = {path.name for path in (DATA / "corpus").iterdir()}
    assert found == {*FILES.values(), *EXTRACTED.values(), "records.jsonl", "glossary.csv"}
    assert len(TEXTS) == len(FILES) + len(EXTRACTED) + len(RECORDS) + len(GLOSSARY) == 26


def test_inspection_has_three_pages_and_a_sentence_over_the_first_break() -> None:
    document = extracted("pump-inspection.pdf")
    (evidence,) = next(query for query in QUESTIONS if query["query_id"] == "q42")["evidence"]
    starts = page_starts(document.metadata)
    assert len(starts) == 3 and pages_of(starts, [(evidence["start"], evidence["end"])]) == (1, 2)


def test_two_documents_are_long() -> None:
    long = [doc_id for doc_id, text in TEXTS.items() if len(text.split()) > 3000]
    assert sorted(Path(doc_id).name for doc_id in long) == ["handbook.md", "supply-agreement.md"]


def test_long_documents_repeat_no_paragraph() -> None:
    for name in ("handbook.md", "supply-agreement.md"):
        lines = [line for line in file_text(name).splitlines() if len(line) > 40]
        assert len(lines) == len(set(lines)), name


@pytest.mark.parametrize(
    ("name", "first", "last", "characters"),
    [("library-rules.zh.md", "\u4e00", "\u9fff", 1200), ("museum-guide.ar.md", "\u0621", "\u064a", 2500)],
)
def test_document_is_written_in_its_script(name: str, first: str, last: str, characters: int) -> None:
    assert count_script(file_text(name), first, last) >= characters


@pytest.mark.parametrize(
    ("name", "words"),
    [("vereinssatzung.de.md", 600), ("museum-guide.ar.md", 500), ("reglement-jardin.fr.txt", 300)],
)
def test_document_has_enough_words(name: str, words: int) -> None:
    assert len(file_text(name).split()) >= words


def test_tariffs_are_mostly_table_rows() -> None:
    lines = [line for line in file_text("ferry-tariffs.md").splitlines() if line]
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) >= 20 and len(rows) > len(lines) / 2


def test_records_carry_metadata_to_filter_on() -> None:
    assert all(set(record["metadata"]) == ROW_KEYS for record in RECORDS)
    assert all(row[key] for row in GLOSSARY for key in ROW_KEYS)
    assert all(record["title"] and record["lang"] for record in RECORDS + GLOSSARY)


def test_texts_use_plain_newlines() -> None:
    assert not [doc_id for doc_id, text in TEXTS.items() if "\r" in text or "\0" in text]


def test_questions_are_as_many_of_each_type_as_stated() -> None:
    assert Counter(query["type"] for query in QUESTIONS) == TYPES
    assert len({query["query_id"] for query in QUESTIONS}) == len(QUESTIONS) == 44


@pytest.mark.parametrize("query", QUESTIONS, ids=lambda query: query["query_id"])
def test_question_is_answered_unless_it_says_so(query: dict) -> None:
    answerable = query["type"] != "unanswerable"
    assert set(query) == {"query_id", "question", "answers", "evidence", "type"}
    assert query["question"].strip()
    assert bool(query["answers"]) == bool(query["evidence"]) == answerable
    assert all(answer.strip() for answer in query["answers"])


@pytest.mark.parametrize(("query_id", "span"), EVIDENCE)
def test_evidence_is_one_exact_passage(query_id: str, span: dict) -> None:
    text = TEXTS[span["doc_id"]]
    passage = text[span["start"] : span["end"]]
    assert 0 <= span["start"] < span["end"] <= len(text)
    assert passage == passage.strip() != ""
    assert text.count(passage) == 1, f"{query_id}: the evidence occurs more than once in {span['doc_id']}"


def test_multi_questions_have_several_spans_and_some_cross_documents() -> None:
    multi = [query["evidence"] for query in QUESTIONS if query["type"] == "multi"]
    assert all(len(spans) >= 2 for spans in multi)
    assert sum(len({span["doc_id"] for span in spans}) > 1 for spans in multi) >= 3


def test_questions_reach_every_language() -> None:
    asked = {span["doc_id"].rpartition("/")[2] for _, span in EVIDENCE}
    assert {"library-rules.zh.md", "vereinssatzung.de.md", "museum-guide.ar.md", "recipe-quince"} <= asked
    assert set(EXTRACTED.values()) <= asked
    assert {"reglement-jardin.fr.txt", "minutes-2024-11", "term-gangway-reader"} <= asked
