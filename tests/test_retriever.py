"""Whole searches over real tables with a real encoder of random weights: what they find is told by words."""

from dataclasses import replace

import numpy as np
import pytest

from sproutrag.baselines import CONTROLS, FlatLeaves, leaves_of
from sproutrag.calibration import calibrate
from sproutrag.cli import print_passages
from sproutrag.datasets import Evidence, Query, relevant_leaves
from sproutrag.documents import Document
from sproutrag.encoder import SentenceEncoder
from sproutrag.index import TreeIndex
from sproutrag.indices import build_indices
from sproutrag.rerank import CrossEncoder
from sproutrag.retriever import TreeRetriever, fuse_ranks
from sproutrag.scoring import Weights
from sproutrag.snapshots import DocumentNotFound, UnverifiedPassage, write_snapshot
from sproutrag.storage import commit, publish, write_documents, write_fragments
from sproutrag.tables import document_rows, node_rows
from sproutrag.tree import build_tree
from tests.tiny_models import tiny_bert, tiny_cross_encoder

SENTENCES = {
    "lease": "The tenant pays the rent on the first day. The owner repairs the roof.\n\nDogs are allowed in "
    "the garden. Cats are not.\n\nEither party may end the lease with thirty days of notice, in writing.",
    "licence": "The user pays a fee. The owner keeps the rights.\n\nEither party may end the licence at any "
    "time. Data is deleted within ten days.",
    "wetter": "Der Regen fällt leise. Der Fluss steigt.\n\nDie Boote warten im Hafen.",
    "合同": "甲方负责交付货物。乙方负责验收。\n\n双方每月对账一次。违约金为百分之五。",
    "عقد": "يدفع المستأجر \u061cالإيجار في أول يوم.\n\nيصلح المالك السقف.",
    "one": "A single sentence about zebras.",
}
DOCUMENTS = [
    Document(id, text, f"Title of the {id}", metadata=f'{{"pages": {i}}}')
    for i, (id, text) in enumerate(SENTENCES.items())
]


def indexed(db: str, encoder: SentenceEncoder, documents: list[Document]) -> TreeIndex:
    written = write_documents(db, encoder.encode(documents), fingerprint=encoder.fingerprint)
    head = commit(db, [written], run_id="1")
    build_indices(db)
    publish(db, head)
    return TreeIndex.open(db, encoder=encoder)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(tiny_bert(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, encoder: SentenceEncoder) -> TreeIndex:
    return indexed(str(tmp_path_factory.mktemp("index") / "db"), encoder, DOCUMENTS)


def test_evidence_names_its_pages(tmp_path, encoder, capsys):
    pdf = '{"format": "pdf", "page_starts": [0, 20, 39]}'
    book = '{"section_starts": [0, 39]}'
    text = "The fox is asleep.\n\nA badger digs all\n night. Owls fly in the dark."
    documents = [Document("fox.pdf", text, metadata=pdf), Document("fox.epub", text, metadata=book)]
    index = indexed(str(tmp_path / "db"), encoder, documents)
    (found,) = index.search("badger", k=1, doc="fox.pdf")
    assert (found.pages, found.sections) == ((2, 3), ()), found
    (section,) = index.search("badger", k=1, doc="fox.epub")
    assert (section.pages, section.sections) == ((), (1, 2)), section
    print_passages([found, section])
    drawn = capsys.readouterr().out
    assert "fox.pdf [20:67] pages 2, 3" in drawn and "fox.epub [20:67] sections 1, 2" in drawn


def test_a_word_cut_at_a_line_end_is_found(tmp_path, encoder):
    text = "Both walked in the op-\nposite direction.\n\nThe weather was fine. Nobody was there."
    index = indexed(str(tmp_path / "db"), encoder, [*DOCUMENTS, Document("walk", text)])
    (found,) = index.search("opposite", k=1)
    assert found.doc_id == "walk" and "op-\nposite" in found.text


@pytest.fixture
def retriever(index: TreeIndex) -> TreeRetriever:
    """Words decide: the random encoder's opinion counts little."""
    return TreeRetriever(index, weights=Weights(dense=0.01))


@pytest.mark.parametrize(
    ("query", "doc_id", "words"),
    [
        ("Who repairs the roof?", "lease", "repairs the roof"),
        ("When is data deleted under the licence?", "licence", "within ten days"),
        ("Wie ist der Regen?", "wetter", "Regen"),
        ("违约金是多少？", "合同", "百分之五"),
        ("zebras", "one", "zebras"),
    ],
)
def test_words_find_their_leaf(retriever, query: str, doc_id: str, words: str) -> None:
    best = retriever.search(query, k=1)[0]
    assert best.doc_id == doc_id and words in best.text


@pytest.mark.parametrize("query", ["متى يدفع المستأجر الإيجار", "متى يدفع المستأجر \u200fالإيجار\u061c"])
def test_direction_marks_in_text_or_query_change_nothing(retriever, query: str) -> None:
    best = retriever.search(query, k=1)[0]
    assert best.doc_id == "عقد" and "\u061c" in best.text


@pytest.mark.parametrize("mode", ["tree", "leaves", "hybrid"])
@pytest.mark.parametrize("k", [1, 3, 7, 100])
def test_k_counts_leaves_and_the_text_is_the_stored_text(retriever, index, mode: str, k: int) -> None:
    found = retriever.search("the owner of the lease", k=k, mode=mode)
    leaves = leaves_of(found)
    assert len(leaves) == len(set(leaves)) <= k
    if mode != "tree":
        assert len(leaves) == min(k, index.snapshot.counts["leaves"])
    for p in found:
        text = index.document(p.doc_id).document.text
        assert p.text == "".join(text[start:stop] for start, stop in p.spans)
        assert p.title == f"Title of the {p.doc_id}" and np.isfinite(p.score) and not p.reranked
    scores = [p.score for p in found]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("query", ["", "  \n", "?!…", "\u200f\u061c", "🌧"])
def test_a_query_without_words_finds_nothing(retriever, query: str) -> None:
    assert retriever.search(query) == []


HOSTILE = [
    '"',
    "roof AND (",
    "text:roof OR *",
    "' OR '1'='1",
    "roof\\",
    "{!lucene}",
    "a" * 5000,
    "\ud800 roof",
    "+-^~",
]


@pytest.mark.parametrize("query", HOSTILE)
def test_no_query_breaks_the_search(retriever, query: str) -> None:
    assert len(leaves_of(retriever.search(query, k=3))) in (0, 3)


def test_searching_one_document(retriever, index) -> None:
    found = retriever.search("Who repairs the roof?", doc="licence", k=100)
    assert {p.doc_id for p in found} == {"licence"}
    with pytest.raises(DocumentNotFound, match="did you mean 'licence'"):
        retriever.search("roof", doc="licences")


def test_a_filter_narrows_the_search(retriever) -> None:
    found = retriever.search("Who repairs the roof?", where="pages >= 1 AND pages < 3", k=100)
    assert {p.doc_id for p in found} == {"licence", "wetter"}
    assert retriever.search("roof", where="pages > 99") == []
    assert retriever.search("roof", where="pages > 0", doc="lease") == []


def test_routing_is_filtered_before_it_is_cut(retriever) -> None:
    found = retriever.search("Who repairs the roof?", where="pages > 0", n_documents=1, k=1)
    assert found and found[0].doc_id != "lease"


def test_a_small_shelf_and_a_large_one_find_the_same(index, retriever) -> None:
    forgetful = TreeRetriever(index, weights=retriever.weights, shelf_bytes=1)
    for query in ("roof of the lease", "deleted data", "Regen"):
        assert forgetful.search(query) == retriever.search(query) == retriever.search(query)
    assert len(forgetful.shelf._open) == 1


def test_the_beam_finds_what_scoring_every_node_finds(index, retriever) -> None:
    exhaustive = TreeRetriever(index, weights=retriever.weights, beam_width=1000)
    for query in ("roof of the lease", "either party may end", "Regen Hafen", "the first day"):
        assert leaves_of(exhaustive.search(query, n_documents=1000)) == leaves_of(retriever.search(query))


def test_a_trace_covers_the_whole_tree(retriever, index) -> None:
    scores, visited = retriever.trace("Who repairs the roof?", "lease")
    tree = index.document("lease").tree
    assert scores.shape == (tree.n_nodes,) and np.isfinite(scores).all()
    assert set(visited.tolist()) <= set(range(tree.root))


def test_an_unknown_mode_is_refused(retriever) -> None:
    with pytest.raises(ValueError, match="choose one of tree, leaves, hybrid"):
        retriever.search("roof", mode="magic")


@pytest.mark.parametrize("damage", ["shifted spans", "other text"])
def test_a_passage_that_storage_contradicts_is_not_returned(tmp_path, encoder, damage: str) -> None:
    """The two tables are written from encodings that differ, as a faulty disk or writer would leave them."""
    (whole,) = encoder.encode([Document("lease", SENTENCES["lease"], "Title of the lease")])
    if damage == "shifted spans":
        broken = replace(whole, spans=np.minimum(whole.spans + 3, len(whole.document.text)))
    else:
        broken = replace(
            whole, document=replace(whole.document, text=whole.document.text.replace("roof", "wall"))
        )
    trees = [build_tree(whole.affinity)]
    rows = document_rows([broken], trees, fingerprint=encoder.fingerprint)
    written = write_fragments(str(tmp_path), rows, node_rows([whole], trees))
    head = commit(str(tmp_path), [written], run_id="1")
    build_indices(str(tmp_path))
    write_snapshot(str(tmp_path), replace(head, id=1))  # past the checks of `publish`
    with pytest.raises(UnverifiedPassage, match=r"'lease', leaves .* delete the document and index it again"):
        TreeIndex.open(str(tmp_path), encoder=encoder).search("Who repairs the roof?", k=5)


def test_rank_fusion_keeps_who_is_nowhere_worse_in_front() -> None:
    assert fuse_ranks([["a", "b", "c"], ["a", "c", "b"]])[0] == "a"
    assert fuse_ranks([["x"], []]) == ["x"] and fuse_ranks([]) == []
    assert fuse_ranks([["a", "b"], ["b"]]) == ["b", "a"]


def test_a_cross_encoder_reorders_and_says_so(index, retriever, tmp_path) -> None:
    reranker = CrossEncoder(tiny_cross_encoder(tmp_path), device="cpu")
    found = TreeRetriever(index, reranker=reranker).search("Who repairs the roof?", k=4)
    assert found and all(p.reranked for p in found)
    assert [p.score for p in found] == pytest.approx(
        reranker.scores("Who repairs the roof?", [p.text for p in found]).tolist(), abs=1e-5
    )


@pytest.mark.parametrize("name", CONTROLS)
def test_controls_replace_the_tree_and_nothing_else(index, retriever, name: str) -> None:
    control = TreeRetriever(index, weights=Weights(path=0, size_prior=0, dense=0.01), regrow=CONTROLS[name])
    plain = TreeRetriever(index, weights=control.weights)
    for query in ("Who repairs the roof?", "违约金是多少？"):
        assert leaves_of(control.search(query)) == leaves_of(plain.search(query))
    document = control.shelf.take(["lease"])[0]
    assert sorted(document.tree.order.tolist()) == list(range(len(document.spans)))


def test_flat_systems_rank_every_leaf(index) -> None:
    for found in (system("Who repairs the roof?") for system in FlatLeaves(index).systems().values()):
        assert [len(found[k]) for k in (1, 3, 5)] == [1, 3, 5] and found[5][:3] == found[3]
    assert FlatLeaves(index).systems()["BM25 leaves"]("repairs the roof")[1] == [("lease", 0)]


def questions(index: TreeIndex) -> tuple[list[Query], list[frozenset]]:
    """Two dozen queries, each the words of a leaf that is its gold."""
    flat = FlatLeaves(index)
    spans = {d.id: index.document(d.id).spans for d in DOCUMENTS}
    queries = []
    for number, (doc_id, leaf) in enumerate((flat.leaves * 4)[:24]):
        start, stop = spans[doc_id][leaf].tolist()
        text = index.document(doc_id).document.text[start:stop]
        queries.append(Query(str(number), text, (Evidence(doc_id, start, stop),)))
    return queries, [relevant_leaves(query, spans) for query in queries]


def test_calibration_is_crossfitted_and_leaves_the_retriever_alone(index, retriever) -> None:
    queries, relevant = questions(index)
    before = retriever.weights
    found = calibrate(retriever, queries, relevant, rng=np.random.default_rng(0))
    assert retriever.weights == before
    assert 0 <= found.crossfitted_mean <= 1 and found.default_mean > 0.3
    few = calibrate(retriever, queries[:3], relevant[:3], rng=np.random.default_rng(0))
    assert few.weights == Weights()
