"""Token attention pooled to leaves while a transformer runs: registered with transformers, mixed over heads.

Shape suffixes: B windows, T tokens, n leaves, L layers, H heads, K key/value heads, D head width.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

NAME = "sproutrag"
MIN_BLOCK = 64  # queries; below this the matrix products of a block are too thin to be fast


class AttentionUnavailable(RuntimeError):
    """The model's attention cannot be read, so no tree can be grown from it."""


class HeadMixer(nn.Module):
    """Softmax-weighted mean of all heads, symmetric, zero diagonal (eq. 2): (B, L, H, n, n) -> (B, n, n)."""

    def __init__(self, n_layers: int, n_heads: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(n_layers, n_heads))

    @property
    def weights_LH(self) -> Tensor:
        """Sums to 1 over all layers and heads; uniform until trained."""
        return self.logits.flatten().softmax(0).view_as(self.logits)

    def forward(self, maps_BLHnn: Tensor) -> Tensor:
        return mutual(torch.einsum("lh,blhij->bij", self.weights_LH.to(maps_BLHnn.dtype), maps_BLHnn))


def mutual(attention_Bnn: Tensor) -> Tensor:
    """M = (A + Aᵀ) / 2 with the diagonal at zero."""
    symmetric = (attention_Bnn + attention_Bnn.transpose(1, 2)) / 2
    return symmetric * (1 - torch.eye(symmetric.shape[1], dtype=symmetric.dtype, device=symmetric.device))


def leaf_indicator(leaf_BT: Tensor, n: int) -> Tensor:
    """(B, T) leaf of each token, -1 for none -> (B, T, n): 1 / (tokens of its leaf) where it is."""
    member_BTn = leaf_BT[..., None] == torch.arange(n, device=leaf_BT.device)
    return member_BTn / member_BTn.sum(1, keepdim=True).clamp(min=1)


@dataclass(frozen=True, slots=True)
class Tile:
    """Windows that are attended together, cut to the tokens that are real in one of them."""

    windows: slice
    tokens: slice
    padding: Tensor | None  # (b, 1, 1, X) added to the scores, None where no window of the tile is padded


def tiles(starts: list[int], stops: list[int], *, together: bool, device: torch.device) -> list[Tile]:
    """One per window (CPU: padding is neither computed nor masked) or per batch (GPU: few launches)."""
    if not together:
        spans = zip(starts, stops, strict=True)
        return [Tile(slice(b, b + 1), slice(start, stop), None) for b, (start, stop) in enumerate(spans)]
    first, last = min(starts), max(stops)
    if first == max(starts) and last == min(stops):
        return [Tile(slice(0, len(starts)), slice(first, last), None)]
    position = torch.arange(first, last, device=device)
    bounds = torch.tensor([starts, stops], device=device)[..., None]
    hidden = (position < bounds[0]) | (position >= bounds[1])
    padding = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, torch.finfo(torch.float32).min)
    return [Tile(slice(0, len(starts)), slice(first, last), padding[:, None, None])]


# Why this shape: CPU time of one MiniLM layer's attention over stock SDPA (float32, one AVX2 thread,
# windows of 512 tokens with 12 / 40 leaves). softmax(QKᵀ) @ [V | leaf indicator] in query blocks: 1.74 /
# 1.97. Stock SDPA with V widened by the indicator and Q, K by zeros: 1.45 / 1.98. Heads mixed per block
# of 64 queries over all windows of the batch: 1.44 / 1.47. The same window by window, in blocks that stay
# in cache: 1.34 / 1.38, which is this one. Stock SDPA computes padding and masks it; cutting each window
# to its tokens wins that back on uneven batches.
class LeafAttention:
    """Gathers one forward pass: head-weighted attention, its query side pooled to leaves, layer upon layer.

    indicator (B, T, n) from `leaf_indicator`; starts, stops: real tokens of windows; weights (L, H) sum to 1.
    Holds (B, n, T) and one block of probabilities, never a map of T x T per head.
    """

    def __init__(
        self,
        indicator_BTn: Tensor,
        starts: list[int],
        stops: list[int],
        weights_LH: Tensor,
        *,
        block_bytes: int,
    ) -> None:
        device = indicator_BTn.device
        self.indicator_BTn = indicator_BTn
        self.weights_LH = weights_LH
        self.block_bytes = block_bytes
        self.tiles = tiles(starts, stops, together=device.type != "cpu", device=device)
        self.pooled_BnT = torch.zeros_like(
            indicator_BTn.transpose(1, 2), memory_format=torch.contiguous_format
        )
        self.rooms: dict[str, Tensor] = {}
        self.layer = 0

    def result(self) -> Tensor:
        """(B, n, n): mean attention from the tokens of one leaf to those of another, mixed over heads."""
        if self.layer != len(self.weights_LH):
            raise AttentionUnavailable(
                f"attention arrived from {self.layer} of {len(self.weights_LH)} layers: load the model with "
                f"attn_implementation='{NAME}', or choose an encoder whose layers use its AttentionInterface"
            )
        return torch.bmm(self.pooled_BnT, self.indicator_BTn)

    def attend(
        self, query_BHTD: Tensor, key_BKTD: Tensor, value_BKTD: Tensor, rule_TT: Tensor | None, scaling: float
    ) -> Tensor:
        """Attention output (B, T, H, D), zero on padding. Each block of probabilities is pooled once."""
        B, H, T, D = query_BHTD.shape
        output_BTHD = query_BHTD.new_zeros(B, T, H, D)
        weights_H = self.weights_LH[self.layer]
        self.layer += 1
        for tile in self.tiles:
            at = (tile.windows, slice(None), tile.tokens)
            output = output_BTHD[tile.windows, tile.tokens]
            blocks = self.probabilities(tile, query_BHTD[at], key_BKTD[at], rule_TT, scaling)
            self.attend_tile(tile, blocks, value_BKTD[at].flatten(0, 1), weights_H, output)
        return output_BTHD

    def probabilities(
        self, tile: Tile, query: Tensor, key: Tensor, rule_TT: Tensor | None, scaling: float
    ) -> Iterator[tuple[slice, slice, Tensor]]:
        """Blocks of a tile: queries, the keys they see, softmax (b, H, queries, keys), one reused buffer.

        Query heads that share a key head are rows of one matrix product.
        """
        b, H, n_keys, D = query.shape
        key = key.flatten(0, 1)
        query = query.reshape(len(key), -1, n_keys, D)
        for rows in self.blocks(b * H, n_keys):
            keys, bias = visible_keys(rule_TT, rows, n_keys)
            padding = None if tile.padding is None else tile.padding[..., keys]
            block = query[:, :, rows].flatten(1, 2)
            scores = self.room("scores", query, len(key), block.shape[1], keys.stop - keys.start)
            torch.baddbmm(scores, block, key[:, keys].transpose(1, 2), beta=0, alpha=scaling, out=scores)
            yield rows, keys, softmax_(scores.view(b, H, -1, scores.shape[-1]), bias, padding)

    def attend_tile(
        self,
        tile: Tile,
        blocks: Iterator[tuple[slice, slice, Tensor]],
        value: Tensor,
        weights_H: Tensor,
        output: Tensor,
    ) -> None:
        """Use each block twice: for `output` (b, X, H, D) and, pooled by leaf, for the tree."""
        b, _, H, D = output.shape
        pooled = self.pooled_BnT[tile.windows, :, tile.tokens]
        indicator = self.indicator_BTn[tile.windows, tile.tokens].transpose(1, 2)
        for rows, keys, probabilities in blocks:
            n_rows, n_seen = probabilities.shape[2:]
            mixed = self.room("mixed", probabilities, b, 1, n_rows * n_seen)
            torch.bmm(weights_H.expand(b, 1, H), probabilities.view(b, H, -1), out=mixed)
            pooled[:, :, keys].baddbmm_(indicator[:, :, rows], mixed.view(b, n_rows, n_seen))
            flat = probabilities.to(value.dtype).view(len(value), -1, n_seen)
            attended = self.room("attended", value, len(value), flat.shape[1], D)
            torch.bmm(flat, value[:, keys], out=attended)
            output[:, rows] = attended.view(b, H, n_rows, D).transpose(1, 2)

    def room(self, use: str, like: Tensor, *shape: int) -> Tensor:
        """Memory for one block of results, reused by the next block: fresh pages cost more than they hold."""
        size = math.prod(shape)
        if use not in self.rooms or self.rooms[use].numel() < size:
            self.rooms[use] = like.new_empty(size)
        return self.rooms[use][:size].view(shape)

    def blocks(self, n_rows: int, n_keys: int) -> Iterator[slice]:
        """Near-equal blocks of queries; the probabilities of all `n_rows` window heads fit `block_bytes`."""
        largest = max(MIN_BLOCK, self.block_bytes // (4 * n_rows * n_keys))
        size = -(-n_keys // -(-n_keys // largest))
        return (slice(start, min(start + size, n_keys)) for start in range(0, n_keys, size))


def visible_keys(rule_TT: Tensor | None, rows: slice, n_keys: int) -> tuple[slice, Tensor | None]:
    """The keys that these queries may see at all (causal, sliding), a bias against those only some see."""
    if rule_TT is None:
        return slice(0, n_keys), None
    allowed = rule_TT[rows, :n_keys]
    seen = allowed.any(0).nonzero()
    keys = slice(int(seen[0]), int(seen[-1]) + 1)
    bias = torch.zeros(allowed[:, keys].shape, device=allowed.device)
    return keys, bias.masked_fill_(~allowed[:, keys], torch.finfo(torch.float32).min)


def softmax_(scores: Tensor, bias: Tensor | None, padding: Tensor | None) -> Tensor:
    """Softmax over keys in float32, in place where the scores are float32 already."""
    scores = scores.float()
    for term in (bias, padding):
        if term is not None:
            scores += term
    return torch.softmax(scores, -1, out=scores)


class HeadMaps:
    """Gathers one forward pass for training: every head's attention pooled to leaves, with gradients."""

    def __init__(self, indicator_BTn: Tensor, real_BT: Tensor) -> None:
        self.indicator_BTn = indicator_BTn
        self.padding_B11T = torch.zeros(real_BT.shape, device=real_BT.device).masked_fill_(
            ~real_BT.bool(), torch.finfo(torch.float32).min
        )[:, None, None]
        self.maps_BHnn: list[Tensor] = []

    def result(self) -> Tensor:
        """(B, L, H, n, n)."""
        return torch.stack(self.maps_BHnn, 1)

    def attend(
        self, query_BHTD: Tensor, key_BKTD: Tensor, value_BKTD: Tensor, rule_TT: Tensor | None, scaling: float
    ) -> Tensor:
        groups = query_BHTD.shape[1] // key_BKTD.shape[1]
        key, value = (x.repeat_interleave(groups, 1) for x in (key_BKTD, value_BKTD))
        scores = (query_BHTD @ key.transpose(2, 3)).float() * scaling + self.padding_B11T
        if rule_TT is not None:
            scores = scores.masked_fill(~rule_TT, torch.finfo(torch.float32).min)
        probabilities = scores.softmax(-1)
        indicator = self.indicator_BTn[:, None].to(probabilities.dtype)
        self.maps_BHnn.append(indicator.transpose(2, 3) @ (probabilities @ indicator))
        return (probabilities.to(value.dtype) @ value).transpose(1, 2)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    leaf_attention: LeafAttention | HeadMaps | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer; `leaf_attention` comes as a keyword of the model's forward."""
    if leaf_attention is None:
        raise AttentionUnavailable(
            f"{type(module).__name__} got no leaf_attention: call the encoder, not its model, or choose an "
            "encoder that hands the keywords of forward() down to its attention layers"
        )
    rule_TT = None if attention_mask is None else attention_mask[0, 0]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return leaf_attention.attend(query, key, value, rule_TT, scale), None


def position_rule(
    *, q_length: int, kv_length: int, attention_mask: Tensor | None = None, **rule: Any
) -> Tensor | None:
    """The mask without padding, (1, 1, T, T) boolean, one for all windows; None where all see all.

    Padding never reaches the attention function: `LeafAttention` cuts each window to its real tokens.
    """
    rule.update(batch_size=1, allow_is_causal_skip=False)
    return sdpa_mask(q_length=q_length, kv_length=kv_length, attention_mask=None, **rule)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, position_rule)
