"""Program -> Program passes, in the order in which they run. Each can be switched off; the result is the same, only slower.

To add one, write a module with a function `run(program) -> program` and name it in `STAGES`, with the reason for its place.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from aspen_jax.cost.machine import Machine
from aspen_jax.errors import AspenError, InputError
from aspen_jax.ir.program import Program
from aspen_jax.passes import (
    affine,
    attention,
    bf16x6,
    constants,
    conv_panels,
    epilogue,
    fuse,
    in_place,
    last_op,
    layout,
    loops,
    merge,
    outputs,
    panels,
    partial_reduce,
    rows,
    scales,
    signs,
    simplify,
    split_depth,
    stacks,
    strassen,
    winograd,
)
from aspen_jax.passes.rewrite import Rewrite, are_shown, show
from aspen_jax.targets import registry

if TYPE_CHECKING:
    from aspen_jax.targets.target import Target


@dataclasses.dataclass(frozen=True)
class Pass:
    """One way to rewrite a program.

    Attributes:
        name: what ASPEN_DISABLE_PASSES and reports call it.
        run: `run(program) -> program`; with `asks_machine`, `run(program, machine) -> program`.
        reason: why it stands where it stands.
        after: the passes that must come before it.
        asks_machine: whether it asks the cost model which of several programs is faster.
        is_needed: whether no TileGraph can be built without it, so that it cannot be switched off.
    """

    name: str
    run: Callable[..., Program]
    reason: str
    after: tuple[str, ...] = ()
    asks_machine: bool = False
    is_needed: bool = False


Stage = tuple[str, tuple[Pass, ...]]
"""The number of a stage with what it is for, and its passes."""

# Those of CPUs. Another target takes of them what it has kernels for (Target.stages).
STAGES: tuple[Stage, ...] = (
    (
        "1. Say the same with less",
        (
            Pass("simplify", simplify.run, "What it removes, no other pass has to know of."),
            Pass("layout", layout.run, "Later passes see operands as they lie in memory.", after=("simplify",)),
            Pass(
                "affine",
                affine.run,
                "A known scale must be in the weights before an algorithm transforms or stores them.",
                after=("layout",),
            ),
        ),
    ),
    (
        "2. Choose an algorithm for each convolution and product",
        (
            Pass(
                "winograd",
                winograd.run,
                "It saves the most operations, so it chooses first; it wants weights as they are written.",
                after=("layout", "affine"),
                asks_machine=True,
            ),
            Pass(
                "bf16x6",
                bf16x6.run,
                "Matrix units take what Winograd has left; they are faster than Strassen's algorithm.",
                after=("winograd",),
                asks_machine=True,
            ),
            Pass(
                "strassen",
                strassen.run,
                "It takes the 1x1 convolutions that matrix units have left.",
                after=("bf16x6", "affine"),
                asks_machine=True,
            ),
        ),
    ),
    (
        "3. Store known weights as kernels read them",
        (
            Pass(
                "panels",
                panels.run,
                "Each product has its algorithm, so the order that its kernel reads is known.",
                after=("bf16x6", "strassen"),
            ),
            Pass(
                "constants",
                constants.run,
                "It stores the constants that are not in panels.",
                after=("panels",),
            ),
        ),
    ),
    (
        "4. Join ops, so that values between them never leave the cache",
        (
            Pass("fuse", fuse.run, "Element-wise ops become one block each; all joins below count on that.", after=("layout",)),
            Pass("signs", signs.run, "It looks for a relu and a comparison as blocks have them.", after=("fuse",)),
            Pass(
                "rows",
                rows.run,
                "A block beside a reduction becomes a stage of its rows, before it could become an epilogue elsewhere.",
                after=("fuse",),
            ),
            Pass(
                "epilogue",
                epilogue.run,
                "It takes the blocks that are in no row program.",
                after=("fuse", "rows"),
            ),
            Pass(
                "attention",
                attention.run,
                "Scale, mask and softmax must be the row program and epilogues of the products.",
                after=("rows", "epilogue"),
            ),
        ),
    ),
    (
        "5. Fit ops to the machine",
        (
            Pass(
                "conv_panels",
                conv_panels.run,
                "No pass joins convolutions any more, so their kernels are known.",
                after=("winograd", "bf16x6", "strassen"),
            ),
            Pass(
                "scales",
                scales.run,
                "Only convolutions by weights in panels or in parts scale what they read.",
                after=("conv_panels", "epilogue"),
            ),
            Pass(
                "stacks",
                stacks.run,
                "Parts keep the kernels and epilogues that all passes before have given them.",
                after=("epilogue", "attention", "conv_panels", "scales"),
                asks_machine=True,
            ),
            Pass(
                "split_depth",
                split_depth.run,
                "The work of an op, with its epilogue, must be final: slices share it out.",
                after=("epilogue", "attention", "scales", "stacks"),
                asks_machine=True,
            ),
            Pass(
                "partial_reduce",
                partial_reduce.run,
                "No pass changes products any more; `merge` joins what is left of reductions.",
                after=("rows", "epilogue", "scales", "stacks", "split_depth"),
                asks_machine=True,
            ),
            Pass(
                "merge",
                merge.run,
                "No pass looks for a single block any more: a block of several outputs is no epilogue, scale or stage.",
                after=("fuse", "rows", "epilogue", "stacks", "attention", "scales", "split_depth", "partial_reduce"),
                asks_machine=True,
            ),
        ),
    ),
    (
        "6. Fit outputs to the caller's memory",
        (
            Pass(
                "last_op",
                last_op.run,
                "Convolutions have their kernels and epilogues; `outputs` copies what this leaves.",
                after=("layout", "epilogue", "conv_panels", "stacks", "split_depth", "partial_reduce"),
                asks_machine=True,
            ),
            Pass("outputs", outputs.run, "No op may follow those that write outputs.", is_needed=True),
            Pass("in_place", in_place.run, "It asks which values are outputs of the caller.", after=("outputs",)),
        ),
    ),
)

PASSES: dict[str, Pass] = {item.name: item for _, stage in STAGES for item in stage}

DISABLE_VARIABLE = "ASPEN_DISABLE_PASSES"

# Named among the passes, but rewrites nothing: it leaves to XLA what that does faster (`Target.why_left_to_xla`).
CHOICE = "choice"

# What can be switched off on CPUs.
OPTIONAL: tuple[str, ...] = (*(name for name, item in PASSES.items() if not item.is_needed), CHOICE)


# Passes of users, by the target whose programs take them, each with the pass that it comes before.
_registered: dict[str, list[tuple[Pass, str]]] = {}


def register(item: Pass, *, before: str, target: str = "cpu") -> None:
    """Let programs for a target take one more pass. Functions that are compiled already stay as they are.

    Args:
        item: the pass.
        before: the name of the pass that comes next.
        target: the name of the target; not "auto".

    Raises:
        InputError: there is no such target; it has no pass `before`, has one of this name already, or has one of `item.after`
            only later.
    """
    target = registry.checked(target)
    if target == registry.AUTO:
        raise InputError("target='auto' is no device; register the pass once for each that is to take it")
    names = [own.name for _, stage in stages_of(registry.named(target)) for own in stage]
    if item.name in (*names, CHOICE):
        raise InputError(f"there is a pass {item.name!r} already; give yours another name")
    if before not in names:
        raise InputError(f"{target} has no pass {before!r}; choose before= from {', '.join(names)}")
    late = [name for name in item.after if name not in names[: names.index(before)]]
    if late:
        raise InputError(f"no pass {late[0]!r} comes before {before!r}; name a later one in before=, or fewer in `after`")
    _registered.setdefault(target, []).append((item, before))


def stages_of(target: type[Target]) -> tuple[Stage, ...]:
    """The passes that programs for a target take: its own, and what users have registered."""
    stages = target.stages()
    for item, before in _registered.get(target.name, ()):
        stages = tuple((title, _with(passes, item, before)) for title, passes in stages)
    return stages


def _with(passes: Sequence[Pass], item: Pass, before: str) -> tuple[Pass, ...]:
    names = [own.name for own in passes]
    position = names.index(before) if before in names else len(names)
    return (*passes[:position], *([item] if before in names else []), *passes[position:])


def disabled_by_environment() -> frozenset[str]:
    """The passes named in ASPEN_DISABLE_PASSES, a comma-separated list.

    Raises:
        InputError: a name is not a pass of any target, or one that cannot be left out.
    """
    names = frozenset(filter(None, (name.strip() for name in os.environ.get(DISABLE_VARIABLE, "").split(","))))
    _check(names, ())
    return names


def run_passes(
    program: Program, disabled: Collection[str] = (), machine: Machine | None = None, stages: Sequence[Stage] = STAGES
) -> Program:
    """Rewrite a program by every pass that is not disabled, and make its outputs fit for a TileGraph.

    Args:
        program: what to rewrite.
        disabled: names of passes, of any target.
        machine: the cost model that chooses between algorithms.
        stages: the target's.

    Raises:
        InputError: a disabled name is not a pass, or one that cannot be left out.
    """
    shown = are_shown()
    for rewrite in rewrites(program, disabled, machine, stages):
        program = rewrite.after
        if shown:
            show(rewrite)
    return program


def rewrites(
    program: Program, disabled: Collection[str] = (), machine: Machine | None = None, stages: Sequence[Stage] = STAGES
) -> Iterator[Rewrite]:
    """What each pass does, one after the other; the arguments are those of `run_passes`."""
    _check(disabled, stages)
    program = loops.run(program, lambda body: run_passes(body, {*disabled, *loops.LEFT_OUT}, machine, stages), machine)
    for item in (item for _, stage in stages for item in stage):
        if item.name not in disabled:
            start = time.perf_counter()
            made = item.run(program, machine) if item.asks_machine and machine else item.run(program)
            if not isinstance(made, Program) or len(made.outputs) != len(program.outputs):
                raise AspenError(f"the pass {item.name!r} gave no program with as many outputs as it got; mend the pass")
            after = made.pruned()
            yield Rewrite(item.name, program, after, time.perf_counter() - start)
            program = after


def _check(names: Collection[str], stages: Sequence[Stage]) -> None:
    known = [*OPTIONAL, *_optional(stages)]
    if not set(known).issuperset(names):  # only then are all targets loaded
        known += [name for target in registry.all_named(registry.AUTO) for name in _optional(stages_of(target))]
    unknown = sorted(set(names) - set(known))
    if unknown:
        choice = ", ".join(dict.fromkeys(known))
        raise InputError(f"no pass is called {', '.join(map(repr, unknown))}; choose from {choice}")


def _optional(stages: Sequence[Stage]) -> list[str]:
    return [item.name for _, stage in stages for item in stage if not item.is_needed]
