"""What is decided about an op on a GPU: once, after all other passes, and kept with the op.

Price, code, horizontal fusion and `explain` read this. So the tiles and the code of an op fit together, whatever is timed
meanwhile.
"""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op
from aspen_jax.ops.slices import sliced
from aspen_jax.ops.stack import STACK, parts_of
from aspen_jax.ops.transposed import TRANSPOSED
from aspen_jax.ops.transposed import part_of as untransposed
from aspen_jax.targets.cuda.code.kernel import kernel_of
from aspen_jax.targets.cuda.families.chain import ChainPlan
from aspen_jax.targets.cuda.library.library import library_of
from aspen_jax.targets.cuda.products.blocks import block
from aspen_jax.targets.cuda.products.candidates import Candidate
from aspen_jax.targets.cuda.products.kernel_choices import KernelChoices, choice_for
from aspen_jax.targets.cuda.products.streams import is_streamed


@dataclasses.dataclass(frozen=True)
class KernelPlan:
    """How an op is computed; `str` says how its blocks are multiplied, and why so.

    Attributes:
        choices: what was timed when it was decided. All else follows from the op and from this.
        kernel: the template in `cuda/kernels/`.
        block: rows and columns that a thread block multiplies at once, where it multiplies.
        is_streamed: whether a warp beside those that multiply copies.
        slices: thread blocks that share a tile's depth.
        candidate: the way to multiply that was timed as the fastest; None: the default.
        library: what computes it in the place of the kernel; "": nothing does.
        reason: why so; "" where there is nothing to choose.
    """

    choices: KernelChoices
    kernel: str
    block: tuple[int, int] | None = None
    is_streamed: bool = False
    slices: int = 1
    candidate: Candidate | None = None
    library: str = ""
    reason: str = ""

    @classmethod
    def of(cls, op: Op, choices: KernelChoices) -> KernelPlan:
        """Decides.

        Raises:
            UnsupportedOp: there is no kernel.
        """
        kernel = kernel_of(op).template
        own = untransposed(op) if op.family is TRANSPOSED else op
        if own.family is STACK:
            chain = ChainPlan.of(parts_of(own), exact=own.exact)
            return cls(choices, kernel, reason=str(chain.block) if isinstance(chain, ChainPlan) else "")
        choice = choice_for(own)
        if choice is None:
            return cls(choices, kernel, slices=op.slices)
        rows, columns = block((sliced(own, own.slices) or own) if own.slices > 1 else own)
        return cls(
            choices, kernel, (rows, columns), is_streamed(own), op.slices, choice.candidate, library_of(own) or "", choice.reason
        )

    def __str__(self) -> str:
        if self.block is None:
            return self.reason
        rows, columns = self.block
        default = f"{rows} x {columns}{' streamed' if self.is_streamed else ''}"
        return f"{self.library or self.candidate or default}: {self.reason}"
