"""A published index with a real encoder of random weights: words decide what a search finds."""

from collections.abc import Sequence
from pathlib import Path

from sproutrag.corpus import Corpus
from sproutrag.documents import Document
from sproutrag.encoder import SentenceEncoder
from sproutrag.index import TreeIndex
from sproutrag.indices import build_indices
from sproutrag.scoring import Weights, write_weights
from sproutrag.storage import commit, publish, write_documents
from tests.tiny_models import tiny_bert


def real_index(folder: Path, documents: Sequence[Document]) -> TreeIndex:
    encoder = SentenceEncoder.from_pretrained(tiny_bert(folder / "tiny", window=512))
    db = str(folder / "db")
    written = write_documents(db, encoder.encode(documents), fingerprint=encoder.fingerprint)
    head = commit(db, [written], run_id="1")
    build_indices(db)
    publish(db, head)
    write_weights(db, Weights(dense=0.01), fingerprint=encoder.fingerprint)
    return TreeIndex.open(db, encoder=encoder)


def real_corpus(folder: Path, documents: Sequence[Document]) -> Corpus:
    return Corpus(real_index(folder, documents))
