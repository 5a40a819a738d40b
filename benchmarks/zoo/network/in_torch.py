"""A network as a torch module with the same weights: images are NCHW, and modules are those one would write by hand."""
# pyright: reportMissingImports=false
# PyTorch is optional, also where types are checked.

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.network import layers
from benchmarks.zoo.network.in_jax import Params
from benchmarks.zoo.network.layout import to_nchw
from benchmarks.zoo.network.network import Network, Node

_ACTIVATIONS: dict[str, Any] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "leaky_relu": functools.partial(nn.LeakyReLU, 0.1),
    "silu": nn.SiLU,
    "hardswish": nn.Hardswish,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "gelu_tanh": functools.partial(nn.GELU, "tanh"),
    "tanh": nn.Tanh,
}


def in_torch(network: Network, params: Params) -> nn.Module:
    """The module, fit for inference; it gives a tuple where there are several outputs.

    It is generated from a graph, so that it reads as if written by hand: values are dropped after their last use, and compilers
    and exporters meet no loop over layers.
    """
    modules = nn.ModuleDict()
    graph = torch.fx.Graph()
    values = {name: graph.placeholder(name) for name in network.inputs}
    tables = {}
    for node in network.nodes:
        sources = tuple(values[name] for name in node.sources)
        if isinstance(node.layer, layers.Logits):
            modules[node.name] = _Logits(tables[node.parameters])
        else:
            modules[node.name] = module = _module(node.layer, node, params.get(node.parameters, {}))
            if isinstance(module, nn.Embedding):
                tables[node.name] = module.weight
        values[node.name] = graph.call_module(node.name, sources)
    outputs = [values[name] for name in network.outputs]
    graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
    return torch.fx.GraphModule(modules, graph).eval().requires_grad_(False)


def inputs_in_torch(inputs: Sequence[np.ndarray]) -> tuple[torch.Tensor, ...]:
    """A network's inputs as the module takes them."""
    return tuple(_tensor(to_nchw(x)) for x in inputs)


class _Reduce(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return functools.reduce(self._function, inputs)


class _Concat(nn.Module):
    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat(inputs, 1)


class _First(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0]


class _Positions(nn.Module):
    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table[: x.shape[1]]


class _Tokens(nn.Module):
    def __init__(self, first: torch.Tensor) -> None:
        super().__init__()
        self.first = nn.Parameter(first.reshape(1, 1, -1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.first.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)], 1)


class _Logits(nn.Module):
    def __init__(self, table: nn.Parameter) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.table)


class _Attention(nn.Module):
    def __init__(self, layer: layers.Attention, params: dict[str, np.ndarray]) -> None:
        super().__init__()
        self._heads = layer.heads
        self._causal = layer.causal
        self.query, self.key, self.value, self.mix = (
            _linear(params[f"{part}_weight"], params[f"{part}_bias"]) for part in ("query", "key", "value", "mix")
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, tokens, width = x.shape
        query, key, value = (
            part(x).view(batch, tokens, self._heads, width // self._heads).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        if mask is not None:
            mask = mask[:, None, None, :]
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=self._causal)
        return self.mix(mixed.transpose(1, 2).reshape(batch, tokens, width))


@functools.singledispatch
def _module(layer: layers.Layer, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    raise NotImplementedError(layer)


@_module.register
def _(layer: layers.Conv, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    window = layer.window
    inputs = node.inputs[0][3]
    weight = params["weight"].transpose(3, 2, 0, 1)
    conv = nn.Conv2d(
        inputs, layer.channels, window.kernel, window.stride, window.padding, 1, layer.groups, layer.bias, device="meta"
    )
    return _with(conv, weight=weight, **({"bias": params["bias"]} if layer.bias else {}))


@_module.register
def _(layer: layers.BatchNorm, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    norm = nn.BatchNorm2d(params["scale"].size, layer.epsilon)
    _with(norm, weight=params["scale"], bias=params["shift"])
    norm.running_mean, norm.running_var = _tensor(params["mean"]), _tensor(params["variance"])
    return norm


@_module.register
def _(layer: layers.Activation, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    return _ACTIVATIONS[layer.kind]()


@_module.register
def _(layer: layers.Pool, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    window = layer.window
    pool = nn.MaxPool2d if layer.kind == "max" else nn.AvgPool2d
    return pool(window.kernel, window.stride, window.padding, ceil_mode=window.ceil)


@_module.register
def _(layer: layers.GlobalMean, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    return nn.AdaptiveAvgPool2d(1)


@_module.register
def _(layer: layers.Flatten, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    return nn.Flatten()


@_module.register
def _(layer: layers.Upsample, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    return nn.Upsample(scale_factor=layer.factor, mode="nearest")


@_module.register
def _(layer: layers.Add, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    return _Reduce(operator.add)


@_module.register
def _(layer: layers.Multiply, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    return _Reduce(operator.mul)


@_module.register
def _(layer: layers.Concat, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    return _Concat()


@_module.register
def _(layer: layers.Linear, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    (shape,) = node.inputs
    if len(shape) < 4:
        return _linear(params["weight"], params["bias"])
    rows = params["weight"].reshape(*shape[1:], layer.outputs).transpose(2, 0, 1, 3)  # torch flattens the channels first
    return nn.Sequential(nn.Flatten(), _linear(rows.reshape(-1, layer.outputs), params["bias"]))


@_module.register
def _(layer: layers.LayerNorm, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    norm = nn.LayerNorm(params["scale"].size, layer.epsilon)
    return _with(norm, weight=params["scale"], bias=params["shift"])


@_module.register
def _(layer: layers.Embedding, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    return nn.Embedding(layer.rows, layer.width, _weight=_tensor(params["table"]))


@_module.register
def _(layer: layers.Positions, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    return _Positions(_tensor(params["table"]))


@_module.register
def _(layer: layers.Tokens, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    return _Tokens(_tensor(params["first"]))


@_module.register
def _(layer: layers.First, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    return _First()


@_module.register
def _(layer: layers.Attention, node: Node, params: dict[str, np.ndarray]) -> nn.Module:
    return _Attention(layer, params)


def _linear(weight: np.ndarray, bias: np.ndarray) -> nn.Linear:
    return _with(nn.Linear(*weight.shape, device="meta"), weight=weight.T, bias=bias)


def _with(module: Any, **arrays: np.ndarray) -> Any:
    for name, array in arrays.items():
        setattr(module, name, nn.Parameter(_tensor(array)))
    return module


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(array, order="C"))
