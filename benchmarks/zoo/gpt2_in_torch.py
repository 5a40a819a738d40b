"""GPT-2's decode step (gpt2.py) as a torch module, written as one would by hand."""
# pyright: reportMissingImports=false
# PyTorch is optional, also where types are checked.

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.network.in_jax import Params

Cache = list[tuple[torch.Tensor, torch.Tensor]]


class Decode(nn.Module):
    """One more token: its logits, and the cache with its keys and values in it; arguments as of `gpt2.decode`."""

    def __init__(self, params: Params, layers: int):
        super().__init__()
        self.words = _parameter(params["Embedding0"]["table"])
        self.places = _parameter(params["Positions0"]["table"])
        self.blocks = nn.ModuleList(_Block(params, layer) for layer in range(layers))
        self.norm = _norm(params[f"LayerNorm{2 * layers}"])

    def forward(self, token_id: torch.Tensor, cache: Cache, position: torch.Tensor) -> tuple[torch.Tensor, Cache]:
        x = self.words[token_id][:, None] + self.places[position]
        keep = (torch.arange(cache[0][0].shape[2], device=x.device) <= position)[None, None, None]
        written = []
        for block, (keys, values) in zip(self.blocks, cache, strict=True):
            x, own = block(x, keys, values, position, keep)
            written.append(own)
        return functional.linear(self.norm(x[:, 0]), self.words), written


class _Block(nn.Module):
    def __init__(self, params: Params, layer: int):
        super().__init__()
        attention, self.norms = (
            params[f"Attention{layer}"],
            nn.ModuleList(_norm(params[f"LayerNorm{2 * layer + k}"]) for k in (0, 1)),
        )
        parts = [{name: attention[f"{part}_{name}"] for name in ("weight", "bias")} for part in ("query", "key", "value", "mix")]
        self.query, self.key, self.value, self.mix = map(_linear, parts)
        self.expand, self.contract = (_linear(params[f"Linear{2 * layer + k}"]) for k in (0, 1))

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, position: torch.Tensor, keep: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        batch, heads, _, width = keys.shape
        normed, place = self.norms[0](x), position[None]
        query, key, value = (
            part(normed).reshape(batch, 1, heads, width).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        keys, values = keys.index_copy(2, place, key), values.index_copy(2, place, value)
        attended = functional.scaled_dot_product_attention(query, keys, values, attn_mask=keep)
        x = x + self.mix(attended.transpose(1, 2).reshape(batch, 1, heads * width))
        hidden = functional.gelu(self.expand(self.norms[1](x)), approximate="tanh")
        return x + self.contract(hidden), (keys, values)


def decode_in_torch(params: Params, inputs: tuple[Any, Any, Any]) -> tuple[Decode, tuple[torch.Tensor, Cache, torch.Tensor]]:
    """The module and its arguments, from those of `gpt2.decode`."""
    token_id, cache, position = inputs
    tensors = [(_tensor(keys), _tensor(values)) for keys, values in cache]
    module = Decode(params, len(cache)).eval().requires_grad_(False)
    return module, (_tensor(token_id).long(), tensors, _tensor(position).long())


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def _parameter(array: Any) -> nn.Parameter:
    return nn.Parameter(_tensor(array), requires_grad=False)


def _linear(params: Any) -> nn.Linear:
    inputs, outputs = params["weight"].shape
    module = nn.Linear(inputs, outputs)
    module.weight, module.bias = _parameter(np.asarray(params["weight"]).T), _parameter(params["bias"])
    return module


def _norm(params: Any) -> nn.LayerNorm:
    module = nn.LayerNorm(params["scale"].shape[0], eps=1e-5)
    module.weight, module.bias = _parameter(params["scale"]), _parameter(params["shift"])
    return module
