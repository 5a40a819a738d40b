"""Random JAX functions, step by step: any rank, odd shapes, nine dtypes and bools, special values among the arguments.

A `Written` function keeps its steps apart. So each step can be judged alone, on the values that the function itself computed
before it. An error of one step then shows at this step, and a small error that a later comparison or `floor` makes large shows
nowhere.

Bits are never read as denormal numbers of float32 or bfloat16: XLA flushes them and tiles keep them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array
Compute = Callable[..., Array]

FLOATS = tuple(map(np.dtype, (np.float32, jnp.bfloat16, np.float16)))
INTS = tuple(map(np.dtype, (np.int32, np.int16, np.int8, np.uint32, np.uint16, np.uint8)))
BOOL = np.dtype(bool)
_EXTENTS = (0, 1, 1, 2, 3, 3, 5, 7, 8, 9, 13, 17, 31, 33)
_LONG_EXTENTS = (1, 3, 7, 16, 33, 63, 129, 257)
_FLUSHED = FLOATS[:2]  # whose denormals XLA flushes; those of float16 are normal numbers where it computes
_SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -6e-8, 6e4, -3e38)


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a function.

    Attributes:
        name: what it does, with its parameters.
        reads: the numbers of the values that it reads.
        compute: the value, from those.
        is_sum: whether an error may be as large as the sum of absolute values allows.
        is_of_bits: whether it depends on how many bits a float has, so that float64 is no reference.
    """

    name: str
    reads: tuple[int, ...]
    compute: Compute
    is_sum: bool = False
    is_of_bits: bool = False


@dataclasses.dataclass(frozen=True)
class Written:
    """A function as its steps. Values are numbered: first the arguments, then a value a step.

    Attributes:
        arguments: one for each parameter.
        steps: in the order in which they are computed.
    """

    arguments: tuple[np.ndarray, ...]
    steps: tuple[Step, ...]

    def values(self, *arguments: Any) -> list[Array]:
        """The value of each step."""
        known = list(arguments)
        for step in self.steps:
            known.append(step.compute(*(known[number] for number in step.reads)))
        return known[len(arguments) :]

    def each(self, *known: Any) -> list[Array]:
        """The value of each step, computed of what is given for all arguments and all values."""
        return [step.compute(*(known[number] for number in step.reads)) for step in self.steps]

    def absolute_each(self, *known: Any) -> list[Array]:
        """For each step that sums, the sum of absolute values. Zero for others."""
        return [
            step.compute(*(abs(known[number]) for number in step.reads)) if step.is_sum else jnp.zeros(()) for step in self.steps
        ]

    @functools.cached_property
    def last(self) -> tuple[int, ...]:
        """Which steps' values no step reads."""
        read = {number for step in self.steps for number in step.reads}
        start = len(self.arguments)
        return tuple(number for number in range(len(self.steps)) if start + number not in read)

    def results(self, *arguments: Any) -> list[Array]:
        """The values that no step reads."""
        values = self.values(*arguments)
        return [values[number] for number in self.last]

    def loss(self, *arguments: Any) -> Array:
        """One number of all results that are floats."""
        total = jnp.zeros((), jnp.float32)
        for number, value in enumerate(self.results(*arguments)):
            if value.size and jnp.issubdtype(value.dtype, jnp.floating):
                finite = jnp.where(jnp.isfinite(value), value, 0).astype(jnp.float32)
                total += finite.mean() * (1 + number % 3)
        return total

    def only(self, number: int) -> Written:
        """What one step's value needs, and no more."""
        start = len(self.arguments)
        needed = {start + number}
        for value in range(start + number, start - 1, -1):
            if value in needed:
                needed.update(self.steps[value - start].reads)
        kept = sorted(needed)
        renamed = {value: place for place, value in enumerate(kept)}
        steps = tuple(
            dataclasses.replace(self.steps[value - start], reads=tuple(renamed[read] for read in self.steps[value - start].reads))
            for value in kept
            if value >= start
        )
        return Written(tuple(self.arguments[value] for value in kept if value < start), steps)

    def text(self) -> str:
        """A line for each argument and each step."""
        lines = [f"v{number} = {array.dtype.name}{list(array.shape)}" for number, array in enumerate(self.arguments)]
        avals = jax.eval_shape(self.values, *self.arguments)
        for number, (step, aval) in enumerate(zip(self.steps, avals, strict=True), len(self.arguments)):
            reads = ", ".join(f"v{read}" for read in step.reads)
            lines.append(f"v{number} = {step.name}: {reads} -> {aval.dtype.name}{list(aval.shape)}")
        return "\n".join(lines)


def written(seed: int, steps: int = 30, *, is_large: bool = False, is_smooth: bool = False) -> Written:
    """A random function and its arguments. The same seed gives the same.

    Args:
        seed: any number that is not negative.
        steps: how many.
        is_large: whether arrays have some ten thousand elements, so that tiles may be worth it.
        is_smooth: whether most steps have a derivative that is not zero.
    """
    author = _Author(seed, is_large=is_large, is_smooth=is_smooth)
    while len(author.steps) < steps:
        author.step()
    return Written(tuple(author.arguments), tuple(author.renumbered()))


class _Author:
    """Writes one function. Values are held by name until all arguments are known: an argument may be drawn for any step."""

    def __init__(self, seed: int, *, is_large: bool, is_smooth: bool):
        self.rng = np.random.default_rng(seed)
        self.is_large, self.is_smooth = is_large, is_smooth
        self.most = 60_000 if is_large else 3_000
        self.specials = self.rng.random() < (0.15 if is_smooth else 0.4)
        self.arguments: list[np.ndarray] = []
        self.steps: list[Step] = []
        self.avals: list[Any] = []  # of all values, in the order in which they became known
        self.names: list[tuple[bool, int]] = []  # whether an argument, and which
        self.indices: set[int] = set()  # arguments that are there to index
        for _ in range(self.integer(1, 3)):
            self.argument(self.shape(), self.dtype())

    def integer(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def choose(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def dtype(self) -> np.dtype:
        kinds = (FLOATS[:1], FLOATS) if self.is_smooth else (FLOATS[:1], FLOATS, INTS, (*INTS, BOOL))
        return self.choose(self.choose(kinds))

    def shape(self) -> tuple[int, ...]:
        extents = _LONG_EXTENTS if self.is_large else _EXTENTS
        while True:
            shape = tuple(self.choose(extents) for _ in range(self.choose((0, 1, 1, 2, 2, 2, 3, 3, 4, 5))))
            least = self.most // 20 if self.is_large else 0
            if least <= math.prod(shape) <= self.most and (0 not in shape or self.rng.random() < 0.2):
                return shape

    def argument(self, shape: tuple[int, ...], dtype: np.dtype, *, most: int | None = None, is_finite: bool = False) -> int:
        """A new argument; integers from 0 up to `most` where that is given."""
        if most is not None:
            array = self.rng.integers(-1, most + 2, shape)
        elif dtype in FLOATS:
            array = self.rng.standard_normal(shape)
            if self.specials and array.size and not is_finite:
                for place in self.rng.integers(0, array.size, self.integer(1, 3)):
                    array.reshape(-1)[place] = self.choose(_SPECIAL)
        elif dtype == BOOL:
            array = self.rng.integers(0, 2, shape)
        else:
            limits = np.iinfo(dtype)
            small = self.rng.integers(0 if limits.min == 0 else -9, 10, shape)
            array = self.rng.integers(limits.min, limits.max, shape, endpoint=True) if self.integer(0, 3) == 0 else small
        with np.errstate(all="ignore"):
            self.arguments.append(np.asarray(array).astype(dtype))
        number = self.know((True, len(self.arguments) - 1), jax.ShapeDtypeStruct(shape, dtype))
        if most is not None:
            self.indices.add(number)
        return number

    def know(self, name: tuple[bool, int], aval: Any) -> int:
        self.names.append(name)
        self.avals.append(aval)
        return len(self.names) - 1

    def renumbered(self) -> list[Step]:
        """The steps, whose values follow all arguments."""
        numbers = [place if is_argument else len(self.arguments) + place for is_argument, place in self.names]
        return [dataclasses.replace(step, reads=tuple(numbers[read] for read in step.reads)) for step in self.steps]

    def add(self, name: str, compute: Compute, *reads: int, is_sum: bool = False, is_of_bits: bool = False) -> None:
        """A step, unless its value is too large or of another kind than tiles hold."""
        aval = jax.eval_shape(compute, *(self.avals[read] for read in reads))
        if aval.size > self.most or aval.dtype not in (*FLOATS, *INTS, BOOL):
            return
        self.steps.append(Step(name, reads, compute, is_sum, is_of_bits))
        self.know((False, len(self.steps) - 1), aval)

    def value(self, wanted: Callable[[Any], bool] = lambda _: True) -> int | None:
        """A known value of the wanted kind; late ones are likelier."""
        fitting = [number for number, aval in enumerate(self.avals) if number not in self.indices and wanted(aval)]
        if self.is_large and self.integer(0, 4):
            fitting = [number for number in fitting if self.avals[number].size > self.most // 60] or fitting
        if not fitting:
            return None
        return fitting[-1 - min(int(self.rng.geometric(0.35)) - 1, len(fitting) - 1)]

    def float(self, rank: int = 0) -> int:
        """A value of floats, of this rank at least; a new argument where there is none."""
        found = self.value(lambda aval: aval.dtype in FLOATS and aval.ndim >= rank)
        if found is None:
            shape = self.shape()
            return self.argument((*(3,) * (rank - len(shape)), *shape), self.choose(FLOATS))
        return found

    def any(self, rank: int = 0) -> int:
        """A value of any dtype, of this rank at least."""
        found = self.value(lambda aval: aval.ndim >= rank)
        return self.float(rank) if found is None else found

    def axis(self, value: int) -> int:
        return self.integer(0, self.avals[value].ndim - 1)

    def partner(self, value: int) -> int:
        """A value of the same dtype that broadcasts with it; a new argument where there is none, and at times."""
        aval = self.avals[value]

        def fits(other: Any) -> bool:
            try:
                return other.dtype == aval.dtype and np.broadcast_shapes(other.shape, aval.shape) == aval.shape
            except ValueError:
                return False

        found = self.value(fits) if self.integer(0, 3) else None
        if found is not None:
            return found
        kept = [extent if self.integer(0, 2) else 1 for extent in aval.shape]
        return self.argument(tuple(kept[self.integer(0, len(kept)) :]), aval.dtype)

    def step(self) -> None:
        kinds = _SMOOTH if self.is_smooth and self.integer(0, 5) else _STEPS
        self.choose(kinds)(self)


# Floats to floats, defined everywhere or NaN.
_FLOAT_UNARY: dict[str, Compute] = {
    "sin": jnp.sin, "cos": jnp.cos, "tanh": jnp.tanh, "exp": jnp.exp, "exp2": jnp.exp2, "expm1": jnp.expm1, "log1p": jnp.log1p,
    "sqrt": jnp.sqrt, "rsqrt": lax.rsqrt, "abs": jnp.abs, "neg": jnp.negative, "square": jnp.square, "logistic": jax.nn.sigmoid,
    "erf": lax.erf, "erfc": lax.erfc, "softplus": jax.nn.softplus, "silu": jax.nn.silu, "gelu": jax.nn.gelu,
    "exact_gelu": functools.partial(jax.nn.gelu, approximate=False), "relu": jax.nn.relu, "elu": jax.nn.elu, "cbrt": jnp.cbrt,
    "atan": jnp.arctan, "asinh": jnp.arcsinh, "log": jnp.log, "log2": jnp.log2, "reciprocal": jnp.reciprocal,
    "tan": jnp.tan, "atanh": jnp.arctanh, "acos": jnp.arccos, "asin": jnp.arcsin, "acosh": jnp.arccosh, "sinh": jnp.sinh,
    "cosh": jnp.cosh, "erf_inv": lax.erf_inv, "sinc": jnp.sinc, "cube": lambda x: x**3, "over_square": lambda x: x**-2,
    "clip": lambda x: jnp.clip(x, -2, 2), "relu6": jax.nn.relu6, "leaky": jax.nn.leaky_relu, "mish": jax.nn.mish,
    "no_nan": lambda x: jnp.where(jnp.isfinite(x), x, 0.5), "nan_to_num": jnp.nan_to_num, "scaled": lambda x: x * 0.3 + 0.7,
    "log_sigmoid": jax.nn.log_sigmoid, "power": lambda x: jnp.abs(x) ** 1.7,
}  # fmt: skip
_FLOAT_COARSE: dict[str, Compute] = {
    "sign": jnp.sign, "floor": jnp.floor, "ceil": jnp.ceil, "round": jnp.round, "trunc": jnp.trunc, "is_finite": jnp.isfinite,
    "is_nan": jnp.isnan, "signbit": lambda a: jnp.signbit(_of_some_sign(a)),
}  # fmt: skip
_INT_UNARY: dict[str, Compute] = {
    "neg": jnp.negative, "abs": jnp.abs, "sign": jnp.sign, "not": jnp.bitwise_not, "square": jnp.square,
    "population_count": lax.population_count, "clz": lax.clz, "clip": lambda x: jnp.clip(x, 1, 7), "cube": lambda x: x**3,
}  # fmt: skip
_FLOAT_BINARY: dict[str, Compute] = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": jnp.divide, "max": jnp.maximum, "min": jnp.minimum,
    "logaddexp": jnp.logaddexp, "hypot": jnp.hypot,
}  # fmt: skip
_FLOAT_COARSE_BINARY: dict[str, Compute] = {
    "fmod": jnp.fmod, "atan2": jnp.arctan2, "copysign": lambda a, b: jnp.copysign(a, _of_some_sign(b)),
    "floor_divide": jnp.floor_divide, "mod": jnp.mod, "fmax": jnp.fmax, "power": jnp.power, "heaviside": jnp.heaviside,
}  # fmt: skip
_INT_BINARY: dict[str, Compute] = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "max": jnp.maximum, "min": jnp.minimum, "and": jnp.bitwise_and,
    "or": jnp.bitwise_or, "xor": jnp.bitwise_xor, "shl": jnp.left_shift, "shr": jnp.right_shift, "floor_divide": jnp.floor_divide,
    "mod": jnp.mod, "fmod": jnp.fmod,
}  # fmt: skip
_INT_DIVISIONS = ("floor_divide", "mod", "fmod")
_COMPARE: dict[str, Compute] = {
    "eq": jnp.equal, "ne": jnp.not_equal, "lt": jnp.less, "le": jnp.less_equal, "gt": jnp.greater, "ge": jnp.greater_equal,
}  # fmt: skip


def _unary(author: _Author) -> None:
    x = author.any()
    dtype = author.avals[x].dtype
    if dtype == BOOL:
        author.add("not", jnp.logical_not, x)
        return
    table = _INT_UNARY if dtype in INTS else _FLOAT_UNARY if author.is_smooth or author.integer(0, 4) else _FLOAT_COARSE
    name = author.choose(list(table))
    author.add(name, table[name], x)


def _binary(author: _Author) -> None:
    x = author.any()
    y = author.partner(x)
    dtype = author.avals[x].dtype
    if dtype == BOOL:
        name = author.choose(("and", "or", "xor"))
        author.add(f"{name} of bools", {"and": jnp.logical_and, "or": jnp.logical_or, "xor": jnp.logical_xor}[name], x, y)
        return
    is_coarse = not author.is_smooth and author.integer(0, 4) == 0
    table = _INT_BINARY if dtype in INTS else _FLOAT_COARSE_BINARY if is_coarse else _FLOAT_BINARY
    name = author.choose(list(table))
    compute = _not_of_zeros(table[name]) if name in _INT_DIVISIONS and dtype in INTS else table[name]
    pair = (x, y) if author.integer(0, 1) else (y, x)
    author.add(name, compute, *pair, is_sum=name in ("add", "sub", "hypot", "logaddexp") and dtype in FLOATS)


def _not_of_zeros(divide: Compute) -> Compute:
    """A division without 0 by 0: XLA takes x // x for 1, also where x is 0 (docs/reference/special_values.md)."""
    return lambda a, b: divide(a, jnp.where((a == 0) & (b == 0), 1, b).astype(b.dtype))


def _with_scalar(author: _Author) -> None:
    x = author.any()
    dtype = author.avals[x].dtype
    if dtype == BOOL:
        return
    number = author.choose((0, 1, 2, 3) if dtype in INTS else (0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 1e-3, math.inf, math.nan))
    table = _INT_BINARY if dtype in INTS else _FLOAT_BINARY
    name = author.choose(("add", "sub", "mul", "max", "min"))
    function = table[name]
    if author.integer(0, 1):
        author.add(f"{name} of {number}", lambda y: function(jnp.asarray(number, y.dtype), y), x, is_sum=name in ("add", "sub"))
    else:
        author.add(f"{name} by {number}", lambda y: function(y, jnp.asarray(number, y.dtype)), x, is_sum=name in ("add", "sub"))


def _compare(author: _Author) -> None:
    x = author.any()
    name = author.choose(list(_COMPARE))
    author.add(name, _COMPARE[name], x, author.partner(x))


def _select(author: _Author) -> None:
    x = author.any()
    shape = author.avals[x].shape
    mask = author.value(lambda aval: aval.dtype == BOOL and aval.shape == shape)
    y = author.partner(x)
    if mask is None and author.avals[x].dtype != BOOL and author.integer(0, 1):
        author.add("select of its sign", lambda a, b: jnp.where(a > 0, a, b), x, y)
        return
    author.add("select", jnp.where, author.argument(shape, BOOL) if mask is None else mask, x, y)


def _mask(author: _Author) -> None:
    """A product with a converted bool."""
    x = author.float()
    mask = author.value(lambda aval: aval.dtype == BOOL and aval.shape == author.avals[x].shape)
    if mask is not None:
        author.add("mask", lambda m, a: a * m.astype(a.dtype), mask, x)


def _convert(author: _Author) -> None:
    x = author.any()
    dtype = author.choose(FLOATS) if author.is_smooth else author.dtype()
    author.add(f"convert to {dtype.name}", lambda a: a.astype(dtype), x)


def _bitcast(author: _Author) -> None:
    x = author.any()
    dtype = author.avals[x].dtype
    same = [other for other in (*FLOATS, *INTS) if other.itemsize == dtype.itemsize]
    if dtype != BOOL and same:
        target = author.choose(same)
        bits = functools.partial(_bits_without_denormals if target in _FLUSHED else lax.bitcast_convert_type, new_dtype=target)
        compute = (lambda a: bits(jnp.where(_has_own_bits(a), a, jnp.zeros_like(a)))) if dtype in FLOATS else bits
        author.add(f"bits as {target.name}", compute, x, is_of_bits=True)


def _of_some_sign(a: Array) -> Array:
    """One for NaN, whose sign nobody promises."""
    return jnp.where(jnp.isnan(a), jnp.ones_like(a), a)


def _has_own_bits(a: Array) -> Array:
    """False of NaN, whose bits nobody promises, of zeros, whose sign depends on how a sum begins, and of denormals."""
    return jnp.abs(a) >= jnp.finfo(a.dtype).smallest_normal


def _bits_without_denormals(a: Array, new_dtype: np.dtype) -> Array:
    """The bits as floats, but zeros for denormals. XLA takes these for zeros; tiles keep them, and sort and compare them so."""
    bits = lax.bitcast_convert_type(a, np.dtype(f"uint{8 * a.dtype.itemsize}"))
    exponent = bits & np.asarray(math.inf, new_dtype).view(bits.dtype)[()]
    return lax.bitcast_convert_type(jnp.where(exponent == 0, jnp.zeros_like(bits), bits), new_dtype)


def _axes(author: _Author, x: int) -> tuple[int, ...]:
    return tuple(axis for axis in range(author.avals[x].ndim) if author.integer(0, 1))


def _reduce(author: _Author) -> None:
    x = author.any(1)
    aval, axes, keep = author.avals[x], _axes(author, x), bool(author.integer(0, 1))
    if aval.dtype == BOOL:
        function = author.choose((jnp.all, jnp.any))
        author.add(f"{function.__name__} over {axes}", lambda a: function(a, axis=axes, keepdims=keep), x)
        return
    kinds = ["sum", "max", "min", "prod"]
    if aval.dtype in FLOATS:
        kinds = ["sum", "sum", "mean", "max", "min", "logsumexp", "prod", "var", "norm"]
    kind = author.choose(kinds)
    if kind in ("max", "min", "logsumexp") and any(aval.shape[axis] == 0 for axis in axes):
        return
    computes: dict[str, Compute] = {
        "sum": lambda a: jnp.sum(a, axes, dtype=a.dtype, keepdims=keep),
        "prod": lambda a: jnp.prod(_of_any_order(a), axes, dtype=a.dtype, keepdims=keep),
        "mean": lambda a: jnp.mean(a, axes, keepdims=keep),
        "max": lambda a: jnp.max(a, axes, keepdims=keep),
        "min": lambda a: jnp.min(a, axes, keepdims=keep),
        "logsumexp": lambda a: jax.nn.logsumexp(a, axes, keepdims=keep),
        "var": lambda a: jnp.var(a, axes, keepdims=keep),
        "norm": lambda a: jnp.sqrt(jnp.sum(a * a, axes, keepdims=keep) + 0.1),
    }
    author.add(f"{kind} over {axes}, keeping {keep}", computes[kind], x, is_sum=kind in ("sum", "mean", "norm", "var"))


def _arg(author: _Author) -> None:
    x = author.any(1)
    axis = author.axis(x)
    if author.avals[x].shape[axis]:
        function = author.choose((lax.argmax, lax.argmin))
        author.add(f"{function.__name__} of {axis}", lambda a: function(a, axis, np.int32), x)


def _of_any_order(a: Array) -> Array:
    """Factors without zeros where others are large: in some orders these make an infinity before they meet a zero."""
    if a.dtype not in FLOATS:
        return a
    is_zero = jnp.abs(a) < jnp.finfo(a.dtype).smallest_normal
    return jnp.where(is_zero & (jnp.abs(a) > 10).any(), jnp.ones_like(a), a)


def _cumulative(author: _Author) -> None:
    x = author.any(1)
    dtype, axis, is_reversed = author.avals[x].dtype, author.axis(x), bool(author.integer(0, 1))
    if dtype == BOOL:
        return
    kinds = ["cumsum", "cummax", "cummin", "cumprod"]
    kind = author.choose([*kinds, "cumlogsumexp"] if dtype in FLOATS else kinds)
    function, given = getattr(lax, kind), _of_any_order if kind == "cumprod" else lambda a: a
    author.add(
        f"{kind} of {axis}, reversed {is_reversed}", lambda a: function(given(a), axis, is_reversed), x, is_sum=kind == "cumsum"
    )


def _sort(author: _Author) -> None:
    x = author.any(1)
    aval, axis = author.avals[x], author.axis(x)
    kind = author.choose(("sort", "argsort", "top_k", "by_key"))
    if kind == "sort":
        author.add(f"sort of {axis}", lambda a: jnp.sort(a, axis), x)
    elif kind == "argsort":
        author.add(f"argsort of {axis}", lambda a: jnp.argsort(a, axis).astype(np.int32), x)
    elif kind == "by_key":
        y = author.value(lambda other: other.shape == aval.shape)
        assert y is not None
        author.add(f"sort by key of {axis}", lambda a, b: lax.sort((a, b), dimension=axis, num_keys=1)[1], x, y)
    elif aval.dtype != BOOL and aval.shape[-1]:
        count = author.integer(1, min(5, aval.shape[-1]))
        # It takes NaN first or last, as its sign is. Which sign a NaN has is nobody's promise.
        is_float = jnp.issubdtype(aval.dtype, np.floating)
        author.add(f"top {count}", lambda a: lax.top_k(jnp.where(jnp.isnan(a), jnp.nan, a) if is_float else a, count)[0], x)


_MOVES = ("transpose", "reshape", "reverse", "slice", "pad", "broadcast", "roll", "expand", "tile", "concatenate")


def _move(author: _Author) -> None:
    x = author.any()
    aval = author.avals[x]
    rank, shape = aval.ndim, aval.shape
    kind = author.choose(
        ("transpose", "reshape", "reverse", "slice", "pad", "broadcast", "roll", "expand", "tile", "concatenate")
    )
    if kind == "transpose":
        order = tuple(author.rng.permutation(rank).tolist())
        author.add(f"transpose {order}", lambda a: jnp.transpose(a, order), x)
    elif kind == "reshape":
        rest, wanted = aval.size, []
        for _ in range(author.integer(0, 3)):
            wanted.append(author.choose([factor for factor in range(1, rest + 1) if rest % factor == 0] or [0]))
            rest //= wanted[-1] or 1
        target = (*wanted, rest)
        author.add(f"reshape {target}", lambda a: jnp.reshape(a, target), x)
    elif kind == "reverse":
        axes = _axes(author, x)
        author.add(f"reverse {axes}", lambda a: lax.rev(a, axes), x)
    elif kind == "slice":
        slices = tuple(slice(*sorted((author.integer(0, n), author.integer(0, n))), author.integer(1, 3)) for n in shape)
        slices = tuple(item if item.start < item.stop else slice(0, 1) for item in slices)
        author.add(f"slice {[(s.start, s.stop, s.step) for s in slices]}", lambda a: a[slices], x)
    elif kind == "pad":
        amounts = [(author.integer(-1, 2), author.integer(-1, 2), author.integer(0, 1)) for _ in shape]
        if all(n + low + high + max(n - 1, 0) * inner >= 0 for n, (low, high, inner) in zip(shape, amounts, strict=True)):
            number = author.choose((0, 1))
            author.add(f"pad {amounts} with {number}", lambda a: lax.pad(a, jnp.asarray(number, a.dtype), amounts), x)
    elif kind == "broadcast":
        more = tuple(author.integer(1, 3) for _ in range(author.integer(1, 2)))
        author.add(f"broadcast {more}", lambda a: jnp.broadcast_to(a, (*more, *shape)), x)
    elif kind == "expand" and rank < 5:
        axis = author.integer(0, rank)
        author.add(f"expand {axis}", lambda a: jnp.expand_dims(a, axis), x)
    elif kind == "roll" and rank:
        axis, shift = author.axis(x), author.integer(-3, 3)
        author.add(f"roll {shift} of {axis}", lambda a: jnp.roll(a, shift, axis), x)
    elif kind == "tile" and rank:
        times = tuple(author.integer(1, 2) for _ in shape)
        author.add(f"tile {times}", lambda a: jnp.tile(a, times), x)
    elif kind == "concatenate" and rank:
        axis = author.axis(x)
        y = author.value(
            lambda other: (
                other.dtype == aval.dtype
                and other.ndim == rank
                and all(m == n for d, (m, n) in enumerate(zip(other.shape, shape, strict=True)) if d != axis)
            )
        )
        assert y is not None
        author.add(f"concatenate of {axis}", lambda a, b: jnp.concatenate([a, b, a], axis), x, y)


def _gather(author: _Author) -> None:
    x = author.any(1)
    aval, axis = author.avals[x], author.axis(x)
    extent = aval.shape[axis]
    if not extent:
        return
    kind = author.choose(("take", "take along", "dynamic slice", "index"))
    mode = author.choose(("clip", "fill", "wrap"))
    if kind == "take":
        index = author.argument((author.integer(1, 5), author.integer(1, 3))[: author.integer(0, 2)], INTS[0], most=extent)
        author.add(f"take {mode} of {axis}", lambda a, i: jnp.take(a, i, axis, mode=mode), x, index)
    elif kind == "take along":
        mode = author.choose(("clip", "fill"))
        shape = (*aval.shape[:axis], author.integer(1, 4), *aval.shape[axis + 1 :])
        index = author.argument(shape, INTS[0], most=extent)
        author.add(f"take along {axis}, {mode}", lambda a, i: jnp.take_along_axis(a, i, axis, mode=mode), x, index)
    elif kind == "dynamic slice":
        start = author.argument((), INTS[0], most=extent)
        size = author.integer(1, extent)
        author.add(f"dynamic slice {size} of {axis}", lambda a, i: lax.dynamic_slice_in_dim(a, i, size, axis), x, start)
    else:
        index = author.argument((author.integer(1, 6),), INTS[0], most=extent)
        author.add(f"index of {axis}", lambda a, i: jnp.moveaxis(a, axis, 0)[i], x, index)


def _scatter(author: _Author) -> None:
    x = author.any(1)
    aval = author.avals[x]
    extent = aval.shape[0]
    if not extent or aval.dtype == BOOL:
        return
    kind = author.choose(("set", "add", "max", "min", "mul", "update", "segments"))
    if kind == "update":
        size = author.integer(1, extent)
        part = author.argument((size, *aval.shape[1:]), aval.dtype)
        start = author.argument((), INTS[0], most=extent)
        author.add("dynamic update", lambda a, b, i: lax.dynamic_update_slice_in_dim(a, b, i, 0), x, part, start)
        return
    count = author.integer(1, 4)
    if kind == "segments":
        index = author.argument((extent,), INTS[0], most=count)
        function = author.choose((jax.ops.segment_sum, jax.ops.segment_max))
        is_sum = function is jax.ops.segment_sum and aval.dtype in FLOATS
        author.add(f"{function.__name__} {count}", lambda a, i: function(a, i, count), x, index, is_sum=is_sum)
        return
    index = author.argument((count,), INTS[0], most=extent)
    updates = author.argument((count, *aval.shape[1:]), aval.dtype)
    is_sum = kind == "add" and aval.dtype in FLOATS
    if kind == "mul":  # has no gradient where indices may be equal
        author.add("at mul", lambda a, b, i: lax.stop_gradient(a).at[i].mul(lax.stop_gradient(b)), x, updates, index)
        return
    author.add(f"at {kind}", lambda a, b, i: getattr(a.at[i], kind)(b), x, updates, index, is_sum=is_sum)


def _product(author: _Author) -> None:
    x = author.float(1)
    aval = author.avals[x]
    dtype = author.choose((aval.dtype, aval.dtype, author.choose(FLOATS)))
    highest = lax.Precision.HIGHEST
    kind = author.integer(0, 3)
    if kind == 0:
        w = author.argument((aval.shape[-1], author.choose((1, 4, 33))), dtype)
        author.add("matmul", lambda a, b: jnp.matmul(a, b, precision=highest), x, w, is_sum=True)
    elif kind == 1:
        author.add("gram", lambda a: jnp.einsum("...i,...j->...ij", a, a, precision=highest), x, is_sum=True)
    elif kind == 2:
        w = author.argument((author.choose((1, 3, 17)), *aval.shape), aval.dtype)
        author.add("einsum", lambda a, b: jnp.einsum("...,k...->k", a, b, precision=highest), x, w, is_sum=True)
    elif aval.ndim >= 2:
        axis = author.integer(0, aval.ndim - 2)
        w = author.argument((aval.shape[axis], author.choose((2, 5))), aval.dtype)
        author.add(f"tensordot {axis}", lambda a, b: jnp.tensordot(a, b, ((axis,), (0,)), precision=highest), x, w, is_sum=True)


def _conv(author: _Author) -> None:
    x = author.float(3)
    aval = author.avals[x]
    if aval.ndim > 5 or not aval.size:
        return
    spatial = aval.ndim - 2
    groups = author.choose([g for g in (1, 1, aval.shape[-1]) if aval.shape[-1] % g == 0])
    window = tuple(author.integer(1, 3) for _ in range(spatial))
    outputs = groups * author.choose((1, 2, 5))
    # XLA computes infinity times the padding in some of its algorithms and not in others.
    w = author.argument((*window, aval.shape[-1] // groups, outputs), aval.dtype, is_finite=True)
    strides = tuple(author.integer(1, 2) for _ in range(spatial))
    base, dilation = (tuple(author.choose((1, 1, 2)) for _ in range(spatial)) for _ in range(2))
    padding = [(author.integer(0, 2), author.integer(0, 2)) for _ in range(spatial)]
    names = ("N" + "DHW"[3 - spatial :] + "C", "DHW"[3 - spatial :] + "IO", "N" + "DHW"[3 - spatial :] + "C")

    def conv(a: Array, b: Array) -> Array:
        return lax.conv_general_dilated(a, b, strides, padding, base, dilation, names, groups, precision=lax.Precision.HIGHEST)

    author.add(f"conv by {strides}, {padding}, {base}, {dilation}, {groups} groups", conv, x, w, is_sum=True)


def _pool(author: _Author) -> None:
    x = author.any(1)
    aval = author.avals[x]
    if aval.dtype == BOOL or not aval.size:
        return
    window, strides = (tuple(author.integer(1, high) for _ in aval.shape) for high in (3, 2))
    padding = author.choose(("SAME", "VALID"))
    kind = author.choose(("max", "sum", "min"))
    is_float = aval.dtype in FLOATS

    def pool(a: Array) -> Array:
        limits = (-math.inf, math.inf) if is_float else (np.iinfo(aval.dtype).min, np.iinfo(aval.dtype).max)
        start, combine = {"max": (limits[0], lax.max), "min": (limits[1], lax.min), "sum": (0, lax.add)}[kind]
        return lax.reduce_window(a, np.asarray(start, a.dtype)[()], combine, window, strides, padding)

    author.add(f"{kind} pool {window} by {strides}, {padding}", pool, x, is_sum=kind == "sum" and is_float)


def _normalise(author: _Author) -> None:
    x = author.float(1)
    axis = author.axis(x)
    if not author.avals[x].shape[axis]:
        return
    if author.integer(0, 1):
        author.add(f"softmax {axis}", lambda a: jax.nn.softmax(a, axis), x)
    else:

        def normalise(a: Array) -> Array:
            mean = a.mean(axis, keepdims=True)
            return (a - mean) * lax.rsqrt(jnp.square(a - mean).mean(axis, keepdims=True) + 0.05)

        author.add("clip", lambda a: jnp.clip(a, -100, 100), x)
        clipped = len(author.avals) - 1
        # A sum: a mean of equal numbers may be another number, which is then all that is left of a - mean.
        author.add(f"normalise {axis}", normalise, clipped, is_sum=True)


def _control(author: _Author) -> None:
    x = author.float(1)
    kind = author.choose(("scan", "cond", "fori", "while"))
    if kind == "scan":

        def body(carry: Array, row: Array) -> tuple[Array, Array]:
            carry = jnp.tanh(carry * 0.5 + row)
            return carry, carry * 2

        author.add("scan", lambda a: lax.scan(body, jnp.zeros(a.shape[1:], a.dtype), a)[1], x)
    elif kind == "cond":
        flag = author.argument((), BOOL)
        author.add("cond", lambda f, a: lax.cond(f, lambda b: jnp.sin(b) + b, lambda b: b * 0.5, a), flag, x)
    elif kind == "fori" or author.is_smooth:
        author.add("fori", lambda a: lax.fori_loop(0, 3, lambda i, b: jnp.cos(b) + i.astype(b.dtype), a), x)
    else:
        count = author.argument((), INTS[0], most=4)
        loop = lambda n, a: lax.while_loop(lambda s: s[0] > 0, lambda s: (s[0] - 1, jnp.sin(s[1]) + 1), (n, a))[1]  # noqa: E731
        author.add("while", lambda n, a: loop(n, lax.stop_gradient(a)), count, x)


def _iota(author: _Author) -> None:
    x = author.any(1)
    aval, axis = author.avals[x], author.axis(x)
    if aval.dtype != BOOL:
        author.add(
            f"add iota of {axis}", lambda a: a + lax.broadcasted_iota(a.dtype, a.shape, axis), x, is_sum=aval.dtype in FLOATS
        )


_SMOOTH = (
    _unary, _unary, _unary, _binary, _binary, _binary, _with_scalar, _select, _convert, _reduce, _reduce, _cumulative, _move,
    _move, _move, _gather, _scatter, _product, _product, _conv, _pool, _normalise, _control, _iota,
)  # fmt: skip
_STEPS = (*_SMOOTH, _compare, _mask, _bitcast, _arg, _sort, _sort, _convert, _scatter, _gather)
