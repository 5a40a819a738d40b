"""What XLA does as fast is left to it: the amounts of work on both sides, the decision, and what it means for users."""

import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core

from aspen_jax import aspen
from aspen_jax.frontend import trace as frontend
from aspen_jax.frontend.partition import Tileable
from aspen_jax.lowering.compile import Options, compile_jaxpr
from aspen_jax.ops.loop import LOOP
from aspen_jax.targets.cpu import choice, xla_cost
from aspen_jax.targets.cpu import tile_cost as estimate
from aspen_jax.targets.cpu.choice import Evidence, Rates, of_machine, rates
from aspen_jax.targets.cpu.target import CpuTarget
from benchmarks.chooser.fit import fitted
from benchmarks.chooser.parts import GENERATORS, Draw, generated
from benchmarks.chooser.timing import Sample, evidence_of
from tests.random_functions import random_function

pytestmark = pytest.mark.usefixtures("choosing")

ROOT = Path(__file__).parents[3]


def normal(*shape):
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), np.float32)


def amounts(function, *arguments, num_threads=2, is_body=False):
    jaxpr = jax.make_jaxpr(function)(*arguments)
    trace = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts))
    (part,) = trace.steps
    assert isinstance(part, Tileable)
    outputs = [operand.value for operand in part.program.outputs]
    return xla_cost.of_part(part.items, outputs, num_threads, is_body=is_body)


def convolutions(x, kernel):
    for _ in range(4):
        x = jax.nn.relu(lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    return x


IMAGES = normal(1, 56, 56, 64), normal(3, 3, 64, 64) * 0.05


def test_a_small_function_is_left_to_xla_and_says_why():
    @aspen
    def small(x):
        return jnp.tanh(x) + 1

    x = normal(64)
    explanation = small.explain(x)
    assert not explanation.parts
    assert [fallback.primitive for fallback in explanation.fallbacks] == ["tanh", "add"]
    assert all("tiles would not clearly win: about" in fallback.reason for fallback in explanation.fallbacks)
    assert "custom_call" not in jax.jit(small).lower(x).as_text()
    np.testing.assert_allclose(small(x), np.tanh(x) + 1, rtol=1e-5)


def test_a_network_is_tiled_as_a_whole():
    explanation = aspen(convolutions).explain(*IMAGES)
    assert len(explanation.parts) == 1
    assert explanation.in_tiles == 1


def test_strict_graph_and_the_environment_make_no_choice(monkeypatch):
    def small(x):
        return jnp.tanh(x) + 1

    x = normal(64)
    assert "aspen_run" in jax.jit(aspen(small, strict=True)).lower(x).as_text()
    assert len(aspen(small, strict=True).explain(x).parts) == 1
    np.testing.assert_allclose(aspen(small).graph(x).run(x)[0], np.tanh(x) + 1, rtol=1e-5)
    monkeypatch.setenv("ASPEN_DISABLE_PASSES", "choice")
    assert "aspen_run" in jax.jit(aspen(small)).lower(x).as_text()


def test_the_margin_decides():
    of_part = Evidence({"loops": 1.0}, {"tiles": 1.0})
    for xla, tiles, is_chosen in (
        (1e4, 0.49e4, True),
        (1e4, 0.51e4, False),
        (1e5, 0.65e5, True),
        (1e5, 0.72e5, False),
        (1e7, 0.94e7, True),
        (1e7, 0.96e7, False),
    ):
        reason = of_part.why_left_to_xla(Rates({"loops": xla}, {"tiles": tiles}))
        assert (reason is None) == is_chosen
    assert of_part.why_left_to_xla(Rates({"loops": 2e6}, {"tiles": 3e3})) is None
    assert of_part.why_left_to_xla(Rates({"loops": 3e3}, {"tiles": 2e6})) == (
        "tiles would not clearly win: about 2 ms, and 3 us in XLA"
    )


def test_equations_around_a_fallback_are_decided_part_by_part():
    @aspen
    def mixed(x, kernel):
        y = convolutions(x, kernel)
        return lax.lgamma(y.sum((1, 2))) * 2

    explanation = mixed.explain(*IMAGES)
    assert len(explanation.parts) == 1
    assert {fallback.primitive for fallback in explanation.fallbacks} >= {"lgamma", "mul"}
    expected = jax.jit(mixed.__wrapped__)(*IMAGES)
    np.testing.assert_allclose(mixed(*IMAGES), expected, rtol=1e-3, atol=1e-3)


def test_a_loop_of_little_work_is_xlas_and_of_much_is_tiled(monkeypatch):
    machines = json.loads((ROOT / "aspen_jax/targets/cpu/rates.json").read_text())
    monkeypatch.setattr(choice, "rates", lambda: of_machine(machines, "amx"))  # where XLA's `tanh` is faster

    def loop(x, kernel):
        return lax.fori_loop(0, 3, lambda _, x: convolutions(x, kernel) * 0.1, x)

    (loop_left,) = aspen(loop).explain(*IMAGES).fallbacks
    assert "bodies that run as tiles: 1" in loop_left.reason
    np.testing.assert_allclose(aspen(loop)(*IMAGES), jax.jit(loop)(*IMAGES), rtol=1e-3, atol=1e-5)

    def small(x):
        return lax.fori_loop(0, 1000, lambda _, x: jnp.tanh(x * 1.1), x)

    (loop_left,) = aspen(small).explain(normal(1000)).fallbacks
    assert loop_left.reason == "control flow over too little work for tiles"
    (loop_left,) = aspen(small).explain(normal(12_000)).fallbacks
    assert "bodies stay with XLA: tiles would not clearly win" in loop_left.reason


def test_the_reason_names_the_predicted_times_of_a_body_that_stays_with_xla(monkeypatch):
    def loop(x, kernel):
        return lax.fori_loop(0, 3, lambda _, x: convolutions(x, kernel) * 0.1, x)

    call = "calls in a loop"
    monkeypatch.setattr(choice, "rates", lambda: Rates({call: 1e6}, {call: 2e6}))
    (left,) = aspen(loop).explain(*IMAGES).fallbacks
    assert left.reason == ("control flow whose bodies stay with XLA: tiles would not clearly win: about 2 ms, and 1 ms in XLA")


def test_a_body_with_effects_is_left_for_these_and_not_for_its_work():
    def loop(x, kernel):
        def body(_, x):
            jax.debug.print("{}", x[0, 0, 0, 0])
            return convolutions(x, kernel) * 0.1

        return lax.fori_loop(0, 3, body, x)

    reasons = [item.reason for item in aspen(loop, strict=False).explain(*IMAGES).fallbacks]
    assert not any("too little" in reason for reason in reasons)


def _in_a_loop(kind, body):
    if kind == "scan":
        return lambda x, w: lax.scan(lambda x, _: (body(x, w), None), x, None, length=3)[0]
    if kind == "fori_loop":
        return lambda x, w: lax.fori_loop(0, 3, lambda _, x: body(x, w), x)
    if kind == "while_loop":
        return lambda x, w: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, body(s[1], w)), (0, x))[1]
    return lambda x, w: lax.cond(w.sum() > -1e9, lambda: body(x, w), lambda: x)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("kind", ["scan", "fori_loop", "while_loop", "cond"])
def test_a_convolution_in_a_body_is_tiled_where_xla_runs_plain_loops(kind, dtype):
    def body(x, kernel):
        return jnp.tanh(lax.conv_general_dilated(x, kernel, (1, 1), "SAME"))

    x, kernel = (item.astype(dtype) for item in (normal(1, 32, 14, 14), normal(32, 32, 3, 3) * 0.1))
    function = _in_a_loop(kind, body)
    explanation = aspen(function).explain(x, kernel)
    assert len(explanation.parts) == 1
    reasons = [item.reason for item in explanation.fallbacks]
    is_one_op = not reasons and kind != "cond"  # one worker runs all turns of a loop
    assert is_one_op or "control flow; bodies that run as tiles: 1" in reasons
    ours, theirs = aspen(function)(x, kernel), jax.jit(function)(x, kernel)
    tolerance = 1e-4 if dtype == np.float32 else 3e-2
    np.testing.assert_allclose(ours.astype(np.float32), theirs.astype(np.float32), atol=tolerance)


def test_xla_runs_a_body_s_convolution_as_plain_loops_unless_it_is_nhwc():
    x, kernel = normal(1, 14, 14, 32), normal(3, 3, 32, 32)
    flops = 2 * 14 * 14 * 32 * 9 * 32

    def of_layout(is_last):
        numbers = ("NHWC", "HWIO", "NHWC") if is_last else ("NCHW", "OIHW", "NCHW")
        return lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=numbers)

    images, kernels = x.transpose(0, 3, 1, 2), kernel.transpose(3, 2, 0, 1)
    assert amounts(of_layout(False), images, kernels, is_body=True)["convolution flops one by one"] * 2 == flops
    assert amounts(of_layout(False), images, kernels)["convolution flops"] * 2 == flops
    assert amounts(of_layout(True), x, kernel, is_body=True)["convolution flops"] * 2 == flops


def _gates(w, x):
    """The kernels are joined in each turn, as flax's LSTM does."""
    kernel = jnp.concatenate([w, w * 2, w + 1, w - 1], -1)
    return jnp.tanh(x @ kernel).reshape(x.shape[0], -1, x.shape[1]).mean(1)


@pytest.mark.parametrize("kind", ["scan", "fori_loop", "while_loop"])
def test_what_is_the_same_in_each_turn_stays_outside_of_the_call(kind, monkeypatch):
    monkeypatch.setenv("ASPEN_DISABLE_PASSES", "choice")

    def loop(w, x):
        if kind == "scan":
            return lax.scan(lambda x, _: (_gates(w, x), x.sum()), x, None, length=3)
        if kind == "fori_loop":
            return lax.fori_loop(0, 3, lambda _, x: _gates(w, x), x)
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, _gates(w, s[1])), (0, x))

    w, x = normal(64, 64) * 0.1, normal(8, 64)
    jaxpr = jax.make_jaxpr(loop)(w, x)
    compiled = compile_jaxpr(jaxpr, Options())
    (part,) = compiled.parts
    (turns,) = (op for op in part.program.ops if op.family is LOOP)
    assert "concatenate" not in {op.family.name for op in turns.attrs.body.ops}
    # While a graph is traced under x64 or not, the counter's dtype is jax's.
    for ours, theirs in zip(jax.tree.leaves(aspen(loop)(w, x)), jax.tree.leaves(jax.jit(loop)(w, x)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    if kind == "scan":
        gradient = jax.grad(lambda w, x: aspen(loop)(w, x)[0].sum())(w, x)
        np.testing.assert_allclose(gradient, jax.grad(lambda w, x: loop(w, x)[0].sum())(w, x), rtol=1e-4, atol=1e-5)
        batch = jax.vmap(aspen(loop), (None, 0))(w, jnp.stack([x, x * 2]))[0]
        np.testing.assert_allclose(batch[1], loop(w, x * 2)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_random_functions_agree_whatever_is_chosen(seed):
    function, arguments = random_function(7000 + seed)
    for ours, theirs in zip(jax.jit(aspen(function))(*arguments), jax.jit(function)(*arguments), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def test_elements_are_one_loop():
    x = normal(100, 1000)
    found = amounts(lambda x, y: jnp.tanh(x * 2 + y) - jnp.abs(x), x, x[0])
    assert found["loops"] == 1
    assert found["simple"] * 2 == 4 * x.size  # on two threads: mul, add, abs, sub
    assert found["tanh"] * 2 == x.size
    assert found["bytes"] * 2 == 2 * x.nbytes + 4000


def test_a_dear_function_that_two_loops_read_is_one_of_its_own():
    x = normal(64, 32)

    def rows_and_columns(function):
        def reduced(x):
            y = function(x)
            return y.sum(1), y.max(0)

        return reduced

    found = amounts(rows_and_columns(jnp.exp), x)
    assert found["loops"] == 3
    assert found["exp"] == x.size
    assert amounts(rows_and_columns(lambda x: x + 1), x)["loops"] == 2


def test_sums_along_rows_are_one_by_one():
    x = normal(64, 32)
    assert amounts(lambda x: (x * 2).sum(1), x)["reduced rows"] == x.size
    found = amounts(lambda x: (x * 2).sum(0), x)
    assert found["reduced columns"] == x.size
    assert "simple one by one" not in found
    assert amounts(lambda x: x.argmax(1), x)["compared"] == x.size


def test_products_and_convolutions_count_flops():
    x, w = normal(64, 32), normal(32, 128)
    found = amounts(lambda x, w: x.reshape(32, 2, 32).reshape(64, 32) @ w + 1, x, w)
    assert found["product flops"] == 2 * 64 * 32 * 128
    assert found["products"] == found["loops"] == 1
    assert amounts(lambda x, w: x @ w, x[:1], w)["vector product flops"] == 2 * 32 * 128
    images, kernel = IMAGES
    found = amounts(lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME"), images.transpose(0, 3, 1, 2), kernel.T)
    assert found["convolution flops"] * 2 == 2 * 56 * 56 * 64 * 9 * 64
    assert found["packed kernels"] * 2 == 64 * 9 * 64


@pytest.mark.parametrize("has_units", [False, True])
def test_products_of_bfloat16_are_the_matrix_units_where_xla_uses_them(has_units, monkeypatch):
    monkeypatch.setattr(xla_cost, "_has_matrix_units", lambda: has_units)
    matrix, row = jnp.ones((256, 256), jnp.bfloat16), jnp.ones((1, 256), jnp.bfloat16)
    flops = 2.0 * 256**3

    of_product = amounts(jnp.matmul, matrix, matrix)
    assert of_product.get("matrix unit flops", 0) == (flops / 2 if has_units else 0)
    assert of_product.get("product flops", 0) == (0 if has_units else flops / 2)
    assert ("narrow sides" in of_product) != has_units, "XLA converts what it gives to no unit"
    of_row = amounts(jnp.matmul, row, matrix)
    assert "matrix unit flops" not in of_row
    assert of_row["narrow sides"] == 256**2 + 256


def test_products_of_groups_take_all_groups_in_xla():
    x, w, sizes = normal(64, 32), normal(4, 32, 128), jnp.array([10, 20, 0, 34])
    found = amounts(lax.ragged_dot, x, w, sizes)
    assert found["product flops"] * 2 == 4 * 2 * 64 * 32 * 128
    assert found["simple"] * 2 == 4 * 4 * 64 * 32


def test_large_loops_take_all_threads():
    assert "loops of threads" not in amounts(lambda x: x + 1, normal(100, 100))
    assert amounts(lambda x: x + 1, normal(1000, 1000))["loops of threads"] == 1
    assert "loops of threads" not in amounts(lambda x: x + 1, normal(1000, 1000), num_threads=1)


def test_loops_that_do_not_wait_for_each_other_start_threads_once():
    def update(params, moments, gradients):
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
        return jax.tree.map(lambda p, m: p - 0.01 * m, params, moments), moments

    arrays = [normal(400, 400) for _ in range(20)]
    found = amounts(update, arrays, arrays, arrays)
    assert found["loops"] == 40
    assert found["loops of threads"] == 2  # parameters wait for moments
    # All of them read memory with all threads.
    assert found["bytes of memory in threads"] == 3 * 20 * arrays[0].nbytes
    assert not found["bytes of memory"]
    x, w = normal(1, 4000), normal(4000, 4000)
    assert amounts(lambda x, w: x @ w, x, w)["bytes of memory"] > w.nbytes

    square = normal(700, 700)
    assert amounts(lambda x: jnp.tanh(jnp.tanh(x @ x) @ x), square)["loops of threads"] == 2


def test_a_product_by_few_columns_first_is_moved_only_where_xla_moves_it():
    kernel, images = normal(3, 3), normal(1, 3, 128, 128)
    assert "transposed" not in amounts(lambda k, x: jnp.tensordot(k, x, [[0], [1]]), kernel, images)
    assert amounts(lambda k, x: jnp.tensordot(k, x, [[0], [1]]), kernel, normal(8, 3, 64, 64))["transposed"] == 8 * 3 * 64 * 64
    # The result of one product is swapped by swapping its sides.
    assert "loops" not in amounts(lambda k, x: (k @ x.T).T, kernel, normal(500, 3))
    assert "loops" not in amounts(lambda k, x: jnp.einsum("bchw,cd->bdhw", x, k), kernel, images)


def test_amounts_of_a_graph():
    def function(x, w):
        return jnp.tanh(x @ w) * 2

    jaxpr = jax.make_jaxpr(function)(normal(64, 32), normal(32, 100))
    compiled = compile_jaxpr(jaxpr, Options(target=CpuTarget.here(1), chooses=False))
    (part,) = compiled.parts
    found = estimate.amounts(part.program, part.graph, 1)
    assert found["ops"] == len(part.program.ops)
    assert found["matmul flops"] == 2 * 64 * 32 * 100
    assert found["matmul idle flops"] == found["matmul flops"] * 28 / 100
    assert found["tanh"] == found["instruction"] == 64 * 100


def test_of_a_table_what_is_gathered_is_read():
    table, tokens = normal(20_000, 512), jnp.arange(8)

    def embed(table, tokens):
        return jnp.tanh(table[tokens] @ jnp.ones((512, 512)))

    assert "bytes of memory" not in amounts(embed, table, tokens)
    (part,) = compile_jaxpr(jax.make_jaxpr(embed)(table, tokens), Options(target=CpuTarget.here(1), chooses=False)).parts
    found = estimate.amounts(part.program, part.graph, 1)
    assert "bytes of memory" not in found
    assert found["far bytes"] < table.nbytes / 10
    # Where a product reads the same table, all of it counts, once.
    found = amounts(lambda table, tokens: embed(table, tokens) @ table.T, table, tokens)
    assert found["bytes of memory"] == pytest.approx(table.nbytes, rel=0.01)


def test_every_amount_has_a_rate():
    known = rates()
    for part in itertools.chain(generated(len(GENERATORS), 11), generated(len(GENERATORS), 12)):
        found = evidence_of(part)
        if found is not None:
            assert found.xla.keys() <= known.xla.keys(), part.kind
            assert found.tiles.keys() <= known.tiles.keys(), part.kind
    assert all(rate >= 0 for rate in (*known.xla.values(), *known.tiles.values()))


def test_generated_parts_are_the_same_for_a_seed():
    one, other = (next(iter(generated(1, 5))) for _ in range(2))
    for ours, theirs in zip(jax.tree.leaves(one.arguments), jax.tree.leaves(other.arguments), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert {GENERATORS[kind](Draw(3)).kind for kind in GENERATORS} == set(GENERATORS)


def test_a_fit_finds_the_rates_that_made_the_times():
    true = Rates({"calls": 5e3, "loops": 700.0, "bytes": 0.05}, {"calls": 2e4, "tiles": 2e3})
    random = np.random.default_rng(1)
    samples = []
    for number in range(60):
        xla = {"calls": 1.0, "loops": float(random.integers(1, 9)), "bytes": float(random.integers(10**6))}
        tiles = {"calls": 1.0, "tiles": float(random.integers(1, 40))}
        xla_ns, tiles_ns = Evidence(xla, tiles).nanoseconds(true)
        disturbed = 5 if number % 20 == 7 else 1
        samples.append(Sample("made", number, 1, xla_ns * disturbed, tiles_ns * disturbed, xla, tiles, 0.0))
    found = fitted(samples, Rates({}, {}))
    for ours, theirs in ((found.xla, true.xla), (found.tiles, true.tiles)):
        assert ours == pytest.approx(theirs, rel=0.1)


def test_rates_are_of_the_machine_or_of_the_first_that_has_them():
    machines = {
        "avx512": {"xla": {"loops": 1.0, "bytes": 2.0}, "tiles": {}},
        "amx": {"xla": {"loops": 3.0}, "tiles": {"ops": 4.0}},
    }
    assert of_machine(machines, "amx") == Rates({"loops": 3.0, "bytes": 2.0}, {"ops": 4.0})
    assert of_machine(machines, "avx512") == of_machine(machines, "avx2") == Rates({"loops": 1.0, "bytes": 2.0}, {"ops": 4.0})
    assert rates() is rates()
