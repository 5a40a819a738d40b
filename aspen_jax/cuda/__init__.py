"""Program -> CUDA C++: for each op a struct whose `tile` computes any box of its output with one thread block.

The code stands on the headers in `cuda/kernels/`, which also compile for the host: there it is tested.
"""

from aspen_jax.cuda.attention import unfused
from aspen_jax.cuda.source import HEADERS, UnsupportedOp, kernels, translation_unit

__all__ = ["HEADERS", "UnsupportedOp", "kernels", "translation_unit", "unfused"]
