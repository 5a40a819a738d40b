"""The engine through its two doors: the custom call, and `_engine.Plan`. The graphs are written by hand, byte arrays and all."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from aspen_jax import _engine, aspen, runtime
from aspen_jax.errors import AspenError, EngineError, GraphFormatError, InputError
from aspen_jax.graph import graph_format
from aspen_jax.ir.dtypes import DTYPE_NUMBERS
from aspen_jax.ops.block_program import BlockProgram, Instruction
from tests.rotation import examples
from tests.threads import at_once

SUM = BlockProgram(2, (), (Instruction("add_f", (0, 1)),), 2)
COPY = BlockProgram(1, (), (), 0)
TWO_AND_A_HALF = BlockProgram(0, (int(np.float32(2.5).view(np.int32)),), (), 0)


def block_graph(program: BlockProgram, shape: Sequence[int], dtype: str = "float32", splits: Sequence[int] = ()) -> bytes:
    """A graph of one block op on `program.num_inputs` operands, with tiles cut at `splits` along the first dimension."""
    rank, number = len(shape), DTYPE_NUMBERS[np.dtype(dtype)]
    count = program.num_inputs
    edges = [0, *sorted({split for split in splits if rank and 0 < split < shape[0]}), shape[0] if rank else 1]
    boxes = [[[lo, *[0] * (rank - 1)], [hi, *shape[1:]]] if rank else [[], []] for lo, hi in itertools.pairwise(edges)]
    if 0 in shape:
        boxes = []
    view = [rank, rank, *shape, *[0] * rank, *(word for axis, extent in enumerate(shape) for word in (axis, 1, extent))]
    params = [1, *program.to_words()]
    arrays: list[Sequence[int]] = [
        list(b"block\0by hand\0"),
        [1, count, 1, count + 1, 1, len(boxes), 0, 0],
        [word for value in range(count + 1) for word in (value, 0, number, rank)],
        [*shape] * (count + 1),
        range(count),
        [count],
        [0, count, count, len(params), 0],
        [word for value in range(count) for word in (value, *view)],
        params,
        [0] * len(boxes),
        [word for box in boxes for corner in box for word in corner],
        [0] * len(boxes),
        [],
        [1000] * len(boxes),
    ]
    return graph_format.encode([(np.array(array, np.int64), [0]) for array in arrays])


def call(graph: bytes, shape: Sequence[int], dtype: str, *operands: np.ndarray) -> np.ndarray:
    """The graph as a custom call."""
    result = jax.ShapeDtypeStruct(tuple(shape), np.dtype(dtype))
    return np.asarray(runtime.engine_call(np.frombuffer(graph, np.uint8), [result], *operands)[0])


def normal(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).normal(size=shape), np.float32)


@examples(40)
@hypothesis.given(st.lists(st.integers(0, 9), max_size=4), st.lists(st.integers(0, 9), max_size=4))
def test_both_doors_give_the_sum_for_any_shape_and_cut(shape: list[int], splits: list[int]) -> None:
    graph, a, b = block_graph(SUM, shape, splits=splits), normal(shape, 1), normal(shape, 2)
    np.testing.assert_array_equal(call(graph, shape, "float32", a, b), a + b)
    (result,) = _engine.Plan(graph).run([a, b])
    assert result.shape == tuple(shape)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, a + b)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float32"])
def test_every_dtype_of_the_block_kernel_passes_through(dtype: str) -> None:
    array = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 120, (7, 33)).astype(dtype)
    graph = block_graph(COPY, array.shape, dtype, splits=[3])
    np.testing.assert_array_equal(call(graph, array.shape, dtype, array), array)
    np.testing.assert_array_equal(_engine.Plan(graph).run([array])[0], array)


def test_a_graph_without_operands_runs() -> None:
    graph = block_graph(TWO_AND_A_HALF, (5, 3))
    np.testing.assert_array_equal(call(graph, (5, 3), "float32"), np.full((5, 3), 2.5, np.float32))
    np.testing.assert_array_equal(_engine.Plan(graph).run([])[0], np.full((5, 3), 2.5, np.float32))


def test_a_plan_tells_what_it_takes_and_gives() -> None:
    plan = _engine.Plan(block_graph(SUM, (6, 2), splits=[1, 4]))
    assert plan.operands == [((6, 2), np.dtype(np.float32))] * 2
    assert plan.results == [((6, 2), np.dtype(np.float32))]
    assert (plan.num_tiles, plan.num_ops, plan.total_cost, plan.workspace_bytes) == (3, 1, 3000, 0)


def test_a_plan_reads_arrays_that_are_not_contiguous_or_not_of_numpy() -> None:
    plan = _engine.Plan(block_graph(SUM, (6, 2)))
    a, b = normal((2, 6)).T, normal((12, 2))[::-2]
    np.testing.assert_array_equal(plan.run([a, jax.numpy.asarray(b)])[0], a + b)


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ([normal((6, 2))], "2 operands, but got 1"),
        ([normal((6, 2)), normal((2, 6))], r"operand 1 is float32\[2,6\], but the graph was made for float32\[6,2\]"),
        ([normal((6, 2)), normal((6,))], r"operand 1 is float32\[6\]"),
        ([np.zeros((6, 2), np.int32), normal((6, 2))], r"operand 0 is int32\[6,2\]"),
        ([np.zeros((6, 2), ">f4"), normal((6, 2))], r"operand 0 is >f4\[6,2\]"),
        (["six by two", normal((6, 2))], r"operand 0 is <U10\[\]"),
    ],
)
def test_a_plan_refuses_other_arrays(operands: list[np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _engine.Plan(block_graph(SUM, (6, 2))).run(operands)


@pytest.mark.parametrize(
    ("shape", "dtype", "operands", "message"),
    [
        ((6, 2), "float32", [normal((6, 2))], "2 operands, but got 1"),
        ((6, 2), "float32", [normal((6, 2)), normal((2, 6))], r"operand 1 is float32\[2,6\], but .* float32\[6,2\]"),
        ((6, 2), "float32", [normal((6, 2)), np.zeros((6, 2), bool)], r"operand 1 is bool\[6,2\]"),
        ((6, 2), "float32", [normal((6, 2)), np.zeros((6, 2), np.complex64)], r"operand 1 is XLA element type 15\[6,2\]"),
        ((6, 3), "float32", [normal((6, 2)), normal((6, 2))], r"result 0 is float32\[6,3\]"),
        ((6, 2), "int32", [normal((6, 2)), normal((6, 2))], r"result 0 is int32\[6,2\]"),
    ],
)
def test_the_custom_call_refuses_other_arrays(shape: tuple, dtype: str, operands: list[np.ndarray], message: str) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        call(block_graph(SUM, (6, 2)), shape, dtype, *operands)


def test_the_custom_call_counts_its_results() -> None:
    graph, spec = np.frombuffer(block_graph(SUM, (6, 2)), np.uint8), jax.ShapeDtypeStruct((6, 2), np.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="1 result, but got 2"):
        runtime.engine_call(graph, [spec, spec], normal((6, 2)), normal((6, 2)))


def test_bytes_that_are_no_graph_are_refused_at_both_doors() -> None:
    graph = bytearray(block_graph(SUM, (6, 2)))
    graph[-3] ^= 4
    for wrong in (bytes(graph), bytes(graph[:-1]), b"", b"ASPENTG\0"):
        with pytest.raises(GraphFormatError):
            _engine.Plan(wrong)
        with pytest.raises(jax.errors.JaxRuntimeError, match="aspen_run cannot load its graph"):
            call(wrong, (6, 2), "float32", normal((6, 2)), normal((6, 2)))


def test_a_graph_that_needs_more_memory_than_there_is_fails_and_others_go_on() -> None:
    last = aspen(lambda x: jnp.cumsum(x[:, None] * x, 0)[-1], strict=True)  # of 2^40 products
    x = np.ones(1 << 20, np.float32)
    with pytest.raises(EngineError, match="out of memory: a run needs a workspace of"):
        last.graph(x).run(x)
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of memory: a run needs a workspace of"):
        last(x)
    a, b = normal((6, 2), 1), normal((6, 2), 2)
    np.testing.assert_array_equal(call(block_graph(SUM, (6, 2)), (6, 2), "float32", a, b), a + b)


def test_eight_threads_run_graphs_of_their_own_at_once() -> None:
    def work(seed: int) -> None:
        shape = (40 + seed, 17)
        graph = block_graph(SUM, shape, splits=range(1, 40))
        plan, a, b = _engine.Plan(graph), normal(shape, seed), normal(shape, seed + 100)
        for _ in range(25):
            np.testing.assert_array_equal(plan.run([a, b])[0], a + b)
            np.testing.assert_array_equal(call(graph, shape, "float32", a, b), a + b)

    at_once(work, 8)


@pytest.mark.parametrize("wrong", [0, -1, 1 << 20, 1 << 40, -(1 << 70), 2.0, float("nan"), True, "2", None])
def test_impossible_numbers_of_workers_are_refused(wrong: object) -> None:
    before = runtime.num_workers()
    with pytest.raises(InputError, match="workers"):
        runtime.set_num_workers(wrong)  # pyright: ignore[reportArgumentType]
    assert runtime.num_workers() == before


def test_the_number_of_workers_changes_between_runs() -> None:
    graph, a, b = block_graph(SUM, (64, 3), splits=range(1, 64)), normal((64, 3), 1), normal((64, 3), 2)
    plan, before = _engine.Plan(graph), runtime.num_workers()
    try:
        for count in (1, 4, 2, 7):
            runtime.set_num_workers(count)
            assert runtime.num_workers() == count
            np.testing.assert_array_equal(plan.run([a, b])[0], a + b)
    finally:
        runtime.set_num_workers(before)


def python(code: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process, away from the checkout, which would shadow the installed package."""
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, cwd=directory, env=os.environ | environment, timeout=120)


@pytest.mark.parametrize("value", ["0", "-3", "two", "1e3", "99999999999999999999"])
def test_an_environment_that_names_no_number_of_workers_is_refused(value: str, tmp_path: Path) -> None:
    result = python("from aspen_jax import runtime; runtime.num_workers()", tmp_path, ASPEN_NUM_WORKERS=value)
    assert "InputError" in result.stderr
    assert value in result.stderr


def test_the_environment_sets_the_number_of_workers(tmp_path: Path) -> None:
    result = python("from aspen_jax import runtime; print(runtime.num_workers())", tmp_path, ASPEN_NUM_WORKERS="3")
    assert (result.stdout, result.stderr) == ("3\n", "")


@pytest.mark.parametrize("target", _engine.cpu_targets())
def test_the_environment_chooses_the_cpu_target(target: str, tmp_path: Path) -> None:
    result = python("from aspen_jax import _engine; print(_engine.cpu_target())", tmp_path, ASPEN_CPU_TARGET=target)
    assert (result.stdout, result.stderr) == (f"{target}\n", "")


def test_an_unknown_cpu_target_is_refused_with_the_choices(tmp_path: Path) -> None:
    result = python("from aspen_jax import _engine; _engine.cpu_target()", tmp_path, ASPEN_CPU_TARGET="sse9")
    assert "InputError" in result.stderr
    assert "sse9" in result.stderr
    assert all(target in result.stderr for target in _engine.cpu_targets())
    with pytest.raises(AspenError, match="portable"):
        _engine.peak_flops("sse9")


def test_importing_starts_no_backend_and_registers_the_custom_call(tmp_path: Path) -> None:
    # JAX refuses to change the number of devices once it has a backend.
    code = "import aspen_jax, jax; jax.config.update('jax_num_cpu_devices', 3); print(len(jax.devices()))"
    result = python(code, tmp_path, XLA_FLAGS="", JAX_PLATFORMS="cpu")
    assert (result.stdout, result.stderr) == ("3\n", "")


def test_another_process_can_run_the_compiled_call_after_importing_the_package(tmp_path: Path) -> None:
    (tmp_path / "graph").write_bytes(block_graph(SUM, (6, 2)))
    code = (
        "import aspen_jax, jax, numpy as np\n"
        "call = jax.ffi.ffi_call('aspen_run', jax.ShapeDtypeStruct((6, 2), np.float32))\n"
        "ones = np.ones((6, 2), np.float32)\n"
        "print(np.asarray(call(ones, ones, graph=np.fromfile('graph', np.uint8))).sum())"
    )
    result = python(code, tmp_path)
    assert (result.stdout, result.stderr) == ("24.0\n", "")


def test_a_jaxlib_older_than_the_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxlib.__version__", "0.9.4")
    with pytest.raises(EngineError, match=rf"for jaxlib {_engine.built_for_jaxlib}, but jaxlib 0\.9\.4 is installed; upgrade"):
        runtime.ensure_registered.__wrapped__()


@pytest.mark.parametrize("first", ["jit", "graph"])
def test_denormals_are_kept_whoever_starts_the_workers(first: str, tmp_path: Path) -> None:
    """XLA calls us in threads that flush denormals to zero, and a new thread inherits that."""
    code = (
        "import jax, jax.numpy as jnp, numpy as np\n"
        "from aspen_jax import aspen\n"
        "f = aspen(lambda x: x * 0.5)\n"
        "for size in (16, 4_000_000):\n"  # walked by the caller, and by workers
        "    x = jnp.full((size,), 1e-40, jnp.float32)\n"
        "    ways = [lambda: jax.jit(f)(x), lambda: f.graph(x).run(np.asarray(x))[0]]\n"
        f"    for way in ways if {first!r} == 'jit' else ways[::-1]:\n"
        "        assert (np.asarray(way()) == np.float32(1e-40) * np.float32(0.5)).all()\n"
    )
    result = python(code, tmp_path)
    assert result.returncode == 0, result.stderr


def test_the_caller_gets_its_float_mode_back(tmp_path: Path) -> None:
    """The decorated function's neighbours in XLA's program flush as they did before."""
    code = (
        "import jax, jax.numpy as jnp, numpy as np\n"
        "from aspen_jax import aspen\n"
        "f, x = aspen(lambda x: x * 0.5), jnp.full((16,), 1e-40, jnp.float32)\n"
        "alone = jax.jit(lambda x: jnp.sin(x) * 0.3)(x)\n"
        "ours, beside = jax.jit(lambda x: (f(x), jnp.sin(x + 0 * f(x)) * 0.3))(x)\n"
        "assert (np.asarray(ours) > 0).all() and (np.asarray(beside) == np.asarray(alone)).all(), (ours, beside, alone)\n"
    )
    result = python(code, tmp_path)
    assert result.returncode == 0, result.stderr


def test_what_xla_does_after_our_call_flushes_denormals_as_before(tmp_path: Path) -> None:
    """It goes on in our worker's thread."""
    code = (
        "import jax, jax.numpy as jnp, numpy as np\n"
        "from aspen_jax import aspen\n"
        "w = np.ones((512, 512), np.float32)\n"
        "def program(f): return jax.jit(lambda x, small: jax.lax.cbrt((small + 0 * f(x)[0, 0]) * 0.3))\n"
        "small = jnp.full((16,), 1e-40, jnp.float32)\n"
        "f = lambda x: jnp.tanh(x @ w)\n"
        "alone, ours = program(f)(w, small), program(aspen(f))(w, small)\n"
        "assert (np.asarray(ours) == np.asarray(alone)).all(), (ours, alone)\n"
    )
    result = python(code, tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("mode", ["", "choice"], ids=["default", "forced"])
def test_a_callback_behind_our_call_may_call_us_again(mode: str, workers: int, tmp_path: Path) -> None:
    """XLA calls it in our worker's thread, which the second call may need."""
    code = (
        "import jax, jax.numpy as jnp, numpy as np\n"
        "from aspen_jax import aspen\n"
        "w = np.random.default_rng(0).standard_normal((3, 3, 16, 32), np.float32)\n"
        "numbers = ('NHWC', 'HWIO', 'NHWC')\n"
        "f = aspen(lambda x: jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), 'SAME', dimension_numbers=numbers)))\n"
        "x = np.ones((4, 28, 28, 16), np.float32)\n"
        "want = np.asarray(f(x))\n"
        "again = lambda y: y + np.asarray(f(x))\n"
        "twice = jax.jit(lambda x: jax.pure_callback(again, jax.ShapeDtypeStruct(want.shape, want.dtype), f(x)))\n"
        "for _ in range(20): np.testing.assert_array_equal(np.asarray(twice(x)), 2 * want)\n"
    )
    result = python(code, tmp_path, ASPEN_NUM_WORKERS=str(workers), ASPEN_DISABLE_PASSES=mode)
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on threads")
def test_the_caller_walks_where_no_thread_can_be_started(tmp_path: Path) -> None:
    code = (
        "import os, resource, threading, numpy as np, jax.numpy as jnp\n"
        "from aspen_jax import aspen\n"
        "x = np.random.default_rng(0).standard_normal((512, 512), np.float32)\n"
        "f = lambda x, w: jnp.tanh(x @ w)\n"
        "graph, expected = aspen(f).graph(x, x), np.tanh(x.astype(float) @ x)\n"
        "graph.plan\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))\n"
        "try:\n"
        "    threading.Thread(target=print).start()\n"
        "except RuntimeError:\n"
        "    pass\n"
        "else:\n"
        "    print('no limit', flush=True), os._exit(0)\n"
        "names = lambda: [open(f'/proc/self/task/{task}/comm').read()[:6] for task in os.listdir('/proc/self/task')]\n"
        "for _ in range(2):\n"
        "    assert np.abs(graph.run(x, x)[0] - expected).max() < 1e-3 and 'aspen-' not in names()\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))\n"
        "assert np.abs(graph.run(x, x)[0] - expected).max() < 1e-3 and 'aspen-' in names()\n"
        "print('right', flush=True), os._exit(0)\n"  # JAX's own threads do not all end without their user
    )
    result = python(code, tmp_path)
    if result.stdout == "no limit\n":
        pytest.skip("the limit on threads does not bind here")
    assert result.stdout.endswith("right\n"), result.stderr


def test_a_message_about_what_is_no_text_is_an_error_of_ours(tmp_path: Path) -> None:
    code = (
        "import os, aspen_jax\n"
        "os.environb[b'ASPEN_NUM_WORKERS'] = b'\\xff7'\n"
        "try: aspen_jax.num_workers()\n"
        "except aspen_jax.AspenError as error: print(ascii(str(error)))\n"
    )
    result = python(code, tmp_path)
    assert "is '\\ufffd7'; set it" in result.stdout, result.stderr
