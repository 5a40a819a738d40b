"""A network as an ONNX model with the same weights, for where PyTorch, which exports it otherwise, is not installed.

Images are NCHW, and the operators are those that PyTorch's exporter chooses.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.zoo.network import layers
from benchmarks.zoo.network.in_jax import Params
from benchmarks.zoo.network.network import Network, Node

_OPSET, _IR = 20, 10
_TYPES = {
    "image": TensorProto.FLOAT,
    "rows": TensorProto.FLOAT,
    "token ids": TensorProto.INT32,
    "segments": TensorProto.INT32,
    "mask": TensorProto.BOOL,
}
_ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("Relu", {}),
    "leaky_relu": ("LeakyRelu", {"alpha": 0.1}),
    "hardswish": ("HardSwish", {}),
    "softplus": ("Softplus", {}),
    "sigmoid": ("Sigmoid", {}),
    "gelu": ("Gelu", {}),
    "gelu_tanh": ("Gelu", {"approximate": "tanh"}),
    "tanh": ("Tanh", {}),
}


def write_onnx(network: Network, params: Params, path: Path) -> None:
    """Write the model to a file."""
    graph = _Graph(params)
    for node in network.nodes:
        graph.value[node.name] = _add(node.layer, node, graph, *(graph.value.get(name, name) for name in node.sources))
    outputs = [graph.value[name] for name in network.outputs]
    shapes = {node.name: node.shape for node in network.nodes}
    whole = helper.make_graph(
        graph.nodes,
        "network",
        [helper.make_tensor_value_info(name, _TYPES[what.kind], _nchw(what.shape)) for name, what in network.inputs.items()],
        [
            helper.make_tensor_value_info(output, TensorProto.FLOAT, _nchw(shapes[name]))
            for output, name in zip(outputs, network.outputs, strict=True)
        ],
        [numpy_helper.from_array(array, name) for name, array in graph.arrays.items()],
    )
    onnx.save(helper.make_model(whole, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR), path)


class _Graph:
    """Nodes in order; `op` adds one and gives the name of its result, `known` adds an array and gives its name."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.value: dict[str, str] = {}

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = f"%{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def known(self, value: Any, dtype: type = np.float32) -> str:
        name = f"known {len(self.arrays)}"
        self.arrays[name] = np.array(value, dtype, order="C")
        return name

    def parameter(self, node: Node, name: str) -> str:
        path = f"{node.parameters}/{name}"
        self.arrays.setdefault(path, np.array(self.params[node.parameters][name]))
        return path

    def dense(self, x: str, node: Node, prefix: str = "") -> str:
        product = self.op("MatMul", x, self.parameter(node, f"{prefix}weight"))
        return self.op("Add", product, self.parameter(node, f"{prefix}bias"))


@functools.singledispatch
def _add(layer: layers.Layer, node: Node, graph: _Graph, *inputs: str) -> str:
    raise NotImplementedError(layer)


@_add.register
def _(layer: layers.Conv, node: Node, graph: _Graph, x: str) -> str:
    weight = graph.known(graph.params[node.name]["weight"].transpose(3, 2, 0, 1))
    bias = [graph.parameter(node, "bias")] if layer.bias else []
    return graph.op("Conv", x, weight, *bias, group=layer.groups, **_window(layer.window))


@_add.register
def _(layer: layers.BatchNorm, node: Node, graph: _Graph, x: str) -> str:
    names = ("scale", "shift", "mean", "variance")
    return graph.op("BatchNormalization", x, *(graph.parameter(node, name) for name in names), epsilon=layer.epsilon)


@_add.register
def _(layer: layers.Activation, node: Node, graph: _Graph, x: str) -> str:
    if layer.kind == "relu6":
        return graph.op("Clip", x, graph.known(0), graph.known(6))
    if layer.kind == "silu":
        return graph.op("Mul", x, graph.op("Sigmoid", x))
    kind, attributes = _ACTIVATIONS[layer.kind]
    return graph.op(kind, x, **attributes)


@_add.register
def _(layer: layers.Pool, node: Node, graph: _Graph, x: str) -> str:
    attributes = {**_window(layer.window), "ceil_mode": int(layer.window.ceil)}
    if layer.kind == "max":
        return graph.op("MaxPool", x, **attributes)
    return graph.op("AveragePool", x, count_include_pad=1, **attributes)


@_add.register
def _(layer: layers.GlobalMean, node: Node, graph: _Graph, x: str) -> str:
    return graph.op("GlobalAveragePool", x)


@_add.register
def _(layer: layers.Flatten, node: Node, graph: _Graph, x: str) -> str:
    return graph.op("Flatten", x)


@_add.register
def _(layer: layers.Upsample, node: Node, graph: _Graph, x: str) -> str:
    scales = graph.known([1, 1, layer.factor, layer.factor])
    how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return graph.op("Resize", x, "", scales, mode="nearest", **how)


@_add.register
def _(layer: layers.Add, node: Node, graph: _Graph, *inputs: str) -> str:
    return functools.reduce(lambda a, b: graph.op("Add", a, b), inputs)


@_add.register
def _(layer: layers.Multiply, node: Node, graph: _Graph, x: str, gate: str) -> str:
    return graph.op("Mul", x, gate)


@_add.register
def _(layer: layers.Concat, node: Node, graph: _Graph, *inputs: str) -> str:
    return graph.op("Concat", *inputs, axis=1)


@_add.register
def _(layer: layers.Linear, node: Node, graph: _Graph, x: str) -> str:
    (shape,) = node.inputs
    if len(shape) == 3:
        return graph.dense(x, node)
    weight = graph.params[node.name]["weight"]
    if len(shape) == 4:
        x = graph.op("Flatten", x)  # the channels come first in it
        weight = weight.reshape(*shape[1:], -1).transpose(2, 0, 1, 3).reshape(-1, layer.outputs)
    return graph.op("Gemm", x, graph.known(weight.T), graph.parameter(node, "bias"), transB=1)


@_add.register
def _(layer: layers.LayerNorm, node: Node, graph: _Graph, x: str) -> str:
    scale, shift = (graph.parameter(node, name) for name in ("scale", "shift"))
    return graph.op("LayerNormalization", x, scale, shift, epsilon=layer.epsilon)


@_add.register
def _(layer: layers.Embedding, node: Node, graph: _Graph, ids: str) -> str:
    return graph.op("Gather", graph.parameter(node, "table"), ids)


@_add.register
def _(layer: layers.Logits, node: Node, graph: _Graph, x: str) -> str:
    return graph.op("MatMul", x, graph.op("Transpose", graph.parameter(node, "table"), perm=(1, 0)))


@_add.register
def _(layer: layers.Positions, node: Node, graph: _Graph, x: str) -> str:
    return graph.op("Add", x, graph.known(graph.params[node.name]["table"][: node.shape[1]]))


@_add.register
def _(layer: layers.Tokens, node: Node, graph: _Graph, x: str) -> str:
    batch, tokens, channels = node.shape
    pixels = graph.op("Reshape", x, graph.known([batch, channels, tokens - 1], np.int64))
    first = graph.known(np.broadcast_to(graph.params[node.name]["first"], (batch, 1, channels)))
    return graph.op("Concat", first, graph.op("Transpose", pixels, perm=(0, 2, 1)), axis=1)


@_add.register
def _(layer: layers.First, node: Node, graph: _Graph, x: str) -> str:
    return graph.op("Gather", x, graph.known(0, np.int64), axis=1)


@_add.register
def _(layer: layers.Attention, node: Node, graph: _Graph, x: str, mask: str | None = None) -> str:
    batch, tokens, width = node.shape
    split = graph.known([batch, tokens, layer.heads, width // layer.heads], np.int64)

    def heads(part: str, *order: int) -> str:
        return graph.op("Transpose", graph.op("Reshape", graph.dense(x, node, f"{part}_"), split), perm=order)

    scale = graph.known((width // layer.heads) ** -0.5)
    scores = graph.op("Mul", graph.op("MatMul", heads("query", 0, 2, 1, 3), heads("key", 0, 2, 3, 1)), scale)
    seen = graph.known(np.tril(np.ones((tokens, tokens))), np.bool_) if layer.causal else None
    if mask is not None:
        seen = graph.op("Unsqueeze", mask, graph.known([1, 2], np.int64))
    if seen is not None:
        bias = graph.op("Where", seen, graph.known(0), graph.known(np.finfo(np.float32).min))
        scores = graph.op("Add", scores, bias)
    mixed = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), heads("value", 0, 2, 1, 3))
    joined = graph.op("Reshape", graph.op("Transpose", mixed, perm=(0, 2, 1, 3)), graph.known([batch, tokens, width], np.int64))
    return graph.dense(joined, node, "mix_")


def _window(window: layers.Window) -> dict[str, Any]:
    return {"kernel_shape": window.kernel, "strides": (window.stride,) * 2, "pads": window.padding * 2}


def _nchw(shape: layers.Shape) -> layers.Shape:
    return (shape[0], shape[3], shape[1], shape[2]) if len(shape) == 4 else shape
