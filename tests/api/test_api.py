"""The decorator: arguments, names, methods, caching, errors."""

import copy
import enum
import functools
import gc
import inspect
import operator
import os
import pickle
import subprocess
import sys
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aspen_jax
from aspen_jax import InputError, UnsupportedError, aspen
from aspen_jax.api.function import AspenFunction
from tests.threads import at_once


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


class Counted:
    """A function that counts how often JAX traces it."""

    def __init__(self, fun):
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.traces = 0

    def __call__(self, *args, **kwargs):
        self.traces += 1
        return self.fun(*args, **kwargs)


def assert_same(ours, theirs):
    """Same tree, shapes, dtypes and weak types, and nearly the same values."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert jax.typeof(got) == jax.typeof(want)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@aspen
def dense(x, w, b=None, *, activation="tanh"):
    """A dense layer."""
    y = x @ w
    return getattr(jnp, activation)(y if b is None else y + b)


def test_name_signature_and_documentation_are_kept():
    def dense(x, w, b=None, *, activation="tanh"): ...

    assert inspect.signature(aspen(dense)) == inspect.signature(dense)
    assert aspen(dense).__wrapped__ is dense
    decorated = globals()["dense"]
    assert (decorated.__name__, decorated.__doc__, decorated.__module__) == ("dense", "A dense layer.", __name__)
    assert repr(decorated).startswith("<aspen of <function dense")


def test_options_may_be_given_with_and_without_parentheses():
    x = normal(0, 3)
    for decorated in (aspen(jnp.sin), aspen()(jnp.sin), aspen(device="cpu", strict=True)(jnp.sin), aspen(jnp.sin, weights=0)):
        np.testing.assert_allclose(decorated(x), jnp.sin(x), rtol=1e-5)


def test_arguments_may_be_any_pytree():
    class Pair(NamedTuple):
        left: Any
        right: Any

    def fun(pair, *rest, scale, **more):
        return {"sum": pair.left["a"] + rest[0][0], "none": None, "more": [more["b"] * scale, (pair.right,)]}

    args = (Pair({"a": normal(0, 2, 3)}, None), [normal(1, 3), ()])
    kwargs = {"scale": np.float32(2), "b": normal(2, 4)}
    assert_same(aspen(fun)(*args, **kwargs), fun(*args, **kwargs))


def test_nothing_in_and_nothing_out():
    assert_same(aspen(lambda: jnp.arange(3) * 2)(), jnp.arange(3) * 2)
    assert aspen(lambda x: None)(normal(0, 3)) is None
    assert_same(aspen(lambda x: (x, {}))(normal(0, 0, 3)), (normal(0, 0, 3), {}))


def test_callable_objects_and_partials():
    class Scale:
        def __init__(self, factor):
            self.factor = factor

        def __call__(self, x):
            return x * self.factor

    x = normal(0, 5)
    scale = Scale(3.0)
    decorated = aspen(scale)
    assert decorated.__name__ == "Scale"
    assert not hasattr(decorated, "factor")
    np.testing.assert_allclose(decorated(x), x * 3)
    decorated = aspen(functools.partial(dense.__wrapped__, w=normal(1, 5, 2), activation="sin"))
    assert decorated.__name__ == "dense"
    np.testing.assert_allclose(decorated(x), jnp.sin(x @ normal(1, 5, 2)), rtol=1e-5)
    named = functools.partial(dense.__wrapped__, w=normal(1, 5, 2))
    vars(named)["__name__"] = "layer"
    assert aspen(named).__name__ == "layer"


def test_attributes_of_a_function_are_kept_but_hide_none_of_ours():
    def double(x):
        return 2 * x

    vars(double).update(units=3, explain="no")
    decorated = aspen(double)
    assert vars(decorated)["units"] == 3
    assert not isinstance(decorated.explain, str)
    assert decorated.__wrapped__ is double
    assert aspen(functools.wraps(double)(lambda x: double(x))).__wrapped__ is not double


def test_static_arguments_are_part_of_the_key():
    fun = Counted(dense.__wrapped__)
    decorated = aspen(fun)
    x, w = normal(0, 2, 3), normal(1, 3, 4)
    for activation in ("tanh", "sin", "tanh", "sin"):
        assert_same(decorated(x, w, activation=activation), fun.fun(x, w, activation=activation))
    assert fun.traces == 2


@pytest.mark.parametrize(
    "value", [True, "relu", jnp.float32, np.dtype("int8"), enum.Enum("E", "A").A, enum.IntEnum("I", "A").A, abs, ..., None]
)
def test_hashable_values_reach_the_function_as_they_are(value):
    seen = []

    def fun(x, value):
        seen.append(value)
        return x

    aspen(fun)(1.0, value)
    aspen(fun)(1.0, value=value)
    assert len(seen) == 2
    assert all(item is value for item in seen)


def test_python_numbers_are_traced():
    fun = Counted(lambda x, rate: x * rate)
    decorated = aspen(fun)
    x = normal(0, 3)
    for rate in (1.5, 2.5, -0.0):
        assert_same(decorated(x, rate), fun.fun(x, rate))
    assert fun.traces == 1
    assert_same(decorated(x, 2), x * 2)
    assert_same(decorated(x.astype(jnp.int8), 2), x.astype(jnp.int8) * 2)


def test_python_numbers_that_cannot_be_traced_are_static():
    def fun(x, n, rate):
        for _ in range(n):
            x = x * rate
        return x.reshape(n, -1)

    counted = Counted(fun)
    decorated = aspen(counted)
    x = normal(0, 6)
    assert_same(decorated(x, 2, 0.5), fun(x, 2, 0.5))
    assert counted.traces == 2  # the first found out
    assert_same(decorated(x, 3, 0.5), fun(x, 3, 0.5))
    assert_same(decorated(x, 2, 0.5), fun(x, 2, 0.5))
    assert counted.traces == 3


@pytest.mark.parametrize("values", [(1, True, 1.0), (0.0, -0.0), (2, 2.0, np.int32(2))])
def test_equal_numbers_of_different_kinds_are_not_confused(values):
    def fun(x, value):
        return x, jnp.full(2, str(float(value)) == "0.0"), jnp.asarray(value)

    decorated = aspen(fun)
    for value in values:
        got = decorated(1.0, value) if not isinstance(value, np.generic) else decorated(1.0, int(value))
        want = fun(1.0, value) if not isinstance(value, np.generic) else fun(1.0, int(value))
        assert got[1].tolist() == want[1].tolist()
        assert got[2].dtype == want[2].dtype


def test_an_outer_jit_may_have_static_arguments():
    def fun(x, n, activation):
        return getattr(jnp, activation)(x) * sum(range(n))

    jitted = jax.jit(aspen(fun), static_argnums=1, static_argnames="activation")
    assert_same(jitted(normal(0, 3), 4, activation="sin"), fun(normal(0, 3), 4, activation="sin"))


def test_the_error_of_a_wrong_call_is_the_functions_own():
    def fun(x, n):
        if n > 2:
            raise KeyError("n too large")
        return x[: range(n)]

    with pytest.raises(KeyError, match="n too large"):
        aspen(fun)(normal(0, 3), 3)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'n'"):
        aspen(fun)(normal(0, 3))  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="traced array with shape bool"):
        aspen(lambda x: 1 if x > 0 else 2)(normal(0))


def test_one_trace_a_shape():
    fun = Counted(dense.__wrapped__)
    decorated = aspen(fun)
    x, w = normal(0, 2, 3), normal(1, 3, 4)
    for _ in range(3):
        decorated(x, w)
        decorated(np.asarray(x) + 1, w)
        jax.jit(decorated)(x, w)
        jax.vmap(decorated, (0, None))(x[None], w)
        jax.grad(lambda x: decorated(x, w).sum())(x)
        jax.eval_shape(decorated, x, w)
        decorated.explain(x, w)
    assert fun.traces == 1
    decorated(x[:1], w)
    decorated(x.astype(jnp.float16), w)
    assert fun.traces == 3


def test_a_function_decorated_anew_for_each_call_is_traced_once():
    count = 0

    def double(x):
        nonlocal count
        count += 1
        return x * 2

    for value in range(3):
        assert aspen(double)(jnp.float32(value)) == 2 * value
    assert count == 1
    assert aspen(double)(jnp.ones(3)).shape == (3,)
    assert count == 2


def test_options_are_not_shared_by_decorations_of_one_function():
    def ordered(x):
        return jax.lax.lgamma(x)

    aspen(ordered)(jnp.ones(3))
    with pytest.raises(UnsupportedError):
        aspen(ordered, strict=True)(jnp.ones(3))


def test_a_decorated_function_goes_when_it_is_dropped():
    def make():
        array = np.ones(3)
        fun = lambda x: x + array  # noqa: E731
        assert aspen(fun)(jnp.ones(3)).sum() == 6
        return weakref.ref(fun)

    reference = make()
    gc.collect()
    assert reference() is None


def test_methods():
    class Model:
        def __init__(self, w):
            self.w = w

        @aspen
        def __call__(self, x, scale=1.0):
            return x @ self.w * scale

        @aspen(strict=True)
        def double(self, x):
            return self(x) * 2

        @staticmethod
        @aspen
        def square(x):
            return x * x

    x = normal(0, 2, 3)
    one, two = Model(normal(1, 3, 4)), Model(normal(2, 3, 5))
    for model in (one, two, one):
        np.testing.assert_allclose(model(x), x @ model.w, rtol=1e-5)
        np.testing.assert_allclose(model(x, scale=2), x @ model.w * 2, rtol=1e-5)
        np.testing.assert_allclose(model.double(x), x @ model.w * 2, rtol=1e-5)
        np.testing.assert_allclose(jax.jit(model.double)(x), x @ model.w * 2, rtol=1e-5)
    np.testing.assert_allclose(Model(one.w)(x), x @ one.w, rtol=1e-5)
    np.testing.assert_allclose(one.square(x), x * x, rtol=1e-5)
    assert one.double.__self__ is one
    assert one.double.__name__ == "double"
    assert list(inspect.signature(one.double).parameters) == ["x"]
    assert isinstance(Model.double, AspenFunction)
    np.testing.assert_allclose(Model.double(two, x), x @ two.w * 2, rtol=1e-5)


def test_a_method_is_traced_once_for_objects_that_hold_alike():
    traces = []

    class Model:
        def __init__(self, shift):
            self.shift = shift

        @aspen
        def __call__(self, x):
            traces.append(self.shift)
            return x + self.shift

    models = [Model(1), Model(1), Model(2)]
    for _ in range(2):
        for model in models:
            assert model(1.0) == 1.0 + model.shift
    assert traces == [1, 2]


def test_methods_of_pytrees_take_the_object_as_an_argument():
    @jax.tree_util.register_dataclass
    @dataclass
    class Model:
        w: jax.Array

        @aspen
        def __call__(self, x):
            traces.append(None)
            return x @ self.w

    traces = []
    x = normal(0, 2, 3)
    for seed in range(3):
        model = Model(normal(seed, 3, 4))
        np.testing.assert_allclose(model(x), x @ model.w, rtol=1e-5)
    assert len(traces) == 1
    np.testing.assert_allclose(jax.grad(lambda m: m(x).sum())(model).w, jnp.tile(x.sum(0)[:, None], 4), rtol=1e-5)


def test_objects_go_when_they_are_dropped():
    class Model:
        def __init__(self):
            self.w = normal(0, 3, 4)

        @aspen
        def __call__(self, x):
            return x @ self.w

    def layer(w):
        return lambda x: x @ w

    model = Model()
    model(normal(1, 2, 3))
    w = normal(2, 3, 4)
    decorated = aspen(layer(w))
    decorated(normal(1, 2, 3))
    watched = [weakref.ref(item) for item in (model, model.w, decorated, w)]
    del model, decorated, w
    gc.collect()
    assert [item() for item in watched] == [None] * 4


def test_decorated_functions_are_pickled_and_copied_by_reference():
    assert pickle.loads(pickle.dumps(dense)) is dense
    assert pickle.loads(pickle.dumps(Scale.times)) is Scale.times
    assert copy.deepcopy(dense) is dense
    assert copy.copy(dense) is dense
    assert cloudpickle.loads(cloudpickle.dumps(dense)) is dense


class Scale:
    def __init__(self, factor):
        self.factor = factor

    @aspen
    def times(self, x):
        return x * self.factor


def undecorated(x):
    return x - 1


@pytest.mark.parametrize("duplicate", [lambda o: pickle.loads(pickle.dumps(o)), copy.deepcopy])
def test_bound_methods_are_pickled_and_copied_with_their_object(duplicate):
    scale = Scale([3.0])
    method = duplicate(Scale(3.0).times)
    assert isinstance(method.__self__, Scale)
    np.testing.assert_allclose(method(normal(0, 4)), normal(0, 4) * 3, rtol=1e-6)
    assert duplicate(scale.times).__self__.factor is not scale.factor


def test_what_no_name_leads_to_is_pickled_with_its_options():
    named = pickle.loads(pickle.dumps(aspen(undecorated, weights=0, strict=True)))
    assert named.__wrapped__ is undecorated
    assert (named._weights, named._choices.strict) == ((0,), True)
    np.testing.assert_allclose(named(normal(0, 4)), normal(0, 4) - 1, rtol=1e-6)
    partial = pickle.loads(pickle.dumps(aspen(functools.partial(operator.add, 2.0))))
    np.testing.assert_allclose(partial(normal(0, 4)), normal(0, 4) + 2, rtol=1e-6)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(aspen(lambda x: x))


@pytest.mark.parametrize("duplicate", [lambda o: cloudpickle.loads(cloudpickle.dumps(o)), copy.deepcopy])
def test_local_functions_are_pickled_by_value(duplicate):
    w = normal(1, 4, 4)

    @aspen
    def local(x, depth=2):
        return x if depth == 0 else local(x @ w, depth - 1)

    class Local(Scale):
        @aspen
        def plus(self, x):
            return super().times(x) + 1

    x = normal(0, 2, 4)
    np.testing.assert_allclose(duplicate(local)(x), x @ w @ w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(duplicate(Local(2.0).plus)(x), x * 2 + 1, rtol=1e-6)


def test_functions_of_a_script_are_pickled_by_value_for_other_processes(tmp_path):
    (tmp_path / "script.py").write_text(
        "import sys, cloudpickle\n"
        "from aspen_jax import aspen\n"
        "@aspen\n"
        "def double(x): return x * 2\n"
        "class Tiled:\n"
        "    @aspen\n"
        "    def plus(self, x): return double(x) + 1\n"
        "open(sys.argv[1], 'wb').write(cloudpickle.dumps((double, Tiled().plus)))\n"
    )
    subprocess.run([sys.executable, tmp_path / "script.py", tmp_path / "pickled"], check=True)
    double, plus = pickle.loads((tmp_path / "pickled").read_bytes())
    assert isinstance(double, AspenFunction)
    assert float(double(4.0)) == 8
    assert float(plus(4.0)) == 9


def test_eight_threads_at_once():
    def fun(x, w):
        return jnp.tanh(x @ w).sum(-1)

    decorated = aspen(fun)
    inputs = [(normal(seed, 1 + seed % 3, 5), normal(seed + 100, 5, 7)) for seed in range(8)]
    results = at_once(lambda index: [np.asarray(decorated(*inputs[index])) for _ in range(20)], 8)
    for args, got in zip(inputs, results, strict=True):
        for result in got:
            np.testing.assert_allclose(result, fun(*args), rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(result, got[0])


@pytest.mark.parametrize(
    ("args", "kwargs", "place"),
    [
        (([1, {2}],), {}, r"first\[1\] is \{2\} of type set"),
        ((0, 1, {"a": [np.array(["text"])]}), {}, r"rest\[1\]\['a'\]\[0\] is array\(\['text'\]"),
        ((0,), {"key": bytearray(500)}, r"key is bytearray\(.{60,}\.\.\. of type bytearray"),
    ],
)
def test_arguments_that_are_neither_arrays_nor_hashable_are_refused(args, kwargs, place):
    @aspen
    def fun(first, *rest, key=None): ...

    for call in (fun, fun.graph, fun.explain, fun.cost_analysis):
        with pytest.raises(InputError, match=rf"^fun: argument {place}.* nor hashable; pass"):
            call(*args, **kwargs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device='tpu' is unknown; choose one of 'auto', 'cpu', 'cuda', 'gpu'"),
        ({"device": None}, "device=None is unknown"),
        ({"strict": 1}, "strict=1 is not a bool"),
        ({"weights": 1.5}, "weights=1.5 is not a position"),
        ({"weights": True}, "weights=True is not a position"),
        ({"weights": 2}, "weights=2 is no argument of .* which takes x, w, key"),
        ({"weights": -3}, "weights=-3 is no argument"),
        ({"weights": ("x", "params")}, "weights='params' is no argument"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):

        @aspen(**options)
        def fun(x, w, *, key=None): ...


def test_gpu_means_cuda():
    assert aspen(undecorated, device="gpu")._choices == aspen(undecorated, device="cuda")._choices
    assert aspen(device="gpu")(undecorated)._choices.device == "cuda"


@pytest.mark.parametrize("weights", [(), 0, -1, "w", "key", [0, "w"]])
def test_weights_may_be_positions_and_names(weights):
    def fun(x, w, *, key=None):
        return x * w

    np.testing.assert_allclose(aspen(fun, weights=weights)(2.0, 3.0), 6.0)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"donate_argnums": 0}, r"^donate_argnums is no option of aspen; give it .*: jax.jit\(aspen\(f\), donate_argnums=0\)$"),
        ({"donate_argnames": "x"}, r"jax.jit\(aspen\(f\), donate_argnames='x'\)$"),
        ({"static_argnums": (1,)}, r"; leave it out, as hashable .* static .* or give it .*, static_argnums=\(1,\)\)$"),
        ({"static_argnames": "n"}, r"jax.jit\(aspen\(f\), static_argnames='n'\)$"),
        ({"out_shardings": None}, "give it to jax.jit around the decorated function"),
    ],
)
def test_options_of_jit_are_refused_with_where_they_belong(option, message):
    with pytest.raises(InputError, match=message):
        aspen(undecorated, **option)
    with pytest.raises(InputError, match=message):
        aspen(**option)
    kept = jax.jit(aspen(lambda x, n=2: x * n), **option)(normal(0, 4))  # what the message says works
    np.testing.assert_allclose(kept, normal(0, 4) * 2, rtol=1e-6)


def test_unknown_options_are_refused_as_by_any_function():
    with pytest.raises(TypeError, match=r"aspen\(\) got an unexpected keyword argument 'weight'"):
        aspen(undecorated, weight=0)  # pyright: ignore[reportCallIssue]


def test_what_is_no_function_is_refused():
    with pytest.raises(InputError, match="aspen decorates callables, not 3; options are keywords"):
        aspen(3)  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(InputError, match="put @aspen below @staticmethod"):
        aspen(staticmethod(abs))


def test_strict_refuses_what_cannot_be_tiled():
    def fun(x):
        jax.debug.print("{}", x)
        return x + 1

    with pytest.raises(UnsupportedError, match=r"the function has effects \(.*; take that out, or drop strict=True"):
        aspen(fun, strict=True)(1.0)


def perceptron(x, w1, w2):
    with jax.named_scope("hidden"):
        x = jax.nn.relu(x @ w1)
    return jax.nn.softmax(x @ w2)


def special(x):
    x = jax.lax.lgamma(jnp.sin(x) * 2)
    return jnp.cos(jax.lax.lgamma(x[::-1] * 3) + 1)


def test_graph_gives_the_one_graph():
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2, 3), (3, 4), (4, 5))]
    graph = aspen(perceptron).graph(*shapes)
    graph.verify()
    args = [normal(seed, *item.shape) for seed, item in enumerate(shapes)]
    assert graph == aspen(perceptron, strict=True).graph(*args)
    (got,) = graph.run(*args)
    np.testing.assert_allclose(got, perceptron(*args), rtol=1e-5, atol=1e-6)


def test_graph_refuses_what_is_not_one_graph():
    with pytest.raises(
        UnsupportedError, match=r"^special as a whole is not one graph of tiles; it has 3; left to XLA: lgamma; explain\(\)"
    ):
        aspen(special).graph(normal(0, 20_000))
    with pytest.raises(UnsupportedError, match="not one graph of tiles; it has 0"):
        aspen(lambda x: x).graph(1.0)


def test_explain_says_what_runs_as_tiles():
    args = normal(0, 2, 3), normal(1, 3, 4), normal(2, 4, 5)
    explanation = aspen(perceptron).explain(*args)
    (part,) = explanation.parts
    assert explanation.fallbacks == ()
    assert explanation.reason is None
    assert sum(op.tiles for op in part.ops) == part.graph.num_tiles
    assert sum(op.edges for op in part.ops) == part.graph.num_edges
    assert sum(op.kernel.startswith("matmul") for op in part.ops) == 2
    assert any(op.name.startswith("hidden/dot_general") for op in part.ops)
    assert all(op.source.startswith(__file__) for op in part.ops if op.source)
    text = str(explanation)
    counts = f"1 custom call, {part.graph.num_tiles} tiles, {part.graph.num_edges} edges"
    assert text.startswith(f"100% of the flops of perceptron in tiles: {counts}")
    assert text.endswith("left to XLA: nothing")


def test_explain_says_what_is_left_to_xla_and_why():
    explanation = aspen(special).explain(normal(0, 20_000))
    assert len(explanation.parts) == 3
    assert {(item.primitive, item.shapes) for item in explanation.fallbacks} == {("lgamma", "f32[20000]")}
    assert sum(item.count for item in explanation.fallbacks) == 2
    assert all(item.source.startswith(__file__) for item in explanation.fallbacks)
    assert "lgamma(f32[20000])" in str(explanation)
    assert explanation.fallbacks[0].reason in str(explanation)
    assert "each output is an argument or a constant" in str(aspen(lambda x: (x, 1.0)).explain(normal(0, 5)))

    def printing(x):
        jax.debug.print("{}", x)
        return jnp.sin(x)

    assert "left to XLA: all of it, because the function has effects" in str(aspen(printing).explain(1.0))


def test_cost_analysis_counts_what_xla_counts():
    a, b = normal(0, 40, 30), normal(1, 30, 20)
    cost = aspen(jnp.matmul).cost_analysis(a, b)
    of_xla: Any = jax.jit(jnp.matmul).lower(a, b).compile().cost_analysis()
    assert cost["flops"] == pytest.approx(of_xla["flops"], rel=0.05)
    assert cost["bytes accessed"] >= a.nbytes + b.nbytes + 40 * 20 * 4


def test_strict_names_what_cannot_be_tiled():
    for strict_call in (aspen(special, strict=True), jax.jit(aspen(special, strict=True))):
        with pytest.raises(UnsupportedError, match=r"lgamma\(.*f"):
            strict_call(normal(0, 5))


def twice_and_sum(tree, *rest, scale):
    return {"twice": jax.tree.map(lambda leaf: leaf * 2, tree), "sum": sum(rest) * scale}


@pytest.mark.parametrize(
    ("fun", "args", "kwargs"),
    [
        (lambda x: jnp.tanh(x) + 1, (normal(0, 3, 4),), {}),
        (perceptron, (normal(0, 2, 4), normal(1, 4, 8), normal(2, 8, 3)), {}),
        (twice_and_sum, ((normal(0, 3), [normal(1, 2), None]), normal(2, 4), 2.0), {"scale": 3}),
        (lambda x, unused: x, (normal(0, 3), np.ones(2, np.int32)), {}),
    ],
)
def test_stages_are_as_those_of_jit(fun, args, kwargs):
    ours, theirs = aspen(fun), jax.jit(fun)
    assert ours.eval_shape(*args, **kwargs) == theirs.eval_shape(*args, **kwargs)
    traced, lowered = ours.trace(*args, **kwargs), ours.lower(*args, **kwargs)
    assert traced.out_info == theirs.trace(*args, **kwargs).out_info
    assert lowered.in_tree == theirs.lower(*args, **kwargs).in_tree
    assert [ours.eval_shape(*args, **kwargs)] == [lowered.out_info]
    want = theirs.lower(*args, **kwargs).compile()(*args, **kwargs)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if hasattr(leaf, "shape") else leaf, args)
    for stage in (lowered, traced.lower(), ours.lower(*shapes, **kwargs)):
        compiled = stage.compile()
        assert_same(compiled(*args, **kwargs), want)
        assert compiled.args_info == theirs.lower(*args, **kwargs).compile().args_info
        assert "aspen" in compiled.as_text() or fun is not perceptron
    with pytest.raises(TypeError):
        compiled(*args, 1.0, **kwargs)


def test_static_arguments_are_left_out_of_what_is_compiled():
    x, w = normal(0, 2, 3), normal(1, 3, 4)
    np.testing.assert_allclose(dense.lower(x, w, activation="cos").compile()(x, w), jnp.cos(x @ w), rtol=1e-5, atol=1e-6)
    between = aspen(lambda x, name, w: getattr(jnp, name)(x @ w))
    np.testing.assert_allclose(between.lower(x, "cos", w).compile()(x, w), jnp.cos(x @ w), rtol=1e-5, atol=1e-6)
    inside = aspen(lambda x, config: getattr(jnp, config["name"])(x @ config["w"]))
    compiled = inside.lower(x, {"name": "cos", "w": w}).compile()
    np.testing.assert_allclose(compiled(x, {"name": None, "w": w}), jnp.cos(x @ w), rtol=1e-5, atol=1e-6)
    ranged = aspen(lambda x, n: sum(x for _ in range(n)))
    np.testing.assert_allclose(ranged.lower(x, 3).compile()(x), x * 3, rtol=1e-6)
    assert ranged.eval_shape(x, n=3).shape == x.shape


def test_stages_of_methods_take_what_methods_take():
    @jax.tree_util.register_dataclass
    @dataclass
    class Model:
        w: jax.Array

        @aspen
        def __call__(self, x, scale=1.0):
            return x @ self.w * scale

    x, w = normal(0, 2, 3), normal(1, 3, 4)
    np.testing.assert_allclose(Model(w).__call__.lower(x, scale=2.0).compile()(x, scale=2.0), x @ w * 2, rtol=1e-5)
    for method, want in ((Model(w).__call__, x @ w), (Scale(3.0).times, x * 3)):
        np.testing.assert_allclose(method.lower(x).compile()(x), want, rtol=1e-5)
        np.testing.assert_allclose(method.trace(x).lower().compile()(x), want, rtol=1e-5)
        assert method.eval_shape(x).shape == want.shape


def test_import_is_light(tmp_path):
    script = """
import sys, aspen_jax, jax
heavy = [name for name in ("cupy", "keras", "flax", "matplotlib", "tqdm", "tyro") if name in sys.modules]
assert not heavy, heavy
try:
    jax.devices()
except RuntimeError:
    print(aspen_jax.__version__)
"""
    # There is no such backend, so an import that starts one fails.
    environment = {**os.environ, "JAX_PLATFORMS": "nonsense"}
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == aspen_jax.__version__
