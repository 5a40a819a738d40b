"""Kernels by a thread an element, as text. To become templates, as cuda/kernels/elements.h is."""

from __future__ import annotations

from collections.abc import Sequence

from aspen_jax.ir.program import Op


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
