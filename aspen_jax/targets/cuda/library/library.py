"""What a library of NVIDIA's computes inside our graph, in the place of a kernel of ours: where timing says that it is faster.

Our kernel is compiled all the same, but not run. The launch is the library's.
"""

from __future__ import annotations

from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.kernel import Kernel, constant
from aspen_jax.targets.cuda.library.cublas import LibraryProduct, by_cublas
from aspen_jax.targets.cuda.library.cudnn import LibraryConvolution, by_cudnn

# The template around our kernel that names the library's work (cuda/kernels/tile.h), and the library.
_TEMPLATES = {LibraryProduct: ("ByCublas", "cublasLt"), LibraryConvolution: ("ByCudnn", "cuDNN")}


def by_library(op: Op) -> LibraryProduct | LibraryConvolution | None:
    """What a library computes in place of an op's kernel; None where the kernel is launched."""
    # cuDNN is asked first: it was timed beside the other.
    return by_cudnn(op) or by_cublas(op)


def library_of(op: Op) -> str | None:
    """The name of the library that computes an op."""
    work = by_library(op)
    return None if work is None else _TEMPLATES[type(work)][1]


def or_by_library(kernel: Kernel | None, op: Op) -> Kernel | None:
    """The kernel of an op, in whose place a library computes if timing has said so."""
    work = by_library(op)
    return kernel if kernel is None or work is None else kernel._replace(around=(_TEMPLATES[type(work)][0], constant(work)))
