"""What is decided about an op on a GPU is decided once (targets/cuda/plan.py)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax.lowering.compile import Options, compile_jaxpr
from aspen_jax.primitive.choices import Choices
from aspen_jax.targets.cuda.code.source import kernels
from aspen_jax.targets.cuda.passes.stages import UNPLANNED
from aspen_jax.targets.cuda.plan import KernelPlan
from aspen_jax.targets.cuda.price import Gpu
from aspen_jax.targets.cuda.products import kernel_choices
from aspen_jax.targets.cuda.products.candidates import Architecture, candidates
from aspen_jax.targets.cuda.products.kernel_choices import KernelChoices, Timed, considering
from aspen_jax.targets.cuda.products.problem import Problem
from aspen_jax.targets.cuda.target import CudaTarget
from tests.targets.cuda.cuda_check import ops_of


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch, tmp_path):
    monkeypatch.setenv("ASPEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ASPEN_CUDA_ARCH", "sm_90a")
    kernel_choices.forget()
    yield
    kernel_choices.forget()


def layer(x, w):
    return jax.nn.relu(x @ w)


SHAPES = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((512, 256), (256, 384))]


def compiled():
    (part,) = compile_jaxpr(jax.make_jaxpr(layer)(*SHAPES), Options(Choices(device="cuda"), CudaTarget.here())).parts
    return part


def another(op):
    """A candidate that is not the default, as what was timed."""
    problem = Problem.of(op)
    assert problem is not None
    return {problem: Timed(candidates(problem, Architecture.of("sm_90a"))[3], 1.0)}


def test_what_is_timed_meanwhile_changes_neither_tiles_nor_code():
    part = compiled()
    (op,) = part.program.ops
    boxes = np.array([[(0, 128), (0, 128)]])
    code, price = kernels(part.program.ops), Gpu.here().of_boxes(op, boxes)
    found = another(op)
    kernel_choices.remember(found)
    with considering(KernelChoices("sm_90a", found)):
        assert kernels(part.program.ops) == code
        np.testing.assert_array_equal(Gpu.here().of_boxes(op, boxes), price)
        assert part.options.target.notes(part.program)[op].blocks == str(op.plan)
    (later,) = compiled().program.ops
    assert later.plan.candidate == next(iter(found.values())).candidate
    assert later.plan.reason == "timed"
    assert kernels([later]) != code


def test_a_plan_says_what_the_code_does():
    (op,) = ops_of(layer, SHAPES, Gpu(places=1), stages=UNPLANNED)
    assert op.plan is None
    for entries in ({}, another(op)):
        choices = KernelChoices("sm_90a", entries)
        with considering(choices):
            plan = KernelPlan.of(op, choices)
            text = kernels([op])
        assert plan.block is not None
        assert f"{plan.block[0]}, {plan.block[1]}" in text
        assert plan.kernel in text
        assert kernels([op.replace(plan=plan)]) == text
