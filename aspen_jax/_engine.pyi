# Written by tools/engine_stub.py from the built module; change that module's sources instead.
"""
The extension module (engine/module.cc).

Attributes:
    built_for_jaxlib: version of the jaxlib whose headers the module was compiled with.
    CUDA_STREAMS: streams of a run on CUDA.
    CUDA_FEWEST_TILES: fewest tiles of an op that are launched together on CUDA, where it has so many.
    NEVER: nanoseconds that stand for never, which a resource without a kernel for a tile takes.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy
from numpy.typing import NDArray
from typing_extensions import CapsuleType


built_for_jaxlib: str = ...

def registrations() -> dict[str, CapsuleType]:
    """
    The handlers of the custom call by stage, for `jax.ffi.register_ffi_target`.
    """

def num_workers() -> int:
    """Workers (DSEs) that exist or that the first run will start."""

def set_num_workers(n: int) -> None:
    """Add or remove workers, at any time."""

def cpu_targets() -> list[str]:
    """
    Instruction sets that this build has kernels for and this machine can run, the best last.
    """

def cpu_targets_compiled() -> list[str]:
    """
    Instruction sets that this build has kernels for, whatever this machine can run.
    """

def cpu_targets_runnable() -> list[str]:
    """
    Instruction sets that this machine can run, whatever this build has kernels for, the best last.
    """

def cpu_target() -> str:
    """The instruction set in use: the best, or what ASPEN_CPU_TARGET says."""

def cpu_l2_cache_bytes() -> int:
    """
    Bytes of a core's L2 cache, as the operating system says; 1 MiB where it does not.
    """

def cpu_few_rows() -> int:
    """
    Most rows with which the kernels of the target in use read a product's right operand once, in place.
    """

def limits() -> tuple[int | None, int | None]:
    """
    The most bytes of workspace and nanoseconds of `Plan.run` and `Plan.timeline`; None where there is no limit.
    """

def set_limits(workspace: int | None, nanoseconds: int | None) -> None:
    """Change the limits, for runs that begin from now on."""

def peak_flops(target: str) -> float:
    """
    Measured float32 FLOP/s of one core with the vectors of an available target; takes about 20 ms.
    """

def block_opcodes() -> dict[str, tuple[int, int]]:
    """
    Number and number of arguments of each instruction of block programs, by name.
    """

def cuda_registrations() -> dict[str, CapsuleType]:
    """
    Handlers of the custom call for `jax.ffi.register_ffi_target` on CUDA; they look for CUDA's driver when they are called.
    """

def cuda_schedule(graph: bytes, num_streams: int, fewest_tiles: int, launched_with: Sequence[int] = ...) -> tuple[list[int], list[tuple[int, int, int]]]:
    """
    How a graph would be issued to CUDA streams; needs no GPU.

    Args:
        graph: graph bytes (docs/graph_format.md).
        num_streams: DSEs, each with a stream; stream 0 is the caller's.
        fewest_tiles: of an op that are launched together, where it has so many.
        launched_with: [ops], of each the first of those that are launched with it; empty: all are alone.

    Returns:
        The launch of each tile, and the commands in the order in which they are issued: (0, stream, launch), (1, stream, event to
        record) or (2, stream, event to wait for).

    Raises:
        GraphFormatError: the bytes are no graph.
        InputError: there is no stream.
    """

CUDA_STREAMS: int = ...

CUDA_FEWEST_TILES: int = ...

class CudaRun:
    """
    A graph and its code on the first GPU, without XLA. device_run.py checks arrays.
    """

    def __init__(self, graph: bytes, image: bytes, kernels: Sequence[int], launched_with: Sequence[int], executor: int) -> None:
        """
        Read the graph and find the GPU.

        Args:
            graph: graph bytes (docs/graph_format.md).
            image: a cubin or PTX with kernels op0, op1 ...
            kernels: the number of each op's kernel.
            launched_with: of each op the first of those that are launched with it; empty: all are alone.
            executor: one of cuda/executable.h.

        Raises:
            GraphFormatError: the bytes are no graph.
            InputError: kernels or launches cannot be those of the ops, or the executor is unknown.
            EngineError: there is no driver, an old one, or no GPU.
        """

    def run(self, operands: Sequence[int], results: Sequence[int], lies_in: Sequence[int], captured: bool, rounds: int) -> tuple[list[float], list[float]]:
        """
        Run on memory of the host, whose addresses are given; the caller has looked at shapes and dtypes.

        Args:
            operands: where each operand begins.
            results: where each result is to be written.
            lies_in: of each result the operand in whose memory on the device it lies; -1: in its own.
            captured: whether the run is captured into a CUDA graph first.
            rounds: how often it is timed afterwards, between events of the device.

        Returns:
            The milliseconds of a run on the device and on the host, from each round.

        Raises:
            InputError: there are too few addresses, or too many, or no such operand of the result's size.
            EngineError: CUDA refused something; the message names it, op and tiles.
        """

NEVER: int = ...

class VirtualGraph:
    """What of a graph the virtual clock reads (engine/virtual_graph.h)."""

    def __init__(self, child_counts: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)], children: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)], tile_ops: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)], depths: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)], bytes: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)], is_read: Annotated[NDArray[numpy.uint8], dict(order='C', device='cpu', writable=False)]) -> None:
        """
        Read the arrows.

        Args:
            child_counts: int64 [T].
            children: int64 [E], of the first tile, then of the second.
            tile_ops: int64 [T].
            depths: int64 [T], by which tiles are ordered.
            bytes: int64 [T], what each tile writes; empty where nothing is copied.
            is_read: uint8 [E], whether each arrow carries data; empty where nothing is copied.

        Raises:
            InputError: the arrays do not fit together, or the arrows lead in a circle.
        """

    @property
    def num_tiles(self) -> int: ...

class VirtualMachine:
    """Resources, memories and links (engine/virtual_machine.h)."""

    def __init__(self, lanes: Sequence[int], memories: Sequence[int], links: Sequence[tuple[int, float]]) -> None:
        """
        Describe a machine.

        Args:
            lanes: of each resource.
            memories: of each resource.
            links: latency in nanoseconds and nanoseconds a byte, from each memory to each.

        Raises:
            InputError: there is no resource, one without lanes, an unknown memory, or a negative time.
        """

    @property
    def num_resources(self) -> int: ...

class Expectation:
    """
    The times at which tiles would end, as they are assigned one after the other (engine/expectation.h).
    """

    def __init__(self, graph: VirtualGraph, machine: VirtualMachine, nanoseconds: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)]) -> None:
        """Begin with nothing assigned; `nanoseconds` is int64 [T, resources]."""

    def earliest_finish(self, tile: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """
        Nanoseconds at which the tile would end on each resource, int64; NEVER where it has no kernel.
        """

    def earliest_resource(self, tile: int) -> int:
        """The resource on which the tile ends first; -1 where none has a kernel."""

    def assign(self, tile: int, resource: int) -> None:
        """Put a tile behind what was assigned to a resource."""

    @property
    def num_resources(self) -> int: ...

    @property
    def now(self) -> int: ...

def simulate(graph: VirtualGraph, machine: VirtualMachine, nanoseconds: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)], place: Any | None, order: str | int) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None, 3))], Annotated[NDArray[numpy.int64], dict(shape=(None, 5))]]:
    """
    A run in simulated time (engine/virtual_time.h).

    Args:
        graph: what is run.
        machine: on what.
        nanoseconds: int64 [T, resources].
        place: None: idle lanes take what is ready. An int32 array [T]: the resource of each tile. A function of an `Expectation`
            and a tile: likewise, asked when the tile is ready; or the address of a compiled one (engine/place.h). "earliest
            finish": where the tile is expected to end first.
        order: the name of one of the engine's policies (engine/policy.h), such as "shallow first", or a compiled one's address.
            "exact": of what is ready, the tile of the lowest level goes first, and of one level that of the lowest number.

    Returns:
        int64 [T, 3]: lane, begin and end of each tile. int64 [copies, 5]: tile, memory from, memory to, begin and end of each.

    Raises:
        InputError: something does not fit, or a tile comes to a resource without a kernel for it.
    """

class Arrivals:
    """
    Which tiles wait for which pieces of operands, and whose end is announced; see `Plan.arrivals`.
    """

    @property
    def num_pieces(self) -> int: ...

class ArrivingRun:
    """
    A run that waits for pieces. Where it is dropped, it is cancelled, and waited for.

    Whoever asks for what has ended when the limit of time is over cancels it.
    """

    def arrived(self, piece: int) -> None:
        """
        Say that the bytes of a piece are in the operand. Does nothing after `cancel`.

        Raises:
            InputError: there is no such piece, it has arrived already, or this process is a fork of the run's.
        """

    def cancel(self, why: str) -> None:
        """End the run with this error. Does nothing if all pieces have arrived."""

    def ended(self, seconds: float | None) -> list[int]:
        """
        The announced tiles that have ended since the last call, in that order.

        Args:
            seconds: how long to wait until there is one, or the run is over; forever if None.
        """

    def error(self, seconds: float | None) -> str | None:
        """
        The run's error, empty if it has succeeded; None if it was not over within so many seconds.
        """

class Recorder:
    """
    Where and when each tile ran, of all runs that begin while it watches and are not watched by `Plan.timeline`.
    """

    def __init__(self, capacity: int) -> None:
        """
        Take memory.

        Args:
            capacity: for how many tiles there is room; those after them are only counted.

        Raises:
            EngineError: there is not so much memory.
        """

    def start(self) -> None:
        """Watch from now on, instead of any other recorder."""

    def stop(self) -> tuple[bytes, list[bytes], int, int]:
        """
        Watch no more.

        Returns:
            Rows of six int64, one for each tile: number of its graph, number of the run, tile, worker (-1: the calling thread),
            begin and end in nanoseconds of a steady clock; the bytes of each graph; how many tiles are missing, and when the
            first of them began that found no room (0: there was room for all).
        """

def register_kernels(path: str) -> list[str]:
    """
    Let graphs name the kernels of a shared library, which stays loaded, and give their names.

    Raises:
        InputError: it cannot be loaded, shows no kernels, is for another version of the engine, or names a kernel that there is.
    """

def trust(graph: bytes) -> None:
    """
    Leave out, in runs of these graph bytes, what keeps a stranger's graph from reading memory that nobody has written.

    Its edges must be known to be right. Only results that ops of the graph read cost time without this.
    """

class Plan:
    """
    A graph that was checked and made ready to run on this machine's kernels.

    Plans of equal bytes share everything, with each other and with the executables of XLA.
    """

    def __init__(self, graph: bytes) -> None:
        """
        Read and check graph bytes (docs/graph_format.md).

        Raises:
            GraphFormatError: the bytes are no graph, or one that this machine's kernels refuse.
        """

    def run(self, operands: Sequence[Any], run_key: int | None = ...) -> list[NDArray]:
        """
        Run the graph on arrays of exactly the shapes and dtypes it was made for.

        Other threads of Python go on meanwhile. What a signal's handler raises, such as Ctrl-C's, ends the run at its next tile.

        Args:
            operands: the arrays.
            run_key: nanoseconds after its arrival at which the run is due; of several the one that is due first goes first. The
                graph's own if None.

        Raises:
            InputError: number, shapes or dtypes of the arrays are others.
            EngineError: the run failed, or needs more than the limits allow.
        """

    def timeline(self, operands: Sequence[Any]) -> Annotated[NDArray[numpy.int64], dict(shape=(None, 3))]:
        """
        Run the graph as `run` does, and say where and when instead of what.

        Returns:
            int64 array [T, 3]: of each tile the worker (-1: the calling thread), and when it began and ended, in nanoseconds of a
            steady clock.
        """

    def arrivals(self, counts: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)], tiles: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)], wanted: Annotated[NDArray[numpy.uint8], dict(order='C', device='cpu', writable=False)]) -> Arrivals:
        """
        Say which tiles wait for which pieces of operands; for any number of runs.

        Args:
            counts: int64 [pieces], how many tiles wait for each piece.
            tiles: int64, those of the first piece, then of the second.
            wanted: uint8 [T], whether the end of each tile is announced.

        Raises:
            InputError: the arrays do not fit together, or the graph has no such tile.
        """

    def start(self, operands: Sequence[Any], arrivals: Arrivals, run_key: int | None, order: str) -> tuple[list[NDArray], ArrivingRun]:
        """
        Start a run that waits for pieces of its operands (engine/arrivals.h).

        Args:
            operands: as `run` takes them. Those of which pieces are to come must be C-contiguous and aligned, or the run reads a
                copy. They are written into until the piece that holds the place has arrived.
            arrivals: which tiles wait for which pieces.
            run_key: as for `run`.
            order: the name of one of the engine's policies (engine/policy.h).

        Returns:
            The results, of which a part is valid once the tiles that write it have been announced; and the run.

        Raises:
            InputError: something does not fit.
            EngineError: memory is short or beyond the limits, or no worker can be started.
        """

    def run_placed(self, operands: Sequence[Any], graph: VirtualGraph, machine: VirtualMachine, nanoseconds: numpy.ndarray, place: Any, order: str | int, lanes: Sequence[tuple[int, Sequence[int]]], held: Any, /) -> tuple[list[numpy.ndarray], tuple[numpy.ndarray, numpy.ndarray, int]]:
        """
        Run the graph as a machine of the lab would (engine/placed_run.h).

        Args:
            operands: as `run` takes them.
            graph: the same graph as the lab knows it.
            machine: on what.
            nanoseconds: int64 [T, resources], by which "earliest finish" and functions place.
            place: as `simulate` takes it; not None where there is more than one memory.
            order: as `simulate` takes it.
            lanes: of each resource how often it runs a tile, and the cores that it may use, all if there are none.
            held: lives as long as the run, as what a compiled function belongs to.

        Functions of Python are called in the calling thread. What a signal's handler raises there ends the run. A lane that is in
        a compiled function then, and does not come back, is given up: the run's memory stays held.

        Returns:
            The results; and as `simulate` gives them the rows of tiles and copies, in nanoseconds since the lanes began, with
            the nanoseconds that placing took in all, where it is done during the run.

        Raises:
            InputError: something does not fit.
            EngineError: a tile failed, the run is beyond the limits, or a compiled function said so. What a function in `place`
                raises is raised here.
        """

    @property
    def num_tiles(self) -> int: ...

    @property
    def num_ops(self) -> int: ...

    @property
    def workspace_bytes(self) -> int:
        """Memory that each run in flight holds for intermediate values."""

    @property
    def total_cost(self) -> int:
        """Sum of the tiles' estimated costs in nanoseconds."""

    @property
    def crc(self) -> int:
        """CRC-32 of the graph's payload."""

    @property
    def operands(self) -> list[tuple[tuple[int, ...], numpy.dtype]]:
        """Shape and dtype of each operand."""

    @property
    def results(self) -> list[tuple[tuple[int, ...], numpy.dtype]]:
        """Shape and dtype of each result."""

class Stream:
    """
    Runs of a graph one after the other, each in the memory of the one before. The caller runs one at a time.
    """

    def __init__(self, plan: Plan) -> None: ...

    def run(self, operands: Sequence[Any], chosen: bytes | None) -> list[NDArray]:
        """
        Run some tiles. Values that the others write are those of the runs before.

        Args:
            operands: as `Plan.run` takes them.
            chosen: a byte for each tile, 0 for those that do not run; others wait for their parents among them. None: all run.

        Returns:
            The results, the same arrays each time.

        Raises:
            InputError: number, shapes or dtypes of the arrays, or the number of bytes, are others.
            EngineError: the run failed.
        """
