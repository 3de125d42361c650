"""From files to evidence on our sample corpus and its questions, with real encoders and real Lance."""

import json
from pathlib import Path

import pytest

from pipelines.actors import IndexDocuments
from pipelines.benchmark import read_documents
from sproutrag.documents import Document
from sproutrag.index import TreeIndex
from sproutrag.indices import build_indices
from sproutrag.models import find_encoder
from sproutrag.search import Passage
from sproutrag.storage import commit, publish
from sproutrag.verification import verify
from tests.tiny_models import tiny_qwen3

ROOT = Path(__file__).parent.parent.parent
QUESTIONS = ROOT / "tests" / "data" / "questions.jsonl"


def build(db: str, encoder: str, documents: list[Document]) -> TreeIndex:
    """What the pipeline does, in one process."""
    worker = IndexDocuments(db=db, encoder=encoder, threads=1)
    outcome = worker.index(documents, size=0)
    assert outcome.written and not outcome.problems
    head = commit(db, [outcome.written], run_id="one")
    build_indices(db)
    publish(db, head)
    return TreeIndex.open(db, encoder=encoder)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> TreeIndex:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # doc_ids of files are paths as given
        documents = read_documents("tests/data/corpus")
    return build(str(tmp_path_factory.mktemp("sample")), find_encoder("all-MiniLM-L6-v2"), documents)


def test_every_passage_is_the_text_at_its_spans_and_no_leaf_comes_twice(sample: TreeIndex) -> None:
    for line in QUESTIONS.read_text(encoding="utf-8").splitlines():
        found = sample.search(json.loads(line)["question"], k=5)
        leaves = [(passage.doc_id, leaf) for passage in found for leaf in passage.leaves]
        assert len(leaves) == len(set(leaves)) <= 5
        for passage in found:
            text = sample.document(passage.doc_id).document.text
            assert passage.text == "".join(text[start:stop] for start, stop in passage.spans) != ""


def test_the_sample_corpus_answers_its_questions(sample: TreeIndex) -> None:
    """Half of the questions paraphrase on purpose, and MiniLM is untrained: 35 and 23 of 37 when written."""
    questions = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    documents = leaves = 0
    for question in filter(lambda question: question["evidence"], questions):
        found = sample.search(question["question"], k=5)
        pairs = [(passage, evidence) for passage in found for evidence in question["evidence"]]
        documents += any(passage.doc_id == evidence["doc_id"] for passage, evidence in pairs)
        leaves += any(overlaps(passage, evidence) for passage, evidence in pairs)
    assert documents >= 33 and leaves >= 20, f"{documents} and {leaves}"


def test_an_index_whose_languages_were_detected_is_sound(sample: TreeIndex) -> None:
    found = verify(sample.db)
    assert found.ok, found.problems[:3]


def overlaps(passage: Passage, evidence: dict) -> bool:
    return passage.doc_id == evidence["doc_id"] and any(
        start < evidence["end"] and evidence["start"] < stop for start, stop in passage.spans
    )


def test_a_qwen3_embedder_indexes_and_searches(tmp_path: Path) -> None:
    """Causal, left-padded, last-token pooling: the other family of encoders through the same code."""
    encoder = tiny_qwen3(tmp_path / "qwen3")
    texts = {
        "harbour": "The harbour opens at six. Ferries leave every hour. The lighthouse keeper sleeps late.",
        "garden": "Beans need poles. Water them at dusk. The old gate must stay shut.",
    }
    documents = [Document(id=name, text=text, language="en") for name, text in texts.items()]
    index = build(str(tmp_path / "db"), encoder, documents)
    best = index.search("When do ferries leave?", k=1)[0]
    assert best.doc_id == "harbour" and "Ferries" in best.text
    for mode in ("tree", "leaves", "hybrid"):
        found = index.search("The old gate", k=3, mode=mode)
        assert 1 <= sum(len(passage.leaves) for passage in found) <= 3
