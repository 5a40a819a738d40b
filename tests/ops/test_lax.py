"""jax.lax op by op, on every dtype that tiles hold: under @aspen each gives what it gives alone, in one custom call.

How near float32 results are to the exact ones, over all floats, is a matter of tests/cpp/block_instructions_test.cc.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import UnsupportedError, aspen
from aspen_jax.ops.opcodes import FLOATS, INTS
from tests.content import generator

RNG = generator(__name__)

SHAPES = ((), (1,), (7,), (3, 1), (2, 3, 17), (0, 4))
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 3e38, 1e-30, -1e-30, 88.0, -88.0)

Functions = dict[str, Callable[..., Any]]


def _named(*functions: Callable[..., Any]) -> Functions:
    return {function.__name__: function for function in functions}


UNARY_FLOAT = _named(
    lax.abs, lax.acos, lax.acosh, lax.asin, lax.asinh, lax.atan, lax.atanh, lax.cbrt, lax.ceil, lax.cos, lax.cosh, lax.erf,
    lax.erf_inv, lax.erfc, lax.exp, lax.exp2, lax.expm1, lax.floor, lax.is_finite, lax.log, lax.log1p, lax.logistic, lax.neg,
    lax.reciprocal, lax.rsqrt, lax.sign, lax.sin, lax.sinh, lax.sqrt, lax.square, lax.tan, lax.tanh,
) | {
    "round": lambda x: lax.round(x),
    "round to even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "integer_pow 3": lambda x: lax.integer_pow(x, 3),
    "integer_pow -2": lambda x: lax.integer_pow(x, -2),
}  # fmt: skip
BINARY_FLOAT = _named(lax.add, lax.atan2, lax.div, lax.max, lax.min, lax.mul, lax.pow, lax.rem, lax.sub)
COMPARISONS = _named(lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge)
UNARY_INT = _named(lax.abs, lax.bitwise_not, lax.clz, lax.neg, lax.population_count, lax.sign, lax.square) | {
    "integer_pow 5": lambda x: lax.integer_pow(x, 5)
}
BINARY_INT = _named(
    lax.add, lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor, lax.div, lax.max, lax.min, lax.mul, lax.rem, lax.shift_left,
    lax.shift_right_arithmetic, lax.shift_right_logical, lax.sub,
)  # fmt: skip
UNARY_BOOL = _named(lax.bitwise_not)
BINARY_BOOL = _named(lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor, lax.max, lax.min)
REDUCTIONS = _named(lax.reduce_sum, lax.reduce_prod, lax.reduce_max, lax.reduce_min)
BITWISE_REDUCTIONS = _named(lax.reduce_and, lax.reduce_or, lax.reduce_xor)
CUMULATIVE = _named(lax.cumsum, lax.cumprod, lax.cummax, lax.cummin)


def draw(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Numbers of every kind that the dtype has."""
    rng = np.random.default_rng((seed, *shape))
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    if jnp.issubdtype(dtype, jnp.floating):
        numbers = rng.standard_normal(shape, np.float32) * np.float32(10) ** rng.integers(-3, 3, shape)
        with np.errstate(over="ignore"):
            return np.where(rng.random(shape) < 0.3, rng.choice(SPECIAL, shape), numbers).astype(dtype)
    limits = np.iinfo(dtype)
    numbers = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    special = np.array([limits.min, limits.max, 0, 1, max(limits.min, -1), 2, 8, 31], dtype)
    return np.where(rng.random(shape) < 0.5, rng.choice(special, shape), numbers)


def same(name: str, ours: Any, theirs: Any) -> None:
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), name
    if not jnp.issubdtype(theirs.dtype, jnp.floating):
        np.testing.assert_array_equal(ours, theirs, name)
        return
    # XLA's own functions of float32 are some ulp away.
    tolerance = 4e-6 if theirs.dtype == np.float32 else 1.01 * float(jnp.finfo(theirs.dtype).eps)
    tiny = float(jnp.finfo(theirs.dtype).tiny)  # XLA flushes some denormal results to zero
    np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), tolerance, tiny, err_msg=name)


def check(functions: Functions, *arguments: np.ndarray) -> None:
    """All functions as one graph of tiles; those of 16-bit floats against XLA on float32, rounded once."""

    def together(*arguments: Any) -> Any:
        return {name: function(*arguments) for name, function in functions.items()}

    def widened(*arguments: Any) -> Any:
        wide = [x.astype(np.float32) if x.dtype.name in FLOATS else x for x in arguments]
        types = jax.eval_shape(together, *arguments)
        return {name: result.astype(types[name].dtype) for name, result in together(*wide).items()}

    with np.errstate(all="ignore"):
        theirs = jax.jit(widened)(*arguments)
        ours = aspen(together, strict=True)(*arguments)
    for name, result in theirs.items():
        same(name, np.asarray(ours[name]), np.asarray(result))


def dtypes(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("dtype", [jnp.dtype(name).type for name in names], ids=names)


@dtypes(*FLOATS)
def test_functions_of_floats(dtype):
    for shape in SHAPES:
        check(UNARY_FLOAT, draw(dtype, shape))
        check(BINARY_FLOAT | COMPARISONS, draw(dtype, shape), draw(dtype, shape, 1))


@dtypes(*INTS)
def test_functions_of_integers(dtype):
    unary = {name: f for name, f in UNARY_INT.items() if np.iinfo(dtype).min < 0 or name not in ("abs", "neg")}
    for shape in SHAPES:
        check(unary, draw(dtype, shape))
        check(BINARY_INT | COMPARISONS, draw(dtype, shape), draw(dtype, shape, 1))


def test_functions_of_bools():
    for shape in SHAPES:
        check(UNARY_BOOL, draw(np.bool_, shape))
        check(BINARY_BOOL | COMPARISONS, draw(np.bool_, shape), draw(np.bool_, shape, 1))


def test_neighbours_of_float32():
    check(_named(lax.nextafter), draw(np.float32, (40, 40)), draw(np.float32, (40, 40), 1))
    with pytest.raises(UnsupportedError, match="nextafter of bfloat16"):
        aspen(lax.nextafter, strict=True)(*jnp.ones((2, 3), jnp.bfloat16))


@dtypes(*FLOATS, *INTS, "bool")
def test_choices(dtype):
    def choose(p: Any, i: Any, x: Any, y: Any) -> Any:
        return lax.select(p, x, y), lax.select_n(i, x, y, x), lax.select_n(p, x, y)

    functions: Functions = {f"choice {k}": lambda *args, k=k: choose(*args)[k] for k in range(3)}
    for shape in SHAPES:
        index = abs(draw(np.int32, shape) % 3)
        check(functions, draw(np.bool_, shape), index, draw(dtype, shape), draw(dtype, shape, 1))
        if dtype != np.bool_:
            check(_named(lax.clamp), draw(dtype, (), 2), draw(dtype, shape), draw(dtype, (), 3))


@dtypes(*FLOATS, *INTS, "bool")
def test_conversions(dtype):
    functions: Functions = {to: lambda x, to=to: lax.convert_element_type(x, jnp.dtype(to)) for to in (*FLOATS, *INTS, "bool")}
    for shape in SHAPES:
        x = draw(dtype, shape)
        if jnp.issubdtype(dtype, jnp.floating):  # what does not fit an integer is for each machine to say
            x = np.where(np.abs(x.astype(np.float32)) < 100, x, np.ones_like(x))
            check({to: function for to, function in functions.items() if not to.startswith("uint")}, x)
            x = np.abs(x)
        check(functions, x)


@dtypes(*FLOATS, *INTS, "bool")
def test_reductions(dtype):
    floating = jnp.issubdtype(dtype, jnp.floating)
    functions = {} if dtype == np.bool_ else dict(REDUCTIONS)
    functions |= {} if floating else BITWISE_REDUCTIONS
    for shape, axes in (((7,), (0,)), ((5, 3), (0,)), ((4, 1, 37), (2,)), ((2, 3, 17), (0, 2)), ((3, 65, 2), (1,))):
        x = draw(dtype, shape)
        if floating:
            x = np.clip(np.nan_to_num(x.astype(np.float32)), -1.5, 1.5).astype(dtype)
        along = {name: lambda x, f=f, axes=axes: f(x, axes=axes) for name, f in functions.items()}
        check(along, x)
        check({f.__name__: lambda x, f=f, axes=axes: f(x, axes[0], np.int32) for f in (lax.argmax, lax.argmin)}, x)


@dtypes("int8", "uint8", "int16", "uint16", "int32", "uint32")
def test_reductions_of_nothing(dtype):
    functions = REDUCTIONS | BITWISE_REDUCTIONS
    check({name: lambda x, f=f: f(x, axes=(0,)) for name, f in functions.items()}, np.zeros((0, 4), dtype))


@dtypes("float32", "int32", "uint8")
def test_running_results(dtype):
    for shape, axis in (((9,), 0), ((3, 70), 1), ((5, 2, 4), 0)):
        x = np.clip(np.nan_to_num(np.abs(draw(np.float32, shape))), 0, 1.5).astype(dtype)  # no sum loses digits
        for reverse in (False, True):
            options = {"axis": axis, "reverse": reverse}
            check({name: lambda x, f=f, options=options: f(x, **options) for name, f in CUMULATIVE.items()}, x)


@dtypes(*FLOATS, *INTS, "bool")
def test_movement(dtype):
    functions: Functions = {
        "broadcast_in_dim": lambda x, i: lax.broadcast_in_dim(x, (4, 2, 3, 6), (1, 2, 3)),
        "broadcast_in_dim, unordered": lambda x, i: lax.broadcast_in_dim(x[:, :, :1], (3, 4, 5, 2), (3, 0, 2)),
        "concatenate": lambda x, i: lax.concatenate([x, x[:, :1], x], 1),
        "dynamic_slice": lambda x, i: lax.dynamic_slice(x, (0, i[0], i[1]), (2, 2, 3)),
        "dynamic_update_slice": lambda x, i: lax.dynamic_update_slice(x, x[:, :1, :4], (i[1], i[0], 0)),
        "gather": lambda x, i: x[:, i],
        "pad": lambda x, i: lax.pad(x, x[0, 0, 0], [(1, 2, 0), (0, -1, 1), (-2, 3, 0)]),
        "reshape": lambda x, i: lax.reshape(x, (9, 4)),
        "rev": lambda x, i: lax.rev(x, (0, 2)),
        "scatter": lambda x, i: x.at[:, i].set(x[:, 1:]),
        "slice": lambda x, i: lax.slice(x, (0, 1, 0), (2, 3, 5), (1, 1, 2)),
        "split": lambda x, i: lax.concatenate(lax.split(x, (1, 3, 2), 2)[::-1], 2),
        "squeeze": lambda x, i: lax.squeeze(x[:, :1], (1,)),
        "transpose": lambda x, i: lax.transpose(x, (2, 0, 1)),
    }
    check(functions, draw(dtype, (2, 3, 6)), np.array([2, 0], np.int32))


@pytest.mark.parametrize("out_dtype", ["int16", "int32", "float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "float16", "bfloat16", "float32"])
def test_a_product_may_have_another_dtype_than_its_factors(dtype, out_dtype):
    x, y = (jnp.asarray(RNG.integers(0, 100, (5, 7)), dtype) for _ in range(2))  # products overflow int8
    expected = lax.mul(x, y, out_dtype=jnp.dtype(out_dtype))
    result = aspen(lambda x, y: lax.mul(x, y, out_dtype=jnp.dtype(out_dtype)))(x, y)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", ["log", "log2", "tanh"])
def test_more_accuracy_than_kernels_promise_is_left_to_xla(name):
    function = getattr(lax, name, None)
    if function is None:
        pytest.skip(f"this version of JAX has no lax.{name}")
    with pytest.raises(UnsupportedError, match="accuracy"):
        aspen(lambda x: function(x, accuracy=lax.AccuracyMode.HIGHEST), strict=True)(np.ones(3, np.float32))
