"""The graph of a function takes the function's arguments and gives its results, in their order, also from a file."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import aspen
from aspen_jax.errors import InputError, UnsupportedError
from aspen_jax.graph.tilegraph import TileGraph
from tests.content import generator

RNG = generator(__name__)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


A, B, C = normal(2, 3), normal(2, 3), normal(2, 3)

FUNCTIONS = {
    "arguments read in another order": (lambda a, b: jnp.tanh(b) - a, (A, B)),
    "results computed in another order": (lambda a, b: (jnp.tanh(b), jnp.exp(a)), (A, B)),
    "results of several dtypes": (lambda a, b: (jnp.sin(b).astype(jnp.float16), jnp.cos(a), jnp.sign(a).astype(int)), (A, B)),
    "an argument that nothing reads": (lambda a, b, c: a * 2 + c, (A, B, C)),
    "arguments that nothing reads, of other kinds": (lambda k, a, z: a * 2, (jax.random.key(0), A, np.ones(3, np.complex64))),
    "results that come twice": (lambda a: (a * 2, a, jnp.tanh(a), a * 2, a), (A,)),
    "arguments handed on, one of them unread": (lambda a, b: (b, jnp.exp(a), a), (A, normal(5))),
    "constants": (lambda a: (np.arange(5), jnp.exp(a), 2.0, jnp.arange(7) * 2, np.full((300, 300), 3.0, np.float32)), (A,)),
    "empty arrays": (lambda a, e: (e, jnp.exp(a), jnp.exp(e)), (A, normal(0, 3))),
    "pytrees": (lambda p, a: {"z": jnp.exp(a) @ p["w"], "given": p}, ({"w": normal(3, 4), "b": normal(4), "n": None}, A)),
    "Python numbers": (lambda a, s, n: (a * s, s, n), (A, 0.1, 3)),
    "the same argument twice": (lambda a, b: (a - jnp.exp(b), b), (A, A)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_and_results_are_those_of_the_function(name: str, tmp_path) -> None:
    function, arguments = FUNCTIONS[name]
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    graph = aspen(function).graph(*arguments)
    graph.verify()
    graph.save(tmp_path / "g")
    loaded = TileGraph.load(tmp_path / "g")
    assert loaded == graph
    for results in (graph.run(*arguments), loaded.run(*jax.tree.leaves(arguments))):
        for ours, theirs in zip(results, expected, strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_allclose(ours, theirs, rtol=1e-4 if ours.dtype != np.float16 else 2e-3)
    assert graph.timeline(*arguments).shape == (graph.num_tiles, 3)


def test_inputs_and_results_are_named_after_arguments_and_keys(tmp_path) -> None:
    def function(params, flag, *rest, scale):
        return {"y": jnp.exp(params["w"]) * scale, "z": (rest[0] if flag else rest[1],)}

    arguments = {"w": A, "b": [B, C]}, True, A, B
    graph = aspen(function).graph(*arguments, scale=2.0)
    assert graph.input_names == ("params.b.0", "params.b.1", "params.w", "rest.0", "rest.1", "scale")
    assert graph.result_names == ("result.y", "result.z.0")
    graph.save(tmp_path / "g")
    loaded = TileGraph.load(tmp_path / "g")
    assert (loaded.input_names, loaded.result_names, loaded.fields) == (graph.input_names, graph.result_names, {})


def test_names_that_would_be_equal_are_left_out() -> None:
    graph = aspen(lambda a: jnp.exp(a["b.c"]) + a["b"]["c"]).graph({"b.c": A, "b": {"c": B}})
    assert (graph.input_names, graph.result_names) == ((), ("result",))


DTYPES = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32")


@pytest.mark.parametrize("dtype", [*DTYPES, "int64", "uint64", "float64"])
def test_what_is_handed_on_keeps_its_bits(dtype: str) -> None:
    """Not a number, infinite, denormal and negative zero among them."""
    with jax.enable_x64(dtype.endswith("64")):
        kind = jnp.dtype(dtype)
        given = RNG.integers(0, 2 if dtype == "bool" else 256, 4096 * kind.itemsize, np.uint8).view(kind)
        computed, handed_on = aspen(lambda x, given: (jnp.exp(x), given)).graph(A, given).run(A, given)
    np.testing.assert_allclose(computed, np.exp(A), rtol=1e-5)
    np.testing.assert_array_equal(handed_on.view(np.uint8), given.view(np.uint8))


def test_the_graph_of_the_call_is_taken_where_it_is_the_functions() -> None:
    def function(a, b):
        return jnp.exp(a) @ b

    arguments = A, normal(3, 4)
    assert aspen(function).graph(*arguments) == aspen(function).explain(*arguments).parts[0].graph


def test_static_arguments_are_left_out() -> None:
    graph = aspen(lambda a, negate, b: b - (-a if negate else a)).graph(A, True, B)
    np.testing.assert_allclose(graph.run(A, B)[0], B + A, rtol=1e-6)


@pytest.mark.parametrize("given", [jax.random.key(0), np.ones(3, np.complex64), np.ones((1,) * 9, np.float32)])
def test_a_result_that_no_tile_can_hold_is_refused(given) -> None:
    with pytest.raises(UnsupportedError, match="result 1 of the function"):
        aspen(lambda a, given: (jnp.exp(a), given)).graph(A, given)


def test_a_number_beyond_its_input_is_refused() -> None:
    graph = aspen(lambda a, n: a * n).graph(A, 3)
    with pytest.raises(InputError, match="input 1 is int64"):
        graph.run(A, 1 << 40)
