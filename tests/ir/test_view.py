"""Views against numpy: every operation, chains of them, and regions against the elements that are really read."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aspen_jax.ir.view import View, ViewDim

SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 5, 6]), max_size=4).map(tuple)


def numbered(shape):
    return np.arange(math.prod(shape)).reshape(shape)


@st.composite
def factorisations(draw, size):
    """A random shape with this many elements."""
    shape = []
    while size > 1 and draw(st.integers(0, 4)):
        factor = draw(st.sampled_from([f for f in range(1, size + 1) if size % f == 0]))
        shape.append(factor)
        size //= factor
    shape.append(size)
    return tuple(draw(st.permutations(shape)))


@st.composite
def steps(draw, array, view):
    """One random operation, done to an array and to a view; the view is None where it cannot be expressed."""
    rank = array.ndim
    kind = draw(st.sampled_from(["transpose", "slice", "reverse", "broadcast", "reshape"]))
    if kind == "transpose":
        perm = draw(st.permutations(range(rank)))
        return array.transpose(perm), view.transpose(perm)
    if kind == "slice":
        seldom_empty = min(draw(st.integers(0, 9)), 1)
        bounds = []
        for extent in array.shape:
            low = draw(st.integers(0, max(extent - seldom_empty, 0)))
            bounds.append((low, draw(st.integers(min(low + seldom_empty, extent), extent))))
        step = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
        index = tuple(slice(lo, hi, s) for (lo, hi), s in zip(bounds, step, strict=True))
        return array[index], view.slice([lo for lo, _ in bounds], [hi for _, hi in bounds], step)
    if kind == "reverse":
        axes = [axis for axis in range(rank) if draw(st.booleans())]
        return np.flip(array, tuple(axes)), view.reverse(axes)
    if kind == "broadcast":
        order = draw(st.permutations(range(rank)))
        shape, axes, array = [], [0] * rank, array.transpose(order)
        for axis, n in zip(order, array.shape, strict=True):
            shape += draw(st.lists(st.integers(1, 3), max_size=1))
            axes[axis] = len(shape)
            shape.append(draw(st.integers(1, 3)) if n == 1 else n)
        expanded = np.expand_dims(array, [i for i in range(len(shape)) if i not in axes])
        return np.broadcast_to(expanded, shape), view.broadcast_in_dim(shape, axes)
    shape = (0,) if array.size == 0 else draw(factorisations(array.size))
    return array.reshape(shape), view.reshape(shape)


@st.composite
def chains(draw, max_length=4):
    """(value shape, array, view): the same random chain of operations on a numbered array and on an identity view."""
    shape = draw(SHAPES)
    array, view = numbered(shape), View.identity(shape)
    for _ in range(draw(st.integers(0, max_length))):
        next_array, next_view = draw(steps(array, view))
        if next_view is not None and next_array.size <= 2000 and next_array.ndim <= 8:
            array, view = next_array, next_view
    return shape, array, view


def assert_valid(view):
    """The rules of docs/graph_format.md and of the canonical form."""
    assert len(view.starts) == len(view.base)
    sources = [dim.source for dim in view.dims if dim.source >= 0]
    assert len(set(sources)) == len(sources)
    assert all(dim.step == 0 for dim in view.dims if dim.source < 0)
    if 0 in view.shape:
        return
    assert all(0 <= start < extent > 1 for start, extent in zip(view.starts, view.base, strict=True))
    for source, step, extent in view.dims:
        if source >= 0:
            assert extent > 1
            assert 0 <= view.starts[source] + step * (extent - 1) < view.base[source]


@given(chains())
@settings(max_examples=500, deadline=None)
def test_a_chain_reads_what_numpy_reads(chain):
    shape, array, view = chain
    assert_valid(view)
    assert view.shape == array.shape
    assert view.value_size == math.prod(shape)
    np.testing.assert_array_equal(view.gather(numbered(shape)), array)


@given(chains())
@settings(max_examples=300, deadline=None)
def test_dense_and_identity_are_recognised(chain):
    shape, array, view = chain
    dense = array.size == math.prod(shape) and bool((array.reshape(-1) == np.arange(array.size)).all())
    assert view.is_dense() == dense
    assert view.is_identity_of(shape) == (dense and array.shape == shape)
    if dense:
        assert view == View.identity(array.shape)


@given(st.data())
@settings(max_examples=500, deadline=None)
def test_compose_applies_the_second_view_to_a_copy_of_the_first(data):
    shape, array, below = data.draw(chains())
    dense, top = numbered(array.shape), View.identity(array.shape)
    for _ in range(data.draw(st.integers(0, 3))):
        dense_next, top_next = data.draw(steps(dense, top))
        if top_next is not None and dense_next.size <= 2000 and dense_next.ndim <= 8:
            dense, top = dense_next, top_next
    both = below.compose(top)
    if both is not None:
        assert_valid(both)
        np.testing.assert_array_equal(both.gather(numbered(shape)), array.reshape(-1)[dense])
    else:
        assert not below.is_dense()
        assert not top.is_identity_of(below.shape)


@given(st.data())
@settings(max_examples=500, deadline=None)
def test_reshape_is_refused_only_where_no_view_exists(data):
    """Tries every factorisation of the value as R, every source and every step."""
    shape, array, view = data.draw(chains(3))
    if not 0 < array.size <= 48 or array.ndim > 6:
        return
    target = data.draw(factorisations(array.size))
    if view.reshape(target) is None:
        assert not expressible(array.reshape(target), math.prod(shape))


def expressible(array, size):
    """Whether some reshape of arange(size) followed by an affine map per dimension gives this array."""
    used = [d for d in range(array.ndim) if array.shape[d] > 1]
    for base in ordered_factorisations(size):
        indices = np.array(np.unravel_index(array, base)) if base else np.zeros((0, *array.shape), int)
        sources = []
        for d in used:
            moves = np.diff(indices, axis=d + 1)
            varies = [j for j in range(len(base)) if moves[j].any()]
            if len(varies) > 1 or any((moves[j] != moves[j].flat[0]).any() for j in varies):
                break
            sources += varies
        else:
            if len(set(sources)) == len(sources):
                return True
    return False


def ordered_factorisations(size):
    if size == 1:
        return [()]
    return [(f, *rest) for f in range(2, size + 1) if size % f == 0 for rest in ordered_factorisations(size // f)]


@given(st.data())
@settings(max_examples=500, deadline=None)
def test_a_region_covers_every_element_read_and_is_exact_where_they_are_a_box(data):
    shape, array, view = data.draw(chains())
    boxes = np.zeros((3, array.ndim, 2), np.int64)
    for box in boxes:
        for d, extent in enumerate(array.shape):
            box[d] = sorted(data.draw(st.tuples(st.integers(0, extent), st.integers(0, extent))))
    result = view.region(shape, boxes)
    assert result.shape == (3, len(shape), 2)
    for box, covered in zip(boxes, result, strict=True):
        read = np.unique(array[tuple(slice(lo, hi) for lo, hi in box)])
        touched = np.zeros(shape, bool)
        touched.reshape(-1)[read] = True
        inside = np.zeros(shape, bool)
        inside[tuple(slice(lo, hi) for lo, hi in covered)] = True
        assert not (touched & ~inside).any()
        assert (covered >= 0).all()
        assert (covered <= np.array(shape, int).reshape(-1, 1)).all()
        where = np.argwhere(touched)
        if read.size == 0:
            assert len(shape) == 0 or not inside.any() or array.ndim == 0
        elif read.size == np.prod(where.max(axis=0) - where.min(axis=0) + 1):
            np.testing.assert_array_equal(covered, np.stack([where.min(axis=0), where.max(axis=0) + 1], axis=1))


def expressed(view):
    assert view is not None
    return view


def test_merged_and_split_dimensions_of_a_transposed_view():
    nhwc = View.identity((2, 6, 5, 8))
    nchw = nhwc.transpose((0, 3, 1, 2))
    assert nchw.reshape((2, 8, 30)) == expressed(nhwc.reshape((2, 30, 8))).transpose((0, 2, 1))
    assert nchw.reshape((2, 2, 4, 6, 5)) is not None
    assert nchw.reshape((2, 8 * 6, 5)) is None
    assert expressed(nchw.reshape((2, 1, 8, 6, 5, 1))).reshape((2, 8, 6, 5)) == nchw
    assert nhwc.transpose((0, 3, 1, 2)).transpose((0, 2, 3, 1)).is_identity_of((2, 6, 5, 8))


def test_a_row_of_a_transposed_view_composes_although_the_transpose_cannot_be_flattened():
    transposed = View.identity((4, 6)).transpose((1, 0))
    row = expressed(View.identity((6, 4)).slice((2, 0), (3, 4)).reshape((4,)))
    both = expressed(transposed.compose(row))
    np.testing.assert_array_equal(both.gather(numbered((4, 6))), [2, 8, 14, 20])


def test_a_slice_across_the_split_needs_a_copy():
    assert View.identity((12,)).slice((2,), (10,)).reshape((2, 4)) is None
    assert View.identity((12,)).slice((4,), (12,)).reshape((2, 4)) == View.identity((3, 4)).slice((1, 0), (3, 4))


def test_a_column_of_a_matrix_reads_only_that_column():
    column = expressed(View.identity((6, 4)).slice((0, 2), (6, 3)).reshape((6,)))
    np.testing.assert_array_equal(column.region((6, 4), np.array([[[1, 4]]])), [[[1, 4], [2, 3]]])


def test_text_is_short():
    assert str(View.identity((3, 4)).transpose((1, 0))) == ".view(3x4)[d1, d0]"
    assert str(View.identity((4,)).reverse((0,)).broadcast_in_dim((2, 4), (1,))) == ".view(4)[new 2, d0[3:-1:-1]]"


@pytest.mark.parametrize(
    "call",
    [
        lambda v: v.transpose((0, 0)),
        lambda v: v.slice((0, 0), (4, 3)),
        lambda v: v.slice((2, 0), (1, 3)),
        lambda v: v.slice((0, 0), (2, 3), (0, 1)),
        lambda v: v.reverse((2,)),
        lambda v: v.reverse((0, 0)),
        lambda v: v.broadcast_in_dim((3, 2), (0, 1)),
        lambda v: v.slice((0, 0), (2, 2)).broadcast_in_dim((2, 2), (0, 0)),
        lambda v: v.reshape((7,)),
        lambda v: v.gather(np.zeros(7)),
    ],
)
def test_arguments_that_do_not_fit_are_named(call):
    with pytest.raises(ValueError, match=r"\(|elements"):
        call(View.identity((2, 3)))


def test_a_hand_written_view_reads_by_its_definition():
    view = View((2, 6), (1, 5), (ViewDim(1, -2, 3), ViewDim(-1, 0, 2)))
    np.testing.assert_array_equal(view.gather(numbered((3, 4))), [[11, 11], [9, 9], [7, 7]])
