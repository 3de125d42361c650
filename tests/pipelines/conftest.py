import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

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
