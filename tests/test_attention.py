"""Attention pooled inside the model equals the plain thing: eager maps, averaged block by block."""

import itertools

import numpy as np
import pytest
import torch
from transformers import AutoModel

from sproutrag.attention import AttentionUnavailable, HeadMixer, LeafAttention, leaf_indicator, mutual, tiles
from sproutrag.documents import Document
from sproutrag.encoder import BLOCK_BYTES, SentenceEncoder
from tests.tiny_models import tiny_bert, tiny_modernbert, tiny_qwen3

TEXT = " ".join(
    f"The tenant pays the rent on day {i}. Roots grow down, leaves grow up to the light." for i in range(12)
)
SHORT = "Either party may end this agreement. Thirty days of notice. The rent is due."


@pytest.fixture(
    scope="module", params=[tiny_bert, tiny_modernbert, tiny_qwen3], ids=lambda kind: kind.__name__
)
def encoder(request, tmp_path_factory):
    encoder = SentenceEncoder.from_pretrained(request.param(tmp_path_factory.mktemp("model")), window=96)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        encoder.heads.logits.copy_(torch.randn(encoder.heads.logits.shape, generator=rng))
    return encoder


@pytest.fixture(scope="module")
def batch(encoder):
    """Windows of different length, so that the shorter ones are padded."""
    batch = next(iter(encoder.batches(encoder.windows([Document("a", TEXT), Document("b", SHORT)]))))
    assert len(set(np.subtract(batch.stops, batch.starts).tolist())) > 1
    assert len(batch.starts) > 2
    return batch


@pytest.fixture(scope="module")
def eager(encoder, batch):
    """Hidden states and (B, L, H, T, T) maps of the model as transformers runs it for attention."""
    model = AutoModel.from_pretrained(encoder.path, attn_implementation="eager")
    with torch.no_grad():
        output = model(input_ids=batch.input_ids, attention_mask=batch.real, output_attentions=True)
    return output.last_hidden_state, torch.stack(output.attentions, 1)


def pooled_by_loop(weights, maps_LHTT, leaf_T):
    """Mean over each block of tokens, head by head."""
    n = int(leaf_T.max()) + 1
    pooled = torch.zeros(n, n)
    for (l, h), i, j in itertools.product(np.ndindex(*weights.shape), range(n), range(n)):
        pooled[i, j] += weights[l, h] * maps_LHTT[l, h][leaf_T == i][:, leaf_T == j].mean()
    return pooled


def test_pooled_attention_equals_eager_maps_averaged_in_a_plain_loop(encoder, batch, eager):
    _, affinity = encoder.pooled(batch)
    weights = encoder.heads.weights_LH.detach()
    for b in range(len(batch.starts)):
        expected = pooled_by_loop(weights, eager[1][b], batch.leaf[b])
        n = len(expected)
        expected = mutual(expected[None])[0]
        torch.testing.assert_close(affinity[b, :n, :n], expected, atol=1e-6, rtol=1e-4)
        assert (affinity[b, n:] == 0).all()


def test_pooling_is_p_a_pt(encoder, batch, eager):
    P = leaf_indicator(batch.leaf, int(batch.leaf.max()) + 1).transpose(1, 2)
    mixed = torch.einsum("lh,blhij->bij", encoder.heads.weights_LH, eager[1])
    _, affinity = encoder.pooled(batch)
    torch.testing.assert_close(affinity, mutual(P @ mixed @ P.transpose(1, 2)), atol=1e-6, rtol=1e-4)


def test_hidden_states_equal_stock_sdpa(encoder, batch):
    gathered = LeafAttention(
        encoder.indicator(batch), batch.starts, batch.stops, encoder.heads.weights_LH, block_bytes=1
    )
    model = AutoModel.from_pretrained(encoder.path, attn_implementation="sdpa")
    with torch.inference_mode():
        ours = encoder.states(batch, gathered)
        stock = model(input_ids=batch.input_ids, attention_mask=batch.real).last_hidden_state
    real = batch.real.bool()
    torch.testing.assert_close(ours[real], stock[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("block_bytes", [1, 1 << 16, 1 << 30])
def test_block_size_and_tiling_change_nothing(encoder, batch, block_bytes, monkeypatch):
    expected = encoder.pooled(batch)
    for together in (False, True):  # a GPU takes the whole batch at once; the arithmetic is the same here

        def tiled(starts, stops, *, device, together=together, **_):
            return tiles(starts, stops, together=together, device=device)

        monkeypatch.setattr("sproutrag.attention.tiles", tiled)
        monkeypatch.setattr("sproutrag.attention.MIN_BLOCK", 8)
        monkeypatch.setitem(BLOCK_BYTES, "cpu", block_bytes)
        for got, want in zip(encoder.pooled(batch), expected, strict=True):
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_training_forward_gives_the_same_numbers_and_gradients_to_heads_and_weights(encoder, batch):
    expected = encoder.pooled(batch)
    vectors, affinity = encoder(batch)
    torch.testing.assert_close(vectors.detach(), expected[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(affinity.detach(), expected[1], atol=1e-6, rtol=1e-4)
    (vectors.square().sum() + affinity.square().sum()).backward()
    silent = [name for name, p in encoder.named_parameters() if p.grad is None and "pooler" not in name]
    assert silent == []
    assert encoder.heads.logits.grad.abs().max() > 0
    encoder.zero_grad(set_to_none=True)


def test_causal_leaf_attends_to_no_later_leaf(tmp_path):
    encoder = SentenceEncoder.from_pretrained(tiny_qwen3(tmp_path))
    batch = next(iter(encoder.batches(encoder.windows([Document("a", SHORT)]))))
    gathered = LeafAttention(
        encoder.indicator(batch), batch.starts, batch.stops, encoder.heads.weights_LH, block_bytes=1
    )
    with torch.inference_mode():
        encoder.states(batch, gathered)
    attention = gathered.result()[0]
    assert attention.triu(1).abs().max() == 0
    assert attention.tril(-1).sum() > 0


def test_head_mixer_uniform_weights_are_the_mean_and_output_is_symmetric_with_zero_diagonal():
    maps = torch.rand(2, 3, 4, 5, 5)
    mixed = HeadMixer(3, 4)(maps)
    torch.testing.assert_close(mixed, mutual(maps.mean((1, 2))))
    torch.testing.assert_close(mixed, mixed.transpose(1, 2))
    assert (mixed.diagonal(dim1=1, dim2=2) == 0).all()


def test_head_mixer_gradient_in_double_precision():
    mixer = HeadMixer(2, 3).double()
    maps = torch.rand(2, 2, 3, 4, 4, dtype=torch.double, requires_grad=True)
    logits = torch.randn(2, 3, dtype=torch.double, requires_grad=True)

    def mixed(maps, logits):
        return torch.func.functional_call(mixer, {"logits": logits}, (maps,))

    assert torch.autograd.gradcheck(mixed, (maps, logits))


def test_a_model_called_without_the_encoder_says_so(tmp_path):
    encoder = SentenceEncoder.from_pretrained(tiny_bert(tmp_path))
    with pytest.raises(AttentionUnavailable, match="call the encoder"):
        encoder.model(input_ids=torch.tensor([[2, 3]]))


def test_attention_that_does_not_arrive_stops_at_start_up_naming_the_setting(tmp_path):
    encoder = SentenceEncoder.from_pretrained(tiny_bert(tmp_path))
    encoder.model.set_attn_implementation("sdpa")
    with pytest.raises(AttentionUnavailable, match="attn_implementation='sproutrag'"):
        encoder.check_attention()
