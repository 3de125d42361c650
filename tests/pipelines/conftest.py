import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines import index as job
from pipelines.actors import IndexDocuments, Outcome, read_parcels, unseal
from pipelines.cluster import Workers
from pipelines.index import main
from pipelines.plan import reading_list
from pipelines.reports import Report
from sproutrag.ingest import Piece
from sproutrag.options import IndexOptions
from tests.tiny_models import tiny_bert

WORDS = [
    "rain",
    "river",
    "falls",
    "rises",
    "north",
    "south",
    "engine",
    "stops",
    "clock",
    "bell",
    "night",
    "door",
]


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_bert(tmp_path_factory.mktemp("encoder") / "tiny-bert", window=512)


@pytest.fixture
def write_corpus(tmp_path: Path) -> Callable[..., str]:
    """Writes records to a jsonl file and returns its path."""

    def write(records: Sequence[dict], name: str = "corpus.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture(scope="session")
def records() -> Callable[[int], list[dict]]:
    return lambda count: list(some_records(count))


def some_records(count: int) -> Iterator[dict]:
    """Documents of one to nine sentences."""
    for i in range(count):
        sentences = [
            f"Clause {i}.{j}: {' '.join(WORDS[(i * 7 + j * 3 + w) % len(WORDS)] for w in range(8))}."
            for j in range(1 + i % 9)
        ]
        yield {"doc_id": f"doc-{i:03}", "title": f"Report {i}", "text": " ".join(sentences)}


@pytest.fixture(scope="session")
def worker(tiny_encoder: str) -> IndexDocuments:
    """What Ray's workers run; `db` is set by who uses it."""
    return IndexDocuments(db="", encoder=tiny_encoder, threads=1)


def encoded_here(worker: IndexDocuments) -> Callable[..., Iterator[Outcome]]:
    """The workers' code in this process, in parcels of about three documents."""

    def encode(wanted: pa.Table, pieces: Sequence[Piece], **_: object) -> Iterator[Outcome]:
        for reading in reading_list(pieces, wanted, size=1 << 20):
            for parcel in read_parcels(reading, parcel_size=1000):
                for row in parcel.to_pylist():
                    yield worker.index(unseal(row["documents"]), size=row["size"])

    return encode


def run_here(patch: pytest.MonkeyPatch, worker: IndexDocuments) -> None:
    """From now on the job needs no Ray."""
    patch.setattr(job, "ray_on_demand", lambda: nullcontext(lambda: None))
    patch.setattr(job, "share_out", lambda *_, **__: Workers(count=1, cpus=1, gpus=0, threads=1))
    patch.setattr(job, "encode", encoded_here(worker))


@pytest.fixture
def index_first(tiny_encoder: str, worker: IndexDocuments) -> Callable[[IndexOptions], Report]:
    """One run without Ray, for what comes before the run that a test is about."""

    def run(options: IndexOptions) -> Report:
        worker.db = options.db
        with pytest.MonkeyPatch.context() as patch:
            run_here(patch, worker)
            return main(options)

    return run


@pytest.fixture
def index_here(
    tmp_path: Path, tiny_encoder: str, worker: IndexDocuments, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Report]:
    """The whole job without Ray."""
    worker.db = str(tmp_path / "db")
    run_here(monkeypatch, worker)

    def run(*sources: str, **options: object) -> Report:
        return main(IndexOptions(**{"sources": sources, "db": worker.db, "encoder": tiny_encoder} | options))

    return run
