"""Every candidate of the CUDA kernels through the assembler: registers, shared memory, and whether anything is spilled."""

from __future__ import annotations

import concurrent.futures
import os
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tqdm import tqdm

from aspen_jax.frontend import trace as frontend
from aspen_jax.ir.program import Op
from aspen_jax.passes import run_passes
from aspen_jax.targets.cuda.code.image import compile_log
from aspen_jax.targets.cuda.code.source import kernels
from aspen_jax.targets.cuda.passes.stages import UNPLANNED
from aspen_jax.targets.cuda.price import Gpu
from aspen_jax.targets.cuda.products.candidates import Architecture, Candidate
from aspen_jax.targets.cuda.products.candidates import candidates as of_problem
from aspen_jax.targets.cuda.products.kernel_choices import KernelChoices, Timed, considering
from aspen_jax.targets.cuda.products.problem import Problem
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.options import File

# Few and many rows, so that small and large blocks are among what suits them.
_ROWS = (16, 128, 8192)

# Bytes that a thread may spill: the assembler spills a register or two where another block then fits a multiprocessor.
_MOST_SPILLED = 16

# What the assembler says of wgmma that it had to serialise, or waited for where the code does not.
_SERIALISED = r"\(C75\d\d\)"


class Way(NamedTuple):
    """A candidate and an op that it multiplies."""

    what: str
    op: Op
    candidate: Candidate


class Assembled(NamedTuple):
    """What the assembler says of a kernel.

    Attributes:
        registers: of a thread.
        faults: what forbids it: empty where nothing does.
    """

    registers: int
    faults: tuple[str, ...]


@benchmark
def candidates(
    architectures: tuple[str, ...] = ("sm_80", "sm_90a"), only: str = "", jobs: int | None = None, json: File = None
) -> Run:
    """Compile every candidate of the CUDA kernels, and say what the assembler says; needs NVRTC, but no GPU.

    Args:
        architectures: what to compile for.
        only: those alone whose description has this in it, such as "bfloat16 convolution".
        jobs: how many are compiled at once; all usable cores by default.
        json: where to write the figures as well.
    """
    text = dict.fromkeys(("architecture", "kernel", "candidate"), "")
    table = Table("", {**text, "threads": "d", "registers": "d", "faults": ""})
    for architecture in architectures:
        ways = [way for way in ways_of(architecture) if only in way.what]
        with concurrent.futures.ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
            found = pool.map(lambda way, name=architecture: assembled(way, name), ways)
            for way, item in zip(ways, tqdm(found, architecture, len(ways), leave=False, disable=None), strict=True):
                numbers = way.candidate.threads, item.registers
                table.add(architecture, way.what, str(way.candidate), *numbers, ", ".join(item.faults))
    yield table
    bad = sum(bool(row["faults"]) for row in table.rows)
    yield f"{len(table.rows)} kernels, {bad} with faults"
    yield int(bad > 0)


def ways_of(architecture: str) -> list[Way]:
    """Every candidate of an architecture, for products and convolutions of each dtype; the largest blocks first."""
    made: dict[tuple[str, Candidate], Way] = {}
    for dtype in ("bfloat16", "float16", "float32"):
        for rows in _ROWS:
            for name, op in _ops(rows, jnp.dtype(dtype))[: 1 if dtype == "float16" else None]:  # else as bfloat16
                problem = Problem.of(op)
                assert problem is not None
                for item in of_problem(problem, Architecture.of(architecture)):
                    made.setdefault((f"{dtype} {name}", item), Way(f"{dtype} {name}", op, item))
    return sorted(made.values(), key=lambda way: -way.candidate.rows * way.candidate.columns)


def assembled(way: Way, architecture: str) -> Assembled:
    """A kernel by the assembler.

    Raises:
        AspenError: it does not compile, or there is no NVRTC.
    """
    problem = Problem.of(way.op)
    assert problem is not None
    with considering(KernelChoices(architecture, {problem: Timed(way.candidate, 1.0)})):
        source = kernels([way.op])
    log, limits = compile_log(source, architecture), Architecture.of(architecture)
    (registers,) = (int(number) for number in re.findall(r"Used (\d+) registers", log))
    faults = [
        f"{number} bytes {what}"
        for what in ("stack frame", "spill stores", "spill loads")
        for number in re.findall(rf"(\d+) bytes {what}", log)
        if int(number) > _MOST_SPILLED
    ]
    if registers * way.candidate.threads > limits.registers:
        faults.append(f"{registers * way.candidate.threads} registers of a block")
    faults += ["wgmma serialised"] * bool(re.search(_SERIALISED, log)) + ["a warning"] * ("warning" in log)
    return Assembled(registers, tuple(faults))


def _ops(rows: int, dtype: Any) -> list[tuple[str, Op]]:
    def across(x, w, b):
        return jax.nn.relu(x @ w + b)

    def along(x, w):
        return jnp.einsum("mk,nk->mn", x, w)

    def convolution(x, w, b):
        return jax.nn.relu(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + b)

    def shaped(*shapes):
        return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]

    image = (max(rows // 64, 1), min(rows, 64), 1, 128)
    found = [
        ("product", _op(across, shaped((rows, 512), (512, 1024), (1024,)))),
        ("product along the depth", _op(along, shaped((rows, 512), (1024, 512)))),
        ("convolution", _op(convolution, shaped(image, (3, 3, 128, 1024), (1024,)))),
        ("product of odd strides", _op(across, shaped((rows, 509), (509, 1021), (1021,)))),
    ]
    if dtype == np.float32:
        with jax.default_matmul_precision("highest"):
            found.append(("product, exact", _op(across, shaped((rows, 512), (512, 1024), (1024,)))))
    return found


def _op(function: Any, arguments: Any) -> Op:
    """The only product of a function."""
    (part,) = frontend.trace(jax.make_jaxpr(function)(*arguments)).parts
    (op,) = (op for op in run_passes(part, (), Gpu(places=1), UNPLANNED).ops if op.family.name in ("matmul", "conv2d"))
    return op
