"""The C++ of an op, by its family."""

from __future__ import annotations

from collections.abc import Callable

from aspen_jax.cuda.lanes import element, finish
from aspen_jax.ops.opcodes import lane_of
from aspen_jax.program import Op

Write = Callable[[Op], str | None]

_FAMILIES: dict[str, Write] = {}


class UnsupportedOp(Exception):
    """An op for which there is no CUDA code; XLA computes it."""


def writes(family: str) -> Callable[[Write], Write]:
    """Declares what writes the body of the struct for ops of a family: None where it cannot."""

    def declare(write: Write) -> Write:
        _FAMILIES[family] = write
        return write

    return declare


def source_of(op: Op, name: str) -> str:
    """A struct `name` with kThreads, Memory (what its threads share) and tile(buffers, box, memory).

    Raises:
        UnsupportedOp: there is no CUDA code for such an op.
    """
    from aspen_jax.cuda import elementwise, products, windows  # noqa: F401 - they declare what they write

    write = _FAMILIES.get(op.family.name)
    dtypes = [op.output.dtype, *(operand.dtype for operand in op.inputs)]
    body = write(op) if write is not None and all(element(dtype) and lane_of(dtype) for dtype in dtypes) else None
    if body is None:
        raise UnsupportedOp(f"no CUDA code for {op.family.name} of {', '.join(map(str, dtypes))}")
    addresses = f"  using Addresses = Buffers<{max(1, len(op.inputs))}>;"
    return f"struct {name} {{\n{addresses}\n{finish(op)}\n{body}\n}};\n"


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
