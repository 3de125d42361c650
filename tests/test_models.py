"""Finding encoders, reading their settings, and the fingerprint that ties an index to one."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sproutrag.models import (
    DEFAULT_ENCODER,
    EncoderSettings,
    ModelNotFound,
    find_encoder,
    fingerprint_of,
    list_models,
    save_settings,
    settings_of,
)
from tests.tiny_models import tiny_bert, tiny_qwen3


@pytest.fixture
def model(tmp_path):
    return tiny_bert(tmp_path / "tiny")


def test_default_encoder_is_the_packaged_one_under_both_of_its_names():
    path = find_encoder(DEFAULT_ENCODER)
    assert path == find_encoder(f"sentence-transformers/{DEFAULT_ENCODER}")
    settings = settings_of(path)
    assert (settings.name, settings.pooling, settings.left_padding) == (DEFAULT_ENCODER, "mean", False)
    assert [row.path for row in list_models() if row.name == DEFAULT_ENCODER] == [path]


def test_directory_is_found_and_named_after_itself(model):
    assert find_encoder(model) == model
    assert fingerprint_of(model).startswith("tiny@") and len(fingerprint_of(model)) == len("tiny@") + 12


def test_pickled_weights_are_refused_with_what_to_do(model):
    Path(model, "model.safetensors").rename(Path(model, "pytorch_model.bin"))
    with pytest.raises(ModelNotFound, match="save the model again with save_pretrained"):
        find_encoder(model)


def test_directory_without_a_model_says_what_is_missing(tmp_path):
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        find_encoder(str(tmp_path))


def test_hub_name_without_network_says_what_to_do(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFound, match="sproutrag models get example/absent-encoder"):
        find_encoder("example/absent-encoder")
    with pytest.raises(ModelNotFound, match="neither a directory nor a model name"):
        find_encoder("no such/model/here")


def test_causal_architecture_pools_last_and_pads_left(tmp_path):
    settings = settings_of(tiny_qwen3(tmp_path))
    assert (settings.pooling, settings.left_padding) == ("last", True)


def test_sentence_transformers_files_decide_pooling_and_instruction(model):
    Path(model, "1_Pooling").mkdir()
    Path(model, "1_Pooling", "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    prompts = {"prompts": {"query": "Instruct: find\nQuery:", "document": ""}}
    Path(model, "config_sentence_transformers.json").write_text(json.dumps(prompts))
    settings = settings_of(model)
    assert (settings.pooling, settings.query_instruction) == ("last", "Instruct: find\nQuery:")


def test_saved_settings_win_and_unknown_ones_are_named(model):
    settings = EncoderSettings(name="mine", window=64, query_instruction="frage: ", threshold=0.25)
    save_settings(model, settings)
    assert settings_of(model) == settings
    Path(model, "sproutrag.json").write_text(json.dumps({"name": "mine", "windw": 64}))
    with pytest.raises(ModelNotFound, match="windw"):
        settings_of(model)


@pytest.mark.parametrize(
    "change",
    [{"window": 100}, {"overlap": 2}, {"pooling": "last"}, {"sentences_per_leaf": 1}, {"context_share": 0.5}],
    ids=str,
)
def test_settings_that_change_what_is_stored_change_the_fingerprint(model, change):
    settings = settings_of(model)
    assert fingerprint_of(model, replace(settings, **change)) != fingerprint_of(model, settings)


def test_settings_of_queries_do_not_change_the_fingerprint(model):
    settings = settings_of(model)
    changed = replace(settings, query_instruction="query: ", threshold=0.5)
    assert fingerprint_of(model, changed) == fingerprint_of(model, settings)


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_one_changed_byte_changes_the_fingerprint(model, file):
    settings = settings_of(model)
    before = fingerprint_of(model, settings)
    content = bytearray(Path(model, file).read_bytes())
    content[-2] ^= 1
    Path(model, file).write_bytes(content)
    assert fingerprint_of(model, settings) != before


def test_fingerprint_needs_no_torch(model):
    code = (
        "import sys; from sproutrag.models import fingerprint_of; "
        f"print(fingerprint_of({model!r})); assert 'torch' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == fingerprint_of(model)
