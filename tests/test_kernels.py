"""Every kernel through the engine, against jax.lax: random shapes and parameters, in many tiles, on the CPU target in use.

`test_targets.py` runs this file again for the other targets of the machine.
"""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend import core

from aspen_jax import apu, frontend
from aspen_jax.apu.machine import Machine
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.winograd import TILES
from aspen_jax.passes import PASSES, run_passes, winograd
from aspen_jax.program import Value
from tests.random_functions import random_function

# Tiles as small as the grains allow, so that boxes begin and end everywhere.
TINY_TILES = Machine(tile_ns=0.0, shortest_tile_ns=1.0, tiles_per_worker=16)


def run_tiled(function, arguments, disabled=(), machine: Machine = TINY_TILES) -> list[np.ndarray]:
    """The function's outputs by tile graphs; it must have no fallback."""
    jaxpr = jax.make_jaxpr(function)(*arguments)
    trace = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts))
    assert not trace.fallbacks, [(item.name, item.reason) for item in trace.fallbacks]
    values: dict[Value, np.ndarray] = dict(zip(trace.inputs, map(np.asarray, jax.tree.leaves(arguments)), strict=True))
    for part in trace.parts:
        graph = apu.build(run_passes(part, disabled), 2, machine)
        graph.verify()
        results = graph.run(*(values[value] for value in part.inputs))
        values.update((operand.value, result) for operand, result in zip(part.outputs, results, strict=True))
    return [values[item] if isinstance(item, Value) else item for item in trace.outputs]


def check(function, *arguments, tolerance: float = 1e-5, disabled=(), reference=None) -> None:
    """Within `tolerance` of the largest output of `reference`, or of `function` by XLA; integers and bools exactly."""
    expected = jax.tree.leaves(jax.jit(reference or function)(*arguments))
    for ours, theirs in zip(run_tiled(function, arguments, disabled), expected, strict=True):
        theirs = np.asarray(theirs)
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        if theirs.dtype != np.float32:
            np.testing.assert_array_equal(ours, theirs)
            continue
        assert np.isfinite(theirs).all()
        largest = float(np.abs(theirs).max(initial=1e-30))
        assert float(np.abs(ours - theirs).max(initial=0)) <= tolerance * largest


NARROW = (jnp.bfloat16, np.float16)


def check_narrow(function, dtype, *arguments, reference=None) -> None:
    """As float32 on the same narrow arguments, rounded once: within one unit of the last place."""
    narrow = [np.asarray(item).astype(dtype) for item in arguments]
    expected = jax.tree.leaves(jax.jit(reference or function)(*(item.astype(np.float32) for item in narrow)))
    for ours, theirs in zip(run_tiled(function, narrow), expected, strict=True):
        theirs = np.asarray(theirs)
        assert ours.dtype == dtype
        assert ours.shape == theirs.shape
        assert np.isfinite(theirs).all()
        ulp = float(jnp.finfo(dtype).eps)
        bound = ulp * np.abs(theirs) + 2e-5 * np.abs(theirs).max(initial=0) + float(jnp.finfo(dtype).smallest_subnormal)
        assert (np.abs(ours.astype(np.float32) - theirs) <= bound).all()


@st.composite
def convolutions(draw):
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    depthwise = draw(st.booleans()) and groups > 1
    channels = 1 if depthwise else draw(st.integers(1, 20))
    groups = draw(st.integers(1, 40)) if depthwise else groups
    outputs = groups * draw(st.sampled_from([1, 2] if depthwise else [1, 3, 16, 33, 64]))
    window = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    image = draw(st.tuples(st.integers(4, 16), st.integers(4, 16)))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilation = tuple(draw(st.integers(1, 2)) if image[i] > 2 * window[i] else 1 for i in (0, 1))
    padding = tuple((draw(st.integers(-1, 3)), draw(st.integers(-1, 3))) for _ in range(2))
    return draw(st.integers(1, 2)), image, channels * groups, window, outputs, groups, stride, dilation, padding


# None, one that begins with a factor, and one that the sums can begin with.
CONV2D_EPILOGUES = (
    lambda y, scale, shift: y,
    lambda y, scale, shift: jax.nn.relu6(y * scale + shift),
    lambda y, scale, shift: jax.nn.relu6(y + shift) * scale,
)


@settings(max_examples=90, deadline=None)
@given(convolutions(), st.integers(0, 2**31), st.sampled_from(CONV2D_EPILOGUES), st.sampled_from([np.float32, *NARROW]))
def test_conv2d(shape, seed, epilogue, dtype):
    batch, image, channels, window, outputs, groups, stride, dilation, padding = shape
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, *image, channels), np.float32)
    w = rng.standard_normal((*window, channels // groups, outputs), np.float32)

    def function(x, w, scale, shift, padding=padding):
        y = lax.conv_general_dilated(
            x, w, stride, padding, rhs_dilation=dilation, dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups, precision=lax.Precision.HIGHEST,
        )  # fmt: skip
        return epilogue(y, scale, shift)

    def padded_first(x, *rest):
        """XLA's convolution on CPU reads outside of the image where it crops one side and pads the other."""
        x = lax.pad(x, x.dtype.type(0), ((0, 0, 0), *((low, high, 0) for low, high in padding), (0, 0, 0)))
        return function(x, *rest, padding="VALID")

    arguments = (x, w, *rng.standard_normal((2, outputs), np.float32))
    if dtype is np.float32:
        check(function, *arguments, reference=padded_first)
    else:
        check_narrow(function, dtype, *arguments, reference=padded_first)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 2),
    st.tuples(st.integers(3, 17), st.integers(3, 17)),
    st.integers(17, 90),
    st.sampled_from([24, 32, 33, 48, 100, 256]),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.integers(0, 2**31),
)
def test_convolutions_with_constants(batch, image, channels, outputs, window, stride, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, *image, channels), np.float32)
    w = rng.standard_normal((outputs, channels, *window), np.float32)

    def function(x, shift):
        y = lax.conv_general_dilated(
            x, w, stride, "SAME", dimension_numbers=("NHWC", "OIHW", "NHWC"), precision=lax.Precision.HIGHEST
        )
        return jax.nn.relu(y + shift)

    arguments = (x, rng.standard_normal(outputs, np.float32))
    check(function, *arguments)
    jaxpr = jax.make_jaxpr(function)(*arguments)
    (part,) = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)).parts
    missing = -outputs % 32
    expected = "conv2d_panels" if missing <= outputs else "conv2d"
    assert [op.family.name for op in run_passes(part).ops] == [expected]


@pytest.mark.parametrize("window", [3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("channels", "outputs"), [(33, 33), (70, 70), (32, 64)])
def test_depthwise_windows_that_slide(window, stride, channels, outputs):
    rng = np.random.default_rng((window, stride, channels))
    for width, padding in [(7, (1, 1)), (13, (0, 0)), (14, (3, 2)), (26, (9, 11)), (4, (2, 3))]:
        x = rng.standard_normal((2, 6, width, channels), np.float32)
        w = rng.standard_normal((window, window, 1, outputs), np.float32)

        def function(x, w, padding=padding):
            return lax.conv_general_dilated(
                x, w, (stride, stride), ((2, 3), padding), dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=channels, precision=lax.Precision.HIGHEST,
            )  # fmt: skip

        check(function, x, w)


EPILOGUES = {
    "all that registers can do": lambda y, s, r: jnp.clip((y - s) * r + s, -0.5, 0.7),
    "residual": lambda y, s, r: jax.nn.relu(y + s + r),
    "a constant first": lambda y, s, r: jax.nn.relu(y + 0.5) * s + r,
    "residual first": lambda y, s, r: jnp.minimum(r + y, 2.0) * 0.25,
    "a rest": lambda y, s, r: jax.nn.silu(y + s) * r,
    "nothing in registers": lambda y, s, r: s - y,
    "bounds that vary": lambda y, s, r: jnp.maximum(jnp.minimum(y * s, r), s),
    "twice": lambda y, s, r: (y + s) * (y + s) + r,
    "many steps": lambda y, s, r: ((((y + s) * r - s) * s + r) * s - r) * s + r + 1.0,
    "no number": lambda y, s, r: jnp.minimum(jax.nn.relu(y + jnp.where(s > 1, jnp.nan, s)), 6.0),
}


@pytest.mark.parametrize("groups", [1, 40])
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_of_convolutions(name, groups):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 7, 13, 40), np.float32), rng.standard_normal((3, 3, 40 // groups, 40), np.float32) / 10
    shift, residual = rng.standard_normal(40, np.float32), rng.standard_normal((2, 7, 13, 40), np.float32)

    def function(x, w, shift, residual):
        y = lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups,
            precision=lax.Precision.HIGHEST,
        )  # fmt: skip
        return EPILOGUES[name](y, shift, residual)

    arguments = (x, w, shift, residual)
    expected = np.asarray(jax.jit(function)(*arguments))
    for machine in (TINY_TILES, Machine()):
        (ours,) = run_tiled(function, arguments, machine=machine)
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 2),
    st.tuples(st.integers(3, 21), st.integers(3, 21)),
    st.integers(1, 40),
    st.sampled_from([1, 16, 31, 32, 33, 70]),
    st.tuples(*[st.integers(-1, 3)] * 4),
    st.integers(0, 2**31),
    st.booleans(),
    st.sampled_from([(window, tile) for window in TILES for tile in TILES[window]]),
)
def test_winograd(batch, image, channels, outputs, padding, seed, known, patch):
    """Chosen whatever it costs: against float64, closer than what the default precision allows."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, *image, channels), np.float32)
    window, tile = patch
    w = rng.standard_normal((*window, channels, outputs), np.float32)
    shift = rng.standard_normal(outputs, np.float32)
    top, bottom, left, right = padding

    def function(x, w, shift):
        y = lax.conv_general_dilated(x, w, (1, 1), ((top, bottom), (left, right)), dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jax.nn.relu(y * 0.5 + shift)

    arguments = (x, shift) if known else (x, w, shift)
    called = (lambda x, shift: function(x, w, shift)) if known else function
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Machine, "are_cheaper", lambda *_: True)
        monkeypatch.setattr(winograd, "TILES", {window: (tile,)})
        (result,) = run_tiled(called, arguments)
        if result.size > 0:
            jaxpr = jax.make_jaxpr(called)(*arguments)
            (part,) = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)).parts
            kinds = {op.family.name for op in run_passes(part).ops}
            assert kinds == ({"winograd"} if known else {"winograd", "winograd_weights"})
    with jax.enable_x64(True):
        exact = np.asarray(function(*(np.asarray(item, np.float64) for item in (x, w, shift))))
    assert result.shape == exact.shape
    assert np.abs(result - exact).max(initial=0) <= 3e-5 * np.abs(exact).max(initial=1e-30)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 2),
    st.tuples(st.integers(5, 40), st.integers(5, 40)),
    st.sampled_from([1, 3, 5, 16, 20]),
    st.sampled_from([1, 32, 33, 70]),
    st.tuples(*[st.integers(-2, 5)] * 4),
    st.sampled_from(
        [((7, 7), (2, 2)), ((8, 8), (2, 2)), ((5, 5), (2, 2)), ((11, 11), (4, 4)), ((7, 4), (2, 1)), ((9, 13), (3, 4))]
    ),
    st.sampled_from(["NHWC", "NCHW"]),
    st.integers(0, 2**31),
)
def test_winograd_of_phases(batch, image, channels, outputs, padding, shape, layout, seed):
    """Convolutions of other strides, whose windows on the phases are 3x3 or 4x4."""
    rng = np.random.default_rng(seed)
    window, strides = shape
    dimensions = dict(zip("NHWC", (batch, *image, channels), strict=True))
    x = rng.standard_normal([dimensions[axis] for axis in layout], np.float32)
    w = rng.standard_normal((*window, channels, outputs), np.float32)
    top, bottom, left, right = padding

    def function(x, w):
        numbers = (layout, "HWIO", "NHWC")
        return jax.nn.relu(lax.conv_general_dilated(x, w, strides, ((top, bottom), (left, right)), dimension_numbers=numbers))

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Machine, "are_cheaper", lambda *_: True)
        (result,) = run_tiled(lambda x: function(x, w), (x,))
        if result.size > 0:
            jaxpr = jax.make_jaxpr(lambda x: function(x, w))(x)
            (part,) = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)).parts
            ops = [op for op in run_passes(part).ops if op.family.name == "winograd"]
            squares = tuple(
                -(-(taps + -low % stride) // stride) for taps, low, stride in zip(window, padding[::2], strides, strict=True)
            )
            assert [op.attrs.phases for op in ops] == ([strides] if squares in TILES else [])
    with jax.enable_x64(True):
        exact = np.asarray(function(np.asarray(x, np.float64), np.asarray(w, np.float64)))
    assert result.shape == exact.shape
    assert np.abs(result - exact).max(initial=0) <= 3e-5 * np.abs(exact).max(initial=1e-30)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 3),
    st.sampled_from([1, 2, 5, 13, 14, 29, 64]),
    st.sampled_from([1, 3, 16, 31, 100, 300]),
    st.sampled_from([1, 7, 16, 32, 45, 200]),
    st.sampled_from(["mk,kn", "km,kn", "mk,nk", "km,nk"]),
    st.integers(0, 2**31),
)
def test_matmul(batch, m, k, n, order, seed):
    rng = np.random.default_rng(seed)
    sizes = {"m": m, "k": k, "n": n}
    left, right = order.split(",")
    a = rng.standard_normal((batch, *(sizes[letter] for letter in left)), np.float32)
    b = rng.standard_normal((batch, *(sizes[letter] for letter in right)), np.float32)
    residual = rng.standard_normal((batch, m, n), np.float32)

    def function(a, b, residual):
        return jnp.einsum(f"b{left},b{right}->bmn", a, b, precision=lax.Precision.HIGHEST) + residual

    check(function, a, b, residual)
    check_narrow(function, NARROW[seed % 2], a, b, residual)


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([1, 2, 5, 13, 14, 29, 64]),
    st.sampled_from([1, 3, 31, 100, 300, 3300]),
    st.sampled_from([(32,), (57,), (200,), (12, 7), (3, 40), (2, 5, 32)]),
    st.sampled_from(["mk,kn->mn", "km,kn->mn", "mk,nk->mn", "mjk,jkn->mn", "mjk,kjn->mn", "mjk,jnk->mn"]),
    st.integers(0, 2**31),
)
def test_products_with_constants(m, k, columns, order, seed):
    rng = np.random.default_rng(seed)
    letters = "xyz"[: len(columns)]
    sizes = {"m": m, "k": k, "j": 3} | dict(zip(letters, columns, strict=True))
    order = order.replace("n", letters)
    left, right = order.split("->")[0].split(",")
    a, b = (rng.standard_normal([sizes[letter] for letter in own], np.float32) for own in (left, right))
    residual = rng.standard_normal((m, *columns), np.float32)

    def function(a, residual):
        return jnp.einsum(order, a, b, precision=lax.Precision.HIGHEST) + residual

    check(function, a, residual)
    jaxpr = jax.make_jaxpr(function)(a, residual)
    (part,) = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)).parts
    assert [op.family.name for op in run_passes(part).ops] == ["matmul_panels"]


@pytest.mark.parametrize("m", [1, 4, 40])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_mixed_dtypes(m, transposed):
    rng = np.random.default_rng(m)
    a, b = rng.standard_normal((m, 300), np.float32), rng.standard_normal((530, 300) if transposed else (300, 530), np.float32)
    for dtypes in itertools.product((*NARROW, np.float32), repeat=3):
        left, right = a.astype(dtypes[0]), b.astype(dtypes[1])
        numbers = (((1,), (int(transposed),)), ((), ()))
        product = functools.partial(lax.dot_general, dimension_numbers=numbers, preferred_element_type=dtypes[2])
        (ours,) = run_tiled(product, (left, right))
        wide = right.astype(np.float64)
        exact = left.astype(np.float64) @ (wide.T if transposed else wide)
        assert ours.dtype == dtypes[2]
        bound = float(jnp.finfo(dtypes[2]).eps) * np.abs(exact) + 1e-5 * np.abs(exact).max()
        assert (np.abs(ours.astype(np.float64) - exact) <= bound).all()


# Of attention and its gradients, of dense layers on many dimensions, of matrices and vectors; letters out of order on purpose.
PRODUCTS = (
    "btnh,bsnh->bnts", "bnts,bsnh->btnh", "btkgh,bskh->bkgts", "bkgts,bskh->btkgh", "btd,dnh->btnh", "btnh,nhd->btd",
    "btf,btd->fd", "ij,j->i", "j,ij->i", "j,ji->i", "ij,kj->ki", "ij,ij->j", "ij,ij->", "i,j->ij", "i,i->", "ij,k->kij",
    "bijk,bkl->lbij", "aibj,cjaid->bcd",
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(PRODUCTS), st.data(), st.integers(0, 2**31))
def test_products_of_any_dimensions(equation, data, seed):
    rng = np.random.default_rng(seed)
    left, rest = equation.split(",")
    right, out = rest.split("->")
    sizes = {letter: data.draw(st.sampled_from([1, 2, 3, 7, 17, 36])) for letter in sorted(set(left + right))}
    while np.prod([float(size) for size in sizes.values()]) > 3e6:
        sizes[max(sizes, key=sizes.__getitem__)] = 2
    a, b = (rng.standard_normal([sizes[letter] for letter in letters], np.float32) for letters in (left, right))
    bias = rng.standard_normal([sizes[letter] for letter in out[-2:]], np.float32)

    def function(a, b, bias):
        product = jnp.einsum(equation, a, b, precision=lax.Precision.HIGHEST)
        return product, jnp.maximum(jnp.einsum(equation, a[::-1], b, precision=lax.Precision.HIGHEST), 0) + bias

    check(function, a, b, bias, tolerance=2e-5)


def copies(function, *arguments) -> int:
    """Block ops that are left when all passes have run."""
    jaxpr = jax.make_jaxpr(function)(*arguments)
    (part,) = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)).parts
    return sum(op.family is BLOCK for op in run_passes(part).ops)


def test_the_products_of_attention_copy_nothing():
    x = np.zeros((2, 9, 3, 4), np.float32)
    w = np.zeros((3, 4, 5), np.float32)

    def attention(q, k, v, w):
        scores = jnp.einsum("btnh,bsnh->bnts", q, k)
        values = jnp.einsum("bnts,bsnh->btnh", scores, v)
        return values.reshape(2, 9, 12) @ w.reshape(12, 5)

    def grouped(q, k, v):
        q = q.reshape(2, 9, 3, 2, 2)
        return jnp.einsum("bkgts,bskh->btkgh", jnp.einsum("btkgh,bskh->bkgts", q, k[..., :2]), v)

    assert copies(attention, x, x, x, w) == 0
    assert copies(grouped, x, x, x) == 0
    assert copies(lambda x, y: (x.reshape(18, 12) @ y.reshape(18, 12).T).T, x, x) == 0


@pytest.mark.parametrize("seed", range(30))
def test_random_functions(seed):
    function, arguments = random_function(2000 + seed)
    check(function, *arguments, tolerance=5e-5)


@pytest.mark.parametrize("seed", range(6))
def test_random_functions_without_passes(seed):
    function, arguments = random_function(3000 + seed)
    check(function, *arguments, tolerance=5e-5, disabled=tuple(PASSES))


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 2**31))
def test_pool(data, seed):
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.integers(1, 9)) for _ in range(rank))
    draw = lambda low, high: tuple(data.draw(st.integers(low, high)) for _ in range(rank))  # noqa: E731
    window = tuple(min(w, s) for w, s in zip(draw(1, 3), shape, strict=True))
    strides, base, dilation = draw(1, 2), draw(1, 2), draw(1, 1)
    padding = tuple(zip(draw(0, 2), draw(0, 2), strict=True))
    kind = data.draw(st.sampled_from([(-np.inf, lax.max), (np.inf, lax.min), (0.0, lax.add)]))
    x = np.random.default_rng(seed).standard_normal(shape, np.float32)

    def function(x):
        y = lax.reduce_window(x, x.dtype.type(kind[0]), kind[1], window, strides, padding, base, dilation)
        return jnp.clip(y, -5.0, 5.0)  # an empty window is infinite

    check(function, x)
    check_narrow(function, data.draw(st.sampled_from(NARROW)), x)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 2**31))
def test_reduce(data, seed):
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.integers(1, 40)) for _ in range(rank))
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, rank - 1), min_size=1))))
    kind = data.draw(st.sampled_from([jnp.sum, jnp.max, jnp.min]))
    x = np.random.default_rng(seed).standard_normal(shape, np.float32)
    check(lambda x: (kind(x, axes), kind((x * 10).astype(jnp.int32), axes), (x > 1).any(axes), (x > -1).all(axes)), x)
    check_narrow(lambda x: (kind(x, axes), x.mean(axes), kind(x, axes) * 2), data.draw(st.sampled_from(NARROW)), x)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 2**31))
def test_movement(data, seed):
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.integers(1, 12)) for _ in range(rank))
    axis = data.draw(st.integers(0, rank - 1))
    config = tuple(
        (data.draw(st.integers(-1, 2)), data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))) for _ in range(rank)
    )
    order = tuple(data.draw(st.permutations(range(rank))))
    dtype = data.draw(st.sampled_from([np.float32, np.int32, np.uint8, *NARROW, np.bool_]))
    x = (np.random.default_rng(seed).standard_normal(shape) * 3).astype(dtype)

    def function(x, value):
        y = lax.pad(x, value, config)
        y = jnp.concatenate([y, y[::-1], lax.slice_in_dim(y, 0, min(2, y.shape[axis]), axis=axis)], axis) if min(y.shape) else y
        return y.transpose(order), x[::2].T.reshape(-1)

    check(function, x, np.array(1, dtype))


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(0, 2**31))
def test_concatenations_with_an_epilogue(data, seed):
    """In registers where the program is a chain of float32, by the block program where it is not."""
    rank = data.draw(st.integers(1, 4))
    axis = data.draw(st.integers(0, rank - 1))
    shape = [data.draw(st.integers(1, 7)) for _ in range(rank)]
    extents = data.draw(st.lists(st.integers(1, 70), min_size=2, max_size=5))
    dtype, is_chain = data.draw(st.sampled_from([np.float32, np.int32])), data.draw(st.booleans())
    rng = np.random.default_rng(seed)
    pieces = [(rng.standard_normal((*shape[:axis], extent, *shape[axis + 1 :])) * 9).astype(dtype) for extent in extents]
    whole = (*shape[:axis], sum(extents), *shape[axis + 1 :])
    mean, scale = rng.standard_normal(whole[-1:]).astype(dtype), rng.standard_normal(whole).astype(dtype)

    def function(mean, scale, *pieces):
        # Nested, as where each layer adds to what is there.
        inner = jnp.concatenate(pieces[:-1], axis)
        y = (jnp.concatenate([inner, pieces[-1]], axis) - mean) * scale
        return jnp.maximum(y, 0) if is_chain else y * y - scale, jnp.sum(inner)

    check(function, mean, scale, *pieces)


@pytest.mark.parametrize("dtype", NARROW)
def test_convolution_of_16_bits_gives_float32_where_that_is_preferred(dtype):
    rng = np.random.default_rng(0)
    x, w = (
        rng.standard_normal((1, 9, 11, 8), np.float32).astype(dtype),
        rng.standard_normal((3, 3, 8, 20), np.float32).astype(dtype),
    )

    def function(x, w):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=numbers, preferred_element_type=np.float32, precision=lax.Precision.HIGHEST
        )

    (ours,) = run_tiled(function, (x, w))
    exact = np.asarray(jax.jit(function)(x.astype(np.float32), w.astype(np.float32)))
    assert ours.dtype == np.float32
    assert np.abs(ours - exact).max() <= 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("dtype", NARROW)
def test_conversions_round_inside_a_fused_program(dtype):
    x = np.random.default_rng(0).standard_normal((7, 45), np.float32)
    for function in (lambda x: x.astype(dtype).astype(np.float32) - x, lambda x: lax.reduce_precision(x, 8, 7) - x):
        check(function, x, tolerance=0.0)
    constant = np.float32(1 / 3)
    (ours,) = run_tiled(lambda x: (x.astype(dtype) * constant.astype(dtype)).astype(np.float32), (np.ones(3, np.float32),))
    np.testing.assert_array_equal(ours, np.float32(constant.astype(dtype)))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("seed", range(25))
def test_random_functions_of_16_bits(dtype, seed):
    function, arguments = random_function(4000 + seed)
    narrow = [item.astype(dtype) for item in arguments]
    exact = jax.jit(function)(*(item.astype(np.float32) for item in narrow))
    theirs = jax.jit(function)(*narrow)
    for one, other, wanted in zip(run_tiled(function, narrow), theirs, exact, strict=True):
        assert one.dtype == dtype
        wanted = np.asarray(wanted)
        error, their_error = (np.abs(np.asarray(item, np.float32) - wanted).max() for item in (one, other))
        assert error <= max(1.5 * their_error, 2 * float(jnp.finfo(dtype).eps) * np.abs(wanted).max())


_BINARY = (
    lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor,
    lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic, lax.lt, lax.le, lax.gt, lax.ge, lax.eq, lax.ne,
)  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_integers_wrap_and_compare_as_in_jax(dtype):
    limits, rng = np.iinfo(dtype), np.random.default_rng(0)
    a, b = rng.integers(limits.min, limits.max, (2, 3000), dtype, endpoint=True)
    b[::3] = rng.integers(0, 9, 1000)
    a[5::13], b[5::26] = limits.min, dtype(0) - dtype(limits.min < 0)

    def function(a, b):
        two = [op(a, b) for op in _BINARY]
        one = [
            -a,
            ~a,
            lax.sign(a),
            a**3,
            lax.clamp(dtype(3), a, dtype(99)),
            jnp.where(a > b, a, b + dtype(1)),
            lax.integer_pow(a, 2) // dtype(3),
        ]
        signed = [lax.abs(a)] if limits.min < 0 else []
        return [*two, *one, *signed]

    with np.errstate(over="ignore"):
        check(function, a, b)
    targets = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.float32, *NARROW, np.bool_)
    expected = [np.asarray(item) for item in jax.jit(lambda a: [(a + dtype(1)).astype(to) for to in targets])(a)]
    for ours, theirs in zip(run_tiled(lambda a: [(a + dtype(1)).astype(to) for to in targets], (a,)), expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    special = [np.nan, np.inf, -np.inf, 0.9, -0.9, 2.0**31, 2.0**32, -(2.0**31), limits.max, limits.min]
    floats = np.concatenate([rng.standard_normal(500) * limits.max, special]).astype(np.float32)
    for source in (np.float32, *NARROW):
        with np.errstate(all="ignore"):
            check(lambda x: x.astype(dtype), floats.astype(source))


def test_large_matrix_vector_product_is_accurate():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 25088), np.float32), rng.standard_normal((25088, 40), np.float32)
    (result,) = run_tiled(lambda x, w: x @ w, (x, w), machine=Machine())
    exact = x.astype(np.float64) @ w.astype(np.float64)
    assert np.abs(result - exact).max() <= 1e-5 * np.abs(exact).max()


def test_sum_of_residual_and_affine_under_relu():
    """relu(residual + ((x + bias) * scale + shift)): one joining of instructions after another in the interpreter."""
    rng = np.random.default_rng(0)
    x, residual = rng.standard_normal((2, 5, 37), np.float32)
    check(lambda x, r, a, b, c: jax.nn.relu(r + ((x + a) * b + c)), x, residual, *rng.standard_normal((3, 37), np.float32))
