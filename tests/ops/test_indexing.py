"""Gathers, scatters and dynamic slices, exactly equal to jax.lax: random shapes and parameters, in many tiles.

`test_targets.py` runs this file again for the other targets of the machine.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import aspen_jax
from tests.rotation import examples
from tests.tiled import run_tiled

DTYPES = [np.float32, np.int32, np.uint8, np.bool_, np.float16, jnp.bfloat16, np.int16]
INDEX_DTYPES = [np.int32, np.int8, np.uint8, np.uint32, np.int16]


def check_equal(function, *arguments) -> None:
    """Bit for bit what jax.jit gives, NaN included."""
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    for ours, theirs in zip(run_tiled(function, arguments), expected, strict=True):
        assert ours.dtype == theirs.dtype
        wide = np.float32 if ours.dtype == jnp.bfloat16 else ours.dtype  # numpy does not know that bfloat16 has NaNs
        np.testing.assert_array_equal(ours.astype(wide), np.asarray(theirs).astype(wide))


def random_array(rng: np.random.Generator, shape, dtype) -> np.ndarray:
    return (rng.standard_normal(shape) * 5).astype(dtype)


def random_indices(rng: np.random.Generator, shape, extent: int, dtype) -> np.ndarray:
    """Mostly inside, some far outside."""
    inside = rng.integers(0, max(extent, 1), shape)
    limits = np.iinfo(dtype)
    wild = rng.integers(max(limits.min, -(2**40)), min(limits.max, 2**40), shape, endpoint=True)
    low = 0 if limits.min == 0 else -3
    near = np.clip(rng.integers(low, extent + 4, shape), limits.min, limits.max)
    return np.choose(rng.integers(0, 4, shape), [inside, inside, near, wild]).astype(dtype)


modes = st.sampled_from([lax.GatherScatterMode.CLIP, lax.GatherScatterMode.FILL_OR_DROP])


@st.composite
def gathers(draw):
    """Operand shape, index shape, dimension numbers and slice sizes of a valid lax.gather."""
    rank = draw(st.integers(1, 4))
    shape = [draw(st.integers(1, 9)) for _ in range(rank)]
    axes = draw(st.permutations(range(rank)))
    num_batching = draw(st.integers(0, min(1, rank - 1)))
    batching, rest = axes[:num_batching], axes[num_batching:]
    indexed = rest[: draw(st.integers(1, len(rest)))]
    sizes = [draw(st.integers(0 if extent > 1 and draw(st.integers(0, 20)) == 0 else 1, extent)) for extent in shape]
    collapsed = [axis for axis in rest if draw(st.booleans())]
    for axis in [*collapsed, *batching]:
        sizes[axis] = 1
    index_rank = draw(st.integers(num_batching, 2))
    index_shape = [draw(st.integers(1, 12)) for _ in range(index_rank)]
    index_batching = draw(st.permutations(range(index_rank)))[:num_batching]
    for axis, index_axis in zip(batching, index_batching, strict=True):
        index_shape[index_axis] = shape[axis]
    num_offsets = rank - len(collapsed) - num_batching
    out_rank = index_rank + num_offsets
    offset_dims = sorted(draw(st.permutations(range(out_rank)))[:num_offsets])
    pairs = sorted(zip(batching, index_batching, strict=True))
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(offset_dims),
        collapsed_slice_dims=tuple(sorted(collapsed)),
        start_index_map=tuple(indexed),
        operand_batching_dims=tuple(axis for axis, _ in pairs),
        start_indices_batching_dims=tuple(axis for _, axis in pairs),
    )
    return tuple(shape), (*index_shape, len(indexed)), numbers, tuple(sizes)


@examples(120)
@given(gathers(), st.sampled_from(DTYPES), st.sampled_from(INDEX_DTYPES), modes, st.booleans(), st.integers(0, 2**31))
def test_gather(case, dtype, index_dtype, mode, given_fill, seed):
    shape, index_shape, numbers, sizes = case
    rng = np.random.default_rng(seed)
    x = random_array(rng, shape, dtype)
    indices = random_indices(rng, index_shape, max(shape), index_dtype)
    fill = 1 if given_fill else None
    check_equal(lambda x, i: lax.gather(x, i, numbers, sizes, mode=mode, fill_value=fill), x, indices)


TAKES = {
    "embedding": lambda x, i: jnp.take(x, i, axis=0),
    "getitem": lambda x, i: x[i],
    "last axis": lambda x, i: jnp.take(x, i, axis=-1),
    "wrap": lambda x, i: jnp.take(x, i, axis=1, mode="wrap"),
    "clip": lambda x, i: jnp.take(x, i, axis=1, mode="clip"),
    "fill": lambda x, i: jnp.take(x, i, axis=0, mode="fill", fill_value=7),
    "promised": lambda x, i: x.at[jnp.clip(i, 0, 4)].get(mode="promise_in_bounds"),
    "two indices": lambda x, i: x[i, i[::-1]],
    "index and slice": lambda x, i: x[1:, i, ::2],
    "scalar": lambda x, i: x[i[0, 0]],
    "transposed operand": lambda x, i: x.T[i],
    "along axis": lambda x, i: jnp.take_along_axis(x[:, :3, :2], i[None, :3, :2] % 5, axis=0),
    "mapped": lambda x, i: jax.vmap(lambda x, i: x[i])(x[:3], i),
    "mapped twice": lambda x, i: jax.vmap(jax.vmap(lambda x, i: x[i]))(x[:3, :4], i),
    "argument of a sum": lambda x, i: x[i].sum(1) + x[0, 0],
    "one hot": lambda x, i: jax.nn.one_hot(i, 5, dtype=x.dtype),
}


@pytest.mark.parametrize("function", TAKES.values(), ids=TAKES)
def test_indexing_as_users_write_it(function):
    rng = np.random.default_rng(0)
    x, indices = random_array(rng, (5, 6, 7), np.float32).round(), rng.integers(-9, 9, (3, 4)).astype(np.int32)
    check_equal(function, x, indices)


@examples(60)
@given(st.data(), st.sampled_from(DTYPES), st.integers(0, 2**31))
def test_dynamic_slice(data, dtype, seed):
    rng = np.random.default_rng(seed)
    shape = tuple(data.draw(st.integers(0, 9)) for _ in range(data.draw(st.integers(1, 4))))
    sizes = tuple(data.draw(st.integers(0, extent)) for extent in shape)
    known = [data.draw(st.booleans()) for _ in shape]
    starts = [random_indices(rng, (), extent, np.int32) for extent in shape]
    x = random_array(rng, shape, dtype)

    def function(x, *starts):
        return lax.dynamic_slice(x, [s if fixed is None else fixed for s, fixed in zip(starts, fixeds, strict=True)], sizes)

    fixeds = [start if is_known else None for start, is_known in zip(starts, known, strict=True)]
    check_equal(function, x, *starts)


@examples(60)
@given(st.data(), st.sampled_from(DTYPES), st.integers(0, 2**31))
def test_dynamic_update_slice(data, dtype, seed):
    rng = np.random.default_rng(seed)
    shape = tuple(data.draw(st.integers(0, 9)) for _ in range(data.draw(st.integers(1, 4))))
    sizes = tuple(data.draw(st.integers(0, extent)) for extent in shape)
    known = [data.draw(st.booleans()) for _ in shape]
    starts = [random_indices(rng, (), extent, np.int32) for extent in shape]
    fixeds = [start if is_known else None for start, is_known in zip(starts, known, strict=True)]

    def function(x, update, *starts):
        chosen = [s if fixed is None else fixed for s, fixed in zip(starts, fixeds, strict=True)]
        return lax.dynamic_update_slice(x, update, chosen)

    check_equal(function, random_array(rng, shape, dtype), random_array(rng, sizes, dtype), *starts)


SCATTERS = {"set": lax.scatter, "add": lax.scatter_add, "mul": lax.scatter_mul, "min": lax.scatter_min, "max": lax.scatter_max}


@examples(120)
@given(gathers(), st.sampled_from(DTYPES), st.sampled_from(sorted(SCATTERS)), modes, st.integers(0, 2**31))
def test_scatter(case, dtype, kind, mode, seed):
    shape, index_shape, gather, sizes = case
    dtype = dtype if kind == "set" else np.float32 if seed % 2 else np.int32
    numbers = lax.ScatterDimensionNumbers(
        gather.offset_dims,
        gather.collapsed_slice_dims,
        gather.start_index_map,
        gather.operand_batching_dims,
        gather.start_indices_batching_dims,
    )
    rng = np.random.default_rng(seed)
    x, indices = random_array(rng, shape, dtype), random_indices(rng, index_shape, max(shape), np.int32)
    windows = jax.eval_shape(lambda x, i: lax.gather(x, i, gather, sizes), x, indices)
    updates = random_array(rng, windows.shape, dtype)
    check_equal(lambda x, i, u: SCATTERS[kind](x, i, u, numbers, mode=mode), x, indices, updates.round().astype(dtype))


UPDATES = {
    "set rows": lambda x, i, u: x.at[i].set(u),
    "add rows": lambda x, i, u: x.at[i].add(u),
    "set one element": lambda x, i, u: x.at[i[0, 0], 2].set(7),
    "set a column": lambda x, i, u: x.at[:, i[0, 0]].set(u[:, 0, :1].sum()),
    "multiply": lambda x, i, u: x.at[i].multiply(2),
    "max": lambda x, i, u: x.at[i].max(u),
    "mapped": lambda x, i, u: jax.vmap(lambda x, i, u: x.at[i].add(u))(x[:3], i, u[..., 0]),
    "static slice": lambda x, i, u: x.at[1:3, ::2].set(0),
    "gradient of an embedding": lambda x, i, u: jax.grad(lambda x: (x[i] * u).sum())(x),
    "cache": lambda x, i, u: lax.dynamic_update_slice_in_dim(x, u[0, :2], i[0, 0], 0),
}


@pytest.mark.parametrize("function", UPDATES.values(), ids=UPDATES)
def test_updates_as_users_write_them(function):
    rng = np.random.default_rng(0)
    x, indices = random_array(rng, (9, 6), np.float32).round(), rng.integers(-9, 9, (3, 4)).astype(np.int32)
    check_equal(function, x, indices, random_array(rng, (3, 4, 6), np.float32).round())


def test_a_scatter_with_a_function_of_its_own_stays_with_xla():
    x, indices = jnp.arange(6.0), jnp.array([1, 3])
    function = lambda x, i: x.at[i].apply(jnp.cos)  # noqa: E731
    np.testing.assert_allclose(aspen_jax.aspen(function)(x, indices), function(x, indices), rtol=1e-6)


def test_transformations_of_gathers_are_those_of_the_plain_function():
    rng = np.random.default_rng(0)
    table, tokens = map(jnp.asarray, (rng.standard_normal((11, 6), np.float32), rng.integers(-3, 14, (4, 5)).astype(np.int32)))

    def loss(table, tokens):
        return (jnp.take(table, tokens, axis=0, fill_value=0.5) * table[tokens % 11, 2][..., None]).sum() ** 2

    np.testing.assert_allclose(
        jax.grad(aspen_jax.aspen(loss))(table, tokens), jax.grad(loss)(table, tokens), rtol=1e-5, atol=1e-5
    )
    ours = jax.vmap(aspen_jax.aspen(loss), (None, 0))(table, tokens)
    np.testing.assert_allclose(ours, jax.vmap(loss, (None, 0))(table, tokens), rtol=1e-5)


REGULAR = {
    "every second row": (lambda x: x[jnp.arange(0, 12, 2)], True),
    "rows backwards": (lambda x: x[jnp.arange(11, -1, -1)], True),
    "each row twice": (lambda x: x[jnp.arange(24) // 2], True),
    "all rows twice": (lambda x: x[jnp.arange(24) % 12], True),
    "the first row again and again": (lambda x: x[jnp.zeros(5, int)], True),
    "rows and columns": (lambda x: x[jnp.arange(0, 12, 3)[:, None], jnp.arange(14) // 2], True),
    "the diagonal": (lambda x: x[jnp.arange(7), jnp.arange(7)], True),
    "a table of positions": (lambda x: jnp.take(x, jnp.arange(5), axis=0), True),
    "along an axis": (lambda x: jnp.take_along_axis(x, jnp.broadcast_to(jnp.arange(3, 7)[:, None], (4, 7)), 0), True),
    "clipped": (lambda x: jnp.take(x, jnp.arange(-3, 20), axis=0, mode="clip"), False),
    "filled": (lambda x: x.at[jnp.arange(8, 20)].get(mode="fill", fill_value=9), False),
    "filled nowhere": (lambda x: x.at[jnp.arange(3, 9)].get(mode="fill", fill_value=9), True),
    "irregular": (lambda x: x[np.array([3, 1, 4, 1, 5, 9, 2, 6])], False),
    "nearly regular": (lambda x: x[np.array([0, 0, 1, 1, 2, 3])], False),
    "windows that overlap": (lambda x: x[jnp.arange(4)[:, None] * 2 + jnp.arange(3)], False),
    "twice as large": (lambda x: jax.image.resize(x, (24, 14), "nearest"), True),
    "larger by a ratio": (lambda x: jax.image.resize(x, (18, 7), "nearest"), False),
    "smaller": (lambda x: jax.image.resize(x, (4, 7), "nearest"), True),
    "the middle of what is repeated": (lambda x: jnp.repeat(x, 2, 0)[1:7], None),
    "the middle of a larger image": (lambda x: jax.image.resize(x, (24, 14), "nearest")[1:-1, 1:-1], None),
    "the middle of what is repeated both ways": (lambda x: jnp.repeat(jnp.repeat(x, 2, 0), 2, 1)[1:-1, 3:9], None),
    "the middle of tiles": (lambda x: jnp.tile(x[:, 0], 3)[2:20], None),
    "the middle of a flat transpose": (lambda x: x.T.reshape(-1)[1:13], None),
    "repeated both ways": (lambda x: jnp.repeat(jnp.repeat(x, 2, 0), 3, 1), True),
}  # fmt: skip


@pytest.mark.parametrize("name", REGULAR)
@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_regular_known_indices_are_views(name, dtype):
    function, is_view = REGULAR[name]
    x = random_array(np.random.default_rng(0), (12, 7), dtype)
    check_equal(function, x)
    names = [op.family.name for op in aspen_jax.aspen(function).graph(x).program().ops]
    if is_view is not None:
        assert ("gather" not in names) == is_view
    if is_view:
        assert names == ["block"]
    check_equal(lambda x: function(x) + function(x * 2), x)
