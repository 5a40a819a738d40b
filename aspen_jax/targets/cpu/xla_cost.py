"""What XLA would do for a part of a function on a CPU, in amounts of work by name.

The work is loops after fusion, products, convolutions and moves.
XLA fuses what works on elements, or only moves them, into what reads it, but for dear functions that several loops would repeat
(`CpuInstructionFusion`). It cuts a loop among threads where that is worth a start (`ParallelTaskAssigner`). Products and
convolutions of floats are Eigen's. `aspen_jax/targets/cpu/choice.py` has the time of each amount.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from aspen_jax import forks
from aspen_jax.cost.equations import OPERATIONS_OF_A_MASK, TRANSCENDENTAL, Cost, of_equation
from aspen_jax.cost.machine import Machine
from aspen_jax.frontend.partition import Converted
from aspen_jax.ir.program import Value
from aspen_jax.targets.cpu.tile_cost import FAR_BYTES, MEMORY_BYTES


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Another shape for the same bytes.
_SAME = _words("reshape squeeze expand_dims stop_gradient bitcast_convert_type copy copy_p optimization_barrier")
_MOVES = _words("transpose rev pad concatenate gather dynamic_slice slice split iota broadcast_in_dim stack tile unstack")
# They read as much of their first operand as they write.
_PARTS = _words("gather dynamic_slice slice")
_REDUCTIONS = _words("reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or reduce_xor argmax argmin")
_WINDOWS = _words("reduce_window reduce_window_sum reduce_window_max reduce_window_min")
_CHOOSING_WINDOWS = _words("select_and_scatter_add select_and_gather_add")
_SORTS = _words("sort top_k")
_CUMULATIVE = _words("cumsum cumprod cummax cummin cumlogsumexp")
_SCATTERS = _words("scatter scatter-add scatter-mul scatter-min scatter-max")
# Loops of their own, which write all of their result. Those that take arrays read operands from memory.
_TAKE_ARRAYS = (
    _WINDOWS
    | _CHOOSING_WINDOWS
    | _CUMULATIVE
    | _SCATTERS
    | _SORTS
    | _words("dot_general ragged_dot_general conv_general_dilated")
)
_ROOTS = _REDUCTIONS | _TAKE_ARRAYS | _words("dynamic_update_slice")

_DIVISIONS = _words("div sqrt rsqrt")
_FUNCTIONS = TRANSCENDENTAL - _DIVISIONS | _words("logistic rem nextafter erf_inv")
_OFTEN = _words("exp log log1p expm1 tanh logistic sin cos pow erf rem rsqrt")
# A loop that would compute these once more for each of several readers is one of its own.
_DEAR = _FUNCTIONS | _DIVISIONS

# XLA's rule (`ParallelTaskAssigner`): a thread is worth so many bytes written, or so much work where that is more than the bytes.
_LEAST_BYTES_OF_THREAD = 32 * 1024
_LEAST_WORK_OF_THREAD = 100_000

# Eigen's: a product of fewer flops runs on one thread.
_LEAST_FLOPS_OF_THREADS = 1e6

_OF_THREADS = "loops of threads"
ASYNCHRONOUS = "programs of another thread"
# JAX runs an executable of fewer flops, as XLA counts them, on the thread that calls it (`IsCheapComputation`).
_FLOPS_OF_ASYNCHRONOUS = 1000

# A loop of more operations has more values at once than registers.
_CROWDED = 100

# Fewer columns than this are summed one by one; of more than that, each step down a column is on another page.
_LANES = 8
_FAR_COLUMNS = 16 * 1024

# Products of fewer multiplications are not Eigen's.
_LEAST_PRODUCT = 64

# Of so few elements a product's right side is done before Eigen's blocks have begun.
_THIN = 64

Amounts = dict[str, float]


@dataclasses.dataclass(eq=False)
class _Node:
    """An equation, the nodes it reads and those that read it.

    Attributes:
        item: the equation.
        operands: what makes each operand: a node, a value of the part's inputs, or None for what is known when tracing.
        readers: the nodes that read it.
        leaves: whether it has to be an array because others read it.
        roots: in which loops it is computed.
        is_root: whether it is the last operation of a loop.
        is_view: whether it is no work, but another way to read what it reads.
    """

    item: Converted
    operands: list[_Node | Value | None]
    readers: list[_Node] = dataclasses.field(default_factory=list)
    leaves: bool = False
    roots: set[int] = dataclasses.field(default_factory=set)
    is_root: bool = False
    is_view: bool = False

    @property
    def equation(self) -> Any:
        return self.item.equation

    @forks.cached_property
    def primitive(self) -> str:
        return self.equation.primitive.name

    @forks.cached_property
    def cost(self) -> Cost:
        """What XLA counts of it."""
        return of_equation(self.equation)

    @property
    def size(self) -> int:
        return max((_size(var.aval.shape) for var in self.equation.outvars), default=0)

    @property
    def nbytes(self) -> int:
        return sum(_nbytes(var.aval) for var in self.equation.outvars)


def of_part(items: Sequence[Converted], outputs: Iterable[Value], num_threads: int, *, is_body: bool = False) -> Amounts:
    """The amounts of work of a part.

    Args:
        items: its equations, in order.
        outputs: what is read of it by others.
        num_threads: how many threads XLA has.
        is_body: whether it is the body of a loop or a branch.
    """
    nodes = _placed(items, outputs)
    amounts: collections.defaultdict[str, float] = collections.defaultdict(float)
    of_threads = []
    for node in nodes:
        if node.is_root:
            of_loop = _loop(node, num_threads, is_body=is_body)
            of_threads += [node] if _OF_THREADS in of_loop else []
            for name, amount in of_loop.items():
                amounts[name] += amount
    if of_threads:
        # Threads are awake for all loops that do not wait for each other.
        levels = _levels(nodes)
        amounts[_OF_THREADS] = len({levels[root] for root in of_threads})
    amounts.update(_memory(nodes, {id(root) for root in of_threads}))
    if sum(node.cost.flops for node in nodes) >= _FLOPS_OF_ASYNCHRONOUS:
        amounts[ASYNCHRONOUS] = 1
    return dict(amounts)


def _levels(nodes: Sequence[_Node]) -> dict[_Node, int]:
    """How many loops each node waits for, one behind the other."""
    levels: dict[_Node, int] = {}
    for node in nodes:
        levels[node] = max((levels[item] + item.is_root for item in node.operands if isinstance(item, _Node)), default=0)
    return levels


def _memory(nodes: Sequence[_Node], of_threads: set[int]) -> Amounts:
    """The bytes that come from memory: what loops of threads alone read, and the rest."""
    inputs: dict[Value, int] = {}
    roots: collections.defaultdict[Value, set[int]] = collections.defaultdict(set)
    for node in nodes:
        for index, operand in enumerate(node.operands):
            if isinstance(operand, Value):
                inputs[operand] = max(inputs.get(operand, 0), _bytes_read(node, index, operand))
                roots[operand] |= node.roots
    if sum(inputs.values()) <= MEMORY_BYTES:
        return {}
    shared = sum(nbytes for value, nbytes in inputs.items() if roots[value] <= of_threads)
    return {"bytes of memory": sum(inputs.values()) - shared, "bytes of memory in threads": shared}


def _placed(items: Sequence[Converted], outputs: Iterable[Value]) -> list[_Node]:
    """The nodes of a part; each knows whether it is the last of a loop."""
    nodes = _linked(items, set(outputs))
    for node in reversed(nodes):
        _place(node)
    return nodes


def _linked(items: Sequence[Converted], outputs: set[Value]) -> list[_Node]:
    producers: dict[Value, _Node] = {}
    nodes = []
    for item in items:
        values = [value if isinstance(value, Value) else None for value in item.inputs]
        node = _Node(item, [producers.get(value, value) if value is not None else None for value in values])
        for operand in node.operands:
            if isinstance(operand, _Node):
                operand.readers.append(node)
        node.leaves = any(value in outputs for value in item.outputs)
        producers.update((value, node) for value in item.outputs)
        nodes.append(node)
    live = []
    for node in reversed(nodes):
        if node.leaves or node.readers:
            live.append(node)
        else:
            for operand in node.operands:
                if isinstance(operand, _Node):
                    operand.readers.remove(node)
    return live[::-1]


def _place(node: _Node) -> None:
    """Decide whether the node is the root of a loop, or computed within the loops of its readers."""
    name = node.primitive
    inside = {root for reader in node.readers for root in reader.roots}
    taken = any(reader.primitive in _TAKE_ARRAYS or _updates(reader, node) for reader in node.readers)
    repeated = len(inside) > 1 and name in _DEAR
    # What a broadcast reads is computed for each of its elements, so that nothing dear is.
    spread = name in _DEAR and any(reader.size > 2 * node.size for reader in node.readers if reader.primitive in _MOVES)
    wanted = node.leaves or taken or repeated or spread
    node.is_view = name in _SAME or _keeps_order(node) or _is_side_of_product(node)
    if node.is_view:
        # What it reads is the array that is wanted; where that is an argument, there is nothing to do.
        for operand in node.operands:
            if isinstance(operand, _Node) and wanted:
                operand.leaves = True
    else:
        node.is_root = wanted or name in _ROOTS
    node.roots = {id(node)} if node.is_root else inside


def _keeps_order(node: _Node) -> bool:
    """Whether the node is a transposition that moves dimensions of 1 alone."""
    if node.primitive != "transpose":
        return False
    shape = node.equation.invars[0].aval.shape
    moved = [axis for axis in node.equation.params["permutation"] if shape[axis] > 1]
    return moved == sorted(moved)


def _is_side_of_product(node: _Node) -> bool:
    """Whether the node swaps the sides of a matrix for products alone, or of a product's result: XLA's products do either."""
    if node.primitive != "transpose" or len(node.equation.params["permutation"]) < 2:
        return False
    *batch, row, column = node.equation.params["permutation"]
    (operand,) = node.operands
    is_result = isinstance(operand, _Node) and operand.primitive == "dot_general" and len(operand.readers) == 1
    for_products = all(reader.primitive == "dot_general" for reader in node.readers)
    if isinstance(operand, _Node) and is_result and _swaps_sides(node, operand):
        return True
    return not node.leaves and batch == list(range(len(batch))) and row > column and (is_result or for_products)


def _swaps_sides(node: _Node, product: _Node) -> bool:
    """Whether the node puts the columns of one product's result before its rows; dimensions of 1 do not count."""
    (contracted, _), (batch, _) = product.equation.params["dimension_numbers"]
    left, shape = (atom.aval.shape for atom in (product.equation.invars[0], product.equation.outvars[0]))
    rows = len(left) - len(contracted)
    axes = [axis for axis, extent in enumerate(shape) if extent > 1]
    swapped = [axis for axis in axes if axis >= rows] + [axis for axis in axes if axis < rows]
    is_one = all(left[axis] == 1 for axis in batch)
    return is_one and [axis for axis in node.equation.params["permutation"] if shape[axis] > 1] == swapped


def _updates(reader: _Node, node: _Node) -> bool:
    return reader.primitive == "dynamic_update_slice" and reader.operands[0] is node


def _loop(root: _Node, num_threads: int, *, is_body: bool = False) -> Amounts:
    """The amounts of one loop with all that is fused into it."""
    evaluated, arrays = _fused(root)
    work = sum(node.cost.total * count / max(1, node.size) for node, count in evaluated.items() if node.primitive not in _ROOTS)
    threads = _threads(work, sum(arrays.values()), root, num_threads)
    if root.primitive in _TAKE_ARRAYS:
        found, threads = _special(root, num_threads, is_body=is_body)
        amounts = collections.defaultdict(float, found)
        if root.primitive not in ("dot_general", "conv_general_dilated"):
            amounts["loops"] += 1
    else:
        amounts = collections.defaultdict(float, _of_elements(root, evaluated, threads))
    for nbytes in arrays.values():
        amounts["far bytes" if nbytes > FAR_BYTES else "bytes"] += nbytes / threads
    return dict(amounts)


def _fused(root: _Node) -> tuple[dict[_Node, float], dict[Any, float]]:
    """How often a loop computes an element of each node that is fused into it, and how many bytes of each array it moves.

    None stands for the array that it writes.
    """
    evaluated: dict[_Node, float] = {root: _turns(root)}
    arrays: dict[Any, float] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        for index, operand in enumerate(node.operands):
            if operand is None:
                continue
            wanted = _wanted(node, index, evaluated[node])
            if node.primitive in _TAKE_ARRAYS:
                arrays[operand] = operand.nbytes
            elif isinstance(operand, _Node) and not operand.is_root:
                if wanted > evaluated.get(operand, 0):
                    evaluated[operand] = wanted
                    waiting.append(operand)
            else:
                arrays[operand] = max(arrays.get(operand, 0), min(operand.nbytes, wanted * _itemsize(node, index)))
    arrays[None] = root.nbytes
    if root.primitive == "dynamic_update_slice":
        # In place but where XLA has to keep the operand.
        arrays[None] = arrays.get(root.operands[0], 0) if isinstance(root.operands[0], Value) else _update_bytes(root)
        arrays.pop(root.operands[0], None)
    return evaluated, arrays


def _of_elements(root: _Node, evaluated: Mapping[_Node, float], threads: int) -> Amounts:
    """The amounts of what a loop of so many threads computes, element by element."""
    amounts: collections.defaultdict[str, float] = collections.defaultdict(float, {"loops": 1})
    if threads > 1:
        amounts[_OF_THREADS] += 1
    one_by_one = _is_scalar(root, evaluated, threads)
    for node, count in evaluated.items():
        kind = _kind(node)
        if kind == "simple" and len(evaluated) > _CROWDED:
            kind = "simple in a crowd"
        elif kind in ("simple", "division") and one_by_one:
            kind = f"{kind} one by one"
        elif kind in _OFTEN and one_by_one:
            kind = "function one by one"
        if kind is not None:
            amounts[kind] += count / threads
    if root.primitive in _REDUCTIONS:
        kind = _reduction_kind(root)
        amounts[kind] += _turns(root) / threads
        if kind == "reduced rows":
            amounts["rows"] += root.size / threads
    return amounts


def _turns(root: _Node) -> float:
    """How often the innermost body of the root's loop runs."""
    equation = root.equation
    if root.primitive in _REDUCTIONS:
        return max(_size(atom.aval.shape) for atom in equation.invars)
    if root.primitive == "dynamic_update_slice":
        return _size(equation.invars[1].aval.shape)
    return root.size


def _wanted(node: _Node, index: int, count: float) -> float:
    """How many elements of an operand are computed where `count` of the node are."""
    equation = node.equation
    operand = _size(equation.invars[index].aval.shape)
    if node.primitive in ("concatenate", "pad", "stack"):
        return operand * count / max(1, node.size)
    if node.primitive == "gather" and index == 1:
        slices = math.prod(equation.params["slice_sizes"])
        return count / max(1, slices) * equation.invars[1].aval.shape[-1]
    if node.primitive == "dynamic_slice" and index > 0:
        return 1
    if node.primitive == "dynamic_update_slice" and index != 1:
        return 0 if index == 0 else 1
    if operand <= 1:
        return operand
    return count


def _itemsize(node: _Node, index: int) -> int:
    return _itemsize_of(node.equation.invars[index].aval)


def _bytes_read(node: _Node, index: int, operand: Value) -> int:
    """The bytes of an array that a node reads."""
    is_part = index == 0 and node.primitive in _PARTS
    return min(operand.nbytes, node.nbytes) if is_part else operand.nbytes


def _update_bytes(root: _Node) -> int:
    return _nbytes(root.equation.invars[1].aval)


def _threads(work: float, moved: float, root: _Node, num_threads: int) -> int:
    if root.primitive == "dynamic_update_slice":
        return 1
    if moved >= work:
        most, wanted = math.ceil(math.sqrt(num_threads)), root.nbytes / _LEAST_BYTES_OF_THREAD
    else:
        most, wanted = num_threads, (work + 10 * moved) / _LEAST_WORK_OF_THREAD
    outer = next((extent for extent in root.equation.outvars[0].aval.shape if extent > 1), 1)
    return max(1, min(most, int(wanted), outer if root.primitive in _REDUCTIONS else most))


def _kind(node: _Node) -> str | None:
    """The name of the work that the node does on each element."""
    name = node.primitive
    if node.is_view or name in _ROOTS or name in ("broadcast_in_dim", "slice", "iota", "split"):
        return None
    if name in _MOVES:
        return {"transpose": "transposed", "gather": "gathered", "concatenate": "joined", "stack": "joined"}.get(name, "moved")
    if _is_integer(node) and name in ("div", "rem"):
        return "integer division"
    if name in _DIVISIONS:
        return "division"
    if name in _FUNCTIONS:
        return name if name in _OFTEN else "other function"
    dtypes = {str(var.aval.dtype) for var in node.equation.outvars}
    return "narrow" if dtypes & {"bfloat16", "float16"} else "simple"


def _is_scalar(root: _Node, evaluated: Iterable[_Node], threads: int) -> bool:
    """Whether the loop's body runs for one element after the other: its indices are no ramp, or LLVM finds no vectors in it."""
    evaluated = list(evaluated)
    irregular = ("transpose", "gather", "concatenate", "pad", "rev")
    if any(node.primitive in irregular and not node.is_view for node in evaluated):
        return True
    # LLVM gives up on functions in a loop of an odd length that threads share (measured with JAX 0.10.2).
    dear = sum(node.primitive in _DEAR for node in evaluated)
    is_odd = threads > 1 and root.size % 2 == 1 and max(root.equation.outvars[0].aval.shape, default=0) == root.size
    return is_odd and (dear > 1 or (dear == 1 and len(evaluated) > 3))


def _reduction_kind(root: _Node) -> str:
    if root.primitive in ("argmax", "argmin"):
        return "compared"
    equation = root.equation
    rank = equation.invars[0].aval.ndim
    shape = equation.invars[0].aval.shape
    kept = [axis for axis in range(rank) if axis not in equation.params["axes"] and shape[axis] > 1]
    gone = [axis for axis in equation.params["axes"] if shape[axis] > 1]
    if not gone:
        return "reduced columns"
    if not kept or max(gone) > max(kept):
        return "reduced rows"
    inner = math.prod(shape[axis] for axis in kept if axis > max(gone))
    if inner < _LANES:
        return "reduced thin columns"
    return "reduced far columns" if inner > _FAR_COLUMNS else "reduced columns"


def _special(root: _Node, num_threads: int, *, is_body: bool) -> tuple[Amounts, int]:
    """The amounts of what is no loop over elements, and its threads."""
    name = root.primitive
    equation = root.equation
    if name == "dot_general":
        left, right = (atom.aval for atom in equation.invars)
        return _product(left, right, equation.params["dimension_numbers"], num_threads)
    if name == "ragged_dot_general":
        return _ragged_product(equation, num_threads)
    if name == "conv_general_dilated":
        return _convolution(equation, num_threads, is_body=is_body)
    size = float(_size(equation.invars[0].aval.shape))
    if name in _WINDOWS:
        return {"windows": root.size * math.prod(equation.params["window_dimensions"])}, 1
    if name in _CHOOSING_WINDOWS:
        windows = size if name == "select_and_scatter_add" else root.size
        return {"choosing windows": windows * math.prod(equation.params["window_dimensions"])}, 1
    if name in _CUMULATIVE:
        axis = equation.params["axis"]
        levels = max(1, math.ceil(math.log2(max(2, equation.invars[0].aval.shape[axis]))))
        kind = "accumulated exp" if name == "cumlogsumexp" else "accumulated"
        return {kind: size, "levels": levels}, 1
    if name in _SCATTERS:
        indices = equation.invars[1].aval
        points = _size(indices.shape[:-1])
        return {"points": points, "updated": _size(equation.invars[2].aval.shape)}, 1
    if name == "top_k":
        return {"selected": size}, 1
    return {"sorted": size * math.log2(max(2, equation.invars[0].aval.shape[equation.params["dimension"]]))}, 1


def _product(left: Any, right: Any, numbers: Any, num_threads: int) -> tuple[Amounts, int]:
    (contracted_left, contracted_right), (batch_left, batch_right) = numbers
    count = math.prod(left.shape[axis] for axis in batch_left)
    depth = math.prod(left.shape[axis] for axis in contracted_left)
    rows = math.prod(extent for axis, extent in enumerate(left.shape) if axis not in (*batch_left, *contracted_left))
    columns = math.prod(extent for axis, extent in enumerate(right.shape) if axis not in (*batch_right, *contracted_right))
    if not all((count, depth, rows, columns)):
        return {}, 1
    flops = 2.0 * count * rows * columns * depth
    dtype = str(left.dtype)
    if rows * columns * depth < _LEAST_PRODUCT:  # XLA's own loops
        return {"tiny product flops": flops}, 1
    amounts: Amounts = {"products": count, "product sides": count * (rows * depth + depth * columns + rows * columns)}
    if count == 1 and depth * columns <= _THIN:
        amounts["thin product rows"] = count * rows
    # XLA moves operands first whose dimensions are in another order than batch, rows, depth.
    for aval, batch, contracted in ((left, batch_left, contracted_left), (right, batch_right, contracted_right)):
        if _is_moved(aval.shape, batch, contracted):
            amounts["transposed"] = amounts.get("transposed", 0.0) + _size(aval.shape)
    if dtype == "bfloat16" and _has_matrix_units() and min(rows, columns) > 1:
        threads = num_threads if flops / count > _LEAST_FLOPS_OF_THREADS else 1
        sides = float(count * (rows * depth + depth * columns))
        return {**amounts, "matrix unit sides": sides, "matrix unit flops": flops / threads}, threads
    if dtype in ("bfloat16", "float16"):  # XLA converts both sides
        amounts["narrow sides"] = count * (rows * depth + depth * columns)
    elif dtype not in ("float32", "float64"):
        return {**amounts, "integer product flops": flops}, 1
    if min(rows, columns) == 1:
        return {**amounts, "vector product flops": flops}, 1
    threads = num_threads if flops / count > _LEAST_FLOPS_OF_THREADS else 1
    amounts = {name: amount / threads if name == "product sides" else amount for name, amount in amounts.items()}
    # Eigen computes blocks of registers: few rows or columns leave lanes idle.
    idle = 2.0 * count * (-(-rows // 8) * 8) * (-(-columns // 16) * 16) * depth - flops
    return {**amounts, "product flops": flops / threads, "idle product flops": idle / threads}, threads


@functools.cache
def _has_matrix_units() -> bool:
    """Whether XLA gives products of bfloat16 to the processor's matrix units, as it does from JAX 0.12 on (YNNPACK)."""
    return jax.__version_info__ >= (0, 12) and Machine.unmeasured().bf16_units


def _is_moved(shape: Sequence[int], batch: Sequence[int], contracted: Sequence[int]) -> bool:
    """Whether XLA moves a product's operand before it multiplies; it drops dimensions of 1 before it looks."""
    places = {axis: place for place, axis in enumerate(axis for axis, extent in enumerate(shape) if extent > 1)}
    batches, depths = ([places[axis] for axis in axes if axis in places] for axes in (batch, contracted))
    if batches != list(range(len(batches))) or len(depths) > 1:
        return True
    return bool(depths) and depths[0] not in (len(batches), len(places) - 1)


def _ragged_product(equation: Any, num_threads: int) -> tuple[Amounts, int]:
    """XLA writes the rows once for each group, with zeros for those of others, and sums over the groups as well."""
    left, right, sizes = (atom.aval for atom in equation.invars)
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (contracted_left, contracted_right), (batch_left, batch_right) = numbers.dot_dimension_numbers
    of_groups = jax.ShapeDtypeStruct((sizes.shape[-1], *left.shape), left.dtype)
    contracted = ([0, *(axis + 1 for axis in contracted_left)], [*numbers.rhs_group_dimensions, *contracted_right])
    batch = ([axis + 1 for axis in batch_left], batch_right)
    amounts, threads = _product(of_groups, right, (contracted, batch), num_threads)
    masked = float(_size(of_groups.shape))
    written = "far bytes" if _nbytes(of_groups) > FAR_BYTES else "bytes"
    return {**amounts, "simple": OPERATIONS_OF_A_MASK * masked / threads, written: 2.0 * _nbytes(of_groups) / threads}, threads


def _convolution(equation: Any, num_threads: int, *, is_body: bool) -> tuple[Amounts, int]:
    params = equation.params
    numbers = params["dimension_numbers"]
    kernel, out = equation.invars[1].aval, equation.outvars[0].aval
    taps = math.prod(kernel.shape[axis] for axis in numbers.rhs_spec[2:])
    inputs = kernel.shape[numbers.rhs_spec[1]]
    flops = 2.0 * _size(out.shape) * taps * inputs
    if is_body and not _is_eigens(numbers):
        return {"convolutions": 1, "convolution flops one by one": flops / num_threads}, num_threads
    groups = params["feature_group_count"] * params["batch_group_count"]
    dilated = any(extent > 1 for extent in params["lhs_dilation"])
    threads = num_threads
    amounts: Amounts = {"convolutions": 1}
    if groups > 1:
        kind = "depthwise flops" if inputs == 1 else "grouped convolution flops"
        threads = 1
    elif len(numbers.lhs_spec) > 4:
        kind = "deep convolution flops"
        amounts["deep convolutions"] = 1
    elif dilated:
        kind = "dilated convolution flops" if inputs > 1 else "dilated convolution flops of a channel"
    else:
        kind = "convolution flops"
        amounts["patches"] = _size(out.shape) / max(1, out.shape[numbers.out_spec[1]]) * taps * inputs / threads
        # Eigen packs the kernel anew in each call, which takes longer than the products where images are small.
        amounts["packed kernels"] = _size(kernel.shape) / threads
    if str(out.dtype) in ("bfloat16", "float16"):
        amounts["narrow sides"] = float(sum(_size(atom.aval.shape) for atom in equation.invars))
    if tuple(numbers.lhs_spec) != (0, len(numbers.lhs_spec) - 1, *range(1, len(numbers.lhs_spec) - 1)):
        amounts["transposed"] = float(_size(equation.invars[0].aval.shape) + _size(out.shape))
    return {**amounts, kind: flops / threads}, threads


def _is_eigens(numbers: Any) -> bool:
    """Whether a convolution's arrays are laid out as Eigen takes them: NHWC, with kernels of HWIO.

    XLA moves the dimensions of others in the main computation alone (`ConvCanonicalization`). In the body of a loop or a branch
    it runs them as a plain nest of loops.
    """
    rank = len(numbers.lhs_spec)
    images = (0, rank - 1, *range(1, rank - 1))
    kernels = (rank - 1, rank - 2, *range(rank - 2))
    return tuple(numbers.lhs_spec) == tuple(numbers.out_spec) == images and tuple(numbers.rhs_spec) == kernels


def _size(shape: Sequence[int]) -> int:
    return math.prod(shape)


def _itemsize_of(aval: Any) -> int:
    return np.dtype(aval.dtype).itemsize


def _nbytes(aval: Any) -> int:
    return _size(aval.shape) * _itemsize_of(aval)


def _is_integer(node: _Node) -> bool:
    return any(np.dtype(var.aval.dtype).kind in "iu" for var in node.equation.outvars)
