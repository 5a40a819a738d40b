"""The Automated Parallelism Unit: Program -> TileGraph (ASPEN, section 3.1).

Each op's output is cut into tiles (`tiling`), a tile depends on those whose boxes it reads (`dependencies`), and values are
placed in memory with the edges that its reuse needs (`memory`).
"""

from aspen_jax.apu.machine import Machine
from aspen_jax.apu.pipeline import build

__all__ = ["Machine", "build"]
