"""A `loop` op: turns of a body in one tile, beside jax.lax.scan."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aspen_jax
from aspen_jax import aspen
from aspen_jax.errors import EngineError, GraphFormatError
from aspen_jax.frontend import loops
from aspen_jax.ir.program import Operand
from aspen_jax.ops.attrs import Words
from aspen_jax.ops.loop import LOOP, LoopAttrs
from aspen_jax.ops.matmul import MATMUL
from tests import modes
from tests.tiled import check

WIDTH = 24


def normal(seed, *shape, dtype=np.float32):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.5).astype(dtype)


def cell(weights, carry, x):
    """A cell of an LSTM."""
    h, c = carry
    by_input, by_state, bias = weights
    i, f, g, o = jnp.split(x @ by_input + h @ by_state + bias, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def lstm(weights, xs, carry, **options):
    return lax.scan(functools.partial(cell, weights), carry, xs, **options)


def weights_of(width, seed=0):
    return normal(seed, width, 4 * width), normal(seed + 1, width, 4 * width), normal(seed + 2, 4 * width)


def of_lstm(turns, batch, width=WIDTH):
    return weights_of(width), normal(5, turns, batch, width), (normal(6, batch, width), normal(7, batch, width))


def gru(weights, xs, h):
    w, u = weights

    def step(h, x):
        gates = jax.nn.sigmoid(x @ w[:, : 2 * WIDTH] + h @ u[:, : 2 * WIDTH])
        z, r = jnp.split(gates, 2, axis=-1)
        new = jnp.tanh(x @ w[:, 2 * WIDTH :] + (r * h) @ u[:, 2 * WIDTH :])
        return z * h + (1 - z) * new, None

    return lax.scan(step, h, xs)[0]


def of_gru():
    return (normal(0, WIDTH, 3 * WIDTH), normal(1, WIDTH, 3 * WIDTH)), normal(2, 9, 3, WIDTH), normal(3, 3, WIDTH)


def counted(x):
    """A counter of integers, a running maximum, and what is neither read nor changed."""

    def step(carry, t):
        n, best, kept = carry
        return (n + 1, jnp.maximum(best, x[t % 4] * n), kept), (n, best.sum())

    return lax.scan(step, (0, jnp.zeros_like(x[0]), x[1]), jnp.arange(7))


def ranked(x):
    """Sorts, gathers, cumulative sums and reductions in a body."""

    def step(c, row):
        order = jnp.argsort(row)
        c = jnp.take(c, order) + jnp.cumsum(row) * 0.1
        return c, (order, c.max(), c > 0)

    return lax.scan(step, x[0], x)


def updated(x):
    """An array that is written at a place that moves."""

    def step(table, t):
        row = lax.dynamic_slice_in_dim(table, t, 1) * 2 + 1
        return lax.dynamic_update_slice_in_dim(table, row, (t + 1) % 5, 0), row[0, 0]

    return lax.scan(step, x, jnp.arange(9))


def counted_for(x):
    return lax.fori_loop(2, 9, lambda i, c: jnp.tanh(c * 1.5 + i), x)


def without_carries(x):
    return lax.map(lambda row: jnp.tanh(row).sum() * row, x)


def swapped(x, y):
    """Carries that change places, and one that is stacked as it is."""
    return lax.scan(lambda c, _: ((c[1], c[0]), c[0]), (x, y), None, length=5)


def until_small(x, w):
    return lax.while_loop(
        lambda s: (jnp.abs(s[0]).max() > 0.1) & (s[1] < 40), lambda s: (jnp.tanh(s[0] @ w) * 0.7, s[1] + 1), (x, 0)
    )


def never(x):
    return lax.while_loop(lambda c: c.sum() > 1e9, lambda c: c + 1, x)


def by_count(x, n):
    return lax.fori_loop(n - 3, n + 2, lambda i, c: jnp.sin(c) * i, x)


PROGRAMS = {
    "until small": (until_small, (normal(0, 3, 12), normal(1, 12, 12))),
    "never": (never, (normal(0, 6),)),
    "counted when called": (by_count, (normal(0, 7), np.int32(4))),
    "lstm": (lstm, of_lstm(9, 3)),
    "lstm of one row": (lstm, of_lstm(6, 1, 16)),
    "backwards": (functools.partial(lstm, reverse=True), of_lstm(5, 2)),
    "one turn": (lstm, of_lstm(1, 2)),
    "gru": (gru, of_gru()),
    "counted": (counted, (normal(0, 4, 5),)),
    "ranked": (ranked, (normal(0, 6, 17),)),
    "updated": (updated, (normal(0, 5, 3),)),
    "fori_loop": (counted_for, (normal(0, 4, 7),)),
    "without carries": (without_carries, (normal(0, 6, 40),)),
    "swapped": (swapped, (normal(0, 3, 3), normal(1, 3, 3))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_scan_is_one_op(name):
    function, arguments = PROGRAMS[name]
    assert "loop" in {op.family.name for op in aspen(function).graph(*arguments).program().ops}
    check(function, *arguments)


@pytest.mark.parametrize("seed", range(4))
def test_a_loop_of_unknown_length_ends_where_xla_ends_it(seed):
    x, w = normal(seed, 2, 9), normal(seed + 10, 9, 9)
    ours, theirs = (make(until_small)(x, w) for make in (aspen, jax.jit))
    assert ours[1] == theirs[1]
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-6)
    batched = [jax.vmap(make(until_small), (0, None))(np.stack([x, 0.01 * x]), w) for make in (aspen, jax.jit)]
    np.testing.assert_array_equal(batched[0][1], batched[1][1])


def test_a_loop_that_never_ends_is_ended():
    """A limit of time ends a run at a turn, and the worker is free again."""
    endless = aspen(lambda x: lax.while_loop(lambda c: c[0] < 1e9, lambda c: c * 0.5, x), strict=True)
    graph = endless.graph(np.ones(3, np.float32))
    with aspen_jax.limits(nanoseconds=50_000_000), pytest.raises(EngineError, match="50"):
        graph.run(np.ones(3, np.float32))
    np.testing.assert_array_equal(graph.run(np.full(3, 2e9, np.float32))[0], np.full(3, 2e9, np.float32))


# A program whose loop never ends for a count beyond int32's; a small one compiles it first.
_ENDLESS = """
import os, signal, sys, threading, time
import jax, jax.numpy as jnp
from jax import lax
from aspen_jax import aspen

def counted(limit, x):
    return lax.while_loop(lambda c: c[0] < limit, lambda c: (c[0] * 0 + 1, jnp.tanh(c[1]) * 1.5), (jnp.int32(0), x))

endless = jax.jit(aspen(counted, strict=True))
x = jnp.ones((8, 16))
jax.block_until_ready(endless(1, x))
"""


def run_endless(rest):
    """What a program prints of an endless loop on one worker, and the seconds that it takes to leave behind its last line."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _ENDLESS + rest],
        env={**os.environ, "ASPEN_NUM_WORKERS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=100)
    finally:
        process.kill()
    lines = out.splitlines()
    assert lines, err
    return lines[:-1], time.time() - float(lines[-1]), err


def test_ctrl_c_ends_a_loop_that_never_ends():
    """XLA says that the call failed, and Python's own error follows at once."""
    lines, seconds, err = run_endless("""
def press():
    global pressed
    pressed = time.time()
    os.kill(os.getpid(), signal.SIGINT)

threading.Timer(0.5, press).start()
try:
    try:
        jax.block_until_ready(endless(2, x))
    except Exception as error:
        assert "interrupted" in str(error), error
except KeyboardInterrupt:
    print("interrupted", time.time() - pressed < 1)
jax.block_until_ready(endless(1, x))
print(time.time(), flush=True)
""")
    assert lines == ["interrupted True"], err
    assert seconds < 20


def test_a_handler_of_the_users_does_not_end_a_loop():
    """A training program may note Ctrl-C, and end itself later."""
    lines, _, err = run_endless("""
noted = []
signal.signal(signal.SIGINT, lambda *_: noted.append(1))
count = lambda limit, x: lax.while_loop(lambda c: c[0] < limit, lambda c: (c[0] + 1, jnp.tanh(c[1])), (jnp.int32(0), x))
long = jax.jit(aspen(count, strict=True))
turns, seconds = 1000, 0
while seconds < 1.5:
    turns *= 2
    begin = time.perf_counter()
    jax.block_until_ready(long(turns, x))
    seconds = time.perf_counter() - begin
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
number, _ = jax.block_until_ready(long(turns, x))
print(int(number) == turns, bool(noted))
print(time.time(), flush=True)
""")
    assert lines == ["True True"], err


def test_a_loop_that_never_ends_holds_up_nobody():
    """Neither other calls, on one worker, nor the end of the process."""
    lines, seconds, err = run_endless("""
threading.Thread(target=lambda: endless(2, x), daemon=True).start()
time.sleep(0.3)
other = jax.jit(aspen(lambda a: jnp.tanh(a @ a) @ a, strict=True))
a = jnp.ones((256, 256)) * 0.01
begin = time.perf_counter()
for _ in range(10):
    jax.block_until_ready(other(a))
print(time.perf_counter() - begin < 20)
print(time.time(), flush=True)
""")
    assert lines == ["True"], err
    assert seconds < 20


def test_no_turn_at_all_stays_with_xla():
    function = aspen(lambda x: lax.scan(lambda c, _: (jnp.tanh(c), c), x, None, length=0))
    last, entries = function(normal(0, 3, 5))
    np.testing.assert_array_equal(last, normal(0, 3, 5))
    assert entries.shape == (0, 3, 5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
def test_narrow_floats_are_stored_after_each_turn(dtype):
    x = normal(0, 4, 33).astype(dtype)
    function = lambda x: lax.scan(lambda c, r: (c * 0.5 + r, c * r), x[0], x)  # noqa: E731
    for ours, theirs in zip(aspen(function)(x), jax.jit(function)(x), strict=True):
        np.testing.assert_allclose(np.asarray(ours, np.float32), np.asarray(theirs, np.float32), rtol=2e-2, atol=2e-2)


def test_nan_stays_where_it_is():
    weights, xs, (h, c) = of_lstm(6, 3)
    xs = xs.copy()
    xs[3, 1, 0] = np.nan
    ours, theirs = (np.asarray(make(lstm)(weights, xs, (h, c))[1]) for make in (aspen, jax.jit))
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    assert np.isnan(ours[3:, 1]).all()
    assert not np.isnan(np.delete(ours, 1, axis=1)).any()


@pytest.mark.parametrize("form", ["grad", "vmap", "vmap of weights", "jvp", "twice", "remat"])
def test_derivatives_and_batches(form):
    weights, xs, carry = arguments = of_lstm(*modes.sized((5, 2), (64, 4)), modes.sized(WIDTH, 64))

    def loss(*arguments):
        (h, c), ys = lstm(*arguments)
        return (ys**2).mean() + (h * c).mean()

    def under(function):
        if form == "grad":
            return jax.grad(function)(*arguments)
        if form == "remat":
            return jax.grad(jax.checkpoint(function))(*arguments)
        if form == "jvp":
            return jax.jvp(lambda x: function(weights, x, carry), (xs,), (xs,))
        if form == "twice":
            return jax.grad(lambda b: jax.grad(lambda b: function((*weights[:2], b), xs, carry))(b).sum())(weights[2])
        if form == "vmap":
            return jax.vmap(lambda x: function(weights, x, carry))(np.stack([xs, 2 * xs]))
        return jax.vmap(lambda u: function((weights[0], u, weights[2]), xs, carry))(np.stack([weights[1], 0.5 * weights[1]]))

    ours, theirs = (jax.tree.leaves(jax.jit(lambda make=make: under(make(loss)))()) for make in (aspen, lambda f: f))
    for got, want in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_what_is_known_before_the_loop_is_computed_before_it():
    """The product of all inputs is one, and the sum of weights is computed once."""
    weights, xs, carry = of_lstm(8, 2)

    def function(weights, xs, carry):
        return lstm((weights[0], weights[1] * 0.5 + weights[1].sum(), weights[2]), xs, carry)

    ops = aspen(function).graph(weights, xs, carry).program().ops
    (loop,) = (op for op in ops if op.family is LOOP)
    assert sum(op.family.name == "matmul" for op in loop.attrs.body.ops) == 1
    assert not {"reduce", "rows"} & {op.family.name for op in loop.attrs.body.ops}
    check(function, weights, xs, carry)


def nested(x):
    def turn(c, _):
        c = lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c * 1.1 + i), c)
        return lax.while_loop(lambda c: c.sum() > 1, lambda c: c * 0.5, c), c.sum()

    return lax.scan(turn, x, None, length=4)


@pytest.mark.parametrize("is_default", [False, True])
def test_loops_in_each_other_are_no_one_op_and_right(is_default, monkeypatch):
    if is_default:
        monkeypatch.setenv("ASPEN_DISABLE_PASSES", "")
    x = normal(0, 4, 8)
    for ours, theirs in zip(jax.jit(aspen(nested))(x), jax.jit(nested)(x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_kernel_of_a_user_is_no_part_of_a_loop(monkeypatch):
    monkeypatch.setattr(loops, "is_registered", lambda family: family.name == "sort")
    _, arguments = PROGRAMS["ranked"]

    def function(x):  # one that was never traced
        return ranked(x)

    assert "scan" in [item.primitive for item in aspen(function).explain(*arguments).fallbacks]
    for ours, theirs in zip(jax.tree.leaves(aspen(function)(*arguments)), jax.tree.leaves(function(*arguments)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def products_in_turns(function, *arguments):
    """How many products each loop of a graph has in its body."""
    ops = aspen(function).graph(*arguments).program().ops
    names = [[own.family.name for own in op.attrs.body.ops] for op in ops if op.family is LOOP]
    return [sum(name == "matmul" for name in own) for own in names]


def test_a_product_that_is_only_stacked_is_computed_behind_the_loop():
    w, output, xs, c = normal(0, 16, 16), normal(1, 16, 40), normal(2, 7, 3, 16), normal(3, 3, 16)

    def function(w, output, xs, c):
        def step(c, x):
            c = jnp.tanh(c @ w + x)
            return c, (jnp.exp(c @ output), c.sum())

        return lax.scan(step, c, xs)

    assert products_in_turns(function, w, output, xs, c) == [1]
    check(function, w, output, xs, c)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_product_that_is_only_added_to_a_carry_is_computed_behind_the_loop(reverse):
    """As in the gradient of a recurrent weight; the sum begins with the first carry."""
    w, total, xs, c = normal(0, 6, 5, 5), normal(1, 6, 5, 5), normal(2, 9, 6, 4, 5), normal(3, 6, 4, 5)

    def function(w, total, xs, c):
        def step(carries, x):
            c, total = carries
            new = jnp.tanh(jnp.matmul(c, w) + x)
            return (new, total + jnp.einsum("bij,bik->bkj", x, new)), new

        return lax.scan(step, (c, total), xs, reverse=reverse)

    assert products_in_turns(function, w, total, xs, c) == [1]
    check(function, w, total, xs, c)


def test_a_product_of_constants_alone_is_no_product_of_turns():
    """It is stacked, and what it reads is computed in the loop, too."""
    x, factors = normal(0, 5, 7), normal(1, 3)

    def function(x, factors):
        def step(count, factor):
            scaled = jnp.exp(x)
            return count + 1, (jnp.einsum("ai,aj->aij", scaled, scaled), scaled * factor)

        return lax.scan(step, jnp.zeros((), jnp.int32), factors)

    for ours, theirs in zip(*(jax.tree.leaves(make(function)(x, factors)) for make in (aspen, jax.jit)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("is_turned", [False, True])
def test_entries_and_constants_may_be_empty(is_turned):
    xs, empty = normal(0, 3, 4, 0, 3), normal(1, 5, 0)

    def function(xs, empty):
        xs = xs.transpose(0, 3, 2, 1) if is_turned else xs
        empty = empty.T if is_turned else empty
        return lax.scan(lambda c, x: (c + x.sum() + empty.sum() + 1, c), jnp.zeros((2,)), xs)

    for ours, theirs in zip(*(jax.tree.leaves(make(function)(xs, empty)) for make in (aspen, jax.jit)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("reverse", [False, True])
def test_several_products_of_a_turn_in_parts_of_a_carry_are_computed_behind_the_loop(reverse):
    """As in the gradient of a weight of which a cell multiplies two parts: each is moved, padded and added."""
    total, xs, c = normal(0, 5, 12), normal(1, 9, 4, 5), normal(2, 4, 4)

    def function(total, xs, c):
        def step(carries, x):
            c, total = carries
            new = jnp.tanh(c + x[:, 1:])
            total = total + lax.pad((new.T @ x).T, np.float32(0), ((0, 0, 0), (0, 8, 0)))
            total = lax.pad(x.T @ jnp.concatenate([new, c], 1), np.float32(0), ((0, 0, 0), (4, 0, 0))) + total
            return (new, total), None

        return lax.scan(step, (c, total), xs, reverse=reverse)

    assert products_in_turns(function, total, xs, c) == [0]
    check(function, total, xs, c)


ONE_COLUMN = ((0, 0, 0), (1, 0, 0))


def test_a_sum_that_a_turn_reads_or_adds_more_to_stays_in_the_loop():
    total, xs = normal(0, 5, 5), normal(1, 7, 4, 5)

    def read(total, xs):
        return lax.scan(lambda total, x: (total + x.T @ x, total.sum()), total, xs)

    def more(total, xs):
        return lax.scan(lambda total, x: (total + x.T @ x + jnp.tanh(x[:1]), None), total, xs)

    def padded_by_ones(total, xs):
        return lax.scan(lambda total, x: (total + lax.pad(x.T @ x[:, :4], np.float32(1), ONE_COLUMN), None), total, xs)

    for function in (read, more, padded_by_ones):
        check(function, total, xs)


def test_what_decays_to_denormal_numbers_is_flushed_as_in_loops_of_xla():
    c = np.float32([1e-30, 1e-38, 1.0])

    def function(c):
        return lax.scan(lambda c, _: (c * 0.1, c), c, None, length=20)

    ours, theirs = (make(function)(c)[1] for make in (aspen, jax.jit))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=0)
    assert not ours[-1, 0], "1e-49 is no normal number"


def test_a_loop_keeps_how_many_turns_xla_writes_out():
    weights, xs, carry = of_lstm(8, 2)
    (scan,) = jax.make_jaxpr(functools.partial(lstm, unroll=4))(weights, xs, carry).jaxpr.eqns
    moved = loops.with_products_outside(scan)
    assert moved is not None
    assert [own.params["unroll"] for own in moved.jaxpr.eqns if own.primitive.name == "scan"] == [4]


def test_products_stay_in_a_loop_where_those_of_all_turns_take_much_memory():
    """A number for each turn would become a row of 512."""
    w = normal(0, 1, 512)

    def function(w, xs, c):
        return lax.scan(lambda c, x: (jnp.tanh(c * 0.5 + x @ w), None), c, xs)[0]

    for turns, is_inside in ((64, False), (40_000, True)):
        jaxpr = jax.make_jaxpr(function)(w, normal(1, turns, 1, 1), normal(2, 1, 512))
        (scan,) = jaxpr.jaxpr.eqns
        assert (loops.with_products_outside(scan) is None) == is_inside


def test_long_turns_run_on_all_workers_and_what_xla_runs_stays_there():
    w = normal(0, 1024, 1024)
    by_all = aspen(lambda x: lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=3)[0]).explain(normal(1, 1024, 1024))
    assert [item.reason for item in by_all.fallbacks] == ["control flow; bodies that run as tiles: 1"]
    special = aspen(lambda x: lax.scan(lambda c, _: (lax.lgamma(c), None), x, None, length=3)[0]).explain(normal(1, 2, 2))
    assert [item.primitive for item in special.fallbacks] == ["scan"]


def wide_lstm(batch):
    weights = [normal(seed, *shape) / 8 for seed, shape in enumerate(((256, 1024), (256, 1024), (1024,)))]
    return weights, normal(5, 20, batch, 256), (normal(6, batch, 256), normal(7, batch, 256))


@pytest.mark.parametrize("batch", [1, 8])
def test_idle_workers_share_wide_parts_of_a_turn(batch):
    arguments = wide_lstm(batch)
    expected = jax.tree.leaves(jax.jit(lstm)(*arguments))
    before = aspen_jax.num_workers()
    found = []
    try:
        for workers in (1, 2, 5):
            aspen_jax.set_num_workers(workers)
            function = jax.jit(aspen(lstm))
            (loop,) = (op for op in aspen(lstm).graph(*arguments).program().ops if op.family is LOOP)
            assert [axis for op, axis, _ in loop.attrs.parts() if op.family is MATMUL] == [1]
            found += [list(map(np.asarray, jax.tree.leaves(function(*arguments)))) for _ in range(20)]
    finally:
        aspen_jax.set_num_workers(before)
    for ours in found:
        for value, first, theirs in zip(ours, found[0], expected, strict=True):
            np.testing.assert_array_equal(value, first)  # whoever computed which share
            np.testing.assert_allclose(value, theirs, rtol=1e-4, atol=1e-5)


def test_the_words_say_what_the_attributes_do(tmp_path):
    function, arguments = PROGRAMS["lstm"]
    graph = aspen(function).graph(*arguments)
    (loop,) = (op for op in graph.program().ops if op.family is LOOP)
    again = LoopAttrs.from_words(Words(loop.attrs.to_words()))
    assert again == loop.attrs
    assert hash(again) == hash(loop.attrs)
    graph.save(tmp_path / "lstm.aspen")
    loaded = type(graph).load(tmp_path / "lstm.aspen")
    loaded.verify()
    flat = jax.tree.leaves(arguments)
    for ours, theirs in zip(loaded.run(*flat), jax.tree.leaves(jax.jit(function)(*arguments)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_body_that_does_not_fit_is_refused():
    function, arguments = PROGRAMS["lstm"]
    (loop,) = (op for op in aspen(function).graph(*arguments).program().ops if op.family is LOOP)
    body = loop.attrs.body
    LOOP.check(loop)
    for changes, message in (
        ({"turns": 8}, "inputs of a loop"),
        ({"num_carries": 9}, "inputs of a loop"),
        ({"num_constants": -1}, "constants"),
        ({"shared_axes": (0,), "shared_units": (8,)}, "how they are shared"),
        ({"shared_axes": (2,) * len(body.ops), "shared_units": (8,) * len(body.ops)}, "along axis 2"),
        ({"shared_axes": (0,) * len(body.ops), "shared_units": (0,) * len(body.ops)}, "in multiples of 0"),
        ({"body": body.replace(outputs=(Operand.whole(body.inputs[0]), *body.outputs[1:]))}, "outputs of a loop"),
        ({"body": body.replace(outputs=(body.outputs[0],) * len(body.outputs))}, "loop"),
        ({"body": body.replace(constants=((body.inputs[0], np.zeros(body.inputs[0].shape, np.float32)),))}, "constants"),
    ):
        with pytest.raises(ValueError, match=message):
            LOOP.check(loop.replace(attrs=dataclasses.replace(loop.attrs, **changes)))


def test_words_of_strangers_are_refused():
    function, arguments = PROGRAMS["counted"]
    graph = aspen(function).graph(*arguments)
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        params = graph.params.copy()
        params[rng.integers(len(params))] = rng.choice([-1, 0, 1, 2, 7, 1 << 40])
        try:
            dataclasses.replace(graph, params=params).verify()
        except GraphFormatError:
            refused += 1
    assert refused > 20
