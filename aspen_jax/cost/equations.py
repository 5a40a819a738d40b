"""What a jaxpr costs, counted as XLA counts: `cost_analysis` of a compiled JAX function cannot see into a custom call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax.extend import core


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Counted apart from the flops, one an element.
TRANSCENDENTAL = _words(
    """
    acos acosh asin asinh atan atan2 atanh cbrt cos cosh erf erfc exp exp2 expm1 log log1p log2 pow rsqrt sin sinh sqrt tan
    tanh
    """
)

# Move data and compute nothing.
_FREE = _words(
    """
    bitcast_convert_type broadcast_in_dim concatenate copy copy_p dynamic_slice dynamic_update_slice expand_dims gather
    iota optimization_barrier pad pcast pvary real imag complex reshape rev select_and_gather_add slice split squeeze
    stack stop_gradient tile transpose unstack all_gather all_to_all ppermute psum_invariant random_wrap random_unwrap
    """
)

# Operations on elements that take XLA some microseconds, as much as a custom call costs whose workers have to be woken. Bytes do
# not count: XLA moves them as fast, and in place where a loop updates an array.
_LEAST_WORK = 10_000

# Flops an element where XLA expands one primitive into several instructions; logistic takes an exp as well.
_SEVERAL = {"logistic": 3, "argmax": 9, "argmin": 9, "erf_inv": 37, "nextafter": 30, "one_minus_square": 3}


# An element of rows that are masked for a group: two comparisons, a conjunction, a choice.
OPERATIONS_OF_A_MASK = 4


@dataclasses.dataclass(frozen=True)
class Cost:
    """Work of a computation.

    Attributes:
        flops: arithmetic on elements, a multiply-add being two; what is multiplied with padding is not counted.
        transcendentals: elements of exp, log, tanh, sqrt and the like.
        bytes: read and written by every equation for itself. All are nan where a shape is symbolic.
    """

    flops: float = 0.0
    transcendentals: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.transcendentals + other.transcendentals, self.bytes + other.bytes)

    @property
    def total(self) -> float:
        """All operations on elements."""
        return self.flops + self.transcendentals


def of_jaxpr(jaxpr: core.Jaxpr) -> Cost:
    """The cost of a jaxpr. As XLA does it, a loop counts as one iteration and a choice as its dearest branch."""
    return sum(map(of_equation, jaxpr.eqns), Cost())


def is_worth_a_call(equations: Iterable[core.JaxprEqn]) -> bool:
    """Whether equations among others that stay with XLA, or in a loop, have enough to do for a custom call of their own."""
    return sum(of_equation(equation).total for equation in equations) >= _LEAST_WORK


def of_equation(equation: Any) -> Cost:
    """The cost of one equation, with what it calls."""
    name, params = equation.primitive.name, equation.params
    if name == "cond":
        return max((of_jaxpr(_open(branch)) for branch in params["branches"]), key=lambda cost: cost.total)
    if name in _JAXPR_OF_CALL:
        return of_jaxpr(_open(params[_JAXPR_OF_CALL[name]]))
    if name not in _COUNTED:  # those carry the jaxpr of what they reduce with
        inner = list(core.jaxprs_in_params(params))
        if inner:
            return sum(map(of_jaxpr, inner), Cost())
    reads = sum(_nbytes(atom.aval) for atom in equation.invars)
    moved = float(reads + sum(_nbytes(var.aval) for var in equation.outvars))
    if name in _FREE:
        return Cost(bytes=moved)
    elements = float(sum(_size(var.aval) for var in equation.outvars))
    if name in TRANSCENDENTAL:
        return Cost(transcendentals=elements, bytes=moved)
    if name == "logistic":
        return Cost(_SEVERAL[name] * elements, elements, moved)
    if name in _SEVERAL:
        return Cost(_SEVERAL[name] * float(_size(equation.invars[0].aval)), bytes=moved)
    count = _COUNTED.get(name)
    return Cost(elements if count is None else count(equation), bytes=moved)


def executed(equations: Iterable[core.JaxprEqn]) -> float:
    """Count about how many operations on elements a run takes.

    Unlike XLA this counts what factorisations and Fourier transforms do, and a `scan` as often as it turns. A `while_loop`, of
    which that is not known, counts once.
    """
    return sum(map(_executed_by, equations), 0.0)


def _executed_by(equation: Any) -> float:
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        return params["length"] * executed(_open(params["jaxpr"]).eqns)
    if name == "cond":
        return max(executed(_open(branch).eqns) for branch in params["branches"])
    if name in _JAXPR_OF_CALL:
        return executed(_open(params[_JAXPR_OF_CALL[name]]).eqns)
    if name in _FACTORISATIONS:
        *_, rows, columns = shape = equation.invars[0].aval.shape
        return _FACTORISATIONS[name] * min(_product((*shape, rows)), _product((*shape, columns)))
    if name == "triangular_solve":
        return _product((*equation.outvars[0].aval.shape, equation.invars[0].aval.shape[-1]))
    if name == "fft":
        return 5 * _size(equation.outvars[0].aval) * math.log2(max(2, _product(params["fft_lengths"])))
    inner = [] if name in _COUNTED else list(core.jaxprs_in_params(params))
    return sum(executed(jaxpr.eqns) for jaxpr in inner) if inner else of_equation(equation).total


# Flops of m x n matrices over m * n * min(m, n), by textbooks (Golub and Van Loan); of iterations that converge, about.
_FACTORISATIONS = {
    "cholesky": 1 / 3,
    "eig": 25.0,
    "eigh": 9.0,
    "geqrf": 4 / 3,
    "hessenberg": 10 / 3,
    "householder_product": 4 / 3,
    "lu": 2 / 3,
    "qr": 8 / 3,
    "schur": 25.0,
    "svd": 20.0,
    "tridiagonal": 4 / 3,
}

# The jaxpr that is executed, where parameters hold others too (rules of differentiation), or those of a reduction.
_JAXPR_OF_CALL = {
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_vmap_call": "call",
}


def _open(jaxpr: Any) -> core.Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else jaxpr


def _size(aval: Any) -> float:
    """Number of elements; nan for a symbolic shape."""
    return _product(aval.shape) if hasattr(aval, "shape") else 0


def _product(extents: Iterable[Any]) -> float:
    product = math.prod(extents)
    return product if isinstance(product, int) else math.nan


def _nbytes(aval: Any) -> float:
    if not hasattr(aval, "dtype") or jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        return 0
    return _size(aval) * np.dtype(aval.dtype).itemsize


def _dot(equation: Any) -> float:
    lhs = equation.invars[0].aval
    (contracted, _), _ = equation.params["dimension_numbers"]
    return 2.0 * _size(equation.outvars[0].aval) * _product(lhs.shape[d] for d in contracted)


def _ragged_dot(equation: Any) -> float:
    """XLA masks the rows of each group, and multiplies all of them for all groups."""
    lhs, rhs, sizes = (atom.aval for atom in equation.invars)
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (contracted, _), (batch, _) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    products = _size(equation.outvars[0].aval) * _product(lhs.shape[d] for d in contracted)
    groups = sizes.shape[-1]
    if ragged in contracted:  # the result has a matrix for each group
        return 2.0 * products + OPERATIONS_OF_A_MASK * groups * (_size(lhs) + _size(rhs))
    if ragged in batch:
        return 2.0 * products
    return 2.0 * products * groups + OPERATIONS_OF_A_MASK * groups * _size(lhs)


def _conv(equation: Any) -> float:
    params = equation.params
    lhs, rhs, out = equation.invars[0].aval, equation.invars[1].aval, equation.outvars[0].aval
    numbers = params["dimension_numbers"]
    positions = math.prod(
        _valid_positions(lhs.shape[i], rhs.shape[k], out.shape[o], *window)
        for i, k, o, *window in zip(
            numbers.lhs_spec[2:],
            numbers.rhs_spec[2:],
            numbers.out_spec[2:],
            params["window_strides"],
            [low for low, _ in params["padding"]],
            params["lhs_dilation"],
            params["rhs_dilation"],
            strict=True,
        )
    )
    others = _product((out.shape[numbers.out_spec[0]], out.shape[numbers.out_spec[1]], rhs.shape[numbers.rhs_spec[1]]))
    return 2.0 * positions * others


def _valid_positions(size: int, window: int, outputs: int, stride: int, low: int, base_dilation: int, dilation: int) -> float:
    """Pairs of output and window positions that meet an element of the input, in one dimension."""
    if not all(isinstance(extent, int) for extent in (size, window, outputs, low)):
        return math.nan
    at = np.arange(outputs)[:, None] * stride + np.arange(window)[None] * dilation - low
    return int(np.sum((at >= 0) & (at < (size - 1) * base_dilation + 1) & (at % base_dilation == 0)))


def _reduction(equation: Any) -> float:
    return float(sum(_size(atom.aval) for atom in equation.invars) - sum(_size(var.aval) for var in equation.outvars))


def _window(equation: Any) -> float:
    return float(_size(equation.outvars[0].aval) * (math.prod(equation.params["window_dimensions"]) - 1))


def _scan_in_log_steps(equation: Any) -> float:
    # XLA rewrites it into windows of 16 elements.
    return 16.0 * _size(equation.invars[0].aval)


def _sort(equation: Any) -> float:
    aval = equation.invars[0].aval
    return float(_size(aval) * max(1, math.ceil(math.log2(max(2, aval.shape[equation.params["dimension"]])))))


def _scatter(equation: Any) -> float:
    return float(_size(equation.invars[2].aval))


def _integer_pow(equation: Any) -> float:
    exponent = abs(equation.params["y"])
    products = max(exponent.bit_length() - 1 + exponent.bit_count() - 1, 0) + (equation.params["y"] < 0)
    return float(products * _size(equation.outvars[0].aval))


def _polynomial(equation: Any) -> float:
    return 2.0 * (len(equation.invars) - 2) * _size(equation.outvars[0].aval)  # a multiply-add for each coefficient but the last


def _backward_pool(equation: Any) -> float:
    return float(_size(equation.invars[0].aval) * math.prod(equation.params["window_dimensions"]))


_COUNTED: dict[str, Callable[[Any], float]] = {
    "dot_general": _dot,
    "ragged_dot_general": _ragged_dot,
    "conv_general_dilated": _conv,
    "sort": _sort,
    "integer_pow": _integer_pow,
    "polynomial": _polynomial,
    "select_and_scatter_add": _backward_pool,
    **dict.fromkeys(_words("reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or reduce_xor reduce"), _reduction),
    **dict.fromkeys(_words("reduce_window reduce_window_sum reduce_window_max reduce_window_min"), _window),
    **dict.fromkeys(_words("cumsum cumprod cummax cummin cumlogsumexp"), _scan_in_log_steps),
    **dict.fromkeys(_words("scatter scatter_add scatter_mul scatter_min scatter_max scatter-add"), _scatter),
}
