"""jaxpr -> Program: what becomes an op, what is folded, what stays with XLA, and how a function is cut."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core
from jax.extend.core.primitives import closed_call_p

from aspen_jax import aspen
from aspen_jax.frontend import left_to_xla
from aspen_jax.frontend import trace as frontend
from aspen_jax.ir.program import Value
from aspen_jax.ops import CONVERTERS
from aspen_jax.ops.reference import evaluate
from aspen_jax.primitive import control_flow
from tests.random_functions import random_function


def trace_of(function, *arguments) -> frontend.Trace:
    jaxpr = jax.make_jaxpr(function)(*arguments)
    return frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts))


def run(trace: frontend.Trace, *arguments) -> list[np.ndarray]:
    """Evaluate a trace without fallbacks."""
    environment: dict[Value, np.ndarray] = dict(zip(trace.inputs, jax.tree.leaves(arguments), strict=True))
    assert not trace.fallbacks
    for part in trace.parts:
        results = evaluate(part, *(environment[value] for value in part.inputs))
        environment.update((operand.value, result) for operand, result in zip(part.outputs, results, strict=True))
    return [environment[item] if isinstance(item, Value) else item for item in trace.outputs]


def check(function, *arguments, rtol: float = 1e-5) -> frontend.Trace:
    """One part, no fallback, the results of jax.jit."""
    trace = trace_of(function, *arguments)
    assert not trace.fallbacks, [(item.name, item.reason) for item in trace.fallbacks]
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    for ours, theirs in zip(run(trace, *arguments), expected, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        scale = float(np.abs(np.asarray(theirs, np.float64)).max(initial=0, where=np.isfinite(theirs)))
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * scale)
    return trace


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


@pytest.mark.parametrize("seed", range(15))
def test_random_functions_mean_what_jax_says(seed):
    function, arguments = random_function(1000 + seed)
    check(function, *arguments, rtol=5e-5)


FLOATS = {
    "exp": jnp.exp, "log1p of abs": lambda x: jnp.log1p(jnp.abs(x)), "expm1": jnp.expm1, "tanh": jnp.tanh, "erf": lax.erf,
    "erfc": lax.erfc, "logistic": jax.nn.sigmoid, "sin": jnp.sin, "cos": jnp.cos, "tan": jnp.tan,
    "sqrt": lambda x: jnp.sqrt(x * x),
    "rsqrt": lambda x: lax.rsqrt(x * x + 1), "cbrt": jnp.cbrt, "floor": jnp.floor, "ceil": jnp.ceil, "round": jnp.round,
    "round away": lambda x: lax.round(x * 2, lax.RoundingMethod.AWAY_FROM_ZERO), "sign": jnp.sign, "neg": lambda x: -x,
    "square": lax.square, "cube": lambda x: x**3, "inverse square": lambda x: lax.integer_pow(x, -2), "zeroth": lambda x: x**0,
    "pow": lambda x: jnp.abs(x) ** 1.7, "pow of integers": lambda x: lax.pow(x, jnp.arange(x.size).reshape(x.shape) % 5 - 2),
    "rem": lambda x: lax.rem(x, jnp.float32(0.7)), "atan2": lambda x: jnp.arctan2(x, x[::-1]),
    "exp2": jnp.exp2, "clip": lambda x: jnp.clip(x, -0.5, 0.5), "clamp": lambda x: lax.clamp(-x, x, x + 1),
    "compare": lambda x: (x > 0, x >= x[::-1], x == 0, x != 0, x < 1, x <= 1),
    "logic": lambda x: ((x > 0) & (x < 1), (x > 1) | (x < -1), (x > 0) ^ (x > 1), ~(x > 0)),
    "where": lambda x: jnp.where(x > 0, x, -x), "isfinite": lambda x: jnp.isfinite(x / (x - x[0, 0])),
    "to int": lambda x: (x * 10).astype(jnp.int32), "to bool": lambda x: x.astype(bool),
    "gelu": jax.nn.gelu, "silu": jax.nn.silu, "softmax": jax.nn.softmax, "relu6": jax.nn.relu6, "elu": jax.nn.elu,
    "log_softmax": jax.nn.log_softmax, "logsumexp": jax.nn.logsumexp, "var": lambda x: x.var(1),
    "norm": lambda x: jnp.linalg.norm(x),
}  # fmt: skip


@pytest.mark.parametrize("function", FLOATS.values(), ids=FLOATS)
def test_float_operations(function):
    check(function, normal(6, 7))


INTEGERS = {
    "arithmetic": lambda x: (x + 3, x - 5, x * 7, -x, abs(x), jnp.sign(x), x**3),
    "division": lambda x: (lax.div(x, jnp.int32(3)), lax.rem(x, jnp.int32(3)), x // 3, x % 3),
    "bits": lambda x: (x & 6, x | 6, x ^ 6, ~x, x << 2, x >> 1, lax.shift_right_logical(x, jnp.int32(1))),
    "compare": lambda x: (x > 0, x == 1, jnp.maximum(x, 2), jnp.minimum(x, 2)),
    "reduce": lambda x: (x.sum(0), x.max(1), x.min(), x.prod(1)),
    "to float": lambda x: (x.astype(jnp.float32), x.astype(bool)),
}


@pytest.mark.parametrize("function", INTEGERS.values(), ids=INTEGERS)
def test_integer_operations(function):
    check(function, np.arange(-6, 6, dtype=np.int32).reshape(3, 4))


LAYOUT = {
    "reshape": lambda x: x.reshape(4, -1).T.reshape(3, 2, -1),
    "transpose": lambda x: x.transpose(2, 0, 1),
    "broadcast": lambda x: jnp.broadcast_to(x[:, None, :, :1], (2, 5, 3, 4)),
    "slice": lambda x: x[::-1, 1:, ::2],
    "squeeze": lambda x: x[:1].squeeze(0),
    "split": lambda x: jnp.split(x, [1, 3], axis=2),
    "stack": lambda x: jnp.stack([x, x * 2], 1),
    "tile": lambda x: jnp.tile(x, (1, 2, 1)),
    "pad": lambda x: lax.pad(x, jnp.float32(2), ((1, -1, 0), (0, 1, 2), (-1, 0, 1))),
    "iota": lambda x: x + lax.broadcasted_iota(jnp.float32, x.shape, 1),
    "flip": lambda x: jnp.flip(x, (0, 2)),
    "empty": lambda x: x[:, :0] * 2,
    "scalar": lambda x: x[0, 0, 0] * 2,
}


@pytest.mark.parametrize("function", LAYOUT.values(), ids=LAYOUT)
def test_layout_operations(function):
    check(function, normal(2, 3, 4))


@pytest.mark.parametrize("length", [1, 4096, 4097, 20_001])
@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.uint8])
def test_long_ramps_hold_no_long_constants(length, dtype):
    trace = check(lambda x: lax.iota(dtype, length)[::-1] + x, np.ones((), dtype))
    if dtype != np.uint8:
        assert all(array.size <= 4096 for part in trace.parts for _, array in part.constants)


CONVOLUTIONS = [
    ((2, 9, 8, 4), (3, 3, 4, 6), {"window_strides": (2, 1), "padding": ((1, 2), (0, 3))}),
    ((1, 9, 8, 4), (3, 2, 4, 6), {"window_strides": (1, 1), "padding": ((-1, 2), (3, -2)), "rhs_dilation": (2, 3)}),
    ((1, 5, 5, 4), (3, 3, 4, 6), {"window_strides": (1, 1), "padding": ((1, 0), (2, 1)), "lhs_dilation": (2, 3)}),
    ((1, 6, 6, 6), (3, 3, 2, 9), {"window_strides": (1, 1), "padding": "SAME", "feature_group_count": 3}),
    ((1, 6, 6, 6), (3, 3, 1, 12), {"window_strides": (2, 2), "padding": "VALID", "feature_group_count": 6}),
    ((4, 6, 6, 3), (3, 3, 3, 8), {"window_strides": (1, 1), "padding": "VALID", "batch_group_count": 2}),
]


@pytest.mark.parametrize(("x", "w", "params"), CONVOLUTIONS)
@pytest.mark.parametrize("numbers", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("CHWN", "IHWO", "HWCN")])
def test_convolutions(x, w, params, numbers):
    def permute(array: np.ndarray, source: str, target: str) -> np.ndarray:
        return array.transpose([source.index(letter) for letter in target])

    def function(x, w):
        return lax.conv_general_dilated(x, w, dimension_numbers=numbers, precision=lax.Precision.HIGHEST, **params)

    check(function, permute(normal(*x), "NHWC", numbers[0]), permute(normal(*w), "HWIO", numbers[1]))


def test_one_dimensional_convolution():
    numbers = ("NWC", "WIO", "NWC")
    check(
        lambda x, w: lax.conv_general_dilated(x, w, (2,), ((3, 1),), rhs_dilation=(2,), dimension_numbers=numbers),
        normal(2, 11, 3),
        normal(4, 3, 5),
    )


@pytest.mark.parametrize(
    ("image", "window", "why"),
    [((2, 2, 2, 2), (1, 1, 1, 1), "4 spatial dimensions"), ((20, 2, 2), (17, 1, 1), "a window 17 deep; at most 16")],
)
def test_convolutions_of_four_dimensions_and_deep_windows_stay_with_xla(image, window, why):
    trace = trace_of(lambda x, w: lax.conv(x, w, (1,) * len(image), "SAME"), normal(1, 2, *image), normal(3, 2, *window))
    assert why in trace.fallbacks[0].reason


@pytest.mark.parametrize(
    "numbers",
    [(((1,), (0,)), ((), ())), (((2, 0), (1, 3)), ((1,), (0,))), (((), ()), ((0,), (2,))), (((3, 1), (0, 1)), ((), ()))],
)
def test_dot_general(numbers):
    sizes = [2, 3, 4, 5]
    (contract, other_contract), (batch, other_batch) = numbers
    lhs = sizes if len(contract) != 1 else sizes[:2]
    rhs = [7, 6, 8, 9] if len(contract) != 1 else [3, 6]
    for d, e in zip((*contract, *batch), (*other_contract, *other_batch), strict=True):
        rhs[e] = lhs[d]
    check(lambda a, b: lax.dot_general(a, b, numbers, precision=lax.Precision.HIGHEST), normal(*lhs), normal(*rhs))


def test_calls_are_inlined_and_constants_folded():
    @jax.custom_jvp
    def square(x):
        return x * x

    square.defjvp(lambda primals, tangents: (square(*primals), 2 * primals[0] * tangents[0]))
    table = normal(3)

    def function(x):
        return jax.jit(lambda y: square(y) + table)(jax.checkpoint(jnp.sin)(x)) * (jnp.arange(3) * 2.0 + 1)

    trace = check(function, normal(2, 3))
    names = [op.family.name for op in trace.parts[0].ops if op.family.name != "block"]
    assert names == []


def families(trace: frontend.Trace) -> list[str]:
    return [op.family.name for part in trace.parts for op in part.ops]


def test_tables_of_positions_are_constants_and_masks_are_computed():
    def rotated(x):
        angles = jnp.arange(x.shape[0])[:, None] * 0.01 ** (jnp.arange(x.shape[1]) / x.shape[1])
        return x * jnp.cos(angles) + x[:, ::-1] * jnp.sin(angles)

    trace = check(rotated, normal(40, 12))
    assert len(trace.parts[0].pruned().constants) == 2
    assert not any(
        i.opcode in ("cos_f", "sin_f") for op in trace.parts[0].ops for i in (op.program.instructions if op.program else ())
    )

    def masked(x):
        return jnp.where(jnp.tril(jnp.ones((600, 600), bool)), x, -1e9)

    trace = check(masked, normal(600, 600))
    assert sum(array.size for _, array in trace.parts[0].constants) < 5000

    def resized(x):
        return jax.image.resize(x, (1, 14, 22, 5), "bilinear")

    assert set(families(check(resized, normal(1, 7, 11, 5)))) == {"matmul", "block"}


def test_long_chains_of_positions_are_no_deep_recursion():
    def function(x):
        position = jnp.arange(x.shape[0])
        for step in range(1500):
            position = position + step
        return x * position

    check(function, normal(8))


def test_what_is_too_large_for_a_table_is_tried_once():
    def function(x):
        position = jnp.arange(400000)[:8]
        for _ in range(60):  # each read twice
            position = position + position
        return x + jnp.sin(position.astype(jnp.float32))

    check(function, normal(8))


def test_tables_may_hold_what_is_masked_later():
    def function(x):
        return x + jnp.where(jnp.arange(4) >= 2, jnp.sqrt(jnp.arange(4.0) - 2), 0.0)

    with jax.debug_nans(True):
        trace_of(function, normal(4))
    check(function, normal(4))


def test_known_values_may_be_results_and_inputs_of_what_xla_runs():
    def function(x):
        position = jnp.arange(7) * 2
        return position, lax.lgamma((position[::-1] + x).astype(np.float32))

    trace = trace_of(function, np.arange(7, dtype=np.int32))
    assert any(item.equation.primitive.name == "lgamma" for item in trace.fallbacks)
    ours = jax.jit(aspen(function))(jnp.arange(7))
    for a, b in zip(ours, function(jnp.arange(7)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_names_carry_scope_and_source():
    def function(x):
        with jax.named_scope("encoder"):
            return jnp.exp(x)

    (op,) = trace_of(function, normal(3)).parts[0].ops
    assert op.name == "encoder/exp"
    assert "test_frontend.py" in op.source


def test_what_no_tile_runs_stays_with_xla_between_the_parts():
    def function(x):
        y = lax.lgamma(jnp.exp(x))
        return y * 2 + x, jnp.cos(x)

    trace = trace_of(function, normal(20_000))
    assert [type(step).__name__ for step in trace.steps] == ["Tileable", "Fallback", "Tileable"]
    assert trace.fallbacks[0].name.endswith("lgamma")
    assert "test_frontend.py" in trace.fallbacks[0].source, "the line that called what JAX jits by itself"
    assert len(trace.parts[0].ops) == 2, "what does not need the fallback is in the first part"


def test_what_waits_for_no_fallback_runs_with_what_comes_after_it():
    """A random mask in the middle of a network leaves one part."""

    def function(key, x, w):
        h = jax.nn.relu(x @ w)
        h = jnp.where(jax.random.bernoulli(key, 0.9, h.shape), h / 0.9, 0)
        h = jax.nn.relu(h @ w)
        return jnp.where(jax.random.bernoulli(key, 0.5, h.shape), h, 0) @ w

    trace = trace_of(function, jax.random.PRNGKey(0), normal(100, 100), normal(100, 100))
    assert len(trace.parts) == 1
    assert {item.equation.primitive.name for item in trace.fallbacks if not item.is_tileable} == {
        item.equation.primitive.name for item in trace.fallbacks if "random" in item.equation.primitive.name
    }


def test_two_branches_with_a_fallback_each_make_two_parts():
    def function(x, w):
        a, b = jnp.exp(x @ w), jnp.sin(x @ w.T)
        return (lax.lgamma(a) @ w + lax.lgamma(b) @ w).sum(0), jnp.cos(a)

    trace = trace_of(function, normal(100, 100), normal(100, 100))
    assert [type(step).__name__ for step in trace.steps] == ["Tileable", "Fallback", "Fallback", "Tileable"]


def test_small_work_beside_a_fallback_gets_no_custom_call():
    def function(x, w, i):
        h = jnp.tanh(x @ w)
        k = lax.lgamma(i * 3 + 1.0)[0].astype(np.int32) * 2  # scalars and a few numbers around a fallback
        return h[k % 100] @ w + k

    trace = trace_of(function, normal(100, 100), normal(100, 100), np.arange(5, dtype=np.int32))
    assert len(trace.parts) == 1
    assert all(item.reason for item in trace.fallbacks)
    tiny = trace_of(lambda x: lax.lgamma(x + 1) * 2, normal(5))
    assert not tiny.parts
    assert trace_of(lambda x: x * 2, normal(5)).parts, "what has no fallback is never too small"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.scan(lambda c, y: (lax.lgamma(c + y), c), jnp.zeros(4), x)[1],
        lambda x: jnp.linalg.svd(x)[1],
        lambda x: jax.random.normal(jax.random.key(0), x.shape) + x,
        lambda x: x.astype(jnp.complex64).real,
        lambda x: jnp.int4(3) * x.astype(jnp.int4),
    ],
)
def test_unsupported_functions_have_fallbacks_with_reasons(function):
    trace = trace_of(function, np.ones((4, 4), np.float32))
    assert trace.fallbacks
    assert all(item.reason for item in trace.fallbacks)


def test_an_output_may_be_an_input_a_constant_or_repeated():
    trace = trace_of(lambda x: (x, np.float32(3), x, x + 1, np.arange(2)), normal(2))
    assert trace.outputs[0] is trace.outputs[2] is trace.inputs[0]
    assert isinstance(trace.outputs[1], np.ndarray)
    np.testing.assert_array_equal(trace.outputs[4], [0, 1])


def test_loops_over_constants_do_not_run_while_tracing():
    def function(x):
        return x + lax.while_loop(lambda i: i < 10, lambda i: i + 1, 0)

    (part,) = trace_of(function, normal(2)).parts
    assert "loop" in {op.family.name for op in part.ops}


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((2,) * 9, "float32", "an array of 9 dimensions; tiles have up to 8"),
        ((2**31,), "uint8", "a dimension of 2147483648 elements; boxes of tiles reach up to 2147483647"),
        ((8, 8), "complex64", "tiles hold no complex64"),
        ((8, 8), "float8_e4m3fn", "tiles hold no float8_e4m3fn"),
    ],
)
def test_what_the_engine_would_refuse_stays_with_xla(shape, dtype, reason) -> None:
    explanation = aspen(lambda x: -jnp.flip(x, 0)).explain(jax.ShapeDtypeStruct(shape, dtype))
    assert not explanation.parts
    assert {item.reason for item in explanation.fallbacks} == {reason}


def test_arrays_of_many_dimensions_pass_between_tiles_and_xla() -> None:
    x = np.arange(2**12, dtype=np.float32)
    function = lambda x: (jnp.flip(x.reshape((2,) * 12), (1, 5, 9)) + 1).reshape(64, 64) @ jnp.ones((64, 64))  # noqa: E731
    np.testing.assert_array_equal(jax.jit(aspen(function))(x), jax.jit(function)(x))


def test_every_primitive_of_jax_is_classified():
    """Whoever adds one to `left_to_xla` has looked at it: it may be a call to inline, or deserve an op."""
    program = (
        "import gc, jax, jax.ad_checkpoint, jax.custom_batching, jax.export, jax.numpy, jax.scipy;"
        "from jax.extend.core import Primitive;"
        "print(*{item.name for item in gc.get_objects() if isinstance(item, Primitive)})"
    )
    found = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert len(found) > 200
    handled = {*CONVERTERS, *frontend._CALLS, *frontend._CASTS, *control_flow._BODIES, *left_to_xla.REASONS}
    assert sorted(set(found) - handled) == []
    assert not {*frontend._CALLS, *control_flow._BODIES} & {*left_to_xla.REASONS}


def test_closed_calls_are_inlined():
    inner = jax.make_jaxpr(lambda x: jnp.tanh(x) + 1)(jnp.zeros(3))
    outer = inner.jaxpr.replace(
        eqns=[core.new_jaxpr_eqn(inner.jaxpr.invars, inner.jaxpr.outvars, closed_call_p, {"call_jaxpr": inner}, core.no_effects)]
    )
    assert not frontend.trace(core.ClosedJaxpr(outer, ())).fallbacks
