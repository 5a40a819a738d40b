"""Methods of plain objects see what the object holds at each call, or refuse what cannot be seen."""

import dataclasses
import enum
import functools
import gc
import logging
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import InputError, aspen
from tests.threads import at_once

pytestmark = pytest.mark.usefixtures("either_mode")

X = jnp.arange(3.0)


def full(value):
    return value * jnp.ones(3)


class Layer:
    def __init__(self, w):
        self.w = w
        self.traces = []

    @aspen
    def __call__(self, x):
        return x * self.w


class Slotted:
    __slots__ = ("__scale", "unset", "w")

    def __init__(self):
        self.w = jnp.ones(3)
        self.__scale = 2

    def rescale(self, scale):
        self.__scale = scale

    @aspen
    def __call__(self, x):
        return x * self.w * self.__scale


def test_a_method_sees_new_weights():
    class Model:
        def __init__(self):
            self.w = jnp.zeros(3)

        @aspen
        def loss(self, x, y):
            return ((x @ self.w - y) ** 2).mean()

    model, x, y = Model(), jnp.eye(3), jnp.ones(3)
    for _ in range(3):
        np.testing.assert_allclose(model.loss(x, y), ((x @ model.w - y) ** 2).mean(), rtol=1e-6)
        np.testing.assert_allclose(Model.loss(model, x, y), ((x @ model.w - y) ** 2).mean(), rtol=1e-6)
        model.w = model.w + 0.25


def test_arrays_at_any_depth_are_arguments():
    traces = []

    class Model:
        def __init__(self):
            self.layers = [Layer(jnp.ones(3)), {"inner": (Layer(np.ones(3, np.float32)),)}]
            self.params = {"b": jnp.zeros(3), "a": [jnp.ones(3)]}

        @aspen
        def __call__(self, x):
            traces.append(None)
            return self.layers[1]["inner"][0](self.layers[0](x)) * self.params["a"][0] + self.params["b"]

    model = Model()
    np.testing.assert_allclose(model(X), X)
    model.layers[0].w = full(2.0)
    np.testing.assert_allclose(model(X), X * 2)
    model.layers[1]["inner"][0].w[:] = 5  # in place
    np.testing.assert_allclose(model(X), X * 10)
    model.params["a"][0] = full(3.0)
    model.params["b"] += 1
    np.testing.assert_allclose(model(X), X * 30 + 1)
    assert len(traces) == 1
    other = Model()
    np.testing.assert_allclose(other(X), X)
    assert len(traces) == 1  # one trace serves all objects of one structure
    model.layers.append(None)
    np.testing.assert_allclose(model(X), X * 30 + 1)
    assert len(traces) == 2


@pytest.mark.parametrize(
    ("before", "after"), [(2, 3), (2, 2.0), (0.0, -0.0), (True, 1), ("a", "b"), (jnp.sin, jnp.cos), (None, 0)]
)
def test_other_attributes_are_compared(before, after):
    class Model:
        @aspen
        def __call__(self, x):
            seen.append(self.value)
            return x

    seen = []
    model = Model()
    for value in (before, after, before):
        model.value = value
        model(X)
    assert list(map(repr, seen)) == [repr(before), repr(after)]


def test_what_an_object_holds_is_known_in_it_as_it_is():
    class Model:
        def __init__(self, heads):
            self.heads = heads
            self.size = np.int32(heads)
            self.flags = {1, 2}
            self.part = slice(0, 2)
            self.order = {"b": jnp.sin, "a": jnp.cos}

        @aspen
        def __call__(self, x):
            for activation in self.order.values():
                x = activation(x)
            return x[self.part].sum() * sum(range(self.heads)) * sum(range(self.size)) * len(self.flags)

    for heads in (2, 3):
        want = float(jnp.cos(jnp.sin(X))[:2].sum() * sum(range(heads)) ** 2 * 2)
        assert float(Model(heads)(X)) == pytest.approx(want, rel=1e-5)


def test_a_number_that_changes_often_is_traced():
    traces = []

    class Trainer:
        def __init__(self):
            self.step = 0
            self.depth = 2

        @aspen
        def __call__(self, x):
            traces.append(None)
            return x * self.step + sum(range(self.depth))

    trainer = Trainer()
    for trainer.step in range(30):
        np.testing.assert_allclose(trainer(X), X * trainer.step + 1)
    assert len(traces) < 8
    for trainer.depth in range(10):  # such a number cannot be traced
        np.testing.assert_allclose(trainer(X), X * trainer.step + sum(range(trainer.depth)))


def test_slots_private_names_and_what_was_never_set():
    model = Slotted()
    np.testing.assert_allclose(model(X), X * 2)
    model.rescale(3)
    model.w = model.w * 2
    np.testing.assert_allclose(model(X), X * 6)


def test_circles_and_shared_objects_stay_what_they_are():
    class Node:
        def __init__(self, parent=None):
            self.parent = parent
            self.children = []
            self.w = jnp.ones(3)

        @aspen
        def total(self, x):
            assert all(child.parent is self for child in self.children)
            assert self.children[0] is self.children[2]
            return x * sum(child.w for child in self.children)

    root = Node()
    root.children = [Node(root), Node(root)]
    root.children.append(root.children[0])
    root.children.append(root.children[1])
    np.testing.assert_allclose(root.total(X), X * 4)
    root.children[0].w = full(2.0)
    np.testing.assert_allclose(root.total(X), X * 6)
    loop = Layer([jnp.ones(3)])
    loop.w.append(loop.w)

    class Loop(Layer):
        @aspen
        def __call__(self, x):
            return x * self.w[1][1][0]

    loop = Loop(loop.w)
    loop.w[0] = full(4.0)
    np.testing.assert_allclose(loop(X), X * 4)


def test_inheritance_properties_and_class_methods():
    class Base:
        def __init__(self):
            self.w = jnp.ones(3)

        @property
        def doubled(self):
            return self.w * 2

        @functools.cached_property
        def tripled(self):
            return self.w * 3

        @classmethod
        @aspen
        def twice(cls, x):
            return x * 2

        @staticmethod
        @aspen
        def thrice(x):
            return x * 3

        @aspen
        def __call__(self, x):
            return x * self.doubled * self.tripled

    class Derived(Base):
        @aspen
        def __call__(self, x, *, bias=1.0):
            return super().__call__(x) + bias

    model = Derived()
    np.testing.assert_allclose(model(X), X * 6 + 1)
    model.w = model.w * 2
    np.testing.assert_allclose(model(X, bias=2.0), X * 24 + 2)
    assert "tripled" not in vars(model)
    for owner in (Derived, model):
        np.testing.assert_allclose(owner.twice(X), X * 2)
        np.testing.assert_allclose(owner.thrice(X), X * 3)


def test_dataclasses_and_objects_with_a_hash():
    @dataclasses.dataclass
    class Plain:
        w: jax.Array

        @aspen
        def __call__(self, x):
            return x * self.w

    class Hashed(Layer):
        def __hash__(self):
            return 1

        def __eq__(self, other):
            return self is other

    for kind in (Plain, Hashed):
        model = kind(jnp.ones(3))
        np.testing.assert_allclose(model(X), X)
        model.w = full(2.0)
        np.testing.assert_allclose(model(X), X * 2)


def test_frozen_dataclasses():
    @dataclasses.dataclass(frozen=True)
    class Model:
        w: jax.Array
        scale: float = 1.0

        @aspen
        def __call__(self, x):
            return x * self.w * self.scale

    for w, scale in ((1.0, 1.0), (2.0, 1.0), (2.0, 3.0)):
        np.testing.assert_allclose(Model(full(w), scale)(X), X * w * scale)


def test_members_of_an_enum_are_themselves():
    class Mode(enum.Enum):
        PLAIN = 1
        TWICE = 2

        @aspen
        def __call__(self, x):
            return x if self is Mode.PLAIN else x * 2

    np.testing.assert_allclose(Mode.PLAIN(X), X)
    np.testing.assert_allclose(Mode.TWICE(X), X * 2)


class Holding:
    def __init__(self):
        self.w = jnp.ones(3)
        self.lock = threading.Lock()
        self.random = np.random.default_rng(0)
        self.stream = iter([1.0, 2.0])
        self.big = list(map(str, range(20_000)))
        self.log = logging.getLogger("test")

    @aspen
    def unused(self, x):
        self.log.debug("fine")
        return x * self.w if self.lock is not None else x

    @aspen
    def locked(self, x):
        with self.lock:
            return x

    @aspen
    def drawn(self, x):
        return x + self.random.normal()

    @aspen
    def streamed(self, x):
        return x + next(self.stream)

    @aspen
    def counted(self, x):
        return x + len(self.big)

    @aspen
    def checked(self, x):
        return x + isinstance(self.random, np.random.Generator)


def test_what_cannot_be_seen_is_refused_where_it_is_read():
    model = Holding()
    np.testing.assert_allclose(model.unused(X), X)
    for name, attribute in (("locked", "lock"), ("drawn", "random"), ("streamed", "stream"), ("checked", "random")):
        with pytest.raises(
            InputError, match=rf"^self.{attribute} is read by a decorated method, and what a .* cannot be seen.*; make"
        ):
            getattr(model, name)(X)
    with pytest.raises(InputError, match=r"^self.big is read .* holds more than 10,000 values.*; make"):
        model.counted(X)


def test_objects_that_hide_what_they_hold_are_refused():
    class Hidden(list):
        @aspen
        def __call__(self, x):
            return x * self[0]

    class Closing(Layer):
        def __del__(self):
            pass

    for model in (Hidden([2.0]), Closing(jnp.ones(3))):
        with pytest.raises(InputError, match=r"^__call__: self is .* cannot be seen, .*; register"):
            model(X)


def test_what_a_method_changes_is_refused():
    class Model:
        def __init__(self):
            self.n = 0
            self.seen = []
            self.inner = Layer(jnp.ones(3))

        @aspen
        def count(self, x):
            self.n += 1
            return x

        @aspen
        def append(self, x):
            self.seen.append(x)
            return x

        @aspen
        def assign(self, x):
            self.inner.w = x
            return x

        @aspen
        def add(self, x):
            self.new = x
            return x

    model = Model()
    for name, attribute in (("count", "n"), ("append", "seen"), ("assign", "inner"), ("add", "new")):
        with pytest.raises(InputError, match=rf"^{name} changes self.{attribute}, .*; return"):
            getattr(model, name)(X)
    assert (model.n, model.seen, hasattr(model, "new")) == (0, [], False)


def test_transformations_go_through_the_object():
    class Model:
        @aspen
        def __call__(self, x):
            return (x * self.w).sum()

    model = Model()

    def loss(w):
        model.w = w
        return model(X)

    for transformed in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.jacfwd(loss)):
        for scale in (1.0, 2.0):
            np.testing.assert_allclose(transformed(full(scale)), X)
    np.testing.assert_allclose(jax.vmap(loss)(jnp.eye(3)), X)


def test_a_stream_sees_new_weights_and_refuses_other_values():
    class Model:
        def __init__(self):
            self.w = jnp.ones((3, 3))
            self.n = 2

        @aspen
        def __call__(self, x):
            return x @ self.w * self.n

    model, x = Model(), jnp.ones((4, 3))
    stream = model.__call__.stream(x)
    model.w = model.w * 2
    np.testing.assert_allclose(stream(x), x @ model.w * 2)
    model.n = 3
    with pytest.raises(InputError, match=r"was made for arguments of the structure .*Model and what it holds.*; make it anew"):
        stream(x)


def test_weights_of_the_object_are_prepared():
    class Model:
        def __init__(self):
            self.w = jnp.arange(12.0).reshape(4, 3)

        @aspen(weights="self")
        def __call__(self, x):
            return x @ self.w.T

    model, x = Model(), jnp.ones((2, 3))
    want = x @ model.w.T
    prepared = model.__call__.prepare(x)
    assert isinstance(prepared, Model)
    for item in (model, prepared):
        np.testing.assert_allclose(item(x), want)
    model.w = model.w * 2
    np.testing.assert_allclose(model(x), want * 2)


def test_every_name_of_a_decorated_function_works_on_a_method():
    class Model:
        def __init__(self):
            self.w = jnp.ones((64, 64))

        @aspen(weights=1, strict=True)
        def f(self, w, x):
            return jnp.tanh(x @ w.T) @ self.w

    model, w, x = Model(), jnp.ones((64, 64)), jnp.ones((64, 64))
    vars(Model.f.__wrapped__)["units"] = 3
    method = model.f
    names = [name for name in dir(Model.f) if not name.startswith("_")]
    assert "graph_without_reuse" in names
    for name in names:
        assert getattr(method, name)(w, x) is not None
    assert method.__func__ is Model.f
    assert method == model.f
    assert hash(method) == hash(model.f)
    assert method != Model().f
    want = model.f.__wrapped__(w, x)
    for graph in (method.graph(w, x), method.graph_without_reuse(w, x)):
        np.testing.assert_allclose(graph.run(*method.graph_inputs(w, x))[0], want, rtol=1e-4)
    np.testing.assert_allclose(method.lower(w, x).compile()(w, x), want, rtol=1e-4)


def test_attributes_of_the_function_are_read_through_a_method():
    class Model:
        def f(self, x):
            return x

        f.units = 3
        f = aspen(f)

    assert Model().f.units == 3
    with pytest.raises(AttributeError, match="missing"):
        Model().f.missing  # noqa: B018


def test_objects_and_classes_go_when_they_are_dropped():
    def used():
        class Model(Layer):
            @aspen
            def __call__(self, x):
                return x * self.w

        model = Model(jnp.ones(3))
        model(X)
        return [weakref.ref(item) for item in (model, model.w, Model)]

    watched = used()
    gc.collect()
    assert [item() for item in watched] == [None] * 3


def test_eight_threads_with_an_object_each():
    class Model:
        def __init__(self, scale):
            self.w = full(scale)

        @aspen
        def __call__(self, x):
            return x * self.w

    def work(index):
        model = Model(100.0 * index)
        for step in range(10):
            model.w = full(100.0 * index + step)
            np.testing.assert_array_equal(model(X), X * (100.0 * index + step))

    at_once(work, 8)
