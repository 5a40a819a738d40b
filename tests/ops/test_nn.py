"""Every public function of jax.nn, decorated and not: values, derivatives and vmap at odd shapes, each in one custom call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import nn

from aspen_jax import aspen

_RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return _RNG.standard_normal(shape, np.float32)


class Case(NamedTuple):
    """A function of arrays that differentiates and is mapped over its first argument; it gives any tree of arrays."""

    function: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]


def _each(function: Callable[[Any], Any], draw: Callable[..., np.ndarray] = normal) -> Case:
    """The function on arrays of several shapes at once."""
    arguments = draw(3, 7), draw(5), draw(2, 1, 19), draw(1)
    return Case(lambda *arrays: [function(x) for x in arrays], arguments)


def _negative(*shape: int) -> np.ndarray:
    return -np.abs(normal(*shape)) - np.float32(0.1)


_ACTIVATIONS = (
    "celu", "elu", "gelu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "identity", "leaky_relu", "log_sigmoid",
    "mish", "relu", "relu6", "selu", "sigmoid", "silu", "soft_sign", "softplus", "sparse_plus", "sparse_sigmoid",
    "squareplus", "swish", "tanh",
)  # fmt: skip

X, MASK = normal(4, 6, 5), _RNG.random((4, 6, 5)) < 0.8
QUERIES, KEYS, VALUES = normal(2, 9, 4, 8), normal(2, 11, 2, 8), normal(2, 11, 2, 8)
LABELS = np.array([[0, 3, 2], [6, -1, 1]], np.int32)

CASES: dict[str, Case] = {
    **{name: _each(getattr(nn, name)) for name in _ACTIVATIONS},
    "celu of alpha": _each(lambda x: nn.celu(x, alpha=0.3)),
    "elu of alpha": _each(lambda x: nn.elu(x, alpha=0.3)),
    "gelu by erf": _each(lambda x: nn.gelu(x, approximate=False)),
    "leaky_relu of slope": _each(lambda x: nn.leaky_relu(x, 0.3)),
    "squareplus of b": _each(lambda x: nn.squareplus(x, 2.0)),
    "log1mexp": _each(lambda x: nn.log1mexp(x), lambda *shape: -_negative(*shape)),
    "glu": Case(lambda x: [nn.glu(x, 1), nn.glu(x[..., :4])], (X,)),
    "softmax": Case(lambda x: [nn.softmax(x), nn.softmax(x, 0), nn.softmax(x, (0, 2))], (X,)),
    "softmax under a mask": Case(lambda x: nn.softmax(x, 1, where=MASK), (X,)),
    "log_softmax": Case(lambda x: [nn.log_softmax(x), nn.log_softmax(x, 0), nn.log_softmax(x, (1, 2))], (X,)),
    "log_softmax under a mask": Case(lambda x: jnp.where(MASK, nn.log_softmax(x, 1, where=MASK), 0), (X,)),
    "standardize": Case(lambda x: [nn.standardize(x), nn.standardize(x, (0, 1), epsilon=1e-3)], (X,)),
    "standardize under a mask": Case(lambda x: nn.standardize(x, 1, where=MASK), (X,)),
    "standardize with given moments": Case(
        lambda x, mean, variance: nn.standardize(x, 2, mean, variance), (X, normal(4, 6, 1), np.abs(normal(4, 6, 1)))
    ),
    "logsumexp": Case(lambda x: [nn.logsumexp(x), nn.logsumexp(x, 1), nn.logsumexp(x, (0, 2), keepdims=True)], (X,)),
    "logsumexp with weights": Case(lambda x, b: nn.logsumexp(x, -1, b=b), (X, np.abs(normal(4, 6, 5)))),
    "logsumexp with signs": Case(lambda x, b: nn.logsumexp(x, 1, b=b, return_sign=True), (X, normal(4, 6, 5))),
    "logsumexp under a mask": Case(lambda x: nn.logsumexp(x, -1, where=MASK), (X,)),
    "logmeanexp": Case(lambda x: [nn.logmeanexp(x), nn.logmeanexp(x, 1), nn.logmeanexp(x, -1, where=MASK)], (X,)),
    "one_hot": Case(lambda x: [x[0, 0, 0] * nn.one_hot(LABELS, 7), nn.one_hot(LABELS, 7, axis=0)], (X,)),
    "one_hot of traced labels": Case(lambda x: nn.one_hot((x[:, 0] * 3).astype(jnp.int32), 7, dtype=jnp.int32), (X,)),
    "dot_product_attention": Case(nn.dot_product_attention, (QUERIES, KEYS, VALUES)),
    "dot_product_attention, causal": Case(
        lambda q, k, v, bias: nn.dot_product_attention(q, k, v, bias, is_causal=True, scale=0.4),
        (QUERIES, KEYS, VALUES, normal(2, 4, 9, 11)),
    ),
    "dot_product_attention, masked": Case(
        lambda q, k, v: nn.dot_product_attention(q, k, v, mask=(np.arange(9)[:, None] + np.arange(11)) % 3 > 0),
        (QUERIES, KEYS, VALUES),
    ),
    "dot_product_attention in a window": Case(
        lambda q, k, v: nn.dot_product_attention(q, k, v, local_window_size=(3, 2)), (QUERIES, KEYS, VALUES)
    ),
    "dot_product_attention of lengths": Case(
        lambda q, k, v: nn.dot_product_attention(
            q, k, v, query_seq_lengths=np.array([9, 4]), key_value_seq_lengths=np.array([5, 11])
        ),
        (QUERIES, KEYS, VALUES),
    ),
}  # fmt: skip

# No functions of arrays; and the scaled products, which JAX has for GPUs alone.
_OTHERS = {"initializers", "get_scaled_dot_general_config", "scaled_dot_general", "scaled_matmul"}


def test_no_public_function_is_left_out():
    public = {
        name for name, member in inspect.getmembers(nn) if not name.startswith("_") and (callable(member) or name in _OTHERS)
    }
    covered = {name.replace(",", " ").split(" ")[0] for name in CASES}
    assert public == covered | _OTHERS


def together(function: Callable[..., Any]) -> Callable[..., Any]:
    """Values, a jvp, a gradient of all floats and a map over two copies of the first argument, of a function of arrays."""

    def weighted(*arguments: Any) -> Any:
        floats = [y for y in jax.tree.leaves(function(*arguments)) if jnp.issubdtype(y.dtype, jnp.floating)]
        return sum(((jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape) * y).sum() for y in floats), jnp.zeros(()))

    def all_of(*arguments: Any) -> Any:
        first, *rest = arguments
        values, tangents = jax.jvp(function, arguments, tuple(jnp.cos(3 * x) for x in arguments))
        tangents = [t for t in jax.tree.leaves(tangents) if t.dtype != jax.dtypes.float0]
        mapped = jax.vmap(function, (0, *(None for _ in rest)))(jnp.stack([first, first[::-1]]), *rest)
        return values, tangents, jax.grad(weighted, tuple(range(len(arguments))))(*arguments), mapped

    return all_of


def same(ours: Any, theirs: Any) -> None:
    ours, theirs = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    assert [(a.shape, a.dtype) for a in ours] == [(b.shape, b.dtype) for b in theirs]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sweep
def test_function(name):
    function, arguments = CASES[name]
    theirs = jax.jit(together(function))(*arguments)
    same(aspen(together(function), strict=True)(*arguments), theirs)  # derivatives and maps in tiles
    same(jax.jit(together(aspen(function, strict=True)))(*arguments), theirs)  # derivatives and maps of tiles
