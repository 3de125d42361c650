"""SentenceEncoder: documents to leaf vectors and leaf-by-leaf affinity, from one pass of a transformer."""

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from scipy.sparse import csr_array
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from sproutrag import attention
from sproutrag.affinity import join_blocks, join_vectors, rows_of, unit
from sproutrag.attention import (
    AttentionUnavailable,
    HeadMaps,
    HeadMixer,
    LeafAttention,
    leaf_indicator,
    mutual,
)
from sproutrag.documents import Document
from sproutrag.models import (
    HEADS_FILE,
    EncoderSettings,
    find_encoder,
    fingerprint_of,
    save_settings,
    settings_of,
    within_model,
)
from sproutrag.windows import LeafTokenizer, TokenBatch, Windows

# Tokens of a batch, padding included. MiniLM on one thread read 2,150, 2,100 and 1,930 tokens/s at 2,048,
# 4,096 and 8,192: matrix products are large enough, and small batches hold windows of nearer lengths.
TOKEN_BUDGET = {"cpu": 2_048, "cuda": 131_072}
BLOCK_BYTES = {"cpu": 4 << 20, "cuda": 512 << 20}  # of probabilities: a CPU's cache, a small part of a GPU
DRIFT = {"cpu": 1e-4, "cuda": 0.05}  # relative, of float32 and bfloat16 hidden states
disable_progress_bar()  # transformers draws one while it reads weights; a job has its own


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """vectors (n, d) float32, unit norm; affinity (n, n) float32, symmetric, > 0, no diagonal, connected.

    language: the document's own, or the one that was detected.
    """

    document: Document
    spans: np.ndarray
    vectors: np.ndarray
    affinity: csr_array
    n_tokens: int
    language: str


class SentenceEncoder(nn.Module):
    """Transformer and HeadMixer, saved and loaded as one directory so nothing trained can be left behind.

    Inference pools attention to leaves inside the attention function (LeafAttention); training asks for every
    head's map (HeadMaps), so that the head weights get gradients.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: LeafTokenizer, settings: EncoderSettings, path: str
    ) -> None:
        super().__init__()
        config = model.config.get_text_config()
        self.model = model
        self.heads = HeadMixer(config.num_hidden_layers, config.num_attention_heads)
        self.tokenizer = tokenizer
        self.settings = settings
        self.path = path

    @classmethod
    def from_pretrained(cls, path: str, *, device: str | None = None, **settings: Any) -> "SentenceEncoder":
        """Load a directory or a name known to `find_encoder`; `settings` replace those of the directory.

        float32 on CPU, bfloat16 on GPU. A fixed pair of sentences proves that attention arrives.
        """
        path = find_encoder(path)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        model = AutoModel.from_pretrained(
            path,
            attn_implementation=attention.NAME,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
        )
        model.config.use_cache = False
        chosen = within_model(path, replace(settings_of(path), **settings))
        encoder = cls(model.eval(), load_tokenizer(path, left_padding=chosen.left_padding), chosen, path)
        heads = os.path.join(path, HEADS_FILE)
        if os.path.isfile(heads):
            encoder.heads.load_state_dict(load_file(heads))
        encoder.to(device)
        encoder.check_attention()
        return encoder

    @property
    def device(self) -> torch.device:
        return self.heads.logits.device

    @property
    def dimension(self) -> int:
        return self.model.config.get_text_config().hidden_size

    @property
    def fingerprint(self) -> str:
        """Of the directory this encoder was loaded from or last saved to, with the settings in use."""
        return fingerprint_of(self.path, self.settings)

    def save(self, path: str) -> None:
        """Write one directory that `from_pretrained` reads. What did not change is copied byte for byte."""
        source, target = Path(self.path), Path(path)
        target.mkdir(parents=True, exist_ok=True)
        if source.resolve() != target.resolve():
            shutil.copytree(source, target, dirs_exist_ok=True)
        if weights_changed(self.model, source):
            for file in [*target.glob("*.safetensors"), *target.glob("*.safetensors.index.json")]:
                file.unlink()
            self.model.save_pretrained(target)
        (target / HEADS_FILE).unlink(missing_ok=True)
        if bool((self.heads.logits != self.heads.logits[0, 0]).any()):
            save_file({"logits": self.heads.logits.detach().cpu().contiguous()}, target / HEADS_FILE)
        save_settings(path, self.settings)
        self.path = os.path.abspath(path)

    def forward(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Leaf vectors (B, n, d), not of unit norm, and affinity (B, n, n), with gradients; zero padding."""
        indicator, real = self.indicator(batch), batch.real.to(self.device)
        gathered = HeadMaps(indicator, real)
        states = self.states(batch, gathered)
        return self.leaf_vectors(states, indicator), self.heads(gathered.result())

    @torch.inference_mode()
    def pooled(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """`forward` for inference: the same two tensors, heads mixed while they are computed."""
        gathered = self.gather(batch)
        states = self.states(batch, gathered)
        return self.leaf_vectors(states, gathered.indicator_BTn), mutual(gathered.result())

    def gather(self, batch: TokenBatch) -> LeafAttention:
        return LeafAttention(
            self.indicator(batch),
            batch.starts,
            batch.stops,
            self.heads.weights_LH.float(),
            block_bytes=BLOCK_BYTES[self.device.type],
        )

    def indicator(self, batch: TokenBatch) -> Tensor:
        return leaf_indicator(batch.leaf.to(self.device), int(batch.leaf.max()) + 1)

    def states(self, batch: TokenBatch, leaf_attention: LeafAttention | HeadMaps) -> Tensor:
        """Last hidden states (B, T, d)."""
        output = self.model(
            input_ids=batch.input_ids.to(self.device),
            attention_mask=batch.real.to(self.device),
            leaf_attention=leaf_attention,
        )
        return output.last_hidden_state

    def leaf_vectors(self, states_BTd: Tensor, indicator_BTn: Tensor) -> Tensor:
        """(B, n, d): mean or last state of each leaf, less the unwanted share of the window's mean."""
        means = torch.bmm(indicator_BTn.transpose(1, 2), states_BTd.float())
        share = self.settings.context_share
        if self.settings.pooling == "last":
            T = states_BTd.shape[1]
            last = ((indicator_BTn > 0) * torch.arange(T, device=self.device)[:, None]).amax(1)
            leaves = states_BTd.float().gather(1, last[..., None].expand(-1, -1, states_BTd.shape[-1]))
            leaves = leaves * (indicator_BTn > 0).any(1)[..., None]
        else:
            leaves = means
        if share == 1:
            return leaves
        n_tokens = (indicator_BTn > 0).sum(1)[..., None]
        window_mean = (means * n_tokens).sum(1, keepdim=True) / n_tokens.sum(1, keepdim=True)
        return leaves - (1 - share) * window_mean * (n_tokens > 0)

    def windows(self, documents: Sequence[Document]) -> Windows:
        """Leaves, tokens and windows of the documents, before any model runs."""
        settings = self.settings
        return self.tokenizer.read(
            documents,
            sentences_per_leaf=settings.sentences_per_leaf,
            window=settings.window,
            overlap=settings.overlap,
        )

    def batches(self, windows: Windows) -> Iterable[TokenBatch]:
        return self.tokenizer.batches(windows, token_budget=TOKEN_BUDGET[self.device.type])

    def encode(self, documents: Sequence[Document]) -> list[EncodedDocument]:
        """One pass over overlapping windows of whole leaves; nothing is dropped. Memory is linear in it.

        Affinity is scaled by the tokens of its window and averaged where windows overlap; vectors likewise.
        """
        windows = self.windows(documents)
        sizes = windows.sizes
        rows = np.concatenate([[0], sizes.cumsum()])
        vectors = np.empty((rows[-1], self.dimension), dtype=np.float32)
        blocks: list[np.ndarray] = [np.empty(0)] * len(sizes)
        for batch in self.batches(windows):
            leaf_vectors, attended = (x.cpu().numpy() for x in self.pooled(batch))
            for at, window in enumerate(batch.windows.tolist()):
                n = sizes[window]
                vectors[rows[window] : rows[window + 1]] = leaf_vectors[at, :n]
                blocks[window] = attended[at, :n, :n] * (batch.stops[at] - batch.starts[at])
        vectors, affinity = join_vectors(vectors, windows), join_blocks(blocks, windows)
        return [
            EncodedDocument(
                document,
                windows.spans[i],
                vectors[first:stop],
                rows_of(affinity, first, stop),
                int(windows.leaves.starts[stop] - windows.leaves.starts[first]),
                windows.languages[i],
            )
            for i, (document, (first, stop)) in enumerate(
                zip(documents, pairwise(windows.document_starts.tolist()), strict=True)
            )
        ]

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """(q, d) float32, unit norm: pooled like leaves, but over the model's own tokens too (as trained).

        A query longer than a window is read in several; its vector is their mean.
        """
        texts = [self.settings.query_instruction + query for query in queries]
        tokens = self.tokenizer.encode(texts)
        windows = self.tokenizer.query_windows(tokens, self.settings.window)
        owner = np.searchsorted(tokens.starts, windows.leaves.starts[:-1], side="right") - 1
        vectors = np.zeros((len(queries), self.dimension), dtype=np.float32)
        for batch in self.batches(windows):
            whole = replace(batch, leaf=batch.real - 1)
            np.add.at(vectors, owner[batch.windows], unit(self.pooled(whole)[0][:, 0].cpu().numpy()))
        return unit(vectors)

    @torch.inference_mode()
    def plain_forward(self, windows: Windows) -> None:
        """The floor indexing is measured against: the stock model over the same batches."""
        for batch in self.batches(windows):
            self.stock_states(batch)

    def stock_states(self, batch: TokenBatch) -> Tensor:
        """Last hidden states (B, T, d) of the model as transformers ships it, on its SDPA kernels."""
        self.model.set_attn_implementation("sdpa")
        try:
            return self.model(
                input_ids=batch.input_ids.to(self.device), attention_mask=batch.real.to(self.device)
            ).last_hidden_state
        finally:
            self.model.set_attn_implementation(attention.NAME)

    def check_attention(self) -> None:
        """Attention of two fixed sentences sums to 1, and the hidden states are the stock model's (P034)."""
        pair = self.tokenizer.encode(["Roots grow down.", " Leaves grow up to the light."])
        windows = Windows([], [], pair, np.asarray([0, 2]), np.asarray([[0, 2], [0, 1]]))
        batch = self.tokenizer.batch(windows, np.asarray([0, 1]))
        with torch.inference_mode():
            gathered = self.gather(batch)
            ours = self.states(batch, gathered)
            gathered.result()
            stock = self.stock_states(batch)
        real = batch.real.bool().to(self.device)
        drift = (ours - stock)[real].abs().max() / stock[real].abs().max()
        mass = gathered.pooled_BnT.sum(2)[:, 0]
        if not (drift < DRIFT[self.device.type] and (mass - 1).abs().max() < 0.01):
            raise AttentionUnavailable(
                f"encoder {self.settings.name!r}: attention through attn_implementation='{attention.NAME}' "
                f"does not explain its output (drift {drift:.1g}, mass {mass.min():.3f}): its layers use "
                "a bias or sink that this path does not know; choose another encoder"
            )


def load_tokenizer(path: str, *, left_padding: bool) -> LeafTokenizer:
    loaded = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    pad_id = loaded.pad_token_id if loaded.pad_token_id is not None else 0
    return LeafTokenizer(loaded.backend_tokenizer, pad_id=pad_id, left_padding=left_padding)


def weights_changed(model: PreTrainedModel, path: Path) -> bool:
    """Whether a parameter differs from the safetensors it was read from."""
    state = model.state_dict()
    seen = set()
    for file in sorted(path.glob("*.safetensors")):
        if file.name == HEADS_FILE:
            continue
        with safe_open(file, framework="pt") as stored:
            for key in stored.keys():  # noqa: SIM118 (not a dict)
                name = key.removeprefix(f"{model.base_model_prefix}.")
                if name in state:
                    seen.add(name)
                    if not torch.equal(stored.get_tensor(key).to(state[name].dtype), state[name].cpu()):
                        return True
    return not {name for name, _ in model.named_parameters()} <= seen
