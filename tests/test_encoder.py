"""SentenceEncoder and windows: nothing is dropped, batches do not matter, one directory."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sproutrag.documents import Document, coverage
from sproutrag.encoder import SentenceEncoder
from sproutrag.tree import build_tree
from sproutrag.windows import window_ranges
from tests.tiny_models import tiny_bert, tiny_modernbert, tiny_qwen3

SENTENCES = [f"The tenant pays the rent on day {i}. Leaves grow up to the light." for i in range(100)]
LONG = Document("long", " ".join(SENTENCES))  # 200 sentences
ONE = Document("one", "Roots grow down.")
EMPTY = Document("empty", " \n ")


@pytest.fixture(
    scope="module", params=[tiny_bert, tiny_modernbert, tiny_qwen3], ids=lambda kind: kind.__name__
)
def encoder(request, tmp_path_factory):
    return SentenceEncoder.from_pretrained(request.param(tmp_path_factory.mktemp("model")), window=96)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return SentenceEncoder.from_pretrained(tiny_bert(tmp_path_factory.mktemp("bert")), window=64)


def assert_sound(encoded):
    n = len(encoded.spans)
    affinity = encoded.affinity
    assert encoded.vectors.shape[0] == n and encoded.vectors.dtype == affinity.dtype == np.float32
    assert np.isfinite(encoded.vectors).all() and np.isfinite(affinity.data).all()
    np.testing.assert_allclose(np.linalg.norm(encoded.vectors, axis=1), 1, atol=1e-5)
    assert (
        abs(affinity - affinity.T).sum() == 0 and (affinity.data > 0).all() and affinity.diagonal().sum() == 0
    )
    assert build_tree(affinity).n_leaves == n  # asserts that the graph is connected
    assert coverage(encoded.document.text, encoded.spans) == 1.0


def same(left, right, atol=1e-5):
    np.testing.assert_array_equal(left.spans, right.spans)
    np.testing.assert_allclose(left.vectors, right.vectors, atol=atol)
    np.testing.assert_array_equal(left.affinity.indices, right.affinity.indices)
    np.testing.assert_allclose(left.affinity.data, right.affinity.data, rtol=1e-3, atol=atol)


def test_encoded_documents_are_sound_and_independent_of_batch_and_order(encoder):
    documents = [ONE, LONG, Document("two", "Thirty days of notice. The rent is due. Roots grow.")]
    together = encoder.encode(documents)
    for encoded in together:
        assert_sound(encoded)
    for encoded, document in zip(together, documents, strict=True):
        same(encoded, encoder.encode([document])[0])
    for encoded, backwards in zip(together, encoder.encode(documents[::-1])[::-1], strict=True):
        same(encoded, backwards)


def test_document_without_text_has_no_leaves(bert):
    nothing, one = bert.encode([EMPTY, ONE])
    assert nothing.vectors.shape == (0, 32) and nothing.affinity.shape == (0, 0) and nothing.n_tokens == 0
    assert_sound(one)
    assert bert.encode([]) == []
    assert bert.encode([EMPTY])[0].vectors.shape == (0, 32)


def test_vectors_and_affinity_equal_a_plain_loop_over_windows(encoder):
    """Also the check of last-token pooling and left padding: one window at a time, eager attention."""
    documents = [LONG, ONE]
    windows = encoder.windows(documents)
    model = type(encoder.model).from_pretrained(encoder.path, attn_implementation="eager")
    vectors = np.zeros((len(windows.leaves.lengths), encoder.dimension))
    starts = windows.leaves.starts
    for first, stop in windows.ranges.tolist():
        ids = windows.leaves.ids[starts[first] : starts[stop]].tolist()
        row = torch.tensor([[*encoder.tokenizer.prefix, *ids, *encoder.tokenizer.suffix]])
        with torch.no_grad():
            states = model(input_ids=row).last_hidden_state[0].numpy()
        for leaf in range(first, stop):
            at = len(encoder.tokenizer.prefix) + np.arange(starts[leaf], starts[leaf + 1]) - starts[first]
            vectors[leaf] += states[at[-1]] if encoder.settings.pooling == "last" else states[at].mean(0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ours = np.concatenate([encoded.vectors for encoded in encoder.encode(documents)])
    np.testing.assert_allclose(ours, vectors, atol=1e-4)


def test_causal_model_pads_left_pools_last_and_ends_queries_with_its_end_token(tmp_path):
    encoder = SentenceEncoder.from_pretrained(tiny_qwen3(tmp_path), query_instruction="Roots: ")
    assert encoder.settings.left_padding and encoder.settings.pooling == "last"
    queries = ["rent", "The tenant pays the rent on the first day?"]
    batch = next(iter(encoder.batches(encoder.windows([LONG, ONE]))))
    assert batch.real[:, -1].all() and batch.real.sum() < batch.real.numel()
    model = type(encoder.model).from_pretrained(encoder.path)
    for vector, query in zip(encoder.encode_queries(queries), queries, strict=True):
        ids = encoder.tokenizer.tokenizer.encode("Roots: " + query).ids
        assert ids[-1] == encoder.tokenizer.tokenizer.token_to_id("<|endoftext|>")
        with torch.no_grad():
            state = model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1].numpy()
        np.testing.assert_allclose(vector, state / np.linalg.norm(state), atol=1e-5)


def test_query_longer_than_the_window_is_read_to_its_end(bert):
    long = "rent " * 200
    vectors = bert.encode_queries([long + "roots", long + "light", "roots", ""])
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-4
    assert bert.encode_queries([]).shape == (0, 32)


def test_unique_fact_in_the_last_sentence_of_a_long_document_is_encoded(bert):
    """P029: three windows and more; the last sentence changes its leaf's vector and keeps its exact span."""
    body = " ".join(SENTENCES[:20])
    facts = ["Der Tag des Monats.", "Thirty parties end."]
    encoded = bert.encode([Document(fact, f"{body} {fact}") for fact in facts])
    for fact, document in zip(facts, encoded, strict=True):
        assert document.n_tokens > 3 * bert.settings.window
        start, stop = document.spans[-1]
        assert document.document.text[start:stop].endswith(fact)
    assert np.abs(encoded[0].vectors[-1] - encoded[1].vectors[-1]).max() > 1e-3


def test_leaf_longer_than_the_window_is_cut_at_token_boundaries_and_covered(encoder):
    text = (
        "Roots grow. "
        + "rent grow light tenant " * 120
        + "end. "
        + "日" * 300
        + "。"
        + "x" * 500
        + " 👩‍👩‍👧" * 40
    )
    encoded = encoder.encode([Document("long leaf", text)])[0]
    assert_sound(encoded)
    windows = encoder.windows([Document("long leaf", text)])
    assert windows.leaves.lengths.max() <= encoder.settings.window - encoder.tokenizer.frame
    words = [text[start:stop] for start, stop in encoded.spans]
    assert not any(word.endswith(("ren", "gro", "ligh", "tenan")) for word in words)


def test_leaves_of_invisible_or_unknown_characters_get_vectors_and_links(encoder):
    text = "Roots grow down.\n\n\u200f\u200e\u061c\n\n\x10\x11\n\n🌱🌱\n\nLeaves grow up."
    assert_sound(encoder.encode([Document("odd", text)])[0])


def test_direction_marks_do_not_change_the_vector_of_a_leaf(encoder):
    """P019; the marks stay in the text and spans still count them."""
    plain, marked = encoder.encode(
        [Document("p", "يدفع المستأجر الإيجار."), Document("m", "يدفع \u200fالمستأجر\u061c الإيجار.")]
    )
    np.testing.assert_allclose(plain.vectors, marked.vectors, atol=1e-6)
    assert marked.spans[-1, 1] == len(marked.document.text)


@pytest.mark.parametrize("control", ["[SEP]", "[CLS]", "[PAD]", "[MASK]", "<|endoftext|>", "<|im_start|>"])
def test_control_strings_are_plain_text(encoder, control):
    ids = encoder.tokenizer.encode([f"The marker {control} ends a text."]).ids.tolist()
    special = encoder.tokenizer.tokenizer.token_to_id(control)
    assert special is None or special not in ids
    assert_sound(encoder.encode([Document("c", f"The marker {control} ends a text. Roots grow.")])[0])


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(30, 80), st.integers(0, 3))
def test_windows_hold_every_leaf_and_share_leaves_where_they_can(lengths, capacity, overlap):
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ranges = window_ranges(starts, capacity=capacity, overlap=overlap)
    assert ranges[0, 0] == 0 and ranges[-1, 1] == len(lengths)
    assert (np.diff(ranges, axis=1) > 0).all() and (np.diff(ranges, axis=0) > 0).all()
    assert (starts[ranges[:, 1]] - starts[ranges[:, 0]] <= capacity).all()
    for (before, stop), (first, _) in pairwise(ranges.tolist()):
        assert first <= stop  # no leaf between two windows
        if stop - first < overlap:  # one more shared leaf would leave no room, or repeat the window before
            assert starts[stop + 1] - starts[first - 1] > capacity or first == before + 1


def test_context_share_takes_off_the_mean_of_the_window(bert):
    document = Document("a", " ".join(SENTENCES[:4]))
    plain = SentenceEncoder.from_pretrained(bert.path, window=128)
    sharp = SentenceEncoder.from_pretrained(bert.path, window=128, context_share=0.25)
    windows = plain.windows([document])
    raw = plain.pooled(next(iter(plain.batches(windows))))[0][0].numpy()
    mean = (raw * windows.leaves.lengths[:, None]).sum(0) / windows.leaves.lengths.sum()
    expected = raw - 0.75 * mean
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(sharp.encode([document])[0].vectors, expected, atol=1e-5)
    assert sharp.fingerprint != plain.fingerprint


def test_saved_encoder_has_the_same_fingerprint_vectors_and_trees(encoder, tmp_path):
    encoder.save(str(tmp_path))
    again = SentenceEncoder.from_pretrained(str(tmp_path))
    assert again.settings == encoder.settings and again.fingerprint == encoder.fingerprint
    for left, right in zip(encoder.encode([LONG, ONE]), again.encode([LONG, ONE]), strict=True):
        same(left, right, atol=1e-7)


def test_what_is_trained_is_saved_and_changes_the_fingerprint(tmp_path):
    encoder = SentenceEncoder.from_pretrained(tiny_bert(tmp_path / "model"))
    original = encoder.fingerprint
    with torch.no_grad():
        encoder.heads.logits[0, 1] = 3.0
    encoder.save(str(tmp_path / "heads"))
    mixed = SentenceEncoder.from_pretrained(str(tmp_path / "heads"))
    assert torch.equal(mixed.heads.logits, encoder.heads.logits)
    with torch.no_grad():
        encoder.model.encoder.layer[0].output.dense.bias[0] += 5
    encoder.save(str(tmp_path / "weights"))
    trained = SentenceEncoder.from_pretrained(str(tmp_path / "weights"))
    assert len({original, mixed.fingerprint, trained.fingerprint}) == 3
    same(trained.encode([LONG])[0], encoder.encode([LONG])[0])
    assert np.abs(trained.encode([LONG])[0].vectors - mixed.encode([LONG])[0].vectors).max() > 1e-3


def test_model_directory_is_not_changed_by_loading_or_saving_elsewhere(tmp_path):
    path = tiny_bert(tmp_path / "model")
    before = {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}
    SentenceEncoder.from_pretrained(path).save(str(tmp_path / "copy"))
    assert before == {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}
