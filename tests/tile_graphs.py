"""Graphs of tiles for tests, and what is done to them."""

from __future__ import annotations

import dataclasses
from unittest import mock

import numpy as np

from aspen_jax.apu import Machine, build
from aspen_jax.apu import memory as apu_memory
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Operand, Program, Value
from aspen_jax.ops.attention import ATTENTION, weight_labels
from aspen_jax.ops.block_program import single
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.conv import CONV2D, ConvAttrs
from aspen_jax.ops.rows import ROWS
from tests.random_programs import random_program

FLOAT = np.dtype(np.float32)
FINE = Machine(flops_per_ns=1e-3, tile_ns=1.0, shortest_tile_ns=1.0)


def small_net(seed: int = 0) -> TileGraph:
    """Five convolutions and an addition, tiled finely, with a constant and reused memory."""
    rng = np.random.default_rng(seed)
    builder = Builder()
    x = Operand.whole(Value((1, 48, 32, 8), FLOAT))
    constant = builder.constant(rng.standard_normal((8,), np.float32))
    last, w = x, Operand.whole(Value((3, 3, 8, 8), FLOAT))
    for _ in range(5):
        last = builder.op(CONV2D, ConvAttrs((1, 1), (1, 1, 1, 1), (1, 1), 1), [last, w])
    bias = Operand(constant.value, constant.view.broadcast_in_dim(last.shape, (3,)))
    last = builder.block(single("add_f"), [last, bias], last.shape, FLOAT)
    ops = tuple(dataclasses.replace(op, name=f"layer{k}") for k, op in enumerate(builder.ops))
    return build(Program((x.value, w.value), tuple(builder.constants), ops, (last,)), 2, FINE)


def build_with_random_tiles(program: Program, seed: int, reuse: bool) -> TileGraph:
    """A graph whose cuts owe nothing to the cost model, and whose smallest values share space too."""
    rng = np.random.default_rng(seed)

    def cuts(op, num_workers, machine):
        del num_workers, machine
        inner = [np.flatnonzero(rng.random(max(extent, 1)) < 0.4) for extent in op.output.shape]
        if op.family is ROWS and op.attrs.rows.gives_rows:  # the one promise of a tile that the kernel needs: whole rows
            inner = [cut[:0] if axis in op.attrs.axes else cut for axis, cut in enumerate(inner)]
        if op.family is ATTENTION:  # as whole are its columns
            inner = [cut if axis in weight_labels(op.attrs) else cut[:0] for axis, cut in enumerate(inner)]
        return tuple(np.union1d(cut, (0, extent)).astype(np.int64) for cut, extent in zip(inner, op.output.shape, strict=True))

    with mock.patch("aspen_jax.apu.pipeline.cut_points", cuts), mock.patch.object(apu_memory, "_SMALLEST_REUSED", 1):
        return build(program, 2, reuse=reuse)


def random_graph(seed: int) -> TileGraph:
    return build_with_random_tiles(random_program(seed, steps=10), seed, reuse=True)


def changed(graph: TileGraph, name: str, index, value) -> TileGraph:
    array = getattr(graph, name).copy()
    array[index] = value
    return dataclasses.replace(graph, **{name: array})


def numbers_of(program: Program, graph: TileGraph) -> dict[Value, int]:
    """The number in the graph's table of each value of a rebuilt program that has one of its own: not a view as a result."""
    return dict(
        [
            *zip(program.inputs, graph.operands.tolist(), strict=True),
            *(pair for k, op in enumerate(program.ops) for pair in zip(op.outputs, graph.outputs_of(k), strict=True)),
        ]
    )
