"""Lets a convolution's weights take its input's scale of channels (squeeze and excite), where they are smaller than the input."""

from __future__ import annotations

from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import single
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.conv import CONV2D
from aspen_jax.program import Op, Operand, Program, Value
from aspen_jax.view import View

_TIMES_SMALLER = 2


def run(program: Program) -> Program:
    """Multiply the weights, not the input, of each convolution without padding that alone reads a scaled image."""
    readers = {value: len(uses) for value, uses in program.uses().items()}
    producers: dict[Value, Op] = {}
    build = Builder()
    for op in program.ops:
        product = producers.get(op.inputs[0].value) if op.family is CONV2D else None
        factors = None if product is None or readers[product.output] > 1 else _factors(product, op)
        if factors is not None:
            image, scale = factors
            weights = op.inputs[1]
            build.name, build.source = op.name, op.source
            scaled = build.block(single("mul_f"), [weights, scale], weights.shape, weights.dtype)
            op = op.replace(inputs=(image, scaled, *op.inputs[2:]))
        producers[op.output] = op
        build.ops.append(op)
    return program.replace(ops=tuple(build.ops))


def _factors(product: Op, reader: Op) -> tuple[Operand, Operand] | None:
    """The image and the scale as the weights see it; None where the product is none of these, or the weights are not smaller."""
    read, weights = reader.inputs[:2]
    if product.exact or reader.exact or product.family is not BLOCK or product.program != single("mul_f") or not read.is_whole:
        return None
    # What lies in the padding is zero before it is scaled and after; times a weight that has become infinite it would be NaN.
    if reader.attrs.groups > 1 or any(reader.attrs.padding):
        return None
    if len({read.dtype, weights.dtype, *(item.dtype for item in product.inputs)}) > 1:
        return None
    if weights.value.size * _TIMES_SMALLER > read.value.size:
        return None
    for image, scale in (product.inputs, product.inputs[::-1]):
        *others, along = scale.view.strides()
        if image.is_whole and not any(others):
            view = View.from_flat(scale.value.size, scale.view.offset(), (0, 0, along, 0), weights.shape)
            return None if view is None else (image, Operand(scale.value, view))
    return None
