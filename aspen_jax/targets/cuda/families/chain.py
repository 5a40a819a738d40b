"""Products one behind the other as one kernel (cuda/kernels/chain.h; Bolt, section 3.1.1)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from aspen_jax.ir.program import Op
from aspen_jax.ops.conv import CONV2D
from aspen_jax.targets.cuda.code.kernel import constant, template
from aspen_jax.targets.cuda.code.vectors import ELEMENTS, KINDS, STORED, whole
from aspen_jax.targets.cuda.products.chain_block import ChainBlock, block_of
from aspen_jax.targets.cuda.products.chain_rules import why_not_allowed
from aspen_jax.targets.cuda.products.conv_tile import ConvTileShape
from aspen_jax.targets.cuda.products.matrices import MatrixShape, Side
from aspen_jax.targets.cuda.products.problem import Problem

# How much slower a chain's warps multiply what warpgroups would multiply otherwise: by the rates of their instructions. Of a
# Hopper's peak `mma.sync` reaches 62.9% on average and `wgmma` 95% (Luo et al. 2025, Dissecting the NVIDIA Hopper Architecture
# through Microbenchmarking and Multiple Level Analysis, arXiv:2501.12084, tensor cores). We have timed no product both ways.
_SLOWER = 0.95 / 0.629


@dataclasses.dataclass(frozen=True)
class ChainShape:
    """How a chain keeps and stores its rows, as ChainShape in cuda/kernels/chain.h.

    Attributes:
        in_registers: whether what is between stays there, or in shared memory.
        width: elements of the widest row between, in whole columns of cores.
        run: adjacent elements of the output that are stored at once.
    """

    in_registers: bool
    width: int
    run: int


@dataclasses.dataclass(frozen=True)
class ChainLink:
    """A product of a chain, as ChainLink in cuda/kernels/chain.h.

    Attributes:
        depth: what is summed.
        columns: all of them.
        weights: their matrix.
    """

    depth: int
    columns: int
    weights: MatrixShape


@dataclasses.dataclass(frozen=True)
class ChainPlan:
    """How a chain is computed.

    Attributes:
        block: what a thread block owns.
        links: the products.
    """

    block: ChainBlock
    links: tuple[ChainLink, ...]

    @classmethod
    def of(cls, parts: Sequence[Op], *, exact: bool) -> ChainPlan | str:
        """The plan of ops, each of which reads the one before as its first input. The reason where they can be no chain.

        Args:
            parts: two or more.
            exact: whether float32 is multiplied as it is.
        """
        reason = why_not_allowed(parts)
        if reason is not None:
            return reason
        links, number = [], 1
        for part in parts:
            links.append(_link(part, number))
            number += len(part.inputs) - 1
        block = block_of(parts, [link.weights.along_depth for link in links], exact=exact)
        if block is None:
            return "no block holds what is between beside the weights"
        return cls(block, tuple(links))

    def flops_of_row(self, parts: Sequence[Op]) -> float:
        """Floating-point operations of other products that cost as much as a row, with what only fills cores."""
        flops = 0.0
        for part, link, core in zip(parts, self.links, self.block.cores, strict=True):
            problem = Problem.of(part)
            slower = _SLOWER if problem is not None and problem.by_warpgroups else 1.0
            flops += 2.0 * slower * whole(link.depth, self.block.depth) * whole(link.columns, core.columns)
        return flops


def _link(part: Op, number: int) -> ChainLink:
    """A product whose weights are input `number` of all."""
    weights, axis = part.inputs[1], len(part.output.shape) - 1
    columns = part.output.shape[axis]
    depth, strides = math.prod(weights.shape) // columns, weights.view.strides()
    if part.family is CONV2D:
        step, stride = columns, 1
    else:
        step, stride = (strides[part.attrs.b.index(label)] for label in (part.attrs.a[-1], axis))
    side = Side(number, weights, {axis: stride}, step)
    across = stride == 1 and (step != 1 or depth == 1)
    vector = side.vector_across(axis, columns) if across else side.vector_along(depth)
    return ChainLink(depth, columns, side.shape(axis + 1, side.strides, stride, vector, along_depth=not across))


def arguments(op: Op, parts: Sequence[Op], run: int) -> list[str] | None:
    """What the template Chain takes behind the program of a stack of these parts; None where they are no chain."""
    plan = ChainPlan.of(parts, exact=op.exact)
    if isinstance(plan, str):
        return None
    dtype, held = parts[0].inputs[0].dtype.name, plan.block.in_registers
    links = []
    for core, link in zip(plan.block.cores, plan.links, strict=True):
        own = f"HeldCore<{KINDS[dtype]}, {template(core)}, {constant(bool(links))}>" if held else template(core)
        links.append(f"Link<{STORED[dtype]}, {own}, {constant(link)}>")
    return [_source(parts[0], ELEMENTS[dtype]), constant(ChainShape(held, plan.block.width, run)), *links]


def _source(first: Op, name: str) -> str:
    """What gives the rows of the first product, of elements of that C++ type."""
    if first.family is CONV2D:
        return f"PixelSource<{name}, {constant(ConvTileShape.of(first, fills=False))}>"
    x = first.inputs[0]
    *strides, step = x.view.strides()
    side = Side(0, x, dict(enumerate(strides)), step)
    matrix = side.shape(len(first.output.shape), side.strides, 0, side.vector_along(x.shape[-1]), along_depth=True)
    return f"MatrixSource<{name}, {constant(matrix)}>"
