"""The instructions of block programs, with their meaning in jax.lax.

Numbers and arities are those of `cpu/block_ops.inc`; a test holds the two tables together. Lanes are f (float32), i (int32)
or b (bool); instructions of uint32 read int32 lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Opcode(NamedTuple):
    """One instruction: its number, the lanes of its arguments and result ("ff>f"), and the same in jax."""

    number: int
    lanes: str
    reference: Callable[..., jax.Array]

    @property
    def arity(self) -> int:
        return self.lanes.index(">")


def _as_unsigned(x: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(x, jnp.uint32)


def _of_unsigned(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A function of uint32 on int32 lanes."""

    def reference(*args: jax.Array) -> jax.Array:
        result = function(*map(_as_unsigned, args))
        return result if result.dtype == np.bool_ else lax.bitcast_convert_type(result, jnp.int32)

    return reference


OPCODES: dict[str, Opcode] = {
    "copy": Opcode(0, "?>?", lambda x: x),
    "add_f": Opcode(1, "ff>f", lax.add),
    "sub_f": Opcode(2, "ff>f", lax.sub),
    "mul_f": Opcode(3, "ff>f", lax.mul),
    "div_f": Opcode(4, "ff>f", lax.div),
    "max_f": Opcode(5, "ff>f", lax.max),
    "min_f": Opcode(6, "ff>f", lax.min),
    "pow_f": Opcode(7, "ff>f", lax.pow),
    "rem_f": Opcode(8, "ff>f", lax.rem),
    "atan2_f": Opcode(9, "ff>f", lax.atan2),
    "fma_f": Opcode(10, "fff>f", lambda a, b, c: a * b + c),
    "neg_f": Opcode(11, "f>f", lax.neg),
    "abs_f": Opcode(12, "f>f", lax.abs),
    "sign_f": Opcode(13, "f>f", lax.sign),
    "floor_f": Opcode(14, "f>f", lax.floor),
    "ceil_f": Opcode(15, "f>f", lax.ceil),
    "round_f": Opcode(16, "f>f", lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)),
    "round_even_f": Opcode(17, "f>f", lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)),
    "sqrt_f": Opcode(18, "f>f", lax.sqrt),
    "rsqrt_f": Opcode(19, "f>f", lax.rsqrt),
    "cbrt_f": Opcode(20, "f>f", lax.cbrt),
    "exp_f": Opcode(21, "f>f", lax.exp),
    "exp2_f": Opcode(22, "f>f", lax.exp2),
    "expm1_f": Opcode(23, "f>f", lax.expm1),
    "log_f": Opcode(24, "f>f", lax.log),
    "log1p_f": Opcode(25, "f>f", lax.log1p),
    "tanh_f": Opcode(26, "f>f", lax.tanh),
    "logistic_f": Opcode(27, "f>f", lax.logistic),
    "erf_f": Opcode(28, "f>f", lax.erf),
    "erfc_f": Opcode(29, "f>f", lax.erfc),
    "sin_f": Opcode(30, "f>f", lax.sin),
    "cos_f": Opcode(31, "f>f", lax.cos),
    "tan_f": Opcode(32, "f>f", lax.tan),
    "is_finite_f": Opcode(33, "f>b", lax.is_finite),
    "eq_f": Opcode(34, "ff>b", lax.eq),
    "ne_f": Opcode(35, "ff>b", lax.ne),
    "lt_f": Opcode(36, "ff>b", lax.lt),
    "le_f": Opcode(37, "ff>b", lax.le),
    "gt_f": Opcode(38, "ff>b", lax.gt),
    "ge_f": Opcode(39, "ff>b", lax.ge),
    "relu_f": Opcode(40, "f>f", lambda x: lax.max(x, jnp.zeros_like(x))),
    "square_f": Opcode(41, "f>f", lax.square),
    "as_bf16_f": Opcode(42, "f>f", lambda x: lax.reduce_precision(x, 8, 7)),
    "as_f16_f": Opcode(43, "f>f", lambda x: x.astype(jnp.float16).astype(jnp.float32)),
    "sinh_f": Opcode(44, "f>f", lax.sinh),
    "cosh_f": Opcode(45, "f>f", lax.cosh),
    "asin_f": Opcode(46, "f>f", lax.asin),
    "acos_f": Opcode(47, "f>f", lax.acos),
    "atan_f": Opcode(48, "f>f", lax.atan),
    "asinh_f": Opcode(49, "f>f", lax.asinh),
    "acosh_f": Opcode(50, "f>f", lax.acosh),
    "atanh_f": Opcode(51, "f>f", lax.atanh),
    "erf_inv_f": Opcode(52, "f>f", lax.erf_inv),
    "nextafter_f": Opcode(53, "ff>f", lax.nextafter),
    "add_i": Opcode(64, "ii>i", lax.add),
    "sub_i": Opcode(65, "ii>i", lax.sub),
    "mul_i": Opcode(66, "ii>i", lax.mul),
    "div_i": Opcode(67, "ii>i", lax.div),
    "rem_i": Opcode(68, "ii>i", lax.rem),
    "max_i": Opcode(69, "ii>i", lax.max),
    "min_i": Opcode(70, "ii>i", lax.min),
    "neg_i": Opcode(71, "i>i", lax.neg),
    "abs_i": Opcode(72, "i>i", lax.abs),
    "sign_i": Opcode(73, "i>i", lax.sign),
    "and_i": Opcode(74, "ii>i", lax.bitwise_and),
    "or_i": Opcode(75, "ii>i", lax.bitwise_or),
    "xor_i": Opcode(76, "ii>i", lax.bitwise_xor),
    "not_i": Opcode(77, "i>i", lax.bitwise_not),
    "shl_i": Opcode(78, "ii>i", lax.shift_left),
    "shra_i": Opcode(79, "ii>i", lax.shift_right_arithmetic),
    "shrl_i": Opcode(80, "ii>i", lax.shift_right_logical),
    "eq_i": Opcode(81, "ii>b", lax.eq),
    "ne_i": Opcode(82, "ii>b", lax.ne),
    "lt_i": Opcode(83, "ii>b", lax.lt),
    "le_i": Opcode(84, "ii>b", lax.le),
    "gt_i": Opcode(85, "ii>b", lax.gt),
    "ge_i": Opcode(86, "ii>b", lax.ge),
    "as_i8_i": Opcode(87, "i>i", lambda x: x.astype(jnp.int8).astype(jnp.int32)),
    "as_i16_i": Opcode(88, "i>i", lambda x: x.astype(jnp.int16).astype(jnp.int32)),
    "as_u8_i": Opcode(89, "i>i", lambda x: x.astype(jnp.uint8).astype(jnp.int32)),
    "as_u16_i": Opcode(90, "i>i", lambda x: x.astype(jnp.uint16).astype(jnp.int32)),
    "popcount_i": Opcode(91, "i>i", lax.population_count),
    "clz_i": Opcode(92, "i>i", lax.clz),
    "and_b": Opcode(96, "bb>b", lax.bitwise_and),
    "or_b": Opcode(97, "bb>b", lax.bitwise_or),
    "xor_b": Opcode(98, "bb>b", lax.bitwise_xor),
    "not_b": Opcode(99, "b>b", lax.bitwise_not),
    "eq_b": Opcode(100, "bb>b", lax.eq),
    "ne_b": Opcode(101, "bb>b", lax.ne),
    "div_u": Opcode(102, "ii>i", _of_unsigned(lax.div)),
    "rem_u": Opcode(103, "ii>i", _of_unsigned(lax.rem)),
    "max_u": Opcode(104, "ii>i", _of_unsigned(lax.max)),
    "min_u": Opcode(105, "ii>i", _of_unsigned(lax.min)),
    "lt_u": Opcode(106, "ii>b", _of_unsigned(lax.lt)),
    "le_u": Opcode(107, "ii>b", _of_unsigned(lax.le)),
    "gt_u": Opcode(108, "ii>b", _of_unsigned(lax.gt)),
    "ge_u": Opcode(109, "ii>b", _of_unsigned(lax.ge)),
    "select": Opcode(112, "b??>?", lax.select),
    "f_from_i": Opcode(120, "i>f", lambda x: x.astype(jnp.float32)),
    "f_from_u": Opcode(121, "i>f", lambda x: _as_unsigned(x).astype(jnp.float32)),
    "f_from_b": Opcode(122, "b>f", lambda x: x.astype(jnp.float32)),
    "i_from_f": Opcode(123, "f>i", lambda x: x.astype(jnp.int32)),
    "i_from_b": Opcode(124, "b>i", lambda x: x.astype(jnp.int32)),
    "b_from_f": Opcode(125, "f>b", lambda x: x != 0),
    "b_from_i": Opcode(126, "i>b", lambda x: x != 0),
    "u_from_f": Opcode(127, "f>i", lambda x: lax.bitcast_convert_type(x.astype(jnp.uint32), jnp.int32)),
    "f_bits_i": Opcode(128, "i>f", lambda x: lax.bitcast_convert_type(x, jnp.float32)),
    "i_bits_f": Opcode(129, "f>i", lambda x: lax.bitcast_convert_type(x, jnp.int32)),
}

NAMES: dict[int, str] = {opcode.number: name for name, opcode in OPCODES.items()}

LANE_DTYPES: dict[str, np.dtype] = {"f": np.dtype(np.float32), "i": np.dtype(np.int32), "b": np.dtype(np.bool_)}

# What kernels of floats take: those of fewer bits are stored narrow and computed in float32.
FLOATS = ("float32", "bfloat16", "float16")

# Integers that lanes hold.
INTS = ("int32", "int16", "int8", "uint32", "uint16", "uint8")

_LANES: dict[str, str] = {
    "float32": "f",
    "bfloat16": "f",
    "float16": "f",
    "int32": "i",
    "int16": "i",
    "int8": "i",
    "uint16": "i",
    "uint8": "i",
    "uint32": "i",
    "bool": "b",
}


@functools.cache  # asked of each operand by each pass, and names of dtypes are made anew
def lane_of(dtype: np.dtype) -> str | None:
    """The lane that a dtype is loaded into, or None where block programs can only copy it."""
    return _LANES.get(np.dtype(dtype).name)


# What brings a lane to the values of a narrower dtype.
_NARROWING: dict[str, str] = {
    "bfloat16": "as_bf16_f",
    "float16": "as_f16_f",
    "int8": "as_i8_i",
    "int16": "as_i16_i",
    "uint8": "as_u8_i",
    "uint16": "as_u16_i",
}


def narrowing(dtype: np.dtype) -> str | None:
    """The instruction that rounds or wraps a lane to a dtype of fewer bits; None where the lane holds no other values."""
    return _NARROWING.get(np.dtype(dtype).name)
