"""TileGraph: the dataflow graph of tiles as plain arrays, what the engine runs and what a graph file holds."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aspen_jax import forks, runtime
from aspen_jax.errors import GraphFormatError, InputError
from aspen_jax.graph import call_inputs, graph_bytes, graph_file
from aspen_jax.graph.dag import Dag
from aspen_jax.graph.layout import check_layout, refuse
from aspen_jax.graph.read_program import given_values, program_of
from aspen_jax.ir.dtypes import DTYPES
from aspen_jax.ir.program import Program

if TYPE_CHECKING:
    from aspen_jax.ops.family import OpFamily

_RUN_KEY = "run_key"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TileGraph:
    """Ops, their tiles and the edges between tiles; see docs/graph_format.md for what each array means.

    Attributes:
        kernels: the names of the kernels used.
        op_names: a name for each op, for reports and errors.
        values: int64 [V, 4]: buffer, byte offset, dtype number, rank.
        value_shapes: int64, the values' shapes one after the other.
        operands: int64, the value of each operand of the call: inputs, then constants. Ops read it, or values that lie in it.
        results: int64, the value of each result of the call; an op writes it, or another value in the same buffer. A result may
            lie in an operand, whose memory the call may be given for both.
        ops: int64 [O, 5]: kernel, output value, number of inputs, number of parameter words, depth.
        inputs: int64, for each op input: value, ranks of R and of the view, R, starts, (source, step, extent) per dimension.
        params: int64, the ops' parameter words one after the other.
        tile_ops: int64 [T], the op of each tile.
        tile_boxes: int64, lo then hi of each tile.
        child_counts: int64 [T].
        children: int64, the tiles' children one after the other.
        costs: int64 [T], estimated nanoseconds.
        workspace_bytes: size of the workspace.
        max_depth: the largest depth of an op.
        constants: an array for each of the last operands; `run` appends them, and they are saved with the graph.
        fields: int64 vectors by name: what a user keeps with the graph, such as a number for each tile. They are saved with the
            graph; the engine reads "run_key" and leaves out the others.
        input_names: a name for each input, such as "params.dense.kernel", or none at all. Names are saved with the graph, and are
            no part of `to_bytes`.
        result_names: a name for each result, or none at all.
        further_outputs: int64 [N, 2]: op and value, for each output of an op beside its first; in the order of the ops.
    """

    kernels: tuple[str, ...]
    op_names: tuple[str, ...]
    values: np.ndarray
    value_shapes: np.ndarray
    operands: np.ndarray
    results: np.ndarray
    ops: np.ndarray
    inputs: np.ndarray
    params: np.ndarray
    tile_ops: np.ndarray
    tile_boxes: np.ndarray
    child_counts: np.ndarray
    children: np.ndarray
    costs: np.ndarray
    workspace_bytes: int
    max_depth: int
    constants: tuple[np.ndarray, ...] = ()
    fields: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    input_names: tuple[str, ...] = ()
    result_names: tuple[str, ...] = ()
    further_outputs: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 2), np.int64))

    @property
    def num_tiles(self) -> int:
        """How many tiles the graph has."""
        return len(self.tile_ops)

    @property
    def num_edges(self) -> int:
        """How many edges lead from one tile to another."""
        return len(self.children)

    @property
    def num_ops(self) -> int:
        """How many ops are tiled."""
        return len(self.ops)

    @forks.cached_property
    def dag(self) -> Dag:
        """The tiles and their edges."""
        return Dag(self.child_counts, self.children)

    @property
    def parent_counts(self) -> np.ndarray:
        """How many tiles each tile waits for."""
        return self.dag.parent_counts()

    @forks.cached_property
    def tile_bytes(self) -> np.ndarray:
        """How many bytes each tile writes, int64 [T]."""
        result = np.zeros(self.num_tiles, np.int64)
        for op in range(self.num_ops):
            tiles, boxes = self.tiles_of(op)
            itemsize = sum(self.value(number)[1].itemsize for number in self.outputs_of(op))
            result[tiles] = (boxes[:, :, 1] - boxes[:, :, 0]).prod(axis=1) * itemsize
        return result

    @forks.cached_property
    def carries_data(self) -> np.ndarray:
        """Whether the child of each edge reads what its parent writes, bool [E], in the order of `children`.

        The others only order tiles that use the same memory.
        """
        from aspen_jax.apu.verify import carries_data

        return carries_data(self)

    @forks.cached_property
    def apart(self) -> TileGraph:
        """The same ops, tiles and edges, with memory of its own for each value that an op writes.

        The scheduling lab runs this where there is more than one memory.
        """
        from aspen_jax.apu.apart import apart

        return apart(self)

    def upward_rank(self, costs: Any) -> np.ndarray:
        """The longest path from the begin of each tile to the end of the graph, float64 [T].

        Args:
            costs: of each tile, [T].
        """
        return self.dag.upward_ranks(costs)

    def to_networkx(self) -> Any:
        """The tiles and edges as a directed graph of networkx, for its algorithms and for other tools.

        Nodes are the tiles' numbers, with `op` (its name), `kernel`, `box` ((lo, hi) of each dimension), `bytes` (written) and
        `cost` (estimated nanoseconds). Edges have `bytes`: what the parent writes if the child reads of it, 0 if the edge only
        orders tiles that use the same memory.

        Returns:
            networkx.DiGraph

        Raises:
            InputError: networkx is not installed.
        """
        try:
            import networkx  # pyright: ignore[reportMissingImports, reportMissingModuleSource] - optional
        except ImportError:
            raise InputError("to_networkx needs networkx: pip install networkx") from None
        result = networkx.DiGraph()
        size, cost = self.tile_bytes.tolist(), self.costs.tolist()
        for op, name in enumerate(self.op_names):
            kernel = self.kernels[self.ops[op, 0]]
            tiles, boxes = self.tiles_of(op)
            for tile, box in zip(tiles.tolist(), boxes.tolist(), strict=True):
                limits = tuple(map(tuple, box))
                result.add_node(tile, op=name, kernel=kernel, box=limits, bytes=size[tile], cost=cost[tile])
        parents, children = self.dag.edges()
        for parent, child, carries in zip(parents.tolist(), children.tolist(), self.carries_data.tolist(), strict=True):
            result.add_edge(parent, child, bytes=size[parent] if carries else 0)
        return result

    @forks.cached_property
    def shared_memory(self) -> dict[int, int]:
        """The operands that ops rewrite in place, and for each of them the result that may be given the same memory."""
        buffers = self.values[self.results, 0].tolist()
        return {buffer: result for result, buffer in enumerate(buffers) if buffer < len(self.operands)}

    def value(self, number: int) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype of a value."""
        start = self._shape_starts[number]
        rank = self.values[number, 3]
        return tuple(self.value_shapes[start : start + rank].tolist()), DTYPES[self.values[number, 2]]

    def outputs_of(self, op: int) -> list[int]:
        """The values that an op writes, the first one first."""
        first, last = np.searchsorted(self.further_outputs[:, 0], [op, op + 1])
        return [int(self.ops[op, 1]), *self.further_outputs[first:last, 1].tolist()]

    def tiles_of(self, op: int) -> tuple[np.ndarray, np.ndarray]:
        """The tiles of an op, ascending, and their boxes [n, rank, 2]."""
        first, last = np.searchsorted(self.tile_ops, [op, op + 1], sorter=self._by_op)
        tiles = self._by_op[first:last]
        rank = int(self.values[self.ops[op, 1], 3])
        flat = self.tile_boxes[self._box_starts[tiles][:, None] + np.arange(2 * rank)]
        return tiles, flat.reshape(len(tiles), 2, rank).swapaxes(1, 2)

    def program(self, families: Mapping[str, OpFamily] | None = None) -> Program:
        """The program that this graph tiles, without the users' source lines.

        Args:
            families: op families by kernel name; those of `aspen_jax.ops` if None.

        Raises:
            GraphFormatError: a kernel is unknown or its parameters are not its family's.
        """
        return program_of(self, families)

    def given_values(self) -> list[tuple[int, int, int]]:
        """What ops read of the operands, in their order: number of the value, operand, byte at which it begins there.

        These are the inputs and the constants of `program`, in that order.
        """
        return given_values(self)

    def verify(self) -> None:
        """Check everything: each index, view and box, each output element written once, each read after its write.

        Raises:
            GraphFormatError: something is wrong; the message says what and where.
        """
        from aspen_jax.apu.verify import verify

        verify(self)

    def with_run_key(self, run_key: int) -> TileGraph:
        """The same graph, whose runs are due at another time (docs/graph_format.md, `run_key`).

        Args:
            run_key: nanoseconds after the arrival; what is due first goes first.
        """
        fields = {name: field for name, field in self.fields.items() if name != _RUN_KEY}
        return dataclasses.replace(self, fields=fields | ({_RUN_KEY: np.array([run_key])} if run_key else {}))

    def run(self, *inputs: Any, priority: int | None = None, deadline: float | None = None) -> list[np.ndarray]:
        """Run the graph in the engine.

        Ctrl-C ends the run at its next tile.

        Args:
            *inputs: an array or a Python number for each input, or pytrees of these; constants are known. For the graph of a
                decorated function these are its arguments, without the static ones.
            priority: of several runs at once, those with the larger number go first, as with `aspen`. Where neither this nor a
                deadline is given, both are those of the function that the graph was made from.
            deadline: seconds within which the run should be done.

        Returns:
            an array for each result; for the graph of a decorated function each that it returns.

        Raises:
            InputError: the inputs do not fit, or priority or deadline is no such number.
            EngineError: the run failed, or takes more than `aspen_jax.limits` allows.
        """
        run_key = None if priority is None and deadline is None else runtime.run_key(priority, deadline)
        return self.plan.run(self.operands_of(inputs), run_key)

    def timeline(self, *inputs: Any) -> np.ndarray:
        """Run the graph in the engine as `run` does, and say where and when each tile ran.

        Args:
            *inputs: as `run` takes them.

        Returns:
            int64 [T, 3], of each tile: the worker, or -1 where the calling thread walked a small graph itself; when it began, and
            when it ended, in nanoseconds of a steady clock.

        Raises:
            InputError: the inputs do not fit.
            EngineError: the run failed, or takes more than `aspen_jax.limits` allows.
        """
        return self.plan.timeline(self.operands_of(inputs))

    def stats(self) -> dict[str, Any]:
        """Counts and estimates.

        Returns:
            ops, tiles, edges, kernels (tiles of each), flops, bytes (moved by all tiles), workspace_bytes, constant_bytes,
            graph_bytes, work_ns (of all tiles), critical_path_ns, and parallelism, the quotient of the two.
        """
        flops = moved = 0.0
        kernels = dict.fromkeys(self.kernels, 0)
        for number, op in enumerate(self.program().ops):
            tiles, boxes = self.tiles_of(number)
            work = op.family.work(op, boxes)
            flops += float(work.flops.sum())
            moved += float(work.bytes.sum())
            kernels[op.family.kernel] += len(tiles)
        critical = int(self.dag.finish_times(self.costs).max(initial=0))
        total = int(self.costs.sum())
        return {
            "ops": self.num_ops,
            "tiles": self.num_tiles,
            "edges": self.num_edges,
            "kernels": kernels,
            "flops": flops,
            "bytes": moved,
            "workspace_bytes": self.workspace_bytes,
            "constant_bytes": sum(array.nbytes for array in self.constants),
            "graph_bytes": len(self.to_bytes()),
            "work_ns": total,
            "critical_path_ns": critical,
            "parallelism": total / max(critical, 1),
        }

    def to_bytes(self) -> bytes:
        """The graph without its constants: what the custom call carries."""
        return self._bytes

    @classmethod
    def from_bytes(cls, data: bytes) -> TileGraph:
        """The graph that `to_bytes` wrote. Its layout is checked; `verify` checks the rest.

        Raises:
            GraphFormatError: the bytes are truncated, damaged, of another version, or no graph.
        """
        graph = cls(**graph_bytes.decoded(data))
        check_layout(graph)
        return graph

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write graph, names and constants to a file, which appears whole or not at all.

        Python, the C library and `aspen-run` (docs/how-to/run_without_python.md) load it.

        Raises:
            OSError: the file cannot be written.
        """
        graph_file.write(path, graph_bytes.with_names(self), self.constants)

    def save_weights(self, path: str | os.PathLike[str], **arguments: Any) -> None:
        """Write arguments of the function to a safetensors file, for the C library and `aspen-run`.

        Each array is stored under the name of the input that it is for.

        Args:
            path: where to write it.
            **arguments: arrays, or pytrees of arrays, by the name of the function's argument.

        Raises:
            InputError: an array is for no input of the graph, or has another shape or dtype; or safetensors is not installed.
            OSError: the file cannot be written.

        Example:
            >>> graph = f.graph(params, x)
            >>> graph.save("f.aspen")
            >>> graph.save_weights("f.safetensors", params=params)
        """
        graph_file.write_weights(path, call_inputs.weights_of(self, arguments))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TileGraph:
        """Read what `save` wrote, and verify it.

        Raises:
            GraphFormatError: the file is truncated, damaged, of another version, or describes an impossible graph.
            OSError: the file cannot be read.
        """
        try:
            file = graph_file.read(path)
            graph = cls.from_bytes(file.graph)
            if file.num_constants > len(graph.operands):
                refuse(f"{file.num_constants} constants for {len(graph.operands)} operands")
            known = graph.operands[len(graph.operands) - file.num_constants :]
            graph = dataclasses.replace(graph, constants=file.constants([graph.value(number) for number in known]))
            graph.verify()
        except GraphFormatError as error:
            raise GraphFormatError(f"{os.fspath(path)}: {error}") from None
        return graph

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TileGraph):
            return NotImplemented
        return (
            self.to_bytes() == other.to_bytes()
            and len(self.constants) == len(other.constants)
            and all(a.tobytes() == b.tobytes() for a, b in zip(self.constants, other.constants, strict=True))
        )

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def __repr__(self) -> str:
        return (
            f"TileGraph({self.num_ops} ops, {self.num_tiles} tiles, {self.num_edges} edges, "
            f"{self.workspace_bytes / 2**20:.1f} MiB workspace)"
        )

    @forks.cached_property
    def _bytes(self) -> bytes:
        return graph_bytes.encoded(self, self.fields)

    @forks.cached_property
    def _shape_starts(self) -> np.ndarray:
        return np.cumsum(self.values[:, 3]) - self.values[:, 3]

    @forks.cached_property
    def _box_starts(self) -> np.ndarray:
        widths = 2 * self.values[self.ops[self.tile_ops, 1], 3]
        return np.cumsum(widths) - widths

    @forks.cached_property
    def _by_op(self) -> np.ndarray:
        return np.argsort(self.tile_ops, kind="stable")

    def operands_of(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        """The operands of a call with these inputs, as `run` takes them: arrays for the inputs, and the constants.

        Raises:
            InputError: the inputs do not fit.
        """
        return call_inputs.operands_of(self, inputs)

    @forks.cached_property
    def plan(self) -> Any:
        """The graph made ready for this machine's kernels: `_engine.Plan`."""
        from aspen_jax import _engine

        runtime.tell_of_targets_left_out()
        return _engine.Plan(self.to_bytes())
