"""Measures a profile: times before all cuts from one timeline of the tile graph, messages from the values that cross."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax.extend import core, source_info_util
from tqdm import tqdm

from aspen_jax.api.decorator import decorated_as, flat_call
from aspen_jax.api.flat import FlatCall
from aspen_jax.api.function import AspenFunction
from aspen_jax.cost import equations as equation_costs
from aspen_jax.errors import InputError, UnsupportedError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.runtime import num_workers
from aspen_jax.split.codec import pack
from aspen_jax.split.equations import FlatJaxpr, closed_over, flatten
from aspen_jax.split.payload import CodecName
from aspen_jax.split.profile import Profile, Times, share_out
from aspen_jax.split.quantise import RAW

_LABEL = "equation_"
_LABELS = re.compile(rf"\b{_LABEL}(\d+)\b")
_PACKINGS = 3  # of which the fastest counts


def measure(
    fun: Callable[..., Any],
    *args: Any,
    bits: Sequence[int] = (4, 8, RAW),
    server: Times | None = None,
    codec: CodecName | Literal["auto"] = "auto",
    bandwidth: float = 12.5e6,
    rounds: int = 5,
) -> Profile:
    """A profile of a function on this machine, for all cuts.

    Args:
        fun: a function, decorated by `aspen` or not.
        *args: arrays as it takes them. What crosses a cut is compressed as well as it is for these.
        bits: numbers of bits to choose from.
        server: what `measure_times` gave on the server; None if that is like this machine.
        codec: as `Client` takes it.
        bandwidth: likewise. Over slower links a codec is chosen that sends less.
        rounds: as for `measure_times`.

    Raises:
        InputError: an argument is no array, or an option does not fit.
    """
    flat, leaves, call = _flattened(fun, args)
    device = _times(flat, leaves, call, args, rounds)
    nbytes, seconds = _messages(flat, leaves, bits, codec, bandwidth)
    result = 8 + sum(len(pack([leaf], None, "none")) - 8 for leaf in jax.tree.leaves(call.function(*args)))
    return Profile(device, server or device, np.array(bits), nbytes, seconds, result)


def measure_times(fun: Callable[..., Any], *args: Any, rounds: int = 5) -> Times:
    """How long this machine computes before each cut of a function.

    A timeline of the whole function's tiles gives all cuts at once: each tile belongs to an op, and each op to equations. A
    cut's share of a call is its share of the tiles' time. Where XLA runs a part of the function there is no timeline of all of
    it, and flops and bytes of equations stand for their time.

    Args:
        fun: a function, decorated by `aspen` or not.
        *args: arrays as it takes them.
        rounds: calls, and timelines; the fastest counts, of each tile by itself.

    Raises:
        InputError: an argument is no array, or there are no rounds.
    """
    flat, leaves, call = _flattened(fun, args)
    return _times(flat, leaves, call, args, rounds)


def _flattened(fun: Callable[..., Any], args: tuple[Any, ...]) -> tuple[FlatJaxpr, list[Any], FlatCall]:
    call = flat_call(fun, args, {})
    for name, leaf in zip(call.names, call.leaves, strict=True):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise InputError(f"{name} is a shape, which takes no time. Pass an array")
    return flatten(call), list(call.leaves), call


def _times(flat: FlatJaxpr, leaves: list[Any], call: FlatCall, args: tuple[Any, ...], rounds: int) -> Times:
    if rounds < 1:
        raise InputError(f"rounds = {rounds} of measuring. Use 1 or more")
    weights = np.array([_weight(equation) for equation in flat.equations])
    seconds = np.ones(0)
    if flat.equations:
        labelled, inputs = _labelled(flat, leaves, call)
        try:
            graph = labelled.graph(*inputs)
        except UnsupportedError:
            seconds = weights / (weights.sum() or 1)
        else:
            seconds = share_out(op_seconds(graph, inputs, rounds), op_equations(graph), weights)
    total = min(_seconds(call.function, args) for _ in range(rounds + 1))  # the first one compiles
    before = np.concatenate([[0.0], np.cumsum(seconds)])
    return Times(before * (total / before[-1]) if before[-1] > 0 else before, num_workers())


def _weight(equation: core.JaxprEqn) -> float:
    cost = equation_costs.of_equation(equation)
    # A core does some ten operations in the time in which it moves a byte from memory.
    return cost.total / 10 + cost.bytes


def _seconds(fun: Callable[..., Any], args: tuple[Any, ...]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(fun(*args))
    return time.perf_counter() - start


def _labelled(flat: FlatJaxpr, leaves: list[Any], call: FlatCall) -> tuple[AspenFunction[..., Any], list[Any]]:
    """The function with the number of each equation in its named scope, and the arrays that it takes. Weights are constants."""
    labelled = [
        equation.replace(
            source_info=equation.source_info.replace(name_stack=source_info_util.new_name_stack(f"{_LABEL}{number}"))
        )
        for number, equation in enumerate(flat.equations)
    ]
    given = [(var, leaf) for var, leaf in zip(flat.inputs, leaves, strict=True) if not flat.is_held(var)]
    run = core.jaxpr_as_fun(closed_over(labelled, [var for var, _ in given], flat.outputs, _held(flat, leaves)))
    return decorated_as(call, lambda *values: run(*values), "profiled", takes_arguments=False), [leaf for _, leaf in given]


def _held(flat: FlatJaxpr, leaves: list[Any]) -> dict[core.Var, Any]:
    return flat.constants | {var: leaf for var, leaf in zip(flat.inputs, leaves, strict=True) if var in flat.weights}


def op_seconds(graph: TileGraph, inputs: Sequence[Any], rounds: int) -> list[float]:
    """Seconds of each op's tiles together, each tile as in its fastest run: no run of all of them may be undisturbed."""
    graph.run(*inputs)
    timelines = np.stack([graph.timeline(*inputs) for _ in range(rounds)])
    nanoseconds = (timelines[:, :, 2] - timelines[:, :, 1]).min(axis=0)
    return (np.bincount(graph.tile_ops, nanoseconds, graph.num_ops) * 1e-9).tolist()


def op_equations(graph: TileGraph) -> list[list[int]]:
    """The equations of each op, by the labels in its name."""
    return [[int(number) for number in _LABELS.findall(name)] for name in graph.op_names]


def _messages(
    flat: FlatJaxpr, leaves: list[Any], bits: Sequence[int], codec: CodecName | Literal["auto"], bandwidth: float
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the message and seconds to pack it, float64 [cuts, bits]. A value is packed once, however many cuts it crosses."""
    crossing = flat.live(range(len(flat.equations) + 1))
    values = crossing_values(flat, leaves, crossing)
    header = len(pack([]))
    costs: dict[core.Var, np.ndarray] = {}
    for var, value in tqdm(values.items(), desc="messages", unit="value", leave=False, disable=None):
        costs[var] = np.array([_packed(value, number, codec, bandwidth, header) for number in bits]).T
    none = np.zeros((2, len(bits)))
    nbytes, seconds = np.stack([sum((costs[var] for var in variables), none) for variables in crossing], axis=1)
    return nbytes + header, seconds


def _packed(
    value: np.ndarray, bits: int, codec: CodecName | Literal["auto"], bandwidth: float, header: int
) -> tuple[float, float]:
    fastest, message = np.inf, b""
    for _ in range(_PACKINGS):
        start = time.perf_counter()
        message = pack([value], bits, codec, bandwidth=bandwidth)
        fastest = min(fastest, time.perf_counter() - start)
    return len(message) - header, fastest


def crossing_values(flat: FlatJaxpr, leaves: list[Any], crossing: Sequence[Sequence[core.Var]]) -> dict[core.Var, np.ndarray]:
    """The value of each variable that crosses any of the cuts, all by one run. Typed keys are given as their data."""
    variables = list(dict.fromkeys(var for cut in crossing for var in cut))
    run = core.jaxpr_as_fun(closed_over(flat.equations, flat.inputs, variables, flat.constants))

    def sent(*values: Any) -> list[Any]:
        found = run(*values)
        is_key = [jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key) for value in found]
        return [jax.random.key_data(value) if key else value for value, key in zip(found, is_key, strict=True)]

    return dict(zip(variables, map(np.asarray, jax.jit(sent)(*leaves)), strict=True))
