"""The Automated Parallelism Unit: Program -> TileGraph (ASPEN, section 3.1).

Each op's output is cut into tiles (`grid`), a tile depends on those whose boxes it reads (`dependencies`), and values are
placed in memory with the edges that its reuse needs (`memory`). Small constants share an operand (`packing`).
"""

from aspen_jax.apu.packing import pack
from aspen_jax.apu.pipeline import build
from aspen_jax.cost.machine import Machine

__all__ = ["Machine", "build", "pack"]
