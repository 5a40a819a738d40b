"""A function cut in two between any operations is the same function, also where its halves run in two processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import InputError, aspen
from aspen_jax.api.decorator import flat_call
from aspen_jax.split import Crossing, ScanStep, crossing, crossings, cut, num_cuts
from aspen_jax.split.equations import FlatJaxpr, flatten
from tests.content import seed_of
from tests.rotation import share
from tests.split import split_networks
from tests.split.split_networks import SHALLOW, SMALL, ZOO, build

SEED = seed_of(__name__)
PATIENCE = 300  # seconds, against a hang

# One shallow network, at two cuts. ASPEN_SPLIT_NETWORKS=all cuts every one at twelve, or it names some.
ASKED = os.environ.get("ASPEN_SPLIT_NETWORKS", "")
CUTS = 12 if ASKED else 2
ONE = share(list(SHALLOW), __name__, turns=len(SHALLOW))
NETWORKS = list(ZOO) if ASKED == "all" else (ASKED.split(",") if ASKED else ONE)


class Pair:
    """A process for heads and one for tails."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._ends = []
        self._processes = []
        for half in (0, 1):
            ours, theirs = context.Pipe()
            self._processes.append(context.Process(target=split_networks.serve, args=(theirs, half), daemon=True))
            self._processes[-1].start()
            theirs.close()
            self._ends.append(ours)

    def ask(self, half: int, name: str, k: int, arrays: Any = None) -> None:
        """Asks for the head (0), or the tail (1) of arrays; the process works while we do."""
        self._ends[half].send((name, SEED, k, arrays))

    def answer(self, half: int) -> list[np.ndarray]:
        assert self._ends[half].poll(PATIENCE), "no answer"
        answer = self._ends[half].recv()
        assert not isinstance(answer, str), answer
        return answer

    def close(self) -> None:
        for end, process in zip(self._ends, self._processes, strict=True):
            end.send(None)
            process.join(PATIENCE)
            end.close()
            process.close()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    processes = Pair()
    yield processes
    processes.close()


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def bits(arrays: Any) -> list[tuple[Any, ...]]:
    return [(item.shape, item.dtype, item.tobytes()) for item in leaves(arrays)]


def assert_like(result: Any, expected: Any, tolerance: float = 1e-4) -> None:
    """The same tree, shapes, dtypes and weak types, and numbers within the tolerance of the largest."""
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert jax.typeof(ours) == jax.typeof(theirs), SEED
        largest = float(np.abs(np.asarray(theirs)).max(initial=1e-30))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * largest, err_msg=f"seed {SEED}")


def run(parts: Any, *arguments: Any) -> Any:
    values = parts[0](*arguments)
    for part in parts[1:]:
        values = part(*values)
    return values


def check_in_two_processes(pair: Pair, name: str, cuts: Any) -> None:
    fun, arguments = build(name, SEED)
    expected = fun(*arguments)
    described = crossings(fun, *arguments)
    for k in cuts:
        pair.ask(0, name, k)
        head, tail = cut(fun, k, *arguments)
        crossed = head(*arguments)
        assert [(item.shape, item.dtype, item.nbytes) for item in crossed] == [
            (item.shape, item.dtype, item.nbytes) for item in described[k]
        ]
        received = pair.answer(0)
        pair.ask(1, name, k, received)
        result = tail(*crossed)
        assert_like(result, expected)
        assert (bits(crossed), bits(result)) == (bits(received), bits(pair.answer(1))), (name, k, SEED)


# Two processes


@pytest.mark.parametrize("name", SMALL)
def test_every_cut_is_the_same_in_two_processes_and_in_one(pair, name):
    fun, arguments = build(name, SEED)
    check_in_two_processes(pair, name, range(num_cuts(fun, *arguments)))


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_the_zoo(pair, name):
    fun, arguments = build(name, SEED)
    cuts = np.random.default_rng(SEED).choice(num_cuts(fun, *arguments), CUTS, replace=False)
    check_in_two_processes(pair, name, sorted(cuts.tolist()))


# What crosses


def naive_crossing(jaxpr: FlatJaxpr, k: int) -> list[Any]:
    """By definition: there before the cut, and on some path from there to a result or a side effect behind it."""
    before = [*jaxpr.inputs, *(var for equation in jaxpr.equations[:k] for var in equation.outvars)]
    needed = set(jaxpr.outputs) if not jaxpr.outputs else {id(atom) for atom in jaxpr.outputs}
    grown = True
    while grown:
        grown = False
        for equation in jaxpr.equations[k:]:
            if equation.effects or any(id(var) in needed for var in equation.outvars):
                new = {id(atom) for atom in equation.invars} - needed
                needed |= new
                grown = grown or bool(new)
    return [var for var in before if id(var) in needed and var not in jaxpr.weights]


@pytest.mark.parametrize("name", [*SMALL, *ONE])
def test_what_crosses_is_what_is_needed_behind_the_cut(name):
    fun, arguments = build(name, SEED)
    jaxpr = flatten(flat_call(fun, arguments, {}))
    all_cuts = range(len(jaxpr.equations) + 1)
    chosen = all_cuts if name in SMALL else sorted(np.random.default_rng(SEED).choice(all_cuts, 30, replace=False).tolist())
    live = jaxpr.live(all_cuts)
    for k in chosen:
        assert list(live[k]) == naive_crossing(jaxpr, k), (name, k)
        assert not set(live[k]) & set(jaxpr.constants)
    assert crossings(fun, *arguments)[k] == crossing(fun, k, *arguments)


def test_names_and_bytes_of_what_crosses():
    def fun(params, x, unused):
        with jax.named_scope("first"):
            y = jax.nn.relu(x @ params["w"])
        return y + x.sum()

    shapes = {"w": jax.ShapeDtypeStruct((4, 3), jnp.bfloat16)}, jax.ShapeDtypeStruct((2, 4), jnp.bfloat16), 1.0
    whole = crossings(fun, *shapes)
    assert whole[0] == (Crossing("params.w", (4, 3), jnp.bfloat16, 24), Crossing("x", (2, 4), jnp.bfloat16, 16))
    assert [item.name for item in whole[2]] == ["x", "first/relu"]
    assert [[item.name for item in of] for of in crossings(aspen(fun, weights=0), *shapes)][:2] == [
        ["x"],
        ["x", "first/dot_general"],
    ]
    assert whole[-1] == (Crossing("add", (2, 3), jnp.bfloat16, 12),)


def test_dead_code_crosses_nothing_and_is_no_cut():
    def fun(x):
        jnp.sin(x)
        return x * 2

    assert num_cuts(fun, 1.0) == 2


# Several cuts, and scans


def test_parts_of_several_cuts_hand_on_what_later_parts_need():
    fun, arguments = build("skips", SEED)
    last = num_cuts(fun, *arguments) - 1
    random = np.random.default_rng(SEED)
    for count in (1, 2, 3, 5):
        cuts = sorted(random.choice(last + 1, count, replace=False).tolist())
        parts = cut(fun, cuts, *arguments)
        assert len(parts) == count + 1
        assert_like(run(parts, *arguments), fun(*arguments))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_carry_of_a_scan_crosses(is_reversed):
    fun, arguments = build("recurrent", SEED)
    expected = fun(*arguments)
    equations = flatten(flat_call(fun, arguments, {})).equations
    scans = [index for index, equation in enumerate(equations) if equation.primitive.name == "scan"]
    scan = next(index for index in scans if equations[index].params["reverse"] == is_reversed)
    random = np.random.default_rng(SEED)
    for steps in ([0], [2, 6], [int(random.integers(1, 6))]):
        cuts = [ScanStep(scan, step) for step in steps]
        assert_like(run(cut(fun, cuts, *arguments), *arguments), expected)
    parts = cut(fun, (scan, ScanStep(scan, 4), scan + 1), *arguments)
    assert_like(run(parts, *arguments), expected)
    # Of what is scanned over, only the steps that are left cross, unless it is needed as a whole later.
    shapes = [item.shape for item in crossing(fun, ScanStep(scan, 4), *arguments)]
    assert ((2, 4) if is_reversed else (6, 4)) in shapes
    assert ((6, 8) if is_reversed else (4, 8)) in shapes  # a result of it is read behind the scan back


# What a user has in hand


def test_halves_are_decorated_functions(choosing):
    def fun(params, x):
        for w in params:
            x = jax.nn.relu(x @ w)
        return x

    random = np.random.default_rng(SEED)
    params, x = [split_networks.normal(random, 16, 16) for _ in range(3)], split_networks.normal(random, 4, 16)
    f = aspen(fun, weights=0, strict=True)
    head, tail = cut(f, 3, params, x)
    assert (head.__name__, tail.__name__) == ("fun_head", "fun_tail")
    expected = fun(params, x)
    assert_like(jax.jit(lambda x: tail(*head(params, x)))(x), expected)
    np.testing.assert_allclose(tail(*head(head.prepare(params, x), x)), expected, rtol=1e-5, atol=1e-5)
    (part,) = tail.explain(*head(params, x)).parts
    assert part.ops
    assert tail.graph(*head(params, x)).num_tiles > 0
    batched = jax.vmap(head, in_axes=(None, 0))(params, jnp.stack([x, 2 * x]))
    np.testing.assert_allclose(batched[0][0], head(params, x)[0], rtol=1e-5, atol=1e-5)
    gradient = jax.grad(lambda x: tail(*head(params, x)).sum())(x)
    np.testing.assert_allclose(gradient, jax.grad(lambda x: fun(params, x).sum())(x), rtol=1e-4, atol=1e-4)
    donated = jax.jit(tail, donate_argnums=0)
    np.testing.assert_allclose(donated(*head(params, x)), expected, rtol=1e-5, atol=1e-5)


def test_a_custom_rule_for_derivatives_stays():
    @jax.custom_jvp
    def seven(x):
        return x * x

    @seven.defjvp
    def _(primals, tangents):
        return seven(*primals), 7 * tangents[0]

    def fun(x):
        return seven(x + 1) * 2

    for k in range(num_cuts(fun, 1.0)):
        head, tail = cut(fun, k, 1.0)
        assert jax.grad(lambda x, parts=(head, tail): run(parts, x))(1.0) == 14


def test_weak_types_static_arguments_and_literals():
    def fun(x, scale, mode, repeat=2):
        for _ in range(repeat):
            x = x * scale if mode == "scale" else x + scale
        return x, scale * 2, 3.0, None

    arguments = jnp.ones((2,), jnp.bfloat16), 0.5, "scale"
    expected = aspen(fun)(*arguments, repeat=3)
    for k in range(num_cuts(fun, *arguments, repeat=3)):
        head, tail = cut(fun, k, *arguments, repeat=3)
        crossed = head(*arguments, repeat=3)
        assert_like(tail(*map(np.asarray, crossed)), expected)  # as they come off a wire, where no weak type is left
    with pytest.raises(InputError, match="static argument 'scale', not 'shift'"):
        head(arguments[0], 0.5, "shift", repeat=3)


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_keys_cross_as_their_data(kind):
    def fun(key, x):
        one, two = jax.random.split(key)
        return x + jax.random.bits(one, x.shape, np.uint32), jax.random.key_data(two)

    arguments = jax.random.key(SEED, impl=kind), jnp.zeros(3, np.uint32)
    expected = fun(*arguments)
    for k in range(4):  # the key, then both of those that it is split into, then slices of them
        head, tail = cut(fun, k, *arguments)
        crossed = [np.asarray(item) for item in head(*arguments)]
        assert_like(tail(*crossed), expected)


def test_side_effects_happen_where_they_stand():
    seen = []

    def fun(x):
        jax.debug.callback(lambda value: seen.append(("first", float(value))), x, ordered=True)
        y = x * 2
        jax.debug.callback(lambda value: seen.append(("second", float(value))), y, ordered=True)
        return y + 1

    head, tail = cut(fun, 2, 1.0)
    crossed = head(3.0)
    jax.effects_barrier()
    assert seen == [("first", 3.0)]
    assert tail(*crossed) == 7
    jax.effects_barrier()
    assert seen == [("first", 3.0), ("second", 6.0)]


def test_objects_methods_and_partials():
    class Layer:
        def __init__(self, w):
            self.w = w

        @aspen
        def forward(self, x):
            return jnp.tanh(x @ self.w)

        def __call__(self, x):
            return jnp.sin(x @ self.w)

    layer = Layer(split_networks.normal(np.random.default_rng(SEED), 3, 3))
    x = jnp.ones((2, 3))
    for fun in (layer.forward, layer, jax.tree_util.Partial(lambda w, x: x @ w, layer.w), jax.jit(lambda x: x @ layer.w)):
        assert_like(run(cut(fun, 1, x), x), fun(x))
        assert [item.name for item in crossing(fun, 0, x)] == ["x"]


# What is refused


@pytest.mark.parametrize("k", [-1, 3, 1.5, True, "1", None, (), (1, 1), (2, 1), ScanStep(0, 0), ScanStep(7, 0)])
def test_there_is_no_such_cut(k):
    with pytest.raises(InputError, match=r"cut|scan"):
        cut(lambda x: jnp.sin(x) * x, k, jnp.ones(2))


def test_a_scan_has_so_many_steps():
    def fun(x):
        return lax.scan(lambda c, _: (c * 2, c), x, None, length=3)

    for step in (-1, 4, 0.5, True):
        with pytest.raises(InputError, match="has 3 steps"):
            cut(fun, ScanStep(0, step), 1.0)


def test_other_arguments_than_those_that_the_function_was_cut_for():
    x = jnp.ones((2, 3))
    head, tail = cut(lambda x: jnp.sin(x) @ x.T, 1, x)
    for wrong in (jnp.ones((3, 3)), jnp.ones((2, 3), jnp.int32), {"a": x}):
        with pytest.raises(InputError, match="was made for"):
            head(wrong)
    crossed = head(x)
    with pytest.raises(InputError, match="takes 2 arrays"):
        tail(*crossed[:1])
    with pytest.raises(InputError, match="was made for"):
        tail(crossed[0][:1], crossed[1])


def test_weights_must_be_there_to_be_held():
    f = aspen(lambda w, x: jnp.sin(x @ w) @ w, weights="w")
    shape, x = jax.ShapeDtypeStruct((3, 3), jnp.float32), jnp.ones((2, 3))
    assert [item.name for item in crossing(f, 1, shape, x)] == ["dot_general"]
    with pytest.raises(InputError, match="needs the weights w"):
        cut(f, 1, shape, x)
    assert len(cut(f, num_cuts(f, shape, x) - 1, shape, x)) == 2  # nobody behind that cut reads them


def two_layers(params, x, scale=1.0):
    return jnp.tanh(x @ params["a"]) @ params["b"] * scale


def weights(random):
    return {name: split_networks.normal(random, 4, 4) for name in "ab"}


def test_other_weights_than_those_of_the_cut_are_refused(either_mode):
    random = np.random.default_rng(SEED)
    old, new, x = weights(random), weights(random), split_networks.normal(random, 2, 4)
    f = aspen(two_layers, weights="params")
    head, tail = cut(f, 1, old, x)
    assert_like(tail(*head(old, x)), two_layers(old, x))
    copies = jax.tree.map(jnp.array, old)
    for _ in range(2):  # compared, then known
        assert_like(tail(*head(copies, x)), two_layers(old, x))
    # The head alone reads "a": with another one the result is that of the new model.
    mixed = old | {"a": new["a"]}
    assert_like(tail(*head(mixed, x)), two_layers(mixed, x))
    for _ in range(2):
        with pytest.raises(InputError, match=r"the weights params\.b are not those"):
            head(new, x)
        with pytest.raises(InputError, match=r"the weights params\.b are not those"):
            head(x=x, params=new)
    with pytest.raises(InputError, match="not those"):
        head.graph_inputs(new, x)
    with pytest.raises(InputError, match="not those"):
        head(f.prepare(new, x), x)
    assert_like(tail(*head(f.prepare(old, x), x)), two_layers(old, x))
    nearly = old | {"b": old["b"].at[3, 3].set(jnp.nextafter(old["b"][3, 3], 9.0))}
    with pytest.raises(InputError, match="not those"):
        head(nearly, x)
    with pytest.raises(InputError, match=r"was made for float32\[4,4\] as params\.b"):
        head(old | {"b": old["b"][:1]}, x)
    last = num_cuts(f, old, x) - 1  # behind it nobody holds weights
    assert_like(run(cut(f, last, old, x), new, x), two_layers(new, x))


def test_weights_that_are_traced_are_refused(either_mode):
    random = np.random.default_rng(SEED)
    params, x = weights(random), split_networks.normal(random, 2, 4)
    f = aspen(two_layers, weights="params")
    head, tail = cut(f, 1, params, x)
    for call in (
        lambda: jax.jit(head)(params, x),
        lambda: jax.grad(lambda params: tail(*head(params, x)).sum())(params),
        lambda: jax.vmap(head, in_axes=(0, None))(jax.tree.map(lambda w: w[None], params), x),
        lambda: jax.eval_shape(head, params, x),
        lambda: head.lower(params, x),
        lambda: head.trace(params, x),
        lambda: head.stream(params, x),
    ):
        with pytest.raises(InputError, match=r"are traced here.*close over them"):
            call()
    assert_like(tail(*jax.jit(lambda x: head(params, x))(x)), two_layers(params, x))


def test_arrays_of_numpy_may_change_after_the_cut(either_mode):
    random = np.random.default_rng(SEED)
    params, x = jax.tree.map(np.array, weights(random)), np.array(split_networks.normal(random, 2, 4))
    before = jax.tree.map(np.copy, params)
    offset = np.ones((2, 4), np.float32)

    def fun(params, x):
        return two_layers(params, x) + offset

    head, tail = cut(aspen(fun, weights=0), 1, params, x)
    expected = two_layers(before, x) + 1
    crossed = head(params, x)
    params["b"][:] = 0
    offset[:] = 100
    assert_like(tail(*crossed), expected)  # compiled after the change
    with pytest.raises(InputError, match="not those"):
        head(params, x)
    params["b"][:] = before["b"]
    assert_like(tail(*head(params, x)), expected)


def test_keys_and_numbers_among_weights(either_mode):
    def fun(weights, x):
        return x * weights["scale"] + jax.random.normal(weights["key"], x.shape)

    x = jnp.ones(3)
    old, new = ({"scale": scale, "key": jax.random.key(seed)} for scale, seed in ((2.0, 0), (3.0, 1)))
    head, tail = cut(aspen(fun, weights=0), 0, old, x)
    assert_like(tail(*head({"scale": 2.0, "key": jax.random.key(0)}, x)), fun(old, x))
    for wrong in (old | {"scale": 3.0}, old | {"key": new["key"]}):
        with pytest.raises(InputError, match="not those"):
            head(wrong, x)


def test_values_that_are_no_arrays_of_numbers():
    def outer(x):
        return cut(lambda y: jnp.sin(y) + x, 1, jnp.ones(2))

    with pytest.raises(InputError, match="closes over a value that is being traced"):
        jax.jit(outer)(1.0)

    def changes(x):
        ref = jax.new_ref(x)
        ref[...] = jnp.sin(x)
        return ref[...] * 2

    with pytest.raises(InputError, match="changes a value in place"):
        num_cuts(changes, 1.0)


def test_results_that_are_no_arrays_come_back_as_they_were():
    def function(x):
        return {"array": jnp.tanh(x) * 2, "name": "two", "function": jnp.sin}

    x = np.ones((4, 4), np.float32)
    for number in range(3):
        head, tail = cut(function, number, x)
        got = tail(*head(x))
        assert (got["name"], got["function"]) == ("two", jnp.sin)
        np.testing.assert_allclose(got["array"], np.tanh(x) * 2, rtol=1e-5)
