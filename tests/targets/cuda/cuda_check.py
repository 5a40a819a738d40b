"""A function by generated CUDA code, run by the host, against XLA."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from aspen_jax import apu
from aspen_jax.frontend import trace as frontend
from aspen_jax.ir.program import Op, Program, Value
from aspen_jax.passes import Stage, run_passes
from aspen_jax.targets.cuda.passes.stages import UNPLANNED
from aspen_jax.targets.cuda.price import Gpu
from benchmarks.in_float64 import all_in_float64
from tests.targets.cuda import cuda_host
from tests.tiled import TINY_TILES


def trace_of(function, arguments):
    """The trace of a function that is all ours."""
    jaxpr = jax.make_jaxpr(function)(*arguments)
    trace = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts))
    assert not trace.fallbacks, [(item.name, item.reason) for item in trace.fallbacks]
    return trace


def prepared(part: Program, gpu: Gpu = Gpu(), disabled: Collection[str] = (), stages: Sequence[Stage] = UNPLANNED) -> Program:  # noqa: B008 - immutable
    """The program that CUDA gets."""
    return run_passes(part, disabled, gpu, stages)


def ops_of(function, arguments, gpu: Gpu = Gpu(), disabled=(), stages=UNPLANNED) -> list[Op]:  # noqa: B008 - immutable
    """The ops of a function of these shapes, for CUDA."""
    return [op for part in trace_of(function, arguments).parts for op in prepared(part, gpu, disabled, stages).ops]


def run_on_host(function, arguments, machine=TINY_TILES, gpu=Gpu(), disabled=(), stages=UNPLANNED, **device):  # noqa: B008 - immutable
    """The function's outputs by the device that the host plays; it must have no fallback."""
    trace = trace_of(function, arguments)
    values: dict[Value, np.ndarray] = dict(zip(trace.inputs, map(np.asarray, jax.tree.leaves(arguments)), strict=True))
    for part in trace.parts:
        program = prepared(part, gpu, disabled, stages)
        graph, inputs = apu.build(program, 2, machine), [values[value] for value in part.inputs]
        results = cuda_host.run(program, graph, *inputs, **device)
        for shared, own in zip(results, cuda_host.run(program, graph, *inputs, shares=False, **device), strict=True):
            assert shared.tobytes() == own.tobytes()
        values.update((operand.value, result) for operand, result in zip(part.outputs, results, strict=True))
    return [values[item] if isinstance(item, Value) else item for item in trace.outputs]


def check(function, *arguments, tolerance=1e-5, **device):
    """Within `tolerance` of the largest output of XLA's; integers and bools, infinities and NaN exactly.

    Where XLA is further away than that, float64 decides: XLA computes some convolutions of bfloat16 wrong.

    Args:
        function: of arrays.
        arguments: its own.
        tolerance: a share of the largest output.
        device: what `run_on_host` and `cuda_host.run` take by name.
    """
    with jax.default_matmul_precision("highest"):
        expected = jax.tree.leaves(jax.jit(function)(*arguments))
    for number, (ours, theirs) in enumerate(zip(run_on_host(function, arguments, **device), expected, strict=True)):
        theirs = np.asarray(theirs)
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if jnp.issubdtype(theirs.dtype, jnp.floating):
            ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
            finite = np.isfinite(theirs)
            np.testing.assert_array_equal(ours[~finite], theirs[~finite])
            ours, theirs = ours[finite], theirs[finite]
            if not _is_near(ours, theirs, tolerance):
                assert _is_near(ours, all_in_float64(function, *arguments)[number][finite], tolerance)
        else:
            np.testing.assert_array_equal(ours, theirs)


def random(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def shaped(*shapes, dtype=jnp.bfloat16):
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


def operands_of(trace, part):
    """A function that gives a part's operands, from the arguments of the traced function."""

    def operands(given):
        values = dict(zip(trace.inputs, jax.tree.leaves(given), strict=True))
        return [values[value] for value in part.inputs]

    return operands


def exactly(function):
    """The function in float32 throughout."""

    def exact(*args):
        with jax.default_matmul_precision("highest"):
            return function(*args)

    return exact


def _is_near(ours: np.ndarray, theirs: np.ndarray, tolerance: float) -> bool:
    return bool(np.abs(ours - theirs).max(initial=0) <= tolerance * np.abs(theirs).max(initial=1e-30))
