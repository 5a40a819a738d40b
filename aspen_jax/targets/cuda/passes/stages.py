"""The order in which programs for GPUs take passes."""

from __future__ import annotations

import dataclasses
import functools

from aspen_jax.passes import PASSES, Pass, Stage, attention, last_op
from aspen_jax.targets.cuda.passes import align, constants, filters, planned, siblings, split_depth, stacks, tf32
from aspen_jax.targets.cuda.passes.fit import fitted

# For those who decide anew, as tuning does.
UNPLANNED: tuple[Stage, ...] = (
    ("1. Say the same with less", (PASSES["simplify"], PASSES["layout"], PASSES["affine"])),
    (
        "2. Store known weights as kernels read them",
        (
            Pass(
                "constants",
                constants.run,
                "Products are as they are written, so the order in which kernels read weights is known.",
                after=("layout", "affine"),
                asks_machine=True,
            ),
        ),
    ),
    (
        "3. Join ops, so that values between them never leave the cache",
        (
            PASSES["fuse"],
            PASSES["signs"],
            PASSES["rows"],
            PASSES["epilogue"],
            dataclasses.replace(PASSES["attention"], run=functools.partial(attention.run, one_query=True)),
        ),
    ),
    (
        "4. Fit ops to the machine",
        (
            Pass(
                "siblings",
                siblings.run,
                "Programs behind products must be final to be compared; `split_depth` cuts the one product.",
                after=("constants", "rows", "epilogue", "attention"),
                asks_machine=True,
            ),
            Pass(
                "align",
                align.run,
                "An epilogue is padded with its convolution, and slices of the depth begin with whole vectors.",
                after=("constants", "epilogue", "layout"),
                asks_machine=True,
            ),
            Pass(
                "stacks",
                stacks.run,
                "Parts keep the kernels and epilogues that all passes before have given them.",
                after=("epilogue", "attention", "siblings", "align"),
                asks_machine=True,
            ),
            Pass(
                "tf32",
                tf32.run,
                "Chains read weights across the depth; slices of a depth are priced by the blocks that multiply them.",
                after=("constants", "align", "stacks"),
                asks_machine=True,
            ),
            Pass(
                "filters",
                filters.run,
                "Which convolutions are left on their own is known; a library takes their whole depth.",
                after=("constants", "align", "stacks"),
            ),
            Pass(
                "split_depth",
                split_depth.run,
                "The work of an op, with its epilogue, must be final: slices share it out.",
                after=("epilogue", "attention", "siblings", "align", "stacks", "tf32", "filters"),
                asks_machine=True,
            ),
            dataclasses.replace(PASSES["merge"], after=("fuse", "rows", "epilogue", "stacks", "attention", "split_depth")),
        ),
    ),
    (
        "5. Fit outputs to the caller's memory",
        (
            dataclasses.replace(
                PASSES["last_op"],
                run=functools.partial(last_op.run, are_launched=True),
                after=("layout", "epilogue", "align", "stacks", "split_depth"),
            ),
            PASSES["outputs"],
            PASSES["in_place"],
        ),
    ),
    (
        "6. Fit ops to kernels",
        (
            Pass(
                "fit",
                fitted,
                "What no kernel computes as one op is taken apart where no pass joins ops any more.",
                is_needed=True,
            ),
        ),
    ),
)

STAGES: tuple[Stage, ...] = (
    *UNPLANNED,
    (
        "7. Decide how each op is computed",
        (Pass("plan", planned.run, "No op changes any more.", asks_machine=True, is_needed=True),),
    ),
)
