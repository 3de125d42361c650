"""Tiny random encoders with real tokenizers, saved to a directory: real components for fast tests.

Every function returns the path it wrote to. Weights come from a fixed seed.
"""

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3Model,
)

LINES = [
    "The tenant pays the rent on the first day of every month.",
    "Roots grow down, leaves grow up to the light; a sprout does both.",
    "Either party may end this agreement with thirty days of notice.",
    "Die Mieterin zahlt die Miete am ersten Tag des Monats.",
    "甲方负责交付；乙方负责验收。双方每月对账。",
    "يدفع المستأجر الإيجار في أول يوم من كل شهر.",
    "0123456789 !?,.:;()[]<>|-_'\"",
]


def tiny_bert(path: Path | str, *, n_layers: int = 2, window: int = 128, seed: int = 0) -> str:
    """Bidirectional, absolute positions, WordPiece with [CLS] and [SEP]: 32 dimensions, 4 heads."""
    tokenizer = wordpiece()
    tokenizer.model_max_length = window
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=n_layers,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=window,
        initializer_range=0.2,
        pad_token_id=tokenizer.pad_token_id,
    )
    return save(path, BertModel, config, tokenizer, seed)


def tiny_cross_encoder(path: Path | str, *, window: int = 64, seed: int = 0) -> str:
    """One BERT layer that scores a pair of texts with one number."""
    tokenizer = wordpiece()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=window,
        num_labels=1,
    )
    return save(path, BertForSequenceClassification, config, tokenizer, seed)


def tiny_modernbert(path: Path | str, *, window: int = 256, seed: int = 0) -> str:
    """Bidirectional, rotary positions, one layer in three global and the others sliding over 16 tokens."""
    tokenizer = wordpiece()
    config = ModernBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=window,
        local_attention=16,
        initializer_range=0.2,
        pad_token_id=tokenizer.pad_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )
    return save(path, ModernBertModel, config, tokenizer, seed)


def tiny_qwen3(
    path: Path | str, *, n_layers: int = 2, window: int = 256, width: int = 32, seed: int = 0
) -> str:
    """Causal, grouped heads (4 query, 2 key/value), byte-level BPE that ends texts with <|endoftext|>."""
    tokenizer = byte_level()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=n_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=64,
        max_position_embeddings=window,
        initializer_range=0.2,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.pad_token_id,
    )
    return save(path, Qwen3Model, config, tokenizer, seed)


def save(path: Path | str, kind: type[PreTrainedModel], config: object, tokenizer: object, seed: int) -> str:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        kind(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def wordpiece() -> PreTrainedTokenizerFast:
    """A BERT tokenizer trained on LINES; letters outside of them become [UNK]."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(LINES, trainers.WordPieceTrainer(vocab_size=400, special_tokens=special))
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ids
    )
    tokenizer.decoder = decoders.WordPiece()
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **dict(zip(names, special, strict=True)))


def byte_level() -> PreTrainedTokenizerFast:
    """A Qwen-like tokenizer trained on LINES: words keep the space before them, nothing is unknown."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    words = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", pair="$A $B <|endoftext|>", special_tokens=[(special[0], 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=special[0], eos_token=special[0])
