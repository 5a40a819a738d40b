"""How accurate a model stays for each cut and number of bits (DynO, section 4.2.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core
from numpy.typing import ArrayLike
from tqdm import tqdm

from aspen_jax.api.decorator import flat_call
from aspen_jax.errors import InputError
from aspen_jax.frontend.trace import called_jaxpr
from aspen_jax.split.cut import cut
from aspen_jax.split.equations import FlatJaxpr, flatten
from aspen_jax.split.measure import crossing_values
from aspen_jax.split.quantise import checked_bits, dequantise, quantise

# These give values of what they read, and zeros at most beside them: what comes of a ReLU is as sparse as before.
_MOVES = frozenset({
    "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "expand_dims", "pad", "reduce_window_max", "reshape",
    "rev", "slice", "squeeze", "stop_gradient", "transpose",
})  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class AccuracyMap:
    """Accuracy of each configuration.

    Attributes:
        bits: int64 [B].
        values: float64 [cuts, B], the share of right answers; NaN where it was not measured.
        exact: the share of right answers of the model as it is.
        runs: how often the data were run; cuts that the same values cross need one run together.
    """

    bits: np.ndarray
    values: np.ndarray
    exact: float
    runs: int

    @property
    def left_out(self) -> float:
        """The share of cuts of which no accuracy is known."""
        return float(np.isnan(self.values).all(axis=1).mean())

    def lowest_bits(self, drop: float) -> np.ndarray:
        """The fewest bits of each cut that cost at most so much accuracy, int64 [cuts]; 0 where none are known to."""
        with np.errstate(invalid="ignore"):
            is_good = self.values >= self.exact - drop
        bits = np.where(is_good, self.bits, np.iinfo(np.int64).max).min(axis=1)
        return np.where(is_good.any(axis=1), bits, 0)


def argmax_is_right(result: Any, labels: np.ndarray) -> np.ndarray:
    """Whether the largest of [n, classes] is that of the label, bool [n]."""
    return np.asarray(result).argmax(-1) == labels


def accuracy_map(
    fun: Callable[[Any], Any],
    inputs: ArrayLike,
    labels: ArrayLike,
    bits: Sequence[int] = (2, 3, 4, 5, 6, 8),
    *,
    batch: int = 256,
    only_relus: bool = True,
    is_right: Callable[[Any, np.ndarray], np.ndarray] = argmax_is_right,
) -> AccuracyMap:
    """Measures how accurate a model is when what crosses a cut is quantised, each example for itself.

    Only cuts that nothing but outputs of ReLUs crosses are measured, since those compress best. To them come the first cut, where
    the input crosses, and the last one, where nothing is sent. Cuts that the same values cross are measured once. Nothing is
    quantised at the last cut.

    Args:
        fun: the model, from inputs [n, ...] to what `is_right` takes. It treats each example by itself.
        inputs: [n, ...].
        labels: [n].
        bits: numbers of bits, 1 to 16 or `RAW`.
        batch: examples a call.
        only_relus: False measures all cuts.
        is_right: from a call's result and its labels to bool [n].

    Raises:
        InputError: there are no data, inputs and labels do not fit together, or an option is wrong.
    """
    inputs, labels = np.asarray(inputs), np.asarray(labels)
    if not (inputs.ndim and labels.ndim and len(inputs) == len(labels) > 0) or batch < 1:
        raise InputError(
            f"inputs {inputs.shape} and labels {labels.shape} in batches of {batch} do not fit. Pass n of both, n > 0"
        )
    widths = [checked_bits(number) for number in bits]
    size = min(batch, len(inputs))
    call = flat_call(fun, (inputs[:size],), {})
    flat = flatten(call)
    crossing = flat.live(range(len(flat.equations) + 1))
    chosen = _chosen(flat, crossing, only_relus)
    tails = {variables: cut(fun, k, inputs[:size])[1] for variables, k in chosen.items()}
    right = {variables: np.zeros(len(widths)) for variables in chosen}
    exact = 0
    batches = [np.arange(start, min(start + size, len(inputs))) for start in range(0, len(inputs), size)]

    def count(result: Any, part: np.ndarray) -> int:
        return int(is_right(result, labels[np.resize(part, size)])[: len(part)].sum())

    with tqdm(total=len(batches) * len(chosen) * len(widths), desc="accuracy", unit="run", leave=False, disable=None) as bar:
        for part in batches:
            x = inputs[np.resize(part, size)]  # the last batch is filled up, so that all have one shape
            exact += count(call.function(x), part)
            values = crossing_values(flat, [x], list(chosen))
            for column, width in enumerate(widths):
                sent = {var: quantised_by_example(value, width, size) for var, value in values.items()}
                for variables, tail in tails.items():
                    right[variables][column] += count(tail(*(sent[var] for var in variables)), part)
                    bar.update()
    table = np.full((len(crossing), len(widths)), np.nan)
    for k, variables in enumerate(crossing):
        if variables in right:
            table[k] = right[variables] / len(inputs)
    table[-1] = exact / len(inputs)
    return AccuracyMap(np.array(widths), table, exact / len(inputs), len(chosen) * len(widths))


def quantised_by_example(value: np.ndarray, bits: int, size: int) -> np.ndarray:
    """What arrives of a value whose examples are sent one by one; one that has no example for each of `size` goes as a whole."""
    if value.ndim == 0 or len(value) != size:
        return dequantise(quantise(value, bits))
    return np.stack([dequantise(quantise(example, bits)) for example in value])


def _chosen(flat: FlatJaxpr, crossing: Sequence[tuple[core.Var, ...]], only_relus: bool) -> dict[tuple[core.Var, ...], int]:
    """The first cut that each set of values crosses, of those to be measured. The last cut, where nothing is sent, is none."""
    sparse = relu_outputs(flat)
    found: dict[tuple[core.Var, ...], int] = {}
    for k, variables in enumerate(crossing[:-1]):
        if k == 0 or not only_relus or (variables and sparse.issuperset(variables)):
            found.setdefault(variables, k)
    return found


def relu_outputs(flat: FlatJaxpr) -> set[core.Var]:
    """The variables that hold outputs of ReLUs, or nothing but values of such outputs, moved, and zeros."""
    kinds: dict[Any, str] = {var: _kind_of_value(value) for var, value in flat.constants.items()}
    _walk(flat.equations, kinds)
    return {var for var, kind in kinds.items() if kind == _RELU}


# What is known of an array's values.
_ZERO, _POSITIVE, _RELU, _ANY = "zero", "positive", "relu", "any"


def _kind_of_value(value: Any) -> str:
    if jax.dtypes.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.extended):
        return _ANY
    array = np.asarray(value)
    return _ZERO if not array.any() else _POSITIVE if (array > 0).all() else _ANY


def _walk(equations: Iterable[core.JaxprEqn], kinds: dict[Any, str]) -> None:
    """Finds the kinds of what equations give, from those of what they read; a variable that has none is of any kind."""
    for equation in equations:
        read = [_kind_of_atom(atom, kinds) for atom in equation.invars]
        called = called_jaxpr(equation)
        if called is None:
            given = [_kind_of_result(equation.primitive.name, read)] * len(equation.outvars)
        else:
            inner: dict[Any, str] = dict(zip(called.jaxpr.invars, read, strict=True))
            inner.update((var, _kind_of_value(value)) for var, value in zip(called.jaxpr.constvars, called.consts, strict=True))
            _walk(called.jaxpr.eqns, inner)
            given = [_kind_of_atom(atom, inner) for atom in called.jaxpr.outvars]
        kinds.update(zip(equation.outvars, given, strict=True))


def _kind_of_atom(atom: Any, kinds: dict[Any, str]) -> str:
    return _kind_of_value(atom.val) if isinstance(atom, core.Literal) else kinds.get(atom, _ANY)


def _kind_of_result(primitive: str, read: Sequence[str]) -> str:
    kinds = set(read)
    if primitive in _MOVES:
        return kinds.pop() if len(kinds) == 1 else _RELU if kinds <= {_ZERO, _RELU} else _ANY
    is_relu = (
        (primitive == "max" and (_ZERO in kinds or kinds == {_RELU}))
        or (primitive == "clamp" and read[0] == _ZERO)
        or (primitive == "min" and _RELU in kinds and kinds <= {_RELU, _POSITIVE})
    )
    return _RELU if is_relu else _ANY
