"""Tunes a prepared network by aspen, from nothing known, in a process of its own."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jax

from aspen_jax import aspen
from aspen_jax.report.cores import share_cores
from aspen_jax.report.difference import largest_difference
from aspen_jax.targets.cpu.tuning import Tuning
from benchmarks.child import serve
from benchmarks.peers.prepared import Prepared
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.in_jax import in_jax


def _measure(folder: str, name: str, size: str, threads: str) -> dict[str, Any]:
    share_cores(int(threads))
    prepared = Prepared(Path(folder), name, Size(**json.loads(size)))
    params, inputs = jax.tree.map(jax.numpy.asarray, (prepared.params, prepared.inputs))
    function = aspen(functools.partial(in_jax(prepared.network), params), device="cpu")
    found = function.tune(*inputs)
    assert isinstance(found, Tuning)  # it is for a CPU
    outputs = tuple(jax.tree.leaves(jax.jit(function)(*inputs)))
    return {
        "tasks": found.ops,
        "candidates": found.candidates,
        "seconds": found.seconds,
        "untuned_s": found.modelled_s,
        "tuned_s": found.tuned_s,
        "difference": largest_difference(outputs, prepared.expected),
    }


if __name__ == "__main__":
    serve(_measure)
