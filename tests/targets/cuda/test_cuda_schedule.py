"""Every graph of the benchmarks, issued to CUDA streams: what a launch reads is there, and no memory is used again too early.

What must be ordered comes from the op families' regions and from where values lie, not from the graph's edges.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import jax
import numpy as np
import pytest

from aspen_jax import _engine
from aspen_jax.apu import build
from aspen_jax.apu.dependencies import data_edges, reads_of
from aspen_jax.apu.grid import Grid
from aspen_jax.apu.memory import Touches, overlapping, rewritten, touches
from aspen_jax.errors import GraphFormatError, InputError
from aspen_jax.graph.dag import expand
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Value
from aspen_jax.lowering.compile import Options, compile_jaxpr
from aspen_jax.primitive.batch import slowest_axis
from aspen_jax.primitive.choices import Choices
from aspen_jax.targets.cuda.code.horizontal import launched_with
from aspen_jax.targets.cuda.code.kernel import UnsupportedOp
from aspen_jax.targets.cuda.price import NUM_BLOCKS, Gpu
from aspen_jax.targets.cuda.target import CudaTarget
from benchmarks import zoo
from benchmarks.zoo import gpt2
from benchmarks.zoo.network.in_jax import in_jax
from benchmarks.zoo.transformer import Config
from tests.random_programs import random_program
from tests.targets.cuda.vector_clocks import LAUNCH, RECORD, WAIT, Device
from tests.tile_graphs import build_with_random_tiles

Pairs = tuple[np.ndarray, np.ndarray]


def touched(value: Value, tiles: np.ndarray, boxes: np.ndarray) -> Touches:
    """The bytes of boxes, one index of the slowest axis at a time: who adds slices up reads a little of each, not all between."""
    axis = slowest_axis(value.shape)
    if axis is not None:
        row, position = expand(boxes[:, axis, 1] - boxes[:, axis, 0])
        tiles, boxes = tiles[row], boxes[row]
        boxes[:, axis, 0] += position
        boxes[:, axis, 1] = boxes[:, axis, 0] + 1
    return touches(value, tiles, boxes)


def conflicts(graph: TileGraph) -> Iterator[Pairs]:
    """Pairs of tiles that may not run at once: who writes what the other reads, and who share bytes of the workspace.

    They come value by value. Together they would take GPT-2 24 GB.
    """
    program = graph.program()
    tiles = [graph.tiles_of(number) for number in range(graph.num_ops)]
    grids = {}
    for op, (numbers, boxes) in zip(program.ops, tiles, strict=True):
        cuts = tuple(np.unique(np.append(boxes[:, d], (0, extent))) for d, extent in enumerate(op.output.shape))
        grid = Grid(cuts, np.full(np.prod([len(cut) - 1 for cut in cuts], dtype=int), -1))
        row, cell = grid.touched(boxes)
        grid.tiles[cell] = numbers[row]
        grids.update(dict.fromkeys(op.outputs, grid))
    reads = [read for op, item in zip(program.ops, tiles, strict=True) for read in reads_of(op, *item)]
    yield data_edges(reads, grids)

    # Bytes that are written, value by value: who writes them, and who touches them at all.
    nobody = Touches.join([])
    places = {}
    for value, (_, buffer, offset) in zip(program.inputs, graph.given_values(), strict=False):
        places[value] = (buffer, offset, nobody)
    for number, op in enumerate(program.ops):
        for value, where in zip(op.outputs, graph.outputs_of(number), strict=True):
            buffer, offset = graph.values[where, :2].tolist()
            places[value] = (buffer, offset, touched(value, *tiles[number]).moved(offset))
    reading = {value: [read for read in reads if read.value is value] for value in places}
    made_by = {value: op for op in program.ops for value in op.outputs}

    def lies_in(value: Value, earlier: Value) -> bool:
        """Whether ops in place have made the value of an earlier one. What they read orders them, byte by byte."""
        op = made_by.get(value)
        if op is None or not op.in_place:
            return False
        before = rewritten(op)
        return before is earlier or lies_in(before, earlier)

    for value, op in made_by.items():
        buffer, offset, writes = places[value]
        for other, (other_buffer, other_offset, other_writes) in places.items():
            apart = other_offset >= offset + value.nbytes or offset >= other_offset + other.nbytes
            if other is value or other_buffer != buffer or apart or lies_in(other, value):
                continue
            users = [touched(other, read.tiles, read.boxes).moved(other_offset) for read in reading[other]]
            if op.in_place and rewritten(op) is other:
                # A tile reads itself what it writes, after those that wrote that.
                users = [Touches(*(array[~np.isin(part.tiles, writes.tiles)] for array in part)) for part in users]
            else:
                users.append(other_writes)
            yield overlapping(writes, Touches.join(users))


def together(graph: TileGraph) -> list[int]:
    """As executors launch the ops of a graph; each alone where an op is for CPUs."""
    try:
        return launched_with(graph.program().ops, graph)
    except UnsupportedOp:
        return []


class Issue:
    """A graph as commands for streams, and which launches may not run at once.

    Args:
        graph: the graph.
        num_streams: how many streams there are.
        fewest_tiles: of an op that are launched together. 16 makes more launches than executors do, and so more to go wrong.
    """

    def __init__(self, graph: TileGraph, num_streams: int, fewest_tiles: int):
        launch_of, self.commands = _engine.cuda_schedule(graph.to_bytes(), num_streams, fewest_tiles, together(graph))
        self._launches = np.array(launch_of, np.int64)
        self.num_streams = num_streams
        self.num_launches = int(self._launches.max()) + 1
        self._apart = np.zeros((self.num_launches, self.num_launches), bool)

    @classmethod
    def each(cls, graph: TileGraph, settings: Iterable[tuple[int, int]]) -> list[Issue]:
        """One for each number of streams and of fewest tiles, all of what may not run at once in the graph."""
        issues = [cls(graph, *setting) for setting in settings]
        for pairs in conflicts(graph):
            for issue in issues:
                issue._keep_apart(*pairs)
        return issues

    def _keep_apart(self, tiles: np.ndarray, others: np.ndarray) -> None:
        first, second = self._launches[tiles], self._launches[others]
        # Tiles of one launch run at once: none may conflict.
        assert (first != second).all()
        self._apart[first, second] = True

    def is_safe(self, commands: Sequence[tuple[int, int, int]] | None = None) -> bool:
        """Whether these commands, or those of the schedule, keep everything apart that must be."""
        device = Device(self.commands if commands is None else commands, self.num_streams, self.num_launches)
        first, second = np.nonzero(self._apart)
        ordered = device.is_before(first, second) | device.is_before(second, first)
        return bool(ordered.all()) and device.is_between()


# Streams and tiles of a launch as executors have them.
AS_RUN = (_engine.CUDA_STREAMS, _engine.CUDA_FEWEST_TILES)

DTYPES = {"image": np.float32, "token ids": np.int32, "segments": np.int32, "mask": np.bool_}


def graph_of(name: str) -> TileGraph:
    """The graph of a network of the zoo for a GPU, from shapes alone."""
    network = zoo.describe(name)
    shapes = {
        node: {key: jax.ShapeDtypeStruct(shape, np.float32) for key, shape in own.items()}
        for node, own in network.parameter_shapes().items()
    }
    inputs = [jax.ShapeDtypeStruct(what.shape, DTYPES[what.kind]) for what in network.inputs.values()]
    jaxpr = jax.make_jaxpr(in_jax(network))(shapes, *inputs)
    (part,) = compile_jaxpr(jaxpr, Options(Choices(), CudaTarget.here())).parts
    return part.graph


@pytest.mark.parametrize("name", zoo.NETWORKS)
@pytest.mark.sweep
def test_networks_are_safe_on_streams(name):
    graph = graph_of(name)
    for issue in Issue.each(graph, ((1, 16), AS_RUN, (8, 16))):
        assert issue.num_launches < graph.num_tiles
        assert issue.is_safe()


@pytest.mark.parametrize("queries", [1, 4])
def test_attention_whose_keys_are_shared_out_is_safe_on_streams(queries):
    shapes = [jax.ShapeDtypeStruct((1, count, 12, 64), np.float32) for count in (queries, 1000, 1000)]
    jaxpr = jax.make_jaxpr(jax.nn.dot_product_attention)(*shapes)
    options = Options(Choices(), CudaTarget.here())
    (part,) = compile_jaxpr(jaxpr, options).parts
    assert [op.family.name for op in part.program.ops] == ["attention_slices", "rows"]
    (apart,) = compile_jaxpr(jaxpr, dataclasses.replace(options, disabled_passes=options.disabled_passes | {"attention"})).parts
    assert [op.family.name for op in apart.program.ops][:2] == ["matmul", "rows"]
    for graph in (part.graph, apart.graph):
        assert all(issue.is_safe() for issue in Issue.each(graph, ((1, 16), AS_RUN, (8, 16))))


def test_a_decoder_with_its_cache_is_safe_on_streams():
    model = gpt2.build_decode(Config(layers=2, width=768, heads=12, hidden=96, tokens=1024, vocabulary=99))
    jaxpr = jax.make_jaxpr(model.apply)(*model.arguments)
    (part,) = compile_jaxpr(jaxpr, Options(Choices(), CudaTarget.here())).parts
    assert [op.family.name for op in part.program.ops].count("attention_slices") == 2
    assert all(issue.is_safe() for issue in Issue.each(part.graph, ((1, 16), AS_RUN, (8, 16))))


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_are_safe_on_streams(seed):
    graph = build_with_random_tiles(random_program(seed), seed, reuse=True)
    if graph.num_tiles:
        assert all(issue.is_safe() for issue in Issue.each(graph, ((1, 1), (2, 1), (3, 4), (8, 2))))


@pytest.fixture(scope="module")
def inception() -> TileGraph:
    """Branches, so that there is something to do for several streams."""
    return graph_of("inception_v3")


@pytest.mark.parametrize("fewest_tiles", [16, AS_RUN[1]])
def test_several_streams_are_used(inception, fewest_tiles):
    issue = Issue(inception, 4, fewest_tiles)
    for kind in (LAUNCH, RECORD, WAIT):
        assert {stream for what, stream, _ in issue.commands if what == kind} == set(range(4))


@pytest.mark.parametrize("kind", [LAUNCH, RECORD, WAIT])
@pytest.mark.sweep
def test_a_command_that_is_missing_is_noticed(inception, kind):
    # Edges of reuse go by all bytes from a box's first to its last: with more of them, some waits are more than is needed.
    (issue,) = Issue.each(build(inception.program(), NUM_BLOCKS, Gpu(edges_of_reuse=16)), [(4, 16)])
    for number, command in enumerate(issue.commands):
        if command[0] == kind:
            faulty = [*issue.commands[:number], *issue.commands[number + 1 :]]
            assert not issue.is_safe(faulty), f"without command {number}, {command}"


def is_safe(graph: TileGraph) -> bool:
    (issue,) = Issue.each(graph, [(4, 16)])
    return issue.is_safe()


def test_memory_that_is_used_again_too_early_is_noticed(inception):
    program = inception.program()
    assert is_safe(inception)
    # The same places for the values, but only the edges that the data demands.
    reads_only = build(program, NUM_BLOCKS, Gpu(), reuse=False)
    assert reads_only.num_tiles == inception.num_tiles
    assert reads_only.num_edges < inception.num_edges
    faulty = dataclasses.replace(inception, child_counts=reads_only.child_counts, children=reads_only.children)
    assert not is_safe(faulty)


def test_what_is_no_graph_is_refused():
    with pytest.raises(GraphFormatError, match="cut short"):
        _engine.cuda_schedule(b"", 1, 1)
    with pytest.raises(InputError, match="at least one stream"):
        _engine.cuda_schedule(graph_of("alexnet").to_bytes(), 0, 1)
