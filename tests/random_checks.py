"""Judges a random function of `random_steps.py` that was decorated.

- Each step alone: decorated so that all values are results, each must be what its step gives of the values before it. The step is
  computed in float64, and by XLA in its own dtypes. Near one of them is right.
- The whole: decorated as it is, and its gradient, its batched form, and the body of a loop. The references are float64 and XLA.
  Where these two differ from each other, or change with the last bits of the arguments, more is allowed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aspen_jax import aspen, runtime
from aspen_jax.cost import equations
from benchmarks.in_float64 import compiled_in_float64
from tests.random_steps import Written, written

_ULPS_OF_STEP = 32
_ULPS_OF_WHOLE = 2_000
_ULPS_OF_NARROW_WHOLE = 100
_TIMES_SPREAD = 30.0

# The form whose products JAX runs one by one.
_BY_OPERATION = "gradient of decorated"


@dataclasses.dataclass(frozen=True)
class Fault:
    """A value that is neither what float64 nor what XLA gives.

    Attributes:
        form: which form of the function.
        result: the number of its result; of a step where each is judged alone.
        where: the index of the worst element.
        values: what tiles give there, float64 and XLA.
    """

    form: str
    result: int
    where: tuple[int, ...]
    values: tuple[Any, Any, Any]

    def __str__(self) -> str:
        ours, exact, theirs = self.values
        return f"{self.form}, result {self.result} at {list(self.where)}: tiles give {ours}, float64 {exact}, XLA {theirs}"


def faults_of_steps(function: Written) -> Iterator[Fault]:
    """Each step alone. XLA is asked only where float64 says something else."""
    values = list(map(np.asarray, aspen(function.values)(*function.arguments)))
    start = len(function.arguments)
    known = [*function.arguments, *values]
    exact = compiled_in_float64(function.each, *known)(*known)
    suspects = [
        number
        for number, (ours, right) in enumerate(zip(values, exact, strict=True))
        if _wrong(ours, right, _ULPS_OF_STEP, _largest(right)).any()
    ]
    if not suspects:
        return
    theirs = list(map(np.asarray, jax.jit(function.each)(*known)))
    # Of what is finite: beside an infinity, too, what is finite may overflow on its way.
    finite = [
        np.where(np.isfinite(item), item, 0).astype(item.dtype) if _is_float(item) else item for item in map(np.asarray, known)
    ]
    sizes = compiled_in_float64(function.absolute_each, *finite)(*finite)
    # What is joined into one kernel keeps more of narrow floats between its steps than is stored: digits and range.
    widened = _of_narrow(function, known)
    wide, *others = (
        compiled_in_float64(lambda *known, a=alone: _joined(function, widened, known, a), *known) for alone in (None, 0, 1)
    )
    moved = [by(*known[:start], *_moved(values, seed, only_narrow=True)) for by in (wide, *others) for seed in range(3)]
    ends = [wide(*known[:start], *_moved_at_ends(values, seed)) for seed in range(3)]
    for number in suspects:
        step, ours, right = function.steps[number], values[number], exact[number]
        spread = max(_spread(item[number], right) for item in moved)
        reads_narrow = any(read >= start and (_is_narrow(known[read]) or read in widened) for read in step.reads)
        if reads_narrow and (not _is_float(ours) or step.is_of_bits or not np.isfinite(spread)):
            continue
        size = max(_largest(right), _largest(sizes[number]))
        if _is_float(ours) and size > float(jnp.finfo(ours.dtype).max):
            continue  # sums on the way may overflow, in one order and not in another
        if step.is_sum:
            size = max(size, *(_largest(known[read]) for read in step.reads))
        wrong = _wrong(ours, theirs[number], _ULPS_OF_STEP, size, 4 * spread)
        if not step.is_of_bits:
            wrong &= _wrong(ours, right, _ULPS_OF_STEP, size, 4 * spread)
        if _is_float(ours):
            wrong &= ~(np.isnan(right) & ~np.isnan(theirs[number]))  # XLA loses NaN in maxima: so may what is left to it
        if step.name.startswith(("prod", "cumprod")):
            # A product of some of the numbers may be denormal: XLA flushes it, and in tiles it has few digits.
            wrong &= ~(_wrong(theirs[number], right, _ULPS_OF_STEP, size) & (np.abs(ours - right) < 0.1 * np.abs(right)))
        if reads_narrow:
            with np.errstate(all="ignore"):
                for item in moved:  # as near a pole of the tangent
                    wrong &= ~(np.abs(item[number] - right) > 0.5 * np.maximum(np.abs(right), 0.2 * size))
                for item in ends:
                    wrong &= ~_wrong(item[number].astype(ours.dtype), right, _ULPS_OF_STEP, size)
        yield from _faults(f"step {step.name}", number, wrong, ours, right, theirs[number])


def _of_narrow(function: Written, known: Sequence[Any]) -> frozenset[int]:
    """The wide floats that steps compute of narrow ones.

    A kernel may store such a value of the narrow float's full digits. Another may compute it again, of those that are stored.
    """
    start = len(function.arguments)
    found: set[int] = set()
    for number, step in enumerate(function.steps, start):
        is_of_narrow = any(read in found or (read >= start and _is_narrow(known[read])) for read in step.reads)
        if is_of_narrow and _is_float(known[number]) and not _is_narrow(known[number]):
            found.add(number)
    return frozenset(found)


def _joined(function: Written, widened: frozenset[int], known: Sequence[Any], alone: int | None) -> list[Any]:
    """The value of each step, of what is given; but the `widened` are computed again, or of those one operand `alone`."""
    values = list(known)
    results = []
    for number, step in enumerate(function.steps, len(function.arguments)):
        again = step.compute(*(values[read] for read in step.reads))
        mixed = (values[read] if place == alone else known[read] for place, read in enumerate(step.reads))
        results.append(again if alone is None else step.compute(*mixed))
        if number in widened:
            values[number] = again
    return results


def faults_of_whole(
    form: str,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    results: Sequence[Any],
    *,
    is_by_operation: bool = False,
    has_padding: bool = False,
) -> Iterator[Fault]:
    """What a decorated function gave, beside the function undecorated. XLA is asked only where float64 says something else.

    With `has_padding` it is the gradient of a convolution. XLA multiplies padding by a NaN that comes back, or does not. Tiles do
    not (docs/reference/special_values.md). So nothing is said of a NaN that only one side has.

    With `is_by_operation`, JAX ran part of it operation by operation. There a product with a mask multiplies, as it does
    undecorated, so what JAX gives without `jax.jit` is right too.
    """
    wide = compiled_in_float64(function, *arguments)
    exact = wide(*arguments)
    suspects = [
        number
        for number, (ours, right) in enumerate(zip(results, exact, strict=True))
        if _wrong(np.asarray(ours), right, _ulps_of_whole(ours), _largest(right)).any()
    ]
    if not suspects:
        return
    theirs = [np.asarray(item) for item in jax.tree.leaves(jax.jit(function)(*arguments))]
    moved = [wide(*_moved(arguments, seed)) for seed in range(3)]
    # Once it is stored, a float just below an integer may be that integer, and a mean of equal numbers another number.
    stored = [compiled_in_float64(function, *arguments, ulps=ulps)(*arguments) for ulps in (-4, 0, 4)]
    for number in suspects:
        ours, right = np.asarray(results[number]), exact[number]
        size = _largest(right)
        spread = max(_spread(item[number], right) for item in (theirs, *moved))
        # There a product with a mask multiplies, so it does not say what is finite.
        finite = [np.where(np.isfinite(item[number]), item[number], right) for item in stored]
        spread = max(spread, *(_spread(item, right) for item in finite))
        if spread > (1e-2 * size if _is_float(ours) else 0):
            continue  # nobody knows
        wrong = _wrong(ours, right, _ulps_of_whole(ours), size, _TIMES_SPREAD * spread)
        wrong &= _wrong(ours, theirs[number], _ulps_of_whole(ours), size)
        if is_by_operation and wrong.any():
            wrong &= _wrong(ours, np.asarray(function(*arguments)[number]), _ulps_of_whole(ours), size)
        if has_padding and _is_float(ours):
            wrong &= np.isnan(ours.astype(np.float64)) == np.isnan(right)
        yield from _faults(form, number, wrong, ours, right, theirs[number])


def _ulps_of_whole(item: Any) -> float:
    return _ULPS_OF_WHOLE if item.dtype == np.float32 else _ULPS_OF_NARROW_WHOLE


def forms(function: Written) -> dict[str, tuple[Callable[..., Any], Sequence[Any], Callable[..., Any]]]:
    """Forms of a function: undecorated, arguments, and decorated, each giving a list of arrays."""
    arguments = function.arguments
    floats = tuple(number for number, item in enumerate(arguments) if _is_float(item))

    def gradient(decorated: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: list(jax.grad(decorated, argnums=floats)(*args))

    def looped(decorated: Callable[..., Any]) -> Callable[..., Any]:
        def run(factors: Any, *args: Any) -> list[Any]:
            def body(count: Any, factor: Any) -> tuple[Any, Any]:
                scaled = [item * factor.astype(item.dtype) if _is_float(item) else item for item in args]
                return count + 1, decorated(*scaled)

            return list(lax.scan(body, jnp.zeros((), jnp.int32), factors)[1])

        return run

    pairs = [np.stack([item, item[::-1] if item.ndim else item]) for item in arguments]
    batched = lambda decorated: lambda *args: list(jax.vmap(decorated)(*args))  # noqa: E731
    results, loss = function.results, function.loss
    factors = np.asarray([1.0, 0.5, -1.25], np.float32)
    found = {
        "whole": (results, arguments, aspen(results)),
        "vmap of decorated": (batched(results), pairs, batched(aspen(results))),
        "decorated vmap": (batched(results), pairs, aspen(batched(results))),
        "decorated loop": (looped(results), (factors, *arguments), aspen(looped(results))),
        "loop over decorated": (looped(results), (factors, *arguments), looped(aspen(results))),
    }
    if floats:
        found |= {
            _BY_OPERATION: (gradient(loss), arguments, gradient(aspen(loss))),
            "jitted gradient of decorated": (gradient(loss), arguments, jax.jit(gradient(aspen(loss)))),
            "decorated gradient": (gradient(loss), arguments, aspen(gradient(loss))),
            "decorated gradient of checkpoint": (gradient(loss), arguments, aspen(gradient(jax.checkpoint(loss)))),
        }
    return found


def _is_narrow(item: Any) -> bool:
    return _is_float(item) and item.dtype.itemsize == 2


def _is_float(item: Any) -> bool:
    return jnp.issubdtype(item.dtype, jnp.floating)


def _largest(item: Any) -> float:
    """The largest of its finite absolute values."""
    array = np.abs(np.asarray(item).astype(np.float64))
    return float(array[np.isfinite(array)].max(initial=0))


def _wrong(ours: np.ndarray, reference: np.ndarray, ulps: float, size: float, more: float = 0) -> np.ndarray:
    """Which elements are not as the reference, but for so many units in the last place of `size`, and more."""
    if not _is_float(ours):
        return ours != reference
    info = jnp.finfo(ours.dtype)
    with np.errstate(all="ignore"):
        rounded = reference.astype(ours.dtype).astype(np.float64)
        array = ours.astype(np.float64)
        near = np.abs(array - rounded) <= ulps * float(info.eps) * np.maximum(np.abs(rounded), size) + float(info.tiny) + more
        near |= (np.abs(array) > 0.9 * float(info.max)) & (np.abs(rounded) > 0.9 * float(info.max)) & (array * rounded > 0)
        return ~(near | (array == rounded) | (np.isnan(array) & np.isnan(rounded)))


def _spread(item: np.ndarray, right: np.ndarray) -> float:
    """How far two references differ at most; infinite where one is not finite and the other is."""
    with np.errstate(all="ignore"):
        difference = np.abs(item.astype(np.float64) - right)
    alike = (item == right) | (np.isnan(item) & np.isnan(right))
    return float(np.where(alike, 0, np.nan_to_num(difference, nan=np.inf)).max(initial=0))


def _moved(arrays: Sequence[Any], seed: int, *, only_narrow: bool = False) -> list[Any]:
    """The arrays, whose floats are moved by some units in the last place."""
    rng = np.random.default_rng(seed)

    def moved(item: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            factors = 1 + rng.uniform(-4, 4, item.shape) * float(jnp.finfo(item.dtype).eps)
            return np.asarray(item * factors).astype(item.dtype)

    moves = _is_narrow if only_narrow else _is_float
    return [moved(item) if moves(item) else item for item in arrays]


def _moved_at_ends(arrays: Sequence[Any], seed: int) -> list[Any]:
    """The arrays, whose narrow floats are moved where the range ends: infinities are finite, zeros and denormals are not."""
    rng = np.random.default_rng(seed)

    def moved(item: np.ndarray) -> np.ndarray:
        info = jnp.finfo(item.dtype)
        array = item.astype(np.float64)
        large = rng.uniform(0.92, 1, item.shape) * float(info.max)
        array = np.where(np.isinf(array), np.copysign(large, array), array)
        small = array + np.copysign(float(info.smallest_subnormal), array)
        return np.where(np.abs(array) < float(info.tiny), small, array).astype(item.dtype)

    return [moved(item) if _is_narrow(item) else item for item in arrays]


def _faults(form: str, number: int, wrong: np.ndarray, *arrays: np.ndarray) -> Iterator[Fault]:
    places = np.argwhere(wrong)
    if len(places):
        where = tuple(places[0].tolist())
        ours, exact, theirs = (array[where] for array in arrays)
        yield Fault(f"{form} ({len(places)} of {wrong.size} differ)", number, where, (ours, exact, theirs))


@dataclasses.dataclass
class Tally:
    """What was tried.

    Attributes:
        steps: steps that were judged alone.
        forms: forms of functions.
        calls: custom calls of tiles that were compiled.
    """

    steps: int = 0
    forms: int = 0
    calls: int = 0

    def __str__(self) -> str:
        return f"{self.steps} steps alone, {self.forms} forms, {self.calls} custom calls"


def faults(seed: int, steps: int = 30, *, is_forced: bool = True, tally: Tally | None = None) -> Iterator[Fault]:
    """What is wrong with one random function: of its steps, and of one form that the seed chooses.

    Args:
        seed: which function.
        steps: how many steps it has.
        is_forced: whether nothing is left to XLA for its size; else arrays are larger.
        tally: counts what was tried.
    """
    tally = tally or Tally()
    function = written(seed, steps, is_large=not is_forced, is_smooth=seed % 2 == 1)
    with counted_calls(tally), mock.patch.object(equations, "_LEAST_WORK", 1 if is_forced else equations._LEAST_WORK):
        tally.steps += len(function.steps)
        yield from faults_of_steps(function)
        every = forms(function)
        form = list(every)[seed // 2 % len(every)]
        undecorated, arguments, decorated = every[form]
        tally.forms += 1
        yield from faults_of_whole(
            form,
            undecorated,
            arguments,
            jax.tree.leaves(decorated(*arguments)),
            is_by_operation=form == _BY_OPERATION,
            has_padding="gradient" in form and any(step.name.startswith("conv by") for step in function.steps),
        )


def run_undecorated(seed: int, steps: int = 30, *, is_forced: bool = True) -> None:
    """All that is asked of XLA about a random function, where it is asked most; the arguments are those of `faults`."""
    function = written(seed, steps, is_large=not is_forced, is_smooth=seed % 2 == 1)
    known = [*function.arguments, *jax.jit(function.values)(*function.arguments)]
    for each in (compiled_in_float64(function.each, *known), jax.jit(function.each)):
        each(*known)
    every = forms(function)
    undecorated, arguments, _ = every[list(every)[seed // 2 % len(every)]]
    for whole in (compiled_in_float64(undecorated, *arguments), jax.jit(undecorated)):
        whole(*arguments)


@contextlib.contextmanager
def counted_calls(tally: Tally) -> Iterator[None]:
    """Counts custom calls that are compiled meanwhile."""
    engine_call = runtime.engine_call

    def counted(*args: Any, **kwargs: Any) -> Any:
        tally.calls += 1
        return engine_call(*args, **kwargs)

    with mock.patch.object(runtime, "engine_call", counted):
        yield
