"""A GGUF file as a directory that vLLM and transformers load: safetensors, config, tokenizer, chat template.

Everything comes from the file itself. Llama kinds are not converted: their query and key rows are permuted.
"""

import re
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.gguf_reader import ReaderTensor
from gguf.quants import dequantize
from safetensors.torch import save_file
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from sproutrag.models import ModelNotFound

ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SAME_MATRIX = 0.1  # relative difference: two quantisations of one matrix differ by 0.044 (5 against 8 bits)


def convert(file: Path, folder: Path) -> None:
    """Write the model that `file` holds to `folder`. Quantised matrices become float16, else float32.

    A file may hold one matrix twice, as embedding and output, in two precisions: the finer serves for both.
    """
    reader = GGUFReader(file)
    architecture = str(reader.fields["general.architecture"].contents())
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelNotFound(f"{file}: a GGUF file of {architecture}; only {known} are converted")
    folder.mkdir(parents=True)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    tied = "output.weight" not in tensors or is_same_matrix(
        tensors["token_embd.weight"], tensors["output.weight"]
    )
    if tied and "output.weight" in tensors:
        tensors["token_embd.weight"] = tensors.pop("output.weight")
    weights = {hub_name(name): array_of(tensor) for name, tensor in tensors.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    save_text_parts(file, folder, architecture=ARCHITECTURES[architecture], tied=tied)


def save_text_parts(file: Path, folder: Path, *, architecture: str, tied: bool) -> None:
    place = {
        "pretrained_model_name_or_path": str(file.parent),
        "gguf_file": file.name,
        "local_files_only": True,
    }
    config = AutoConfig.from_pretrained(**place)
    config.architectures, config.tie_word_embeddings, config.dtype = [architecture], tied, torch.float16
    config.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(**place)
    tokenizer.save_pretrained(folder)
    stops = [config.eos_token_id, *({tokenizer.pad_token_id} - {None, config.eos_token_id})]
    GenerationConfig(
        do_sample=False, eos_token_id=stops, pad_token_id=tokenizer.pad_token_id
    ).save_pretrained(folder)


def is_same_matrix(one: ReaderTensor, other: ReaderTensor, rows: int = 1000) -> bool:
    a, b = (dequantize(tensor.data[:rows], tensor.tensor_type) for tensor in (one, other))
    return a.shape == b.shape and bool(np.linalg.norm(a - b) < SAME_MATRIX * np.linalg.norm(b))


def array_of(tensor: ReaderTensor) -> torch.Tensor:
    exact = tensor.tensor_type == GGMLQuantizationType.F32
    return torch.from_numpy(
        dequantize(tensor.data, tensor.tensor_type).astype(np.float32 if exact else np.float16)
    )


def hub_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`"""
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if block:
        return f"model.layers.{block[1]}.{NAMES[block[2]]}.{block[3]}"
    stem, kind = name.rsplit(".", 1)
    return f"{NAMES[stem]}.{kind}"
