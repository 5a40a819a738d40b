"""The C++ of an op, by its family."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aspen_jax.cuda.lanes import element, finish
from aspen_jax.cuda.tensor_maps import Tensor
from aspen_jax.ir.program import Op
from aspen_jax.ops.opcodes import lane_of

Write = Callable[[Op], str | None]

_FAMILIES: dict[str, Write] = {}

# They include all others, each under one name: NVRTC knows a header again by that alone.
HEADERS = ("cuda/kernels/attention.h", "cuda/kernels/few_rows.h", "cuda/kernels/operands.h", "cuda/kernels/tensor_copy.h")

_KERNEL = """\
extern "C" {{
__device__ KernelShape {name}_shape = shape_of<{op}>();
}}
extern "C" __global__ void __launch_bounds__({op}::kThreads)
    {name}(const {maps}{op}::Addresses buffers, const int32_t* boxes) {{
  extern __shared__ __align__(1024) unsigned char shared[];  // as matrices in swizzled lines want it
  {op}::tile(buffers, boxes + blockIdx.x * {words}, *reinterpret_cast<{op}::Memory*>(shared));
}}
"""


class UnsupportedOp(Exception):
    """An op for which there is no CUDA code; XLA computes it."""


def writes(family: str) -> Callable[[Write], Write]:
    """Declares what writes the body of the struct for ops of a family: None where it cannot."""

    def declare(write: Write) -> Write:
        _FAMILIES[family] = write
        return write

    return declare


def translation_unit(ops: Sequence[Op], entry: str) -> str:
    """The code of ops, without includes.

    Args:
        ops: their structs are called Op0, Op1 ...
        entry: follows each struct; {op}, {name} and {words} in it stand for the struct, a name of its own and the words of a box,
            {maps} for what its argument must be declared as.

    Raises:
        UnsupportedOp: there is no CUDA code for one of them.
    """
    parts = ["using namespace aspen::cuda;\n"]
    for number, op in enumerate(ops):
        parts.append(_struct(op, f"Op{number}"))
        maps = "ASPEN_WITH_MAPS " if _tensors(op) else ""
        parts.append(entry.format(op=f"Op{number}", name=f"op{number}", words=2 * len(op.output.shape), maps=maps))
    return "\n".join(parts)


def kernels(ops: Sequence[Op]) -> str:
    """A file for nvcc or NVRTC, with a kernel op0, op1 ... for each op.

    It is launched with a thread block a tile. A global op0_shape (cuda/kernels/kernel_shape.h) says how many threads each has,
    how many bytes of shared memory, how many addresses the kernel takes, and of what it wants tensor maps. Its arguments are the
    addresses with the maps and, in device memory, the boxes of the tiles: int32 [tiles, 2, rank], lo then hi.

    Raises:
        UnsupportedOp: there is no CUDA code for one of them.
    """
    return "\n".join([*(f'#include "{header}"' for header in HEADERS), translation_unit(ops, _KERNEL)])


def why_no_code(op: Op) -> str | None:
    """Why there is no CUDA code for an op; None where there is."""
    try:
        _struct(op, "Op0")
    except UnsupportedOp as error:
        return str(error)
    return None


def _struct(op: Op, name: str) -> str:
    """A struct `name` with Addresses, kThreads, Memory (what its threads share) and tile(buffers, box, memory)."""
    from aspen_jax.cuda import (  # noqa: F401 - they declare what they write
        arg_reduce,
        attention,
        concatenate,
        conv,
        cumulative,
        elementwise,
        gather,
        pad,
        pool,
        products,
        rows,
        scatter,
    )

    write = _FAMILIES.get(op.family.name)
    dtypes = [op.output.dtype, *(operand.dtype for operand in op.inputs)]
    body = write(op) if write is not None and all(element(dtype) and lane_of(dtype) for dtype in dtypes) else None
    if body is None:
        raise UnsupportedOp(f"no CUDA code for {op.family.name} of {', '.join(map(str, dtypes))}")
    addresses = f"  using Addresses = Buffers<{max(1, len(op.inputs))}>;"
    if maps := _tensors(op):
        shapes = " : ".join(f"TensorShape{item.initializer()}" for item in maps)
        with_maps = f"""\
  using Addresses = TensorBuffers<{len(op.inputs)}>;
  static ASPEN_DEVICE constexpr TensorShape tensor(int number) {{ return number == 0 ? {shapes}; }}"""
        addresses = products.either(with_maps, addresses)
    return f"struct {name} {{\n{addresses}\n{finish(op)}\n{body}\n}};\n"


def _tensors(op: Op) -> tuple[Tensor, Tensor] | None:
    """What a kernel copies in boxes where a GPU has warpgroups."""
    from aspen_jax.cuda import conv, products

    if op.family.name == "matmul":
        return products.tensors_of(op)
    return conv.tensors_of(op) if op.family.name in ("conv2d", "conv2d_slices") else None


def per_element(op: Op, lane: str | None) -> str:
    """A tile function that computes each element by itself: `lane` is an expression or a lambda's call for the kernel's own."""
    value = "" if lane is None else f", {lane}"
    return f"""\
  static constexpr int kThreads = 256;
  struct Memory {{}};
  static ASPEN_DEVICE void tile(const Addresses& buffers, const int32_t* box, Memory&) {{
    Block<kThreads> block;
    each_element<{len(op.output.shape)}>(block, box, [&](const int* at) {{ finish(buffers, at{value}); }});
  }}"""


def own(lines: Sequence[str]) -> str:
    """A function `own` of these lines, which gives the lane of the kernel's own at `at`."""
    body = "\n".join(f"    {line}" for line in lines)
    return f"""\
  static ASPEN_DEVICE uint32_t own([[maybe_unused]] const Addresses& buffers, [[maybe_unused]] const int* at) {{
{body}
  }}
"""
