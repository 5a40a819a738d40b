"""Every transformation of a decorated function gives what it gives of the undecorated one."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.ad_checkpoint import checkpoint_name
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero, zero_from_primal
from jax.experimental import checkify, hijax, io_callback, jet, roofline, sparse
from jax.extend.core import jaxpr_as_fun, jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr
from jax.test_util import check_grads

from aspen_jax import CUSTOM_CALL_TARGET, UnsupportedError, aspen
from aspen_jax.primitive.primitive import aspen_call_p
from tests.modes import sized

# Elements of a vector, and rows and columns of a matrix.
LONG = sized(4, 1 << 16)
ROWS, COLUMNS = sized((4, 3), (256, 128))


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def assert_same(ours, theirs, tolerance=1e-5):
    """Same tree, shapes, dtypes and weak types, and values within a tolerance of the largest."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert jax.typeof(got) == jax.typeof(want)
        if want.dtype == jax.dtypes.float0:
            continue
        largest = np.max(np.abs(np.asarray(want, np.float64)), initial=1e-3)
        np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=0, atol=tolerance * largest)


def calls(fun, *args):
    """How many times the jaxpr of `fun`, inner ones included, calls the primitive."""

    def count(jaxpr):
        return sum(1 if eqn.primitive is aspen_call_p else sum(map(count, jaxprs_in_params(eqn.params))) for eqn in jaxpr.eqns)

    return count(jax.make_jaxpr(fun)(*args).jaxpr)


def mlp(params, x):
    for w, b in params[:-1]:
        x = jnp.sin(x @ w + b)
    return jax.nn.softmax(x @ params[-1])


def convnet(params, x):
    dimensions = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(x, params["conv"], (2, 1), "SAME", dimension_numbers=dimensions)
    x = jax.nn.silu((x - x.mean((0, 1, 2))) * params["scale"])
    x = jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 1, 2, 1), "VALID")
    return x.mean((1, 2)) @ params["dense"], (x > 0).sum()


def several(x, y):
    """Pass-through, repeated, constant, unused, integer and weakly typed results."""
    z = jnp.sin(x) * 3
    return {"x": x, "z": [z, z], "one": 1.0, "constant": jnp.arange(3.0), "count": (x > 0).sum(), "y": y, "weak": z.sum() * 0 + 2}


def unsupported(x):
    """Cut in parts: the logarithm of gamma has no kernel."""
    return jnp.cumsum(jax.lax.lgamma(jnp.tanh(x) * 2)) + 1


@jax.custom_vjp
def clipped(x):
    return jnp.exp(x)


clipped.defvjp(lambda x: (jnp.exp(x), jnp.exp(x)), lambda exp, dy: (jnp.clip(dy * exp, -1, 1),))


def with_custom_vjp(x):
    return clipped(jnp.sin(x)) * 2


@jax.custom_jvp
def kinked(x):
    return jnp.abs(x)


@kinked.defjvp
def _(primals, tangents):
    return kinked(*primals), 3 * tangents[0]


def with_custom_jvp(x):
    return kinked(jnp.sin(x)) * x


def with_remat(x):
    return jax.checkpoint(lambda x: jnp.sin(jnp.sin(x) * 2))(x) * x


def with_control_flow(x):
    x, ys = jax.lax.scan(lambda c, y: (jnp.sin(c + y), c * y), x[0], x)
    x = jax.lax.cond(x.max() > 0.2, jnp.sin, jnp.cos, x)
    return jax.lax.fori_loop(0, 3, lambda _, x: x * 1.5, x) + ys


def with_indexing(x):
    rows = jnp.sin(jax.lax.dynamic_slice(x, (1, *(0,) * (x.ndim - 1)), (3, *x.shape[1:])))
    return x[jnp.array([2, 0, 2])] * rows, x.at[1].set(0.5), jnp.concatenate([x, x[::-1]])


FIRST, SECOND, THIRD = sized((5, 7, 4), (32, 64, 32))
MLP_ARGS = (
    [
        (normal(0, FIRST, SECOND) * FIRST**-0.5, normal(1, SECOND)),
        (normal(2, SECOND, THIRD) * SECOND**-0.5, normal(3, THIRD)),
        normal(4, THIRD, 3),
    ],
    normal(5, sized(2, 1024), FIRST),
)
CONV_ARGS = (
    {"conv": normal(0, 3, 3, 2, 5) / 3, "scale": normal(1, 5), "dense": normal(2, 5, 4)},
    normal(3, *sized((2, 7, 6, 2), (2, 64, 64, 2))),
)
CASES = {
    "mlp": (mlp, MLP_ARGS),
    "convnet": (lambda *args: convnet(*args)[0], CONV_ARGS),
    "unsupported": (unsupported, (normal(0, sized(9, LONG)),)),
    "custom_jvp": (with_custom_jvp, (normal(1, LONG),)),
    "remat": (with_remat, (normal(2, LONG),)),
    "control_flow": (with_control_flow, (normal(3, *sized((4,), (4, LONG))),)),
    "indexing": (lambda x: with_indexing(x)[0], (normal(4, *sized((5,), (5, LONG))),)),
}
cases = pytest.mark.parametrize(("fun", "args"), CASES.values(), ids=CASES)


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        *CASES.values(),
        (convnet, CONV_ARGS),
        (several, (normal(0, LONG), 2)),
        (with_custom_vjp, (normal(1, LONG),)),
        (with_indexing, (normal(4, *sized((5,), (5, LONG))),)),
    ],
)
def test_bare_and_jitted_calls(fun, args):
    decorated = aspen(fun)
    want = jax.jit(fun)(*args)
    for call in (decorated, jax.jit(decorated), aspen(jax.jit(fun)), aspen(decorated), jax.jit(decorated).lower(*args).compile()):
        assert_same(call(*args), want)
    assert jax.eval_shape(decorated, *args) == jax.eval_shape(fun, *args)
    traced = [jax.make_jaxpr(item)(*args).out_avals for item in (decorated, fun)]
    assert traced[0] == traced[1]


@cases
def test_derivatives(fun, args):
    decorated = aspen(fun)
    direction = jax.tree.map(lambda x: jnp.cos(x * 7), args)
    want = jax.jvp(fun, args, direction)
    assert_same(jax.jvp(decorated, args, direction), want)
    out, pushforward = jax.linearize(decorated, *args)
    assert_same((out, pushforward(*direction)), want)
    out, pullback = jax.vjp(decorated, *args)
    assert_same(pullback(out), jax.vjp(fun, *args)[1](want[0]))
    assert calls(lambda *args: jax.vjp(decorated, *args)[0], *args) == 1


@pytest.mark.parametrize(("fun", "args"), [(mlp, MLP_ARGS), (with_remat, (normal(2, LONG),))])
def test_derivatives_against_differences(fun, args):
    check_grads(aspen(fun), args, order=2, modes=("fwd", "rev"), rtol=2e-2, atol=2e-2)


def test_forward_mode_keeps_nothing_of_a_loop():
    def fun(x):
        return jax.lax.scan(lambda c, _: (jnp.sin(c) * 1.01 + 0.1 * c**2, None), x, None, length=100)[0]

    def memory(fun):
        jitted = jax.jit(lambda x, dx: jax.jvp(fun, (x,), (dx,)))
        return jitted.lower(x, x).compile().memory_analysis().temp_size_in_bytes

    x = normal(0, sized(5000, LONG))
    assert memory(aspen(fun)) <= 4 * memory(fun) + x.nbytes
    assert_same(jax.jvp(aspen(fun), (x,), (x,)), jax.jvp(fun, (x,), (x,)), 1e-4)
    loop = lambda fun, x: jax.lax.while_loop(lambda c: c[1] < 3, lambda c: (fun(c[0]), c[1] + 1), (x, 0))[0]  # noqa: E731
    ours, theirs = (functools.partial(loop, item) for item in (aspen(with_remat), with_remat))
    assert_same(jax.jvp(ours, (x,), (x,)), jax.jvp(theirs, (x,), (x,)))


def test_rules_for_symbolic_zeros():
    @jax.custom_jvp
    def product(x, y):
        return jnp.sin(x * y)

    # Not the derivative: it says what the rule was told of the second argument.
    product.defjvp(lambda xs, dxs: (product(*xs), dxs[0] * (3 if isinstance(dxs[1], SymbolicZero) else 7)), symbolic_zeros=True)
    x = normal(0, LONG)
    for second in (lambda _: 2.0, lambda x: jax.lax.stop_gradient(x) * 2, lambda x: x * 2):

        def inside(x, second=second):
            return product(x, second(x))

        def behind(wrap, x, second=second):
            return product(x, wrap(lambda x: (x * 2, second(x)))(x)[1])

        for transform in (lambda fun: jax.jvp(fun, (x,), (x,)), lambda fun: jax.grad(lambda x: fun(x).sum())(x)):
            assert_same(transform(aspen(inside)), transform(jax.jit(inside)))
            assert_same(transform(functools.partial(behind, aspen)), transform(functools.partial(behind, jax.jit)))


@pytest.mark.parametrize("used", [slice(0, 1), slice(0, 2)])
def test_rules_that_return_symbolic_zeros(used):
    @jax.custom_jvp
    def scaled(x):
        return jnp.sin(x) * 2.0, 1

    @scaled.defjvp
    def _(primals, tangents):
        outs = scaled(*primals)
        return outs, (tangents[0] * 5, zero_from_primal(outs[1], symbolic_zeros=True))

    x = normal(0, LONG)
    ours, theirs = (jax.jvp(wrap(lambda x: scaled(x)[used]), (x,), (x,)) for wrap in (aspen, jax.jit))
    assert_same(ours, theirs)
    np.testing.assert_allclose(ours[1][0], x * 5, rtol=1e-6)


@pytest.mark.parametrize("direct", [True, False])
def test_partial_evaluation_computes_once_what_is_known(direct):
    inner = aspen(lambda x: jnp.sin(x) * x)

    @jax.custom_jvp
    def outer(x):
        return jnp.tanh(x)

    @outer.defjvp
    def _(primals, tangents):
        (x,), (dx,) = primals, tangents
        return outer(x), jax.vmap(lambda row: jax.jvp(inner, (x[0],), (row,))[1])(dx)

    x = normal(0, 2, LONG)
    before = jax.config.jax_use_direct_linearize
    jax.config.update("jax_use_direct_linearize", direct)
    try:
        want = jax.vmap(lambda row: jax.jvp(lambda x: jnp.sin(x) * x, (x[0],), (row,))[1])(x)
        pushforward = jax.linearize(outer, x)[1]
        assert_same(pushforward(x), want)
        assert "cos" not in str(jax.make_jaxpr(pushforward)(x))
        assert_same(jax.jvp(outer, (x,), (x,))[1], want)
        assert_same(jax.jit(jax.vjp(outer, x)[1])(x), jax.vjp(lambda dx: outer.jvp((x,), (dx,))[1], x)[1](x))
        loss = lambda fun, x: jax.lax.scan(lambda c, _: (fun(c), None), x, None, length=3)[0].sum()  # noqa: E731
        for transform in (jax.grad, lambda fun: jax.grad(lambda x: (jax.grad(fun)(x) ** 2).sum())):
            ours, theirs = (transform(functools.partial(loss, item))(x) for item in (aspen(with_remat), with_remat))
            assert_same(ours, theirs, 1e-4)
    finally:
        jax.config.update("jax_use_direct_linearize", before)


def test_taylor_series():
    def fun(x, y):
        return jnp.sin(x) * y @ x.T, jnp.exp(x)

    x, y = normal(0, ROWS, COLUMNS), normal(1, ROWS, COLUMNS)
    series = ((y, x, x + y), (x, y * 2, y))
    for factorial_scaled in (True, False):
        ours, theirs = (jet.jet(item, (x, y), series, factorial_scaled=factorial_scaled) for item in (aspen(fun), jax.jit(fun)))
        assert_same(ours, theirs)
    assert calls(lambda x, y: jet.jet(aspen(fun), (x, y), series), x, y) == 1


def test_sparse_arguments():
    matrix = sparse.BCOO((normal(0, LONG), jnp.stack([jnp.arange(LONG)] * 2, 1)), shape=(LONG, LONG))
    x = normal(1, LONG)

    def fun(matrix, x):
        return jnp.sin(matrix @ x), matrix * 2

    want = sparse.sparsify(fun)(matrix, x)
    assert_same(sparse.sparsify(aspen(fun))(matrix, x), want)
    assert_same(jax.jit(sparse.sparsify(aspen(fun)))(matrix, x), want)
    assert_same(aspen(lambda matrix, x: matrix @ x)(matrix, x), matrix @ x)


@pytest.mark.one_mode("runs nothing")
def test_rooflines():
    x, w = normal(0, 8, 16), normal(1, 16, 4)
    for transform in (lambda fun: fun, lambda fun: jax.grad(lambda x, w: fun(x, w).sum(), (0, 1))):
        ours, theirs = (roofline.roofline(transform(wrap(lambda x, w: jnp.tanh(x @ w))))(x, w)[1] for wrap in (aspen, jax.jit))
        assert ours.unfused_flops == theirs.unfused_flops > 0
        assert ours.unfused_hbm_bytes == theirs.unfused_hbm_bytes > 0


@cases
def test_gradients_of_losses(fun, args):
    def loss(fun, *args):
        return (fun(*args) ** 2).sum()

    argnums = tuple(range(len(args)))
    ours = functools.partial(loss, aspen(fun))
    want = jax.jit(jax.value_and_grad(functools.partial(loss, fun), argnums))(*args)
    for ours_again in (ours, jax.checkpoint(ours), aspen(ours)):
        assert_same(jax.jit(jax.value_and_grad(ours_again, argnums))(*args), want)
    assert_same(jax.value_and_grad(ours, argnums)(*args), want)
    assert_same(aspen(jax.value_and_grad(ours, argnums))(*args), want)


@pytest.mark.parametrize("fun", [unsupported, with_remat, with_control_flow, with_custom_jvp])
def test_second_derivatives(fun):
    wide = normal(8, sized(1, 1 << 14))

    def of_three(x):
        return fun(x[:, None] * wide).reshape(3, -1).mean(1)

    def loss(fun, x):
        return (fun(x) ** 2).sum()

    decorated = aspen(of_three)
    x = normal(7, 3)
    assert_same(jax.jit(jax.jacfwd(decorated))(x), jax.jit(jax.jacfwd(of_three))(x))
    assert_same(jax.jit(jax.jacrev(decorated))(x), jax.jit(jax.jacrev(of_three))(x))
    want = jax.jit(jax.hessian(functools.partial(loss, of_three)))(x)
    orders = [(jax.jacfwd, jax.jacrev), (jax.jacrev, jax.jacrev), (jax.jacfwd, jax.jacfwd)]
    # XLA of JAX 0.10.2 computes this one wrong without us from a few thousand elements on.
    if np.allclose(jax.jit(jax.jacrev(jax.jacfwd(functools.partial(loss, of_three))))(x), want, atol=1e-3):
        orders.append((jax.jacrev, jax.jacfwd))
    assert len(orders) == 4 or wide.size > 1000
    for outer, inner in orders:
        assert_same(jax.jit(outer(inner(functools.partial(loss, decorated))))(x), want, 1e-4)
    assert_same(jax.hessian(functools.partial(loss, decorated))(x), want, 1e-4)


@pytest.mark.parametrize(
    "policy",
    [
        jax.checkpoint_policies.save_only_these_names("a"),
        jax.checkpoint_policies.dots_saveable,
        jax.checkpoint_policies.everything_saveable,
        jax.checkpoint_policies.nothing_saveable,
        jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[], names_which_can_be_offloaded=["a"], offload_src="device", offload_dst="pinned_host"
        ),
    ],
)
def test_policies_of_checkpoints_see_what_is_inside(policy):
    def fun(x, w):
        return jnp.sin(checkpoint_name(jnp.sin(x @ w), "a") @ w).sum()

    def residuals(fun):
        return sorted(
            map(str, jax.tree.leaves(jax.eval_shape(lambda *args: jax.vjp(jax.checkpoint(fun, policy=policy), *args)[1], *args)))
        )

    args = normal(0, sized(8, 4096), 16), normal(1, 16, 16)
    assert residuals(aspen(fun)) == residuals(jax.jit(fun))
    ours, theirs = (jax.grad(jax.checkpoint(item, policy=policy), (0, 1)) for item in (aspen(fun), fun))
    assert_same(jax.jit(ours)(*args), jax.jit(theirs)(*args), 1e-4)
    assert_same(ours(*args), jax.jit(theirs)(*args), 1e-4)


@pytest.mark.one_mode("checkify takes the function apart, so nothing of it is tiled")
def test_checkify_sees_what_is_inside():
    def fun(x, i):
        return jax.lax.map(lambda row: jnp.log(row) * 2, x)[i] / x[0]

    x = jnp.ones((4, 8))
    for wrap in (lambda item: item, jax.jit, jax.vmap):
        checked = wrap(checkify.checkify(aspen(fun), errors=checkify.all_checks))
        for args, message in (((x, 2), None), ((-x, 2), "nan"), ((x, 77), "out-of-bounds"), ((x * 0, 2), "division by zero")):
            args = jax.tree.map(lambda item: jnp.asarray(item)[None], args) if wrap is jax.vmap else args
            error, out = checked(*args)
            assert message in error.get() if message else error.get() is None
    error, out = checkify.checkify(jax.grad(lambda x: aspen(fun)(x, 2).sum()), errors=checkify.all_checks)(x)
    assert error.get() is None
    assert_same(out, jax.grad(lambda x: fun(x, 2).sum())(x))


def test_custom_vjp():
    decorated = aspen(with_custom_vjp)
    x = jnp.linspace(-2, 2, sized(7, LONG))
    assert_same(jax.grad(lambda x: decorated(x).sum())(x), jax.grad(lambda x: with_custom_vjp(x).sum())(x))
    assert_same(jax.vmap(jax.grad(decorated))(x), jax.vmap(jax.grad(with_custom_vjp))(x))
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(decorated, (x,), (x,))


def test_inside_custom_derivatives():
    inner = aspen(lambda x: jnp.sin(x) ** 2)

    @jax.custom_vjp
    def outer(x):
        return inner(x)

    outer.defvjp(lambda x: (inner(x), x), lambda x, dy: (inner(x) * dy * 5,))
    assert_same(jax.grad(outer)(0.7), jnp.sin(0.7) ** 2 * 5)
    x = normal(0, LONG)
    assert_same(jax.vmap(jax.grad(outer))(x), jnp.sin(x) ** 2 * 5)


def test_gradients_with_integer_and_constant_parts():
    def fun(params, x, n):
        return (jnp.sin(params["w"] * x) * n).mean() + params["unused"].sum() * 0, (n + 1, params["w"])

    args = ({"w": normal(0, LONG), "unused": normal(1, 2), "none": None}, normal(2, LONG), jnp.arange(LONG) % 3)
    ours = jax.grad(aspen(fun), has_aux=True)(*args)
    assert_same(ours, jax.grad(fun, has_aux=True)(*args))
    ours = jax.grad(aspen(fun), argnums=(0, 2), has_aux=True, allow_int=True)(*args)
    assert_same(ours, jax.grad(fun, argnums=(0, 2), has_aux=True, allow_int=True)(*args))
    tangents = jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0) if x.dtype == jnp.int32 else x, args)
    assert_same(jax.jvp(aspen(fun), args, tangents), jax.jvp(fun, args, tangents))


def test_weak_types():
    def fun(x, y):
        return x * y, x + 1, y, jnp.float32(2) * y, y > x, jnp.sin(x)

    for args in (
        (1.0, 2),
        (normal(0, LONG), 3.0),
        (jnp.int8(3), 2),
        (np.float16(2), 1.0),
        (normal(1), jnp.asarray(2.0, jnp.bfloat16)),
    ):
        assert_same(aspen(fun)(*args), jax.jit(fun)(*args))
        assert_same(jax.jit(aspen(fun))(*args), jax.jit(fun)(*args))
    assert_same(jax.grad(lambda x: aspen(fun)(x, 2.0)[0])(3.0), jax.grad(lambda x: fun(x, 2.0)[0])(3.0))
    assert_same(jax.vmap(aspen(fun), (0, None))(normal(2, LONG), 2), jax.vmap(fun, (0, None))(normal(2, LONG), 2))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.int8, jnp.uint32, jnp.bool_, jnp.complex64])
def test_other_element_types(dtype):
    def fun(x):
        return jnp.where(x == 0, x, x * x), x.T @ x, x.reshape(-1)[::2], jnp.sort(x)

    x = (normal(0, ROWS, COLUMNS) * 3).astype(dtype)
    ours, theirs = aspen(fun)(x), jax.jit(fun)(x)
    assert [jax.typeof(item) for item in ours] == [jax.typeof(item) for item in theirs]
    for got, want in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(got, complex), np.asarray(want, complex), rtol=2e-2)


@pytest.mark.one_mode("arithmetic in float64 stays with XLA")
def test_double_precision():
    with jax.enable_x64(True):
        x = jnp.linspace(-1, 1, 12, dtype=jnp.float64).reshape(3, 4)
        ours, theirs = (fun(lambda x: jnp.tanh(x @ x.T) + 1)(x) for fun in (aspen, jax.jit))
        assert ours.dtype == np.float64
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_random_keys():
    def fun(key, x):
        first, second = jax.random.split(key)
        return jax.random.normal(first, x.shape) + jnp.sin(x), second

    for key in (jax.random.key(3), jax.random.PRNGKey(3)):
        ours, theirs = (item(key, normal(0, LONG)) for item in (aspen(fun), fun))
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
        assert ours[1].dtype == theirs[1].dtype
        ours, theirs = (item[1] if key.ndim else jax.random.key_data(item[1]) for item in (ours, theirs))
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("in_axes", "out_axes"),
    [
        ((None, 0), 0),
        (({"conv": None, "scale": 0, "dense": -1}, 1), (1, 0)),
        (({"conv": 3, "scale": None, "dense": None}, None), 0),
        ((0, None), 0),
    ],
)
def test_vmap(in_axes, out_axes):
    def widen(axis, x):
        return x if axis is None else jnp.stack([x, x * 0.5, jnp.cos(x)], axis if axis >= 0 else axis + x.ndim + 1)

    params, x = CONV_ARGS
    axes = in_axes[0] if isinstance(in_axes[0], dict) else dict.fromkeys(params, in_axes[0])
    args = {name: widen(axes[name], value) for name, value in params.items()}, widen(in_axes[1], x)
    want = jax.vmap(convnet, in_axes, out_axes)(*args)
    decorated = aspen(convnet)
    for ours in (jax.vmap(decorated, in_axes, out_axes), aspen(jax.vmap(convnet, in_axes, out_axes))):
        assert_same(ours(*args), want)
        assert_same(jax.jit(ours)(*args), want)
        assert calls(ours, *args) == 1


def test_vmap_of_vmap_and_of_gradients():
    def loss(fun, params, x):
        return fun(params, x)[0].sum()

    xs = normal(8, 2, 3, *CONV_ARGS[1].shape)
    ours, theirs = functools.partial(loss, aspen(convnet), CONV_ARGS[0]), functools.partial(loss, convnet, CONV_ARGS[0])
    assert_same(jax.vmap(jax.vmap(ours))(xs), jax.vmap(jax.vmap(theirs))(xs))
    assert_same(jax.vmap(jax.vmap(ours, axis_size=2), 1)(xs), jax.vmap(jax.vmap(theirs), 1)(xs))
    assert_same(jax.vmap(jax.grad(ours))(xs[0]), jax.vmap(jax.grad(theirs))(xs[0]))
    assert_same(jax.grad(lambda xs: jax.vmap(ours)(xs).sum())(xs[0]), jax.grad(lambda xs: jax.vmap(theirs)(xs).sum())(xs[0]))


def test_outputs_that_do_not_depend_on_a_mapped_input_are_not_mapped():
    decorated = aspen(lambda x, y: (jnp.sin(x), x * y, jnp.ones(2), y, x))
    x, y = normal(0, LONG), normal(1, 3, LONG)
    got = jax.vmap(decorated, (None, 0), out_axes=(None, 0, None, 0, None))(x, y)
    assert_same(got, (jnp.sin(x), x * y, jnp.ones(2), y, x))


def test_collectives_over_a_mapped_axis():
    def fun(x):
        return jnp.sin(x) / jax.lax.psum(jnp.exp(x), "batch") + jax.lax.axis_index("batch")

    x = normal(0, 4, LONG)
    assert_same(jax.vmap(aspen(fun), axis_name="batch")(x), jax.vmap(fun, axis_name="batch")(x))
    ours = jax.grad(lambda x: jax.vmap(aspen(fun), axis_name="batch")(x).sum())(x)
    assert_same(ours, jax.grad(lambda x: jax.vmap(fun, axis_name="batch")(x).sum())(x))


def test_transposition():
    def fun(x, w):
        return w @ x * 2, jnp.concatenate([x, jnp.cumsum(x)[::-1]])

    x, w = normal(0, LONG), normal(1, 2, LONG)
    cotangents = normal(2, 2), normal(3, 2 * LONG)
    ours = jax.jit(jax.linear_transpose(lambda x: aspen(fun)(x, w), x))(cotangents)
    assert_same(ours, jax.linear_transpose(lambda x: fun(x, w), x)(cotangents))
    assert_same(ours, jax.vjp(lambda x: aspen(fun)(x, w), x)[1](cotangents))
    only_first = jax.linear_transpose(lambda x: aspen(fun)(x, w)[0], x)(cotangents[0])
    assert_same(only_first, jax.linear_transpose(lambda x: fun(x, w)[0], x)(cotangents[0]))


def test_inside_control_flow():
    decorated, fun = aspen(with_remat), with_remat

    def program(fun, x):
        x, ys = jax.lax.scan(lambda c, _: (fun(c), fun(c).sum()), x, None, length=3)
        x = jax.lax.cond(ys[0] > 0, fun, lambda x: x * 2, x)
        x = jax.lax.while_loop(lambda x: jnp.abs(x).max() > 0.1, lambda x: fun(x) * 0.1, x)
        return jax.lax.map(fun, jnp.stack([x, x])).sum(0) + jax.lax.switch(1, [fun, fun], x)

    x = normal(0, LONG)
    assert_same(program(decorated, x), program(fun, x))
    assert_same(jax.jit(functools.partial(program, decorated))(x), program(fun, x))
    scan = lambda fun, x: jax.lax.scan(lambda c, _: (fun(c), c), x, None, length=3)[0].sum()  # noqa: E731
    assert_same(jax.grad(functools.partial(scan, decorated))(x), jax.grad(functools.partial(scan, fun))(x))


def test_closed_over_values_of_outer_transformations():
    def program(wrap, w, xs):
        def body(c, x):
            layer = wrap(lambda y: jnp.tanh(y * w + c) @ xs.T)
            return c + layer(x).sum(), layer(x)

        return jax.lax.scan(body, 0.0, xs)

    w, xs = normal(0, 4), normal(1, 3, 4)
    assert_same(program(aspen, w, xs), program(lambda fun: fun, w, xs))
    for transform in (lambda fun: jax.jacrev(fun), lambda fun: fun, lambda fun: jax.hessian(lambda w: fun(w).sum())):
        ours, theirs = (
            jax.jit(jax.vmap(transform(lambda w, wrap=wrap: program(wrap, w, xs)[1]))) for wrap in (aspen, lambda fun: fun)
        )
        assert_same(ours(jnp.stack([w, w * 2])), theirs(jnp.stack([w, w * 2])), 1e-4)


def test_donation():
    def step(state, x):
        return {"w": jnp.sin(state["w"]) * 0.9 + x.sum()}, (x @ x.T).sum()

    state = {"w": normal(0, 64, sized(64, 1024))}
    want = step(state, normal(1, 3, 3))
    jitted = jax.jit(aspen(step), donate_argnums=0)
    assert_same(jitted(state, normal(1, 3, 3)), want)
    assert state["w"].is_deleted()


def test_debug_nans():
    decorated = aspen(lambda x: jnp.log(x) + 1)
    with jax.debug_nans(True):
        x = jnp.full(sized((), LONG), 2.0)
        assert_same(decorated(x), jnp.log(x) + 1)
        for call in (decorated, jax.jit(decorated), jax.grad(lambda x: decorated(x).sum())):
            with pytest.raises(FloatingPointError, match="log"):
                call(-x)


def with_derivative(fun):
    fun = jax.custom_jvp(fun)
    fun.defjvps(lambda tangent, *_: tangent)
    return fun


@pytest.mark.parametrize("decorate", [aspen, lambda fun: jax.jit(aspen(fun)), lambda fun: aspen(jax.jit(fun))])
@pytest.mark.parametrize(
    "wrap", [jax.jit, jax.checkpoint, with_derivative, lambda fun: lambda x: jax.lax.cond(True, fun, fun, x)]
)
def test_debug_nans_in_what_is_called(decorate, wrap):
    inner = jax.jit(lambda x: jnp.log(x) * 2)
    fun = decorate(wrap(lambda x: inner(x) + inner(jnp.abs(x))))
    with jax.debug_nans(True):
        x = jnp.full(sized((), LONG), 2, np.float32)
        np.testing.assert_allclose(fun(x), 4 * np.log(2), rtol=1e-6)
        with pytest.raises(FloatingPointError, match=r"nan.* in (log|cond)"):
            fun(-x)
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match=r"inf.* in (log|cond)"):
        fun(x * 0)


@pytest.mark.one_mode("nothing is compiled")
def test_disable_jit():
    seen = []

    def fun(x):
        seen.append(x)
        return x * 2 if x > 0 else x

    decorated = aspen(fun)
    with jax.disable_jit():
        assert_same(decorated(jnp.float32(3)), jnp.float32(6))
        assert_same(jax.grad(decorated)(jnp.float32(3)), jnp.float32(2))
        assert_same(jax.vmap(aspen(jnp.sin))(normal(0, 3)), jnp.sin(normal(0, 3)))
    assert not isinstance(seen[0], Tracer)


def test_a_jaxpr_with_the_call_can_be_evaluated_eagerly():
    decorated = aspen(with_remat)
    x = normal(0, LONG)
    jaxpr = jax.make_jaxpr(decorated)(x)
    assert_same(jaxpr_as_fun(jaxpr)(x)[0], with_remat(x))
    with jax.disable_jit():
        assert_same(jaxpr_as_fun(jaxpr)(x)[0], with_remat(x))


def test_named_scopes_survive():
    def fun(x):
        with jax.named_scope("attic"):
            return jax.lax.lgamma(jnp.sin(x))

    x = normal(0, 60_000)  # enough work for tiles beside the fallback
    with jax.named_scope("house"):
        text = jax.jit(lambda x: aspen(fun)(x)).lower(x).as_text(debug_info=True)
    assert "attic" in text
    assert any("attic" in op.name for part in aspen(fun).explain(x).parts for op in part.ops)


@pytest.mark.one_mode("a function with effects is left to XLA")
def test_effects_happen_as_often_as_without_us(capfd):
    seen = []

    def fun(x):
        jax.debug.print("x is {x}", x=x)
        io_callback(seen.append, None, x, ordered=True)
        return jnp.sin(x) * 2

    decorated = aspen(fun)
    for call in (decorated, jax.jit(decorated), jax.jit(lambda x: decorated(x) + 0)):
        seen.clear()
        assert_same(call(0.5), jnp.sin(0.5) * 2)
        jax.effects_barrier()
        assert [float(item) for item in seen] == [0.5]
        assert capfd.readouterr().out.count("x is 0.5") == 1


def test_pure_callbacks():
    def fun(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims") + jnp.cos(x)

    x = normal(0, LONG)
    assert_same(aspen(fun)(x), jnp.sin(x) + jnp.cos(x))
    assert_same(jax.vmap(aspen(fun))(x), jnp.sin(x) + jnp.cos(x))


@pytest.mark.one_mode("a function with effects is left to XLA")
def test_mutable_references():
    def fun(ref, x):
        ref[...] += x
        return ref[...] * 2

    ref = jax.new_ref(jnp.zeros(3))
    assert_same(aspen(fun)(ref, normal(0, 3)), normal(0, 3) * 2)
    assert_same(ref[...], normal(0, 3))
    assert_same(aspen(lambda ref, x: x + 1)(ref, 2.0), jnp.asarray(3.0))


@pytest.mark.one_mode("a function with tokens is left to XLA")
@pytest.mark.parametrize(
    "make", [lambda: jax.lax.create_token, lambda: functools.partial(lambda token: token, jax.lax.create_token())]
)
def test_tokens(make):
    token = make()

    def fun(x):
        return jnp.sin(x) + 2, token()

    for decorated in (aspen(fun), jax.jit(aspen(fun))):
        out, token_out = decorated(7.0)
        assert_same(out, fun(7.0)[0])
        assert type(token_out) is type(jax.lax.create_token())
    assert_same(aspen(lambda x: fun(x)[0])(7.0), fun(7.0)[0])


HiPrim: Any = getattr(hijax, "HiPrim", None) or getattr(hijax, "VJPHiPrimitive", None)  # as newer and older JAX name it


@pytest.mark.skipif(HiPrim is None, reason="this JAX has no such class")
def test_primitives_of_hijax():
    class Square(HiPrim or object):
        def __init__(self, aval):
            self.in_avals = (aval,)
            self.out_aval = aval
            self.params = {}
            super().__init__()

        def expand(self, x):
            return x * x

        def vjp_fwd(self, nzs_in, x):
            return self(x), x

        def vjp_bwd_retval(self, x, g):
            return (5 * x * g,)  # not the derivative, so that the test sees whose rule is used

        def batch(self, axis_data, args, dims):
            return Square(jax.typeof(args[0]))(args[0]), dims[0]

    def fun(x):
        return (Square(jax.typeof(x))(x) + 1).sum()

    def looped(x):
        return jax.lax.scan(lambda c, _: (jax.jit(lambda c: Square(jax.typeof(c))(c))(c), None), x, None, length=2)[0].sum()

    x = jnp.arange(3.0)
    for decorated in (aspen(fun), jax.jit(aspen(fun))):
        assert_same(decorated(x), jnp.float32(8))
        assert_same(jax.grad(decorated)(x), 5 * x)
        assert_same(jax.vmap(decorated)(jnp.stack([x, x + 1])), jnp.asarray([8.0, 17.0]))
    assert_same(aspen(jax.grad(fun))(x), 5 * x)
    assert_same(aspen(looped)(x), (x**4).sum())
    assert_same(jax.grad(aspen(looped))(x), 25 * x**3)


@pytest.mark.skipif(not hasattr(hijax, "HiPrim"), reason="this JAX leaves a function with such primitives to XLA")
@pytest.mark.one_mode("asserts that shapes are tiled which XLA does as fast")
def test_primitives_of_hijax_leave_the_rest_in_tiles():
    def fun(x):
        return jnp.tanh(x @ x) + jnp.interp(x[0], jnp.sort(x[1]), x[2])

    x = normal(0, 64, 64)
    assert aspen(fun).explain(x).parts
    assert_same(aspen(fun)(x), fun(x))


def test_tracers_do_not_leak():
    args = normal(0, 3, 2), normal(1, sized(4, LONG), 3)
    decorated = aspen(lambda w, x: jnp.sin(x @ w).sum())
    with jax.checking_leaks():
        for transform in (jax.grad, jax.hessian, lambda fun: jax.vmap(fun, (None, 0)), lambda fun: jax.checkpoint(jax.grad(fun))):
            transform(decorated)(*args)
            jax.jit(transform(decorated))(*args)
        jax.grad(lambda w: aspen(lambda x: jnp.sin(x * w))(2.0))(3.0)


def test_unused_outputs_and_inputs_are_dropped():
    decorated = aspen(lambda x, y, z: (jnp.sin(x), jnp.cos(y), x))
    jaxpr = jax.make_jaxpr(lambda x, y, z: decorated(x, y, z)[::2])(1.0, 2.0, 3.0)
    pruned, used_inputs = dce_jaxpr(jaxpr.jaxpr, [True, True])
    assert used_inputs == [True, False, False]
    assert "sin" in str(pruned)
    assert "cos" not in str(pruned)
    _, used_inputs = dce_jaxpr(jaxpr.jaxpr, [False, True])
    assert used_inputs == [True, False, False]
    y = normal(0, LONG)
    assert_same(jax.jit(lambda x, y, z: decorated(x, y, z)[1])(1.0, y, 3.0), jnp.cos(y))


@pytest.mark.one_mode("asserts that shapes are tiled which XLA does as fast")
def test_export():
    exported = functools.partial(export.export, disabled_checks=[export.DisabledSafetyCheck.custom_call(CUSTOM_CALL_TARGET)])
    jitted = jax.jit(aspen(lambda x, w: jnp.tanh(x @ w)))
    x, w = normal(0, 4, 3), normal(1, 3, 5)
    want = jnp.tanh(x @ w)
    for_cpu = exported(jitted)(x, w)
    assert_same(for_cpu.call(x, w), want)
    assert for_cpu.mlir_module().count(CUSTOM_CALL_TARGET) == 1
    assert CUSTOM_CALL_TARGET in exported(jitted, platforms=("cpu", "cuda"))(x, w).mlir_module()
    assert CUSTOM_CALL_TARGET not in exported(jitted, platforms=("cuda",))(x, w).mlir_module()
    any_batch = jax.ShapeDtypeStruct(export.symbolic_shape("batch, 3"), jnp.float32)
    assert_same(export.export(jitted)(any_batch, w).call(x, w), want)
    with pytest.raises(UnsupportedError, match="symbolic shape"):
        export.export(jax.jit(aspen(jnp.sin, strict=True)))(any_batch)


@pytest.mark.parametrize("axis_type", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_sharded_arguments(axis_type):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(axis_type,))
    x, w = normal(0, sized(4, 4096), 3), normal(1, 3, sized(5, 32))

    def fun(x, w):
        return jnp.sin(x @ w)

    with jax.set_mesh(mesh):
        sharded = jax.device_put(x, jax.P("data", None))
        for call in (aspen(fun), jax.jit(aspen(fun)), jax.vmap(aspen(fun), (0, None))):
            np.testing.assert_allclose(call(sharded, w), fun(x, w), rtol=1e-5, atol=1e-6)
        got = jax.grad(lambda w: aspen(fun)(sharded, w).sum())(w)
    np.testing.assert_allclose(got, jax.grad(lambda w: fun(x, w).sum())(w), rtol=1e-4, atol=1e-5)


def test_constants_that_are_traced_under_other_axis_types():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    sharding = jax.sharding.NamedSharding(mesh, jax.P("data"))

    def fun(key):  # traced with Auto axes inside
        return jax.random.randint(key, (4,), 0, 10, out_sharding=sharding)

    with jax.set_mesh(mesh):
        want, got = fun(jax.random.key(0)), jax.jit(aspen(fun))(jax.random.key(0))
    np.testing.assert_array_equal(got, want)
    assert got.sharding == want.sharding


def test_shard_map():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x, w = normal(0, sized(4, 4096), 32), normal(1, 32, 32)

    def fun(x, w):
        return jnp.sin(x @ w) / jax.nn.softmax(x).max(-1, keepdims=True)

    def mapped(fun) -> Any:
        return jax.shard_map(fun, mesh=mesh, in_specs=(jax.P("data"), jax.P()), out_specs=jax.P("data"))

    want = np.asarray(fun(x, w))
    assert_same(np.asarray(jax.jit(mapped(aspen(fun)))(x, w)), want)
    assert_same(np.asarray(aspen(mapped(fun))(x, w)), want)
    ours, theirs = (np.asarray(jax.grad(lambda w, item=item: mapped(item)(x, w).sum())(w)) for item in (aspen(fun), fun))
    assert_same(ours, theirs)
