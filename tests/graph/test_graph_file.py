"""Files of graphs: what comes back from them, and what is refused, whatever their bytes."""

from __future__ import annotations

import dataclasses
import struct
import zlib

import jax
import numpy as np
import pytest

from aspen_jax import _engine, runtime
from aspen_jax.apu import build, pack
from aspen_jax.errors import GraphFormatError, InputError
from aspen_jax.graph import graph_format
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.dtypes import DTYPES
from aspen_jax.ir.program import Operand, Program, Value
from aspen_jax.ops.block_program import single
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.cumulative import CUMULATIVE, CumulativeAttrs
from tests.tile_graphs import FLOAT, random_graph, small_net


def test_a_file_brings_back_graph_and_constants(tmp_path):
    graph = small_net()
    graph.save(tmp_path / "net.aspen")
    again = TileGraph.load(tmp_path / "net.aspen")
    assert again == graph
    np.testing.assert_array_equal(again.constants[0], graph.constants[0])
    assert again != small_net(seed=1)
    assert [path.name for path in tmp_path.iterdir()] == ["net.aspen"]


def test_constants_of_every_kind_survive(tmp_path):
    arrays = [np.arange(7, dtype=np.int8), np.array(2.5, np.float32), np.zeros((0, 3), np.float32), np.eye(3, dtype=bool)]
    x = Operand.whole(Value((2,), FLOAT))
    builder = Builder()
    for array in arrays:
        builder.constant(array)
    out = builder.block(single("neg_f"), [x], (2,), FLOAT)
    graph = build(Program((x.value,), tuple(builder.constants), tuple(builder.ops), (out,)), 1)
    graph.save(tmp_path / "g")
    for array, again in zip(arrays, TileGraph.load(tmp_path / "g").constants, strict=True):
        assert again.dtype == array.dtype
        np.testing.assert_array_equal(again, array)


def of_small_constants(sizes: list[int]) -> tuple[TileGraph, np.ndarray]:
    """A vector plus the sums of some constants, and what that is for zeros."""
    rng = np.random.default_rng(len(sizes))
    x = Operand.whole(Value((8,), FLOAT))
    builder, expected, last = Builder(), np.zeros(8, np.float32), x
    for size in sizes:
        array = rng.standard_normal((size, 8), np.float32)
        row = builder.constant(array)
        view = row.view.slice((size - 1, 0), (size, 8)).reshape((8,))
        last = builder.block(single("add_f"), [last, Operand(row.value, view)], (8,), FLOAT)
        expected += array[-1]
    return build(Program((x.value,), tuple(builder.constants), tuple(builder.ops), (last,)), 1), expected


@pytest.mark.parametrize("sizes", [[1], [1, 3], [2, 1, 5, 40000, 7, 33000]])
def test_small_constants_share_an_operand(tmp_path, sizes):
    graph, expected = of_small_constants(sizes)
    large = [size for size in sizes if size > 30000]
    assert len(graph.constants) == len(large) + 1
    graph.verify()
    TileGraph.from_bytes(graph.to_bytes()).verify()
    graph.save(tmp_path / "g")
    for again in (graph, TileGraph.load(tmp_path / "g"), build(graph.program(), 1)):
        np.testing.assert_array_equal(again.run(np.zeros(8, np.float32))[0], expected)
        assert sorted(array.size for array in again.constants) == sorted(array.size for array in graph.constants)


def test_constants_that_were_packed_are_not_copied_again():
    program = of_small_constants([2, 3, 4])[0].program()
    packed = pack(program.constants)
    assert all(array.base is packed.operands[0][1] for _, array in packed.constants)
    assert pack(packed.constants).operands[0][1] is packed.operands[0][1]
    assert pack(packed.constants[1:]).operands[0][1] is not packed.operands[0][1]


@pytest.mark.parametrize(("column", "number"), [(1, 32), (1, 1 << 20), (2, DTYPES.index(np.dtype(np.int32)))])
def test_values_that_do_not_lie_inside_their_operand_are_refused(column, number):
    graph, _ = of_small_constants([1, 2])
    values = graph.values.copy()
    (part,) = np.flatnonzero((values[:, 0] == 1) & (values[:, 1] > 0))
    values[part, column] = number
    broken = dataclasses.replace(graph, values=values)
    with pytest.raises(GraphFormatError, match=f"value {part} lies at byte"):
        broken.verify()
    with pytest.raises(GraphFormatError, match=f"value {part}"):
        broken.run(np.zeros(8, np.float32))


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path):
    graph = small_net()
    graph.save(tmp_path / "g")
    broken = dataclasses.replace(graph, constants=(Unwritable(),))
    with pytest.raises(RuntimeError):
        broken.save(tmp_path / "g")
    assert TileGraph.load(tmp_path / "g") == graph
    assert len(list(tmp_path.iterdir())) == 1


class Unwritable:
    nbytes = 4

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError


def test_every_truncation_of_a_file_is_refused(tmp_path):
    path = tmp_path / "g"
    small_net().save(path)
    whole = path.read_bytes()
    for size in {*range(0, len(whole), 37), *range(len(whole) - 70, len(whole)), *range(40)}:
        path.write_bytes(whole[:size])
        with pytest.raises(GraphFormatError, match="save the graph again"):
            TileGraph.load(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(GraphFormatError):
        TileGraph.load(path)


def test_every_flipped_bit_of_a_file_is_refused_or_harmless(tmp_path):
    path = tmp_path / "g"
    graph = small_net()
    graph.save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        position, bit = int(rng.integers(len(whole))), int(rng.integers(8))
        damaged = bytearray(whole)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(GraphFormatError, match=str(path)):
            TileGraph.load(path)


def test_another_version_is_named():
    data = bytearray(small_net().to_bytes())
    data[8] = 9
    with pytest.raises(GraphFormatError, match=r"version 9 .* versions 1 to 2"):
        TileGraph.from_bytes(bytes(data))


def test_fields_stay_with_a_graph(tmp_path):
    plain = small_net()
    fields = {"place": np.arange(plain.num_tiles, dtype=np.int32), "empty": np.array([], np.int64), "low": np.array([-(2**63)])}
    graph = dataclasses.replace(plain, fields=fields)
    assert plain.to_bytes()[8] == 1
    assert graph.to_bytes()[8] == 2
    graph.save(tmp_path / "g")
    again = TileGraph.load(tmp_path / "g")
    assert again == graph != plain
    assert list(again.fields) == sorted(fields)
    for name, array in fields.items():
        np.testing.assert_array_equal(again.fields[name], array)
    inputs = [
        np.ones(graph.value(number)[0], np.float32) for number in graph.operands[: len(graph.operands) - len(graph.constants)]
    ]
    for ours, without in zip(again.run(*inputs), plain.run(*inputs), strict=True):
        np.testing.assert_array_equal(ours, without)


def test_names_of_values_are_fields_of_the_file_alone(tmp_path):
    plain = small_net()
    inputs = tuple(f"x.{number}é" for number in range(len(plain.operands) - len(plain.constants)))
    graph = dataclasses.replace(plain, input_names=inputs, fields={"note": np.array([1])})
    assert graph.to_bytes() == dataclasses.replace(plain, fields={"note": np.array([1])}).to_bytes()
    graph.save(tmp_path / "g")
    again = TileGraph.load(tmp_path / "g")
    assert (again.input_names, again.result_names, list(again.fields)) == (inputs, (), ["note"])
    _engine.Plan((tmp_path / "g").read_bytes()[: graph_format.graph_size((tmp_path / "g").read_bytes())])


@pytest.mark.parametrize(
    ("names", "message"),
    [(b"a", "ended by a zero|has no end"), (b"\xff\0", "UTF-8"), (b"\0", "is empty"), (b"a\0" * 2, "different"), (b"a\0", None)],
)
def test_python_and_the_engine_refuse_the_same_names(names, message, tmp_path):
    graph = small_net()
    arrays, _ = graph_format.decode(graph.to_bytes(), 14)
    fields = {"input_names": np.frombuffer(names, np.uint8)}
    data = graph_format.encode([(array, (0,)) for array in arrays], fields)
    for read in (TileGraph.from_bytes, _engine.Plan):
        if message is None:
            read(data)
        else:
            with pytest.raises(GraphFormatError, match=message):
                read(data)
    with pytest.raises(InputError, match="'input_names', which the format has a use for"):
        dataclasses.replace(graph, fields=fields).to_bytes()


@pytest.mark.parametrize("name", ["", "a\0b", "!nested"])
def test_names_that_no_field_may_have_are_refused(name):
    with pytest.raises(InputError, match="field"):
        dataclasses.replace(small_net(), fields={name: np.array([1])}).to_bytes()


@pytest.mark.parametrize("array", [np.ones(3), np.ones((2, 2), int), np.array([2**63], np.uint64), np.array(3)])
def test_fields_are_vectors_of_integers(array):
    with pytest.raises(InputError, match="vector of integers"):
        dataclasses.replace(small_net(), fields={"a": array}).to_bytes()


def test_a_field_that_must_be_known_is_named():
    names = b"!nested\0"
    # Zigzag doubles a number; letters then take two bytes.
    letters = b"".join(bytes([(2 * byte) & 127 | 128, (2 * byte) >> 7]) if byte >= 64 else bytes([2 * byte]) for byte in names)
    payload = small_net().to_bytes()[24:] + bytes([len(names), 0]) + letters + bytes([0, 0])
    for read in (TileGraph.from_bytes, _engine.Plan):
        with pytest.raises(Exception, match="needs its field '!nested'"):
            read(with_payload(payload, 2))


def test_a_missing_file_is_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        TileGraph.load(tmp_path / "nothing")


def with_payload(payload: bytes, version: int = 1) -> bytes:
    return b"ASPENTG\0" + struct.pack("<IIQ", version, zlib.crc32(payload), len(payload)) + payload


@pytest.mark.parametrize("seed", range(8))
def test_mutated_payloads_are_refused_or_right(seed):
    """Any bytes at all either fail with GraphFormatError or make a graph that passes every check."""
    rng = np.random.default_rng(seed)
    graph = small_net() if seed % 2 else random_graph(seed)
    version = 2 if seed % 4 > 1 else 1
    if version == 2:
        graph = dataclasses.replace(graph, fields={"place": np.arange(9), "note": np.array([], np.int64)})
    payload = graph.to_bytes()[24:]
    for _ in range(150):
        mutated = bytearray(payload)
        for _ in range(int(rng.integers(1, 4))):
            position = int(rng.integers(len(mutated)))
            match int(rng.integers(4)):
                case 0:
                    mutated[position] ^= 1 << int(rng.integers(8))
                case 1:
                    mutated[position] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF]))
                case 2:
                    del mutated[position]
                case 3:
                    mutated.insert(position, int(rng.integers(256)))
        try:
            TileGraph.from_bytes(with_payload(bytes(mutated), version)).verify()
        except GraphFormatError as error:
            assert str(error)  # noqa: PT017 (that it is this error is the point)


@pytest.mark.parametrize("seed", range(8))
def test_mutated_arrays_are_refused_or_right(seed):
    """As above, but with a number changed inside an otherwise well-formed graph, which reaches the deeper checks."""
    rng = np.random.default_rng(seed)
    graph = small_net() if seed % 2 else random_graph(seed)
    names = [field.name for field in dataclasses.fields(TileGraph) if isinstance(getattr(graph, field.name), np.ndarray)]
    refused = 0
    for _ in range(150):
        name = names[int(rng.integers(len(names)))]
        array = getattr(graph, name).copy()
        if not array.size:
            continue
        change = int(rng.choice([-1, 1, 2, 16, 64, -(1 << 40), (1 << 62), -(1 << 63)]))
        with np.errstate(over="ignore"):
            array.reshape(-1)[int(rng.integers(array.size))] += np.int64(change)
        try:
            dataclasses.replace(graph, **{name: array}).verify()
        except GraphFormatError:
            refused += 1
    assert refused > 75


@pytest.mark.parametrize("is_result", [False, True])
def test_a_graph_without_edges_hands_out_no_memory_of_others(is_result):
    """The value that is read before it is written lies in the workspace, or is a result."""
    x = Value((50, 60), FLOAT)
    builder = Builder()
    middle = builder.op(CUMULATIVE, CumulativeAttrs(0, 0, False), [Operand.whole(x)])
    last = builder.op(CUMULATIVE, CumulativeAttrs(0, 1, False), [middle])
    results = (last, middle) if is_result else (last,)
    backwards = without_edges(build(Program((x,), (), tuple(builder.ops), results), 2))
    assert is_result or backwards.workspace_bytes >= x.nbytes
    for _ in range(8):
        for secret in [np.full(x.nbytes // 4, 42.5, np.float32) for _ in range(50)]:
            del secret
        for result in _engine.Plan(backwards.to_bytes()).run([np.zeros(x.shape, FLOAT)]):
            np.testing.assert_array_equal(result, 0)


def test_a_call_with_missing_edges_hands_out_no_memory_of_others():
    """The same through the custom call, whose results XLA has not cleared."""
    x, zeros = Value((50, 60), FLOAT), np.zeros((50, 60), FLOAT)
    builder = Builder()
    middle = builder.op(CUMULATIVE, CumulativeAttrs(0, 0, False), [Operand.whole(x)])
    last = builder.op(CUMULATIVE, CumulativeAttrs(0, 1, False), [middle])
    backwards = without_edges(build(Program((x,), (), tuple(builder.ops), (last, middle)), 2))
    graph, kind = np.frombuffer(backwards.to_bytes(), np.uint8), jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.jit(lambda x: runtime.engine_call(graph, [kind, kind], x))
    secrets = [jax.numpy.full(x.shape, 42.5) + k for k in range(50)]
    jax.block_until_ready(secrets)
    del secrets
    for _ in range(8):
        for result in call(zeros):
            np.testing.assert_array_equal(result, 0)


def without_edges(graph: TileGraph) -> TileGraph:
    """The graph with its last op first and nothing that waits."""
    assert graph.num_edges > 0
    return dataclasses.replace(
        graph,
        ops=np.column_stack([graph.ops[:, :4], graph.ops[::-1, 4]]),
        tile_ops=graph.tile_ops[::-1],
        tile_boxes=graph.tile_boxes.reshape(graph.num_tiles, -1)[::-1].reshape(-1),
        child_counts=np.zeros_like(graph.child_counts),
        children=graph.children[:0],
    )


def with_name(name: bytes) -> bytes:
    """A small graph whose first op has this name, checksum and all."""
    graph = small_net()
    arrays, _ = graph_format.decode(graph.to_bytes(), 14)
    kernels = "".join(f"{kernel}\0" for kernel in graph.kernels).encode()
    names = kernels + name + b"\0" + "".join(f"{other}\0" for other in graph.op_names[1:]).encode()
    arrays[0] = np.frombuffer(names, np.uint8).astype(np.int64)
    return graph_format.encode([(array, (0,)) for array in arrays])


@pytest.mark.parametrize("seed", range(4))
def test_names_that_are_no_text_are_refused_by_both_readers(seed):
    """Overlong forms, surrogates, numbers beyond U+10FFFF and stray bytes; both agree with Python's decoder."""
    rng = np.random.default_rng(seed)
    lead = [0x41, 0x7F, 0x80, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF]
    named = 0
    for _ in range(250):
        name = bytes(rng.choice(lead, int(rng.integers(1, 5))).tolist())
        if rng.integers(3) == 0:
            name = "".join(map(chr, rng.integers(1, 0xD800, 3))).encode()
        data = with_name(name)
        try:
            text = name.decode()
        except UnicodeDecodeError:
            for read in (_engine.Plan, TileGraph.from_bytes):
                with pytest.raises(GraphFormatError, match="UTF-8"):
                    read(data)
        else:
            named += 1
            _engine.Plan(data)
            assert TileGraph.from_bytes(data).op_names[0] == text
    assert 50 < named < 200


def test_a_scope_that_is_no_text_is_written_as_one():
    graph = dataclasses.replace(small_net(), op_names=("\ud800 layer", *small_net().op_names[1:]))
    assert TileGraph.from_bytes(graph.to_bytes()).op_names[0] == "? layer"
