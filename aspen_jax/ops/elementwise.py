"""The table from element-wise primitives to block instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aspen_jax.ir.program import Operand
from aspen_jax.ir.view import View
from aspen_jax.ops import masks
from aspen_jax.ops.block_program import BlockBuilder, Ref, single
from aspen_jax.ops.converters import Builder, Equation, Unsupported, converts
from aspen_jax.ops.opcodes import FLOATS, INTS, OPCODES, lane_of, narrowing

_FLOAT_NAMES = {
    "add": "add_f", "add_any": "add_f", "sub": "sub_f", "mul": "mul_f", "div": "div_f", "max": "max_f", "min": "min_f",
    "rem": "rem_f", "atan2": "atan2_f", "neg": "neg_f", "abs": "abs_f", "sign": "sign_f", "floor": "floor_f",
    "ceil": "ceil_f", "sqrt": "sqrt_f", "rsqrt": "rsqrt_f", "cbrt": "cbrt_f", "exp": "exp_f", "exp2": "exp2_f",
    "expm1": "expm1_f", "log": "log_f", "log1p": "log1p_f", "tanh": "tanh_f", "logistic": "logistic_f", "erf": "erf_f",
    "erfc": "erfc_f", "sin": "sin_f", "cos": "cos_f", "tan": "tan_f", "is_finite": "is_finite_f", "eq": "eq_f", "ne": "ne_f",
    "lt": "lt_f", "le": "le_f", "gt": "gt_f", "ge": "ge_f", "square": "square_f", "sinh": "sinh_f", "cosh": "cosh_f",
    "asin": "asin_f", "acos": "acos_f", "atan": "atan_f", "asinh": "asinh_f", "acosh": "acosh_f", "atanh": "atanh_f",
    "erf_inv": "erf_inv_f",
}  # fmt: skip
_SINGLE_NAMES = {**_FLOAT_NAMES, "nextafter": "nextafter_f"}  # neighbours among float32 are none among floats of fewer bits
_INT_NAMES = {
    "add": "add_i", "add_any": "add_i", "sub": "sub_i", "mul": "mul_i", "div": "div_i", "rem": "rem_i", "max": "max_i",
    "min": "min_i", "neg": "neg_i", "abs": "abs_i", "sign": "sign_i", "and": "and_i", "or": "or_i", "xor": "xor_i",
    "not": "not_i", "shift_left": "shl_i", "shift_right_arithmetic": "shra_i", "shift_right_logical": "shrl_i", "eq": "eq_i",
    "ne": "ne_i", "lt": "lt_i", "le": "le_i", "gt": "gt_i", "ge": "ge_i", "square": "mul_i",
}  # fmt: skip
_BOOL_NAMES = {
    "and": "and_b", "or": "or_b", "xor": "xor_b", "not": "not_b", "eq": "eq_b", "ne": "ne_b", "max": "or_b", "min": "and_b",
    "lt": "and_b", "le": "or_b", "gt": "and_b", "ge": "or_b",
}  # fmt: skip
_UNSIGNED_NAMES = {
    **_INT_NAMES, "div": "div_u", "rem": "rem_u", "max": "max_u", "min": "min_u", "lt": "lt_u", "le": "le_u", "gt": "gt_u",
    "ge": "ge_u",
}  # fmt: skip
_BY_DTYPE = {
    **dict.fromkeys(FLOATS, _FLOAT_NAMES),
    "float32": _SINGLE_NAMES,
    **dict.fromkeys(INTS, _INT_NAMES),
    "uint32": _UNSIGNED_NAMES,
    "bool": _BOOL_NAMES,
}

# Integer primitives whose results need no wrapping: they have the bits or the range of their operands.
_IN_RANGE = ("max", "min", "rem", "and", "or", "xor", "sign", "eq", "ne", "lt", "le", "gt", "ge")

_ALWAYS_ACCURATE = ("exp",)  # within an ulp, as XLA's is; the derivative of erf asks for it

# Coefficients of a polynomial that are not known when tracing: each is an input of its block program, which has room for 64.
_MOST_COEFFICIENTS = 32


def scalar_block(
    build: Builder, equation: Equation, operands: Sequence[Operand], write: Any, shape: tuple[int, ...], dtype: np.dtype
) -> Operand:
    """Write a block op; operands that are scalars known when tracing become constants of its program.

    `write(block: BlockBuilder, *refs: Ref) -> Ref` emits the instructions.
    """
    variable = [k for k, scalar in enumerate(equation.scalars) if scalar is None]
    block = BlockBuilder(len(variable))
    refs: list[Ref] = []
    for index, scalar in enumerate(equation.scalars):
        refs.append(block.input(variable.index(index)) if scalar is None else block.constant(scalar))
    inputs = []
    for index in variable:
        operand = operands[index]
        if operand.shape != shape:  # lax lets scalars and dimensions of size 1 meet larger ones
            operand = Operand(operand.value, operand.view.broadcast_in_dim(shape, tuple(range(len(operand.shape)))))
        inputs.append(operand)
    return build.block(block.build(write(block, *refs)), inputs, shape, dtype)


@converts(*sorted({*_SINGLE_NAMES, *_INT_NAMES, *_BOOL_NAMES}))
def _convert_simple(build: Builder, equation: Equation, *operands: Operand) -> Operand:
    names = {operand.dtype.name for operand in operands}
    table = _BY_DTYPE.get(next(iter(names))) if len(names) == 1 else None
    opcode = table.get(equation.primitive) if table else None
    if opcode is None:
        raise Unsupported(f"no block instruction for {equation.primitive} of {', '.join(sorted(names))}")
    _refuse_parameters(equation)
    selection = _selection(build, equation, operands) if equation.dtype.name in masks.DTYPES else None
    if selection is not None:
        return selection
    repeats = OPCODES[opcode].arity // len(operands)  # an integer's square is its product with itself
    dtype = operands[0].dtype
    is_int = lane_of(dtype) == "i"

    def write(block: BlockBuilder, *refs: Ref) -> Ref:
        if opcode == "sign_i" and dtype.kind == "u":
            return block.emit("i_from_b", block.emit("ne_i", *refs, block.constant(np.zeros((), dtype))))
        if dtype == np.bool_ and equation.primitive in ("lt", "le", "gt", "ge"):  # a < b: not a, and b
            low, high = refs if equation.primitive in ("lt", "le") else refs[::-1]
            refs = (block.emit("not_b", low), high)
        # A right shift brings in the sign or zeros by its name, not by the dtype.
        if opcode in ("shra_i", "shrl_i"):
            refs = (_wrapped(block, refs[0], np.dtype(f"{'i' if opcode == 'shra_i' else 'u'}{dtype.itemsize}")), refs[1])
        result = block.emit(opcode, *refs * repeats)
        return _wrapped(block, result, dtype) if is_int and equation.primitive not in _IN_RANGE else result

    return scalar_block(build, equation, operands, write, equation.shape, equation.dtype)


def _selection(build: Builder, equation: Equation, operands: Sequence[Operand]) -> Operand | None:
    """The product with a mask, or a mask over what is repeated, as a select; None for other equations."""
    if equation.primitive == "mul":
        for mask, other in ((0, 1), (1, 0)):
            found = _mask(build, equation, operands[mask])
            if found is not None and _is_one(equation.scalars[other]):
                return operands[mask]  # still a mask
            if found is not None:
                return _selected(build, equation, found, operands[other], equation.arrays[other])
            # -a * -b is a * b.
            found = _mask(build, equation, masks.negated(build, operands[mask]))
            positive = masks.negated(build, operands[other])
            if found is not None and positive is not None:
                return _selected(build, equation, found, positive, None)
    if equation.primitive == "div":
        found = _mask(build, equation, operands[0])
        is_known = equation.arrays[1] is not None
        if found is not None and _is_one(equation.scalars[1]):
            return operands[0]
        if found is not None and (is_known or operands[1].shape != equation.shape or masks.is_repeated(build, operands[1])):
            return _selected(build, equation, found, operands[1], equation.arrays[1], is_divisor=True)
    return None


def _is_one(scalar: np.ndarray | None) -> bool:
    return scalar is not None and scalar == 1


def _mask(build: Builder, equation: Equation, operand: Operand | None) -> Operand | None:
    return masks.mask_of(build, operand) if operand is not None and operand.shape == equation.shape else None


def _selected(
    build: Builder, equation: Equation, mask: Operand, value: Operand, array: np.ndarray | None, is_divisor: bool = False
) -> Operand:
    """`value`, or one over it, where the mask holds, and zero elsewhere."""

    def write(block: BlockBuilder, mask: Ref, value: Ref) -> Ref:
        chosen = block.emit("div_f", block.constant(np.float32(1)), value) if is_divisor else value
        return block.emit("select", mask, chosen, block.constant(np.float32(0)))

    equation = equation._replace(arrays=(None, array))
    return scalar_block(build, equation, (mask, value), write, equation.shape, equation.dtype)


def _refuse_parameters(equation: Equation) -> None:
    """Leaves to XLA what parameters change: `accuracy` that no kernel promises, `out_dtype`, and what later JAX adds."""
    for name, value in equation.params.items():
        kept = equation.primitive in _ALWAYS_ACCURATE and value == lax.AccuracyMode.HIGHEST
        if value is not None and not kept:
            raise Unsupported(f"{equation.primitive} with {name}={value}")


def _wrapped(block: BlockBuilder, ref: Ref, dtype: np.dtype) -> Ref:
    """The lane brought to the values of `dtype`."""
    opcode = narrowing(dtype)
    return ref if opcode is None else block.emit(opcode, ref)


@converts("population_count", "clz")
def _convert_bit_count(build: Builder, equation: Equation, operand: Operand) -> Operand:
    _need(operand, equation.primitive, *INTS)

    def write(block: BlockBuilder, x: Ref) -> Ref:
        bits = 8 * operand.dtype.itemsize
        x = _wrapped(block, x, np.dtype(f"uint{bits}"))  # zeros above the dtype's bits
        if equation.primitive == "population_count":
            return block.emit("popcount_i", x)
        return block.emit("sub_i", block.emit("clz_i", x), block.constant(np.int32(32 - bits)))

    return scalar_block(build, equation, [operand], write, equation.shape, equation.dtype)


@converts("pow")
def _convert_pow(build: Builder, equation: Equation, base: Operand, exponent: Operand) -> Operand:
    _need(base, "pow", *FLOATS)
    _need(exponent, "pow", *FLOATS, *INTS)

    def write(block: BlockBuilder, x: Ref, y: Ref) -> Ref:
        if lane_of(exponent.dtype) == "i":  # becomes a number of the base's dtype first
            y = block.emit("f_from_u" if exponent.dtype == np.uint32 else "f_from_i", y)
            narrow = narrowing(base.dtype)
            y = y if narrow is None else block.emit(narrow, y)
        return block.emit("pow_f", x, y)

    return scalar_block(build, equation, [base, exponent], write, equation.shape, equation.dtype)


@converts("round")
def _convert_round(build: Builder, equation: Equation, operand: Operand) -> Operand:
    opcode = "round_even_f" if equation.params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN else "round_f"
    _need(operand, "round", *FLOATS)
    return build.block(single(opcode), [operand], equation.shape, equation.dtype)


@converts("integer_pow")
def _convert_integer_pow(build: Builder, equation: Equation, operand: Operand) -> Operand:
    exponent = equation.params["y"]
    _need(operand, "integer_pow", *FLOATS, *INTS)
    lane = lane_of(operand.dtype)
    one = np.ones((), operand.dtype)
    if lane == "i" and exponent < 0:
        raise Unsupported(f"integer_pow of {operand.dtype.name} with exponent {exponent}")

    def write(block: BlockBuilder, x: Ref) -> Ref:
        result: Ref | None = None
        square, rest = x, abs(exponent)
        while rest:
            if rest & 1:
                result = square if result is None else block.emit(f"mul_{lane}", result, square)
            rest >>= 1
            square = block.emit(f"mul_{lane}", square, square) if rest else square
        result = block.constant(one) if result is None else result
        if lane == "i":
            return _wrapped(block, result, operand.dtype)
        return block.emit("div_f", block.constant(one), result) if exponent < 0 else result

    return scalar_block(build, equation, [operand], write, equation.shape, equation.dtype)


@converts("log2")
def _convert_log2(build: Builder, equation: Equation, operand: Operand) -> Operand:
    _need(operand, "log2", *FLOATS)
    _refuse_parameters(equation)

    def write(block: BlockBuilder, x: Ref) -> Ref:
        return block.emit("mul_f", block.emit("log_f", x), block.constant(np.float32(1 / np.log(2))))

    return scalar_block(build, equation, [operand], write, equation.shape, equation.dtype)


@converts("one_minus_square")
def _convert_one_minus_square(build: Builder, equation: Equation, operand: Operand) -> Operand:
    _need(operand, equation.primitive, *FLOATS)

    def write(block: BlockBuilder, x: Ref) -> Ref:
        one = block.constant(np.float32(1))
        # As XLA computes it: 1 - x * x would lose the digits of 1 - x near one, where tanh ends up.
        return block.emit("mul_f", block.emit("add_f", one, x), block.emit("sub_f", one, x))

    return scalar_block(build, equation, [operand], write, equation.shape, equation.dtype)


@converts("polynomial")
def _convert_polynomial(build: Builder, equation: Equation, x: Operand, *coefficients: Operand) -> Operand:
    operands = [x, *coefficients]  # the constant term first
    for operand in operands:
        _need(operand, equation.primitive, *FLOATS, *INTS)
        if operand.dtype != x.dtype:
            raise Unsupported(f"polynomial of {x.dtype.name} with coefficients of {operand.dtype.name}")
    variable = equation.scalars[1:].count(None)
    if variable > _MOST_COEFFICIENTS:
        raise Unsupported(f"polynomial with {variable} coefficients that are no constants; kernels take {_MOST_COEFFICIENTS}")
    lane = lane_of(x.dtype)

    def write(block: BlockBuilder, x: Ref, *coefficients: Ref) -> Ref:
        result = coefficients[-1]
        for coefficient in coefficients[-2::-1]:
            result = block.emit(f"add_{lane}", block.emit(f"mul_{lane}", result, x), coefficient)
        return _wrapped(block, result, operands[0].dtype) if lane == "i" else result

    return scalar_block(build, equation, operands, write, equation.shape, equation.dtype)


@converts("select_n")
def _convert_select(build: Builder, equation: Equation, which: Operand, *cases: Operand) -> Operand:
    if lane_of(equation.dtype) is None:
        raise Unsupported(f"no block instruction for select_n of {equation.dtype.name}")

    def write(block: BlockBuilder, index: Ref, *cases: Ref) -> Ref:
        chosen = cases[0]
        for k, case in enumerate(cases[1:], 1):
            condition = index if which.dtype == np.bool_ else block.emit("ge_i", index, block.constant(np.int32(k)))
            chosen = block.emit("select", condition, case, chosen)
        return chosen

    return scalar_block(build, equation, [which, *cases], write, equation.shape, equation.dtype)


@converts("bitcast_convert_type")
def _convert_bitcast(build: Builder, equation: Equation, operand: Operand) -> Operand:
    source, target = operand.dtype, equation.dtype
    lanes = f"{lane_of(target)}{lane_of(source)}"
    # A lane holds an integer of fewer bits by its value: the same bits with another sign are another value.
    opcode = {"ii": narrowing(target) or "copy", "fi": "f_bits_i", "if": "i_bits_f"}.get(lanes)
    if source == target:
        return operand
    # Lanes hold floats of 16 bits as float32.
    if opcode is None or source.itemsize != target.itemsize or (lanes != "ii" and source.itemsize != 4):
        raise Unsupported(f"no block instruction takes the bits of {source.name} for {target.name}")
    return build.block(single(opcode), [operand], equation.shape, target)


@converts("clamp")
def _convert_clamp(build: Builder, equation: Equation, low: Operand, x: Operand, high: Operand) -> Operand:
    _need(x, "clamp", *FLOATS, *INTS)
    lane = "u" if x.dtype == np.uint32 else lane_of(x.dtype)

    def write(block: BlockBuilder, lo: Ref, value: Ref, hi: Ref) -> Ref:
        return block.emit(f"min_{lane}", block.emit(f"max_{lane}", value, lo), hi)

    return scalar_block(build, equation, [low, x, high], write, equation.shape, equation.dtype)


# (from lane, to lane) -> instruction.
_CONVERSIONS = {
    ("f", "f"): "copy",
    ("i", "i"): "copy",
    ("i", "f"): "f_from_i",
    ("b", "f"): "f_from_b",
    ("f", "i"): "i_from_f",
    ("b", "i"): "i_from_b",
    ("f", "b"): "b_from_f",
    ("i", "b"): "b_from_i",
}


@converts("convert_element_type")
def _convert_dtype(build: Builder, equation: Equation, operand: Operand) -> Operand:
    source, target = operand.dtype, equation.dtype
    if source == target:
        return operand
    lanes = (lane_of(source) or "", lane_of(target) or "")
    opcode = _CONVERSIONS.get(lanes)
    if opcode is None:
        raise Unsupported(f"no block instruction converts {source.name} to {target.name}")
    if lanes == ("i", "f") and source == np.uint32:
        opcode = "f_from_u"
    if lanes == ("f", "i") and target == np.uint32:
        opcode = "u_from_f"

    def write(block: BlockBuilder, x: Ref) -> Ref:
        if lanes == ("f", "i") and target.itemsize < 4:  # saturates
            limits = np.iinfo(target)
            x = block.emit("max_f", x, block.constant(np.float32(limits.min)))
            x = block.emit("min_f", x, block.constant(np.float32(limits.max)))
            return block.emit(opcode, x)
        # A conversion rounds, even where the rest of its program has more precision.
        narrow = narrowing(target) if lanes[0] == lanes[1] or lanes[1] == "f" else None
        if opcode == "copy":
            return block.emit(narrow or opcode, x)
        x = block.emit(opcode, x)
        return x if narrow is None else block.emit(narrow, x)

    return scalar_block(build, equation, [operand], write, equation.shape, target)


@converts("reduce_precision")
def _convert_reduce_precision(build: Builder, equation: Equation, operand: Operand) -> Operand:
    bits = (equation.params["exponent_bits"], equation.params["mantissa_bits"])
    _need(operand, "reduce_precision", *FLOATS)
    own = (jnp.finfo(operand.dtype).nexp, jnp.finfo(operand.dtype).nmant)
    if bits == (8, 23):
        return operand
    if bits != own and (bits, operand.dtype.name) != ((8, 7), "float32"):
        raise Unsupported(f"reduce_precision of {operand.dtype.name} to {bits[0]} bits of exponent and {bits[1]} of mantissa")
    opcode = "as_bf16_f" if bits == (8, 7) else "as_f16_f"
    return build.block(single(opcode), [operand], equation.shape, equation.dtype)


@converts("copy", "optimization_barrier", "stop_gradient", "name")
def _convert_identity(build: Builder, equation: Equation, *operands: Operand) -> Sequence[Operand]:
    return operands


def _need(operand: Operand, primitive: str, *names: str) -> None:
    if operand.dtype.name not in names:
        raise Unsupported(f"no block instruction for {primitive} of {operand.dtype.name}")


def fill(build: Builder, value: np.ndarray, shape: tuple[int, ...]) -> Operand:
    """A tensor of one value known when tracing; fusion turns it into a constant of its readers."""
    array = np.asarray(value)
    if array.dtype.name not in _BY_DTYPE:
        return build.copy(Operand(build.constant(array).value, View.identity(()).broadcast_in_dim(shape, ())))
    block = BlockBuilder(0)
    return build.block(block.build(block.constant(array)), [], shape, array.dtype)
