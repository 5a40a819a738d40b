"""Nothing is forgotten when an op family is added: each has all that docs/architecture.md, "Add an op", asks for."""

from __future__ import annotations

import functools
import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from aspen_jax.ir.program import Operand, Program
from aspen_jax.ops import FAMILIES
from aspen_jax.ops.reference import evaluate
from aspen_jax.primitive.batch import Batched, slowest_axis
from aspen_jax.targets.cpu import choice
from aspen_jax.targets.cuda.code import kernel
from tests.random_programs import _ELEMENTS, random_program

ROOT = Path(__file__).parents[2]

_OWN = "its regions are checked in its own test, with the passes that make it: "
_GPU = "a pass makes it for GPUs alone"
_CPU = "a pass makes it for CPUs alone"
_UNFITTED = "its weights are known, as in no part that was fitted: its operations count for nothing, so tiles are chosen"
_LATER = "not written yet: on GPUs XLA computes it"

# What a family need not have, by place, and why. A line that is no longer true fails too.
WITHOUT: dict[str, dict[str, str]] = {
    "oracle": {
        "block": "each element depends on the same element of each input",
        "attention": "the oracle goes through its three parts",
        "attention_slices": _OWN + "tests/targets/cuda/test_attention_slices.py",
        "conv2d_slices": _OWN + "tests/passes/test_split_depth.py",
        "stack": _OWN + "tests/ops/test_stacks.py",
        "loop": _OWN + "tests/ops/test_loops.py",
        "partial_reduce": _OWN + "tests/passes/test_partial_reduce.py",
        "transposed": _OWN + "tests/passes/test_last_op.py",
        "winograd": _OWN + "tests/apu/test_apu.py",
        "winograd_weights": _OWN + "tests/ops/test_convolutions.py",
        "strassen": _OWN + "tests/ops/test_strassen.py",
        "strassen_rows": _OWN + "tests/ops/test_strassen.py",
        "bf16x6": _OWN + "tests/ops/test_bf16x6.py",
        "bf16x6_weights": _OWN + "tests/ops/test_bf16x6.py",
    },
    "CPU kernel": {"attention_slices": _GPU, "conv2d_slices": _GPU},
    "fuzz case": {"attention_slices": _GPU, "conv2d_slices": _GPU},
    "CUDA code": {
        "bf16x6": _CPU,
        "bf16x6_weights": _CPU,
        "conv2d_panels": _CPU,
        "matmul_panels": _CPU,
        "strassen": _CPU,
        "strassen_rows": _CPU,
        "winograd": _CPU,
        "winograd_weights": _CPU,
        "loop": _LATER,
        "select_and_gather_add": _LATER,
        "select_and_scatter_add": _LATER,
        "sort": _LATER,
    },
    "docs row": {},
    "rates": {
        "attention_slices": _GPU,
        "conv2d_slices": _GPU,
        "stack": _UNFITTED,
        "partial_reduce": "it counts as its op and a reduction",
        "transposed": "it counts as its op",
        "conv2d_panels": _UNFITTED,
        "matmul_panels": _UNFITTED,
        "strassen": _UNFITTED,
        "strassen_rows": _UNFITTED,
    },
    "reference in jax.lax": {},
}
# Random programs hold what the oracle knows, and besides:
WITHOUT["random programs"] = {name: why for name, why in WITHOUT["oracle"].items() if name not in ("block", "attention")}

REMEDY = {
    "oracle": "say in tests/random_programs.py, _ELEMENTS, which elements it reads",
    "random programs": "let tests/random_programs.py, _Author.step, write it",
    "CPU kernel": "add it to the table in cpu/kernels.cc",
    "fuzz case": "add a graph of it to tests/cpp/kernels_fuzz.cc",
    "CUDA code": "write it in aspen_jax/targets/cuda/, or say in this file why not",
    "rates": "measure it with `python -m benchmarks chooser`, which fits aspen_jax/targets/cpu/rates.json",
    "docs row": 'add a row to docs/graph_format.md, "Parameter words"',
    "reference in jax.lax": "write its `reference`",
}


@functools.cache
def having(place: str) -> frozenset[str]:
    """The families that a place has."""
    text = {"CPU kernel": "cpu/kernels.cc", "fuzz case": "tests/cpp/kernels_fuzz.cc", "docs row": "docs/graph_format.md"}
    if place in text:
        pattern = r"^\| `(\w+)` \|" if place == "docs row" else r'\{"(\w+)",'
        return frozenset(re.findall(pattern, (ROOT / text[place]).read_text(), re.MULTILINE))
    if place == "rates":
        named = {word for target in ("avx512", "amx") for name in _rates(target) for word in name.split()}
        # tile_cost.py has names of its own for the work of these, or those of another kernel.
        return frozenset(named & FAMILIES.keys()) | {"block", "rows", "reduce", "scatter", "ragged_dot"}
    if place == "oracle":
        return frozenset(family.kernel for family in _ELEMENTS)
    if place == "random programs":
        return frozenset(op.family.kernel for seed in range(60) for op in random_program(seed, steps=12).ops)
    if place == "CUDA code":
        importlib.import_module("aspen_jax.targets.cuda.families")  # whose modules declare what they write
        return frozenset(kernel.FAMILIES)
    return frozenset(name for name, family in FAMILIES.items() if "reference" in type(family).__dict__ or _inherits(family))


def _rates(target: str) -> dict[str, float]:
    return choice.of_machine(json.loads((ROOT / "aspen_jax/targets/cpu/rates.json").read_text()), target).tiles


def _inherits(family) -> bool:
    return any("reference" in base.__dict__ and base.__module__ != "aspen_jax.ops.family" for base in type(family).__mro__)


@pytest.mark.parametrize("place", REMEDY)
def test_each_family_has_all_that_an_op_needs(place):
    missing = FAMILIES.keys() - having(place) - WITHOUT[place].keys()
    assert not missing, f"{place} missing for {', '.join(sorted(missing))}: {REMEDY[place]}"


@pytest.mark.parametrize("place", REMEDY)
def test_what_is_excused_is_missing_indeed(place):
    assert WITHOUT[place].keys() <= FAMILIES.keys()
    assert not WITHOUT[place].keys() & having(place), f"{place}: these are there, so take them off the list"


@pytest.mark.parametrize("seed", range(60))
def test_what_computes_alike_everywhere_may_be_cut_over_devices(seed):
    """A family whose results depend on where a box lies says so by `alike_everywhere = False`."""
    rng = np.random.default_rng(seed)
    for op in random_program(seed, steps=12, rewrites=False).ops:
        # A pass makes attention, of what was cut before.
        if op.family.name in ("block", "attention"):
            continue
        values = tuple(dict.fromkeys(operand.value for operand in op.inputs))
        program = Program(values, (), (op,), (Operand.whole(op.output),))
        batched = Batched.of(program)
        part = None if batched is None else batched.part(batched.size)
        if batched is None or part is None:
            continue
        arrays = {
            value: (rng.integers(0, 4, value.shape) if value.dtype.kind == "i" else rng.standard_normal(value.shape)).astype(
                value.dtype
            )
            for value in values
        }
        (whole,) = evaluate(program, *arrays.values())
        own = [_last(array, batched.size) if value in batched.values else array for value, array in arrays.items()]
        (result,) = evaluate(part, *own)
        np.testing.assert_allclose(result, _last(whole, batched.size), rtol=1e-4, atol=1e-4, err_msg=op.family.name)


def _last(array: np.ndarray, size: int) -> np.ndarray:
    """The last of `size` entries of a batch."""
    return np.split(array, size, slowest_axis(array.shape))[-1]


def test_each_own_test_names_its_family():
    for name, why in WITHOUT["oracle"].items():
        if why.startswith(_OWN):
            text = (ROOT / why.removeprefix(_OWN)).read_text()
            assert re.search(rf"\b{name}\b", text, re.IGNORECASE), f"{why.removeprefix(_OWN)} does not name {name}"
