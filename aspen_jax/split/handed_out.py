"""Heads that a server hands out to clients without the model: as StableHLO, which may call little beside itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import export

from aspen_jax.api.flat import check_type
from aspen_jax.errors import InputError, LinkError
from aspen_jax.runtime import CUSTOM_CALL_TARGET
from aspen_jax.split import split_pb2
from aspen_jax.split.halves import Halves, check_number
from aspen_jax.split.printable import printable

_LAPACK = "potrf geqrf orgqr ungqr syevd heevd geev gesdd getrf sytrd hetrd gehrd gees trsm gtsv"
_SOLVERS = "getrf geqrf orgqr potrf syevd gesvd gesvdj gesdd sytrd"

ALLOWED_CALLS = frozenset(
    {
        CUSTOM_CALL_TARGET,
        *(f"lapack_{kind}{name}_ffi" for kind in "sdcz" for name in _LAPACK.split()),
        *(f"{maker}solver_{name}_ffi" for maker in ("cu", "hip") for name in _SOLVERS.split()),
        "cusparse_gtsv2_ffi",
        "cu_lu_pivots_to_permutation",
        "hip_lu_pivots_to_permutation",
        "cu_threefry2x32_ffi",
        "hip_threefry2x32_ffi",
        "ApproxTopK",
        "AllocateBuffer",
        "Sharding",
        "annotate_device_placement",
        "mhlo.erf",
        "mhlo.topk",
    }
)
"""Names of the custom calls that a handed-out head may make: this package's own, and those of XLA that only compute.

FFT, sorting, convolutions and products are operations of StableHLO, not calls."""

# Sets of operations of which a head may consist, and those of them that speak with somebody else.
_ALLOWED_DIALECTS = frozenset({"builtin", "func", "stablehlo", "chlo", "sdy"})
_SPEAKING = frozenset({"stablehlo.infeed", "stablehlo.outfeed", "stablehlo.recv", "stablehlo.send"})
_BYTES_OF_A_FINGERPRINT = 32


def exported_head(halves: Halves, cut: int) -> bytes:
    """A head with its weights in it, as StableHLO, so that a client runs no Python of ours.

    It takes the function's arguments but those that are weights or static.

    Raises:
        InputError: the head cannot travel, such as one with a callback into Python.
    """
    checks = [export.DisabledSafetyCheck.custom_call(CUSTOM_CALL_TARGET)]
    head, args, kwargs = halves.closed_head(cut)
    try:
        return bytes(export.export(jax.jit(head), disabled_checks=checks)(*args, **kwargs).serialize())
    except Exception as error:
        raise InputError(f"the head of cut {cut} cannot be handed out ({error}); take a cut before what it cannot do") from error


def exported_results(halves: Halves) -> bytes:
    """A function from the leaves of the results to the results: it says shapes, dtypes and tree.

    Raises:
        InputError: a leaf is no array, so it cannot travel.
    """
    if halves.arrays(halves.returned(halves.results)) != jax.tree.leaves(halves.returned(halves.results)):
        raise InputError("the function also returns what is no array; give its clients the function instead of its name")
    return bytes(export.export(jax.jit(lambda *leaves: halves.returned(leaves)))(*halves.results).serialize())


class HandedOut:
    """What a client knows of a function whose heads the server hands out, as `Halves` for one that has the function.

    A server may send anything. What is no function, or calls what it may not call, ends in a `LinkError`.

    Attributes:
        fingerprint: 32 bytes.
        num_cuts: how many cuts there are.
        results: shape and dtype of each result.
    """

    def __init__(self, name: str, ask: Callable[[Any], Any]):
        """Ask the server.

        Args:
            name: in the server's table.
            ask: sends a `Question` and gives the `Description`.

        Raises:
            LinkError: the server does not answer, refuses, or answers what is no description of a function.
        """
        self._ask, self._name = ask, name
        described = ask(split_pb2.Question(name=name))
        self.fingerprint, self.num_cuts = described.model, described.cuts
        if len(self.fingerprint) != _BYTES_OF_A_FINGERPRINT or self.num_cuts < 1:
            raise LinkError(f"the server's description of {name!r} is none; see whether another program listens there")
        results = _deserialized(described.results, f"the description of {name!r}")
        self.results, self._tree = _structs(results.out_avals), results.out_tree
        self._heads: dict[int, tuple[export.Exported, Callable[..., Any]]] = {}

    def check(self, number: int) -> None:
        """See that there is such a cut.

        Raises:
            InputError: there is none.
        """
        check_number(number, self.num_cuts)

    def head(self, number: int) -> Callable[..., Any]:
        """What comes before a cut; takes the function's arguments but those that are weights or static.

        Raises:
            LinkError: the server does not hand it out, or what it hands out is no head.
        """
        if number not in self._heads:
            self._heads[number] = self._asked(number)
        exported, compiled = self._heads[number]

        def run(*args: Any, **kwargs: Any) -> Any:
            leaves, tree = jax.tree.flatten((args, kwargs))
            if tree != exported.in_tree:
                raise InputError(f"the head takes arguments of the structure {exported.in_tree}, not {tree}; pass such")
            for place, (leaf, aval) in enumerate(zip(leaves, exported.in_avals, strict=True)):
                check_type("the head", f"argument {place}", leaf, aval)
            return compiled(*args, **kwargs)

        return run

    def returned(self, arrays: Sequence[Any]) -> Any:
        """What the function returns, from its arrays."""
        return jax.tree.unflatten(self._tree, arrays)

    def _asked(self, number: int) -> tuple[export.Exported, Callable[..., Any]]:
        described = self._ask(split_pb2.Question(name=self._name, cut=number))
        if hashlib.sha256(described.head).digest() != described.sha256 or described.model != self.fingerprint:
            raise LinkError(f"the head of cut {number} is damaged, or the server has another function now; connect anew")
        what = f"the head of cut {number}"
        exported = _deserialized(described.head, what)
        call = jax.jit(exported.call)
        try:
            args, kwargs = jax.tree.unflatten(exported.in_tree, _structs(exported.in_avals))
            lowered = call.lower(*args, **kwargs)
            check_calls(lowered)
            lowered.compile()
        except Exception as error:
            raise _no_function(what, error) from None
        return exported, call


def check_calls(lowered: jax.stages.Lowered) -> None:
    """See that a program computes, and calls nothing else in this process.

    Raises:
        LinkError: it has a custom call that is none of `ALLOWED_CALLS`, or an operation that is none of StableHLO's.
    """
    module: Any = lowered.compiler_ir()
    waiting = [module.operation]
    while waiting:
        operation = waiting.pop()
        name = str(operation.name)
        if name == "stablehlo.custom_call":
            target = str(operation.attributes["call_target_name"].value)
            if target not in ALLOWED_CALLS:
                raise LinkError(f"it calls {printable(target)!r}, which no head may call")
        elif name in _SPEAKING or name.partition(".")[0] not in _ALLOWED_DIALECTS:
            raise LinkError(f"it has the operation {printable(name)!r}, which no head may have")
        waiting += (inner.operation for region in operation.regions for block in region for inner in block)


def _structs(avals: Any) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)


def _deserialized(data: bytes, what: str) -> export.Exported:
    """What a server has sent, if its types are those of arrays."""
    try:
        exported = export.deserialize(bytearray(data))
        for aval in (*exported.in_avals, *exported.out_avals):
            if not all(isinstance(size, int) and size >= 0 for size in aval.shape):
                raise ValueError(f"the shape {aval.shape} is none")
        if (exported.in_tree.num_leaves, exported.out_tree.num_leaves) != (len(exported.in_avals), len(exported.out_avals)):
            raise ValueError("the trees do not fit the types")
        return exported
    except Exception as error:
        raise _no_function(what, error) from None


def _no_function(what: str, error: Exception) -> LinkError:
    text = f"{type(error).__name__}: {error}" if not isinstance(error, LinkError) else str(error)
    return LinkError(f"{what} cannot be run ({printable(text)}); ask whoever runs the server")
