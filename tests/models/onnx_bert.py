"""A BERT encoder as an ONNX model, to compare with: from the same weights, but other people's kernels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class _Graph:
    """Nodes in order; every method adds some and gives the name of its result."""

    def __init__(self, weights: Mapping[str, np.ndarray]):
        self.weights = dict(weights)
        self.nodes: list[onnx.NodeProto] = []

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        output = f"%{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def known(self, value: object, dtype: type) -> str:
        name = f"known {len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype)
        return name

    def dense(self, name: str, x: str) -> str:
        product = self.op("MatMul", x, self.op("Transpose", f"{name}.weight"))
        return self.op("Add", product, f"{name}.bias")

    def norm(self, name: str, x: str) -> str:
        return self.op("LayerNormalization", x, f"{name}.weight", f"{name}.bias", axis=-1, epsilon=1e-12)

    def heads(self, x: str, count: int, permutation: tuple[int, ...]) -> str:
        split = self.op("Reshape", x, self.known([0, 0, count, -1], np.int64))
        return self.op("Transpose", split, perm=permutation)


def sentence_encoder(weights: Mapping[str, np.ndarray], layers: int, heads: int) -> bytes:
    """A model from ids and mask, int64 [sentences, tokens], to unit vectors: the mean of the last states where the mask is 1.

    Args:
        weights: under the names that Hugging Face's BERT gives them.
        layers: of the encoder.
        heads: of each attention.
    """
    graph = _Graph(weights)
    width = weights["embeddings.LayerNorm.weight"].shape[0]
    tokens = graph.op("Slice", graph.op("Shape", "ids"), *(graph.known([number], np.int64) for number in (1, 2)))
    places = graph.op("Slice", "embeddings.position_embeddings.weight", graph.known([0], np.int64), tokens)
    kind = graph.op("Gather", "embeddings.token_type_embeddings.weight", graph.known(0, np.int64))
    words = graph.op("Gather", "embeddings.word_embeddings.weight", "ids")
    x = graph.norm("embeddings.LayerNorm", graph.op("Add", graph.op("Add", words, places), kind))
    seen = graph.op("Unsqueeze", graph.op("Cast", "mask", to=TensorProto.FLOAT), graph.known([1, 2], np.int64))
    bias = graph.op("Mul", graph.op("Sub", seen, graph.known(1, np.float32)), graph.known(1e9, np.float32))
    for layer in (f"encoder.layer.{index}" for index in range(layers)):
        itself = f"{layer}.attention.self"
        query, value = (graph.heads(graph.dense(f"{itself}.{part}", x), heads, (0, 2, 1, 3)) for part in ("query", "value"))
        key = graph.heads(graph.dense(f"{itself}.key", x), heads, (0, 2, 3, 1))
        scores = graph.op("Div", graph.op("MatMul", query, key), graph.known((width / heads) ** 0.5, np.float32))
        shares = graph.op("Softmax", graph.op("Add", scores, bias), axis=-1)
        mixed = graph.op("Transpose", graph.op("MatMul", shares, value), perm=(0, 2, 1, 3))
        mixed = graph.dense(f"{layer}.attention.output.dense", graph.op("Reshape", mixed, graph.known([0, 0, width], np.int64)))
        x = graph.norm(f"{layer}.attention.output.LayerNorm", graph.op("Add", x, mixed))
        hidden = graph.op("Gelu", graph.dense(f"{layer}.intermediate.dense", x))
        x = graph.norm(f"{layer}.output.LayerNorm", graph.op("Add", x, graph.dense(f"{layer}.output.dense", hidden)))
    seen = graph.op("Unsqueeze", graph.op("Cast", "mask", to=TensorProto.FLOAT), graph.known([2], np.int64))
    along = graph.known([1], np.int64)
    total = graph.op("ReduceSum", graph.op("Mul", x, seen), along, keepdims=0)
    mean = graph.op("Div", total, graph.op("ReduceSum", seen, along, keepdims=0))
    graph.nodes.append(helper.make_node("LpNormalization", [mean], ["vectors"], axis=1, p=2))
    whole = helper.make_graph(
        graph.nodes,
        "sentence encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["sentences", "tokens"]) for name in ("ids", "mask")],
        [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["sentences", width])],
        [numpy_helper.from_array(value, name) for name, value in graph.weights.items()],
    )
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    return model.SerializeToString()
