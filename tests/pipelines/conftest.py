import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from sproutrag.encoder import SentenceEncoder

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
    """A real encoder: two random layers, 32 dimensions, one token per character."""
    folder = tmp_path_factory.mktemp("tiny-encoder")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {token: i for i, token in enumerate([*special, *map(chr, range(33, 127))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=128,
    ).save_pretrained(folder)
    torch.manual_seed(7)
    BertModel(
        BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=128,
        )
    ).save_pretrained(folder)
    SentenceEncoder.from_pretrained(str(folder)).save(str(folder))
    return str(folder)


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
