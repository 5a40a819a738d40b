"""A GPU played by the host: generated tile functions compiled by the C++ compiler, streams that CUDA could serve in any order."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aspen_jax import _engine
from aspen_jax.apu import pack
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Op, Program
from aspen_jax.targets.cuda.code.horizontal import launched_with
from aspen_jax.targets.cuda.code.source import HEADERS, translation_unit
from tests.targets.cuda.vector_clocks import LAUNCH, RECORD, WAIT

ROOT = Path(__file__).parents[3]
COMPILER = shutil.which(os.environ.get("CXX", "c++"))

_FOLDER = Path(tempfile.mkdtemp(prefix="aspen-cuda-host-"))

_RUN = """\
extern "C" {{
KernelShape {name}_shape = shape_of<{op}, {most_ops}>();
}}
extern "C" void {name}(const {op}::Addresses* buffers, const int32_t* boxes, int ops, int tiles) {{
  for (int tile = 0; tile < ops * tiles; ++tile) fetch_ahead<{op}>(buffers[tile / tiles], tile % tiles);
  wait_for_parents();
  for (int tile = 0; tile < ops * tiles; ++tile) play_tile<{op}>(buffers[tile / tiles], boxes + tile * {words});
}}
// Makes the maps as well.
extern "C" void {name}_of_addresses(const void* addresses, const int32_t* boxes, int tiles) {{
  const auto buffers = played_buffers<{op}::Addresses>(addresses, {name}_shape);
  {name}(&buffers, boxes, 1, tiles);
}}
"""

# Of a library: whether its kernels wait for launches before them, and what a wait and a fetch do.
_WAITS = """\
extern "C" {
int32_t aspen_kernels_wait = kKernelsWait;
void aspen_play_wait(void (*wait)()) { played_wait = wait; }
void aspen_play_fetch(void (*fetch)(const void* data, int bytes)) { played_fetch = fetch; }
}
"""


def source(ops: Sequence[Op], most_ops: Sequence[int] = (), *, warpgroups: bool = False) -> str:
    """The C++ of all ops, with an entry for each that runs tiles one after the other.

    Args:
        ops: of a program.
        most_ops: how many are launched together, for each of them; (): one.
        warpgroups: play a GPU that multiplies by warpgroups, as sm_90a does.
    """
    begin = ["#define ASPEN_PLAY_WARPGROUPS"] if warpgroups else []
    return "\n".join([*begin, '#include "host.h"', translation_unit(ops, _RUN, most_ops), _WAITS])


def compiled(text: str) -> Path:
    """The library of a source, compiled once."""
    library = _FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.so"
    if not library.exists():
        headers()
        library.with_suffix(".cc").write_text(text)
        _compile(library.with_suffix(".cc"), "-shared", "-o", library)
    return library


@functools.cache
def headers() -> None:
    """What all sources include, compiled once: most of them would take longer to read it than for the rest."""
    header = _FOLDER / "host.h"
    header.write_text("\n".join(["#include <memory>", *(f'#include "{name}"' for name in HEADERS), ""]))
    _compile("-x", "c++-header", header, "-o", f"{header}.gch")


def _compile(*arguments: str | Path) -> None:
    command = [str(COMPILER), "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", f"-I{ROOT}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[:4000]}"


def aligned(nbytes: int, fill: int) -> np.ndarray:
    """Bytes that begin at a multiple of 256, as CUDA's allocations do."""
    memory = np.full(nbytes + 256, fill, np.uint8)
    start = -memory.ctypes.data % 256
    return memory[start : start + nbytes]


def run(
    program: Program,
    graph: TileGraph,
    *arrays: np.ndarray,
    num_streams: int = 4,
    fewest_tiles: int = 2,
    seed: int = 0,
    warpgroups: bool = False,
    shares: bool = True,
) -> list[np.ndarray]:
    """The results of a program and its graph, launched from streams that are served in a random order.

    `shares`: a result that lies in an operand gets its memory, as XLA does it, or else some of its own.
    """
    library = ctypes.CDLL(str(compiled(source(program.ops, warpgroups=warpgroups))))
    buffers = []
    for array in (*arrays, *graph.constants):
        buffers.append(aligned(array.nbytes, 0))
        buffers[-1][:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    results = [graph.value(number) for number in graph.results.tolist()]
    buffers += [aligned(int(np.prod(shape)) * dtype.itemsize, 0xFF) for shape, dtype in results]
    buffers.append(aligned(graph.workspace_bytes, 0xFF))
    first = len(arrays) + len(graph.constants)
    moved = {operand: first + result for operand, result in graph.shared_memory.items()}
    for operand, result in moved.items() if shares else ():
        buffers[result] = buffers[operand]

    packed = pack(program.constants)
    places = {value: (number, 0) for number, value in enumerate(program.inputs)}
    places |= {value: (len(arrays) + number, offset) for value, (number, offset) in packed.places.items()}
    outputs = [pair for k, op in enumerate(program.ops) for pair in zip(op.outputs, graph.outputs_of(k), strict=True)]
    written = ((value, *graph.values[number, :2].tolist()) for value, number in outputs)
    places |= {value: (moved.get(buffer, buffer), offset) for value, buffer, offset in written}

    def address(value, elements=0):
        buffer, offset = places[value]
        return buffers[buffer].ctypes.data + offset + int(elements) * value.dtype.itemsize

    together = launched_with(program.ops, graph)
    launch_of, commands = _engine.cuda_schedule(graph.to_bytes(), num_streams, fewest_tiles, together)
    tiles_of = {}
    for tile, launch in enumerate(launch_of):
        tiles_of.setdefault(launch, []).append(tile)
    boxes_of = {}
    for number in range(graph.num_ops):
        tiles, boxes = graph.tiles_of(number)
        boxes_of.update(zip(tiles.tolist(), boxes, strict=True))

    def launch(index):
        numbers = graph.tile_ops[tiles_of[index]]
        for number in np.unique(numbers).tolist():
            launch_op(number, [tile for tile, own in zip(tiles_of[index], numbers, strict=True) if own == number])

    def launch_op(number, tiles):
        op = program.ops[number]
        addresses = [address(item.value, item.view.offset()) for item in op.inputs] or [0]
        addresses += map(address, op.outputs)
        buffers_of_op = (ctypes.c_void_p * len(addresses))(*addresses)
        boxes = np.stack([boxes_of[tile] for tile in tiles]).swapaxes(1, 2)
        boxes = np.ascontiguousarray(boxes, np.int32)
        getattr(library, f"op{number}_of_addresses")(buffers_of_op, ctypes.c_void_p(boxes.ctypes.data), len(tiles))

    queues = [deque(command for command in commands if command[1] == stream) for stream in range(num_streams)]
    recorded = set()
    rng = np.random.default_rng(seed)
    while any(queues):
        able = [queue for queue in queues if queue and (queue[0][0] != WAIT or queue[0][2] in recorded)]
        assert able, "the streams wait for each other"
        kind, _, index = able[rng.integers(len(able))].popleft()
        if kind == LAUNCH:
            launch(index)
        elif kind == RECORD:
            recorded.add(index)
    return [buffers[first + number].view(dtype).reshape(shape).copy() for number, (shape, dtype) in enumerate(results)]
