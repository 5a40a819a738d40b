"""The C++ of ops, whose kernels `families` gives."""

from __future__ import annotations

from collections.abc import Sequence

from aspen_jax.ir.program import Op
from aspen_jax.ops import partial_reduce, transposed
from aspen_jax.targets.cuda.code.ahead import Ahead
from aspen_jax.targets.cuda.code.kernel import Kernel, constant, kernel_of
from aspen_jax.targets.cuda.code.lanes import finish
from aspen_jax.targets.cuda.code.runs import run_function
from aspen_jax.targets.cuda.families.transposed import strides_of_result

# They include all others, each under one name: NVRTC knows a header again by that alone.
HEADERS = (
    "cuda/kernels/arg_reduce.h",
    "cuda/kernels/attention_tile.h",
    "cuda/kernels/chain.h",
    "cuda/kernels/concatenate.h",
    "cuda/kernels/conv_boxes.h",
    "cuda/kernels/conv_by_element.h",
    "cuda/kernels/cumulative.h",
    "cuda/kernels/depthwise.h",
    "cuda/kernels/few_rows_tile.h",
    "cuda/kernels/gather.h",
    "cuda/kernels/pad.h",
    "cuda/kernels/partial_reduce.h",
    "cuda/kernels/product_by_element.h",
    "cuda/kernels/product_tile.h",
    "cuda/kernels/ragged_dot.h",
    "cuda/kernels/rows.h",
    "cuda/kernels/scatter.h",
    "cuda/kernels/split_sum.h",
    "cuda/kernels/transposed.h",
)

# Addresses and maps stay where the launch has put them: tile functions hold references to them.
_KERNEL = """\
extern "C" {{
__device__ KernelShape {name}_shape = shape_of<{op}, {most_ops}>();
}}
extern "C" __global__ void {cluster}__launch_bounds__({op}::kThreads{blocks})
    {name}(const __grid_constant__ {argument}, const int32_t* boxes) {{
  fetch_ahead<{op}>({buffers}, blockIdx.x);
  wait_for_parents();
  extern __shared__ __align__(1024) unsigned char shared[];  // as matrices in swizzled lines want it
  {op}::tile({buffers}, boxes + {block} / {op}::kSlices * {words}, *reinterpret_cast<{op}::Memory*>(shared));
}}
"""

# Of a kernel for one op, and of one for several: a row of thread blocks for each.
_ONE = {"argument": "{op}::Addresses buffers", "buffers": "buffers", "block": "blockIdx.x"}
_SEVERAL = {
    "argument": "Together<{op}::Addresses, {most_ops}> together",
    "buffers": "together.of[blockIdx.y]",
    "block": "(blockIdx.y * gridDim.x + blockIdx.x)",
}

# Of all kernels of a module (cuda/kernels/launch_order.h).
_KERNELS_WAIT = """\
extern "C" {
__device__ int32_t aspen_kernels_wait = kKernelsWait;
}
"""


def translation_unit(ops: Sequence[Op], entry: str, most_ops: Sequence[int] = ()) -> str:
    """The code of ops, without includes.

    Args:
        ops: their structs are called Op0, Op1 ...
        entry: follows each struct. In it {op} stands for the struct, {name} for a name of its own, {words} for a box's words.
            {cluster} says how many thread blocks are a cluster, {blocks} what the bounds say of thread blocks. {most_ops} is how
            many ops a launch may have. What `_ONE` and `_SEVERAL` name depends on that.
        most_ops: of a launch, for each of `ops`; (): 1 for each.

    Raises:
        UnsupportedOp: there is no CUDA code for one of them.
    """
    parts = ["using namespace aspen::cuda;\n"]
    for number, (op, most) in enumerate(zip(ops, most_ops or [1] * len(ops), strict=True)):
        kernel = kernel_of(op)
        parts.append(_struct(op, kernel, f"Op{number}"))
        words: dict[str, object] = {
            "op": f"Op{number}",
            "name": f"op{number}",
            "words": 2 * len(op.output.shape),
            "cluster": f"__cluster_dims__({kernel.slices}, 1, 1) " if kernel.slices > 1 else "",
            "blocks": f", {kernel.blocks}" if kernel.blocks else "",
            "most_ops": most,
        }
        words |= {name: text.format(**words) for name, text in (_ONE if most == 1 else _SEVERAL).items()}
        parts.append(entry.format(**words))
    return "\n".join(parts)


def kernels(ops: Sequence[Op], most_ops: Sequence[int] = ()) -> str:
    """A file for nvcc or NVRTC, with a kernel op0, op1 ... for each op; for `most_ops` see `translation_unit`.

    It is launched with a thread block a tile, or a cluster of them. A kernel for several ops has a row of them for each. It takes
    their addresses and maps one after the other. A global op0_shape (cuda/kernels/kernel_shape.h) says how many threads each has,
    how many bytes of shared memory, how many addresses the kernel takes for an op, and of what it wants tensor maps.
    Its arguments are the addresses with the maps and, in device memory, the boxes of the tiles: int32 [tiles, 2, rank], lo then
    hi. A global aspen_kernels_wait, an int32, is 1 where all kernels first wait for the launches before them, as from compute
    capability 9.0 on.

    Raises:
        UnsupportedOp: there is no CUDA code for one of them.
    """
    return "\n".join([*(f'#include "{header}"' for header in HEADERS), translation_unit(ops, _KERNEL, most_ops), _KERNELS_WAIT])


def _struct(op: Op, kernel: Kernel, name: str) -> str:
    """A struct `name` with Addresses, kThreads, Memory (what its threads share) and tile(buffers, box, memory)."""
    counts = f"{max(1, len(op.inputs))}" + (f", {len(op.further)}" if op.further else "")
    addresses = f"  using Addresses = {'MappedBuffers' if kernel.maps else 'Buffers'}<{counts}>;"
    own, strides = op, None
    if op.family is partial_reduce.PARTIAL_REDUCE:
        own = partial_reduce.part_of(op)
    elif op.family is transposed.TRANSPOSED:
        own, strides = transposed.part_of(op), strides_of_result(op)
    parts = [
        f"struct {name}Program {{",
        addresses,
        f"  static constexpr int kRank = {len(op.output.shape)}, kSlices = {kernel.slices};",
        f"  static constexpr Ahead kAhead = {constant(Ahead.of(op))};",
        finish(own, strides),
    ]
    parts += [text for text in (kernel.functions, run_function(own, kernel.run) if kernel.run > 1 else "") if text]
    program = f"SliceOf<{name}Program>" if kernel.slices > 1 else f"{name}Program"
    whole = f"{kernel.template}<{', '.join([program, *kernel.arguments])}>"
    if kernel.slices > 1:
        whole = f"SplitSum<{name}Program, {whole}>"
    if kernel.around:
        template, *arguments = kernel.around
        whole = f"{template}<{', '.join([whole, *arguments])}>"
    return "\n".join([*parts, "};", f"using {name} = {whole};\n"])
