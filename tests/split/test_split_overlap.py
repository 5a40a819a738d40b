"""Head and tail that overlap: the bits of the same two halves one after the other, in two processes, and wrong messages."""

import contextlib
import multiprocessing
import socket
import struct
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import aspen, num_workers, set_num_workers
from aspen_jax.errors import AspenError, EngineError, InputError
from aspen_jax.graph.arrivals import Arrivals, whole_box
from aspen_jax.split.cut import cut
from aspen_jax.split.overlap import receive, send
from tests.content import seed_of

SECONDS = 60.0
SEED = seed_of(__name__)
X = np.random.default_rng(SEED).standard_normal((1, 32, 32, 16), np.float32)
W = np.random.default_rng(1).standard_normal((3, 3, 16, 16), np.float32) / 12


def network(x):
    skip, w = x, jnp.asarray(W, x.dtype)
    for _ in range(4):
        x = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jnp.maximum(x, 0)
    return jnp.tanh(x + skip).mean(axis=(1, 2))


def halves():
    """Graphs with several tiles an op, as they are for eight workers."""
    before = num_workers()
    set_num_workers(8)
    head, tail = cut(network, 4, X)
    crossing = head(X)
    graphs = head.graph_without_reuse(X), tail.graph_without_reuse(*crossing)
    set_num_workers(before)
    return graphs


def test_without_reuse_tiles_wait_for_what_they_read_alone():
    def shrinking(x):
        for strides in (1, 2, 1, 2, 1):
            w = jnp.ones((3, 3, x.shape[-1], strides * x.shape[-1])) / x.shape[-1]
            x = jax.lax.conv_general_dilated(x, w, (strides, strides), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return x

    before = num_workers()
    set_num_workers(8)
    try:
        function = aspen(shrinking)
        plain, kept = function.graph(X), function.graph_without_reuse(X)
    finally:
        set_num_workers(before)
    assert [Arrivals(kept, {}).order, Arrivals(kept, {0: whole_box(X.shape)}).order] == ["deep first", "shallow first"]
    assert len(kept.dag.edges()[0]) < len(plain.dag.edges()[0])
    assert kept.workspace_bytes > plain.workspace_bytes
    assert (kept.input_names, kept.result_names) == (plain.input_names, plain.result_names) == (("x",), ("result",))
    kept.verify()
    np.testing.assert_array_equal(kept.run(X)[0], plain.run(X)[0])


def reader(connection):
    def read(count):
        data = bytearray()
        while len(data) < count:
            piece = connection.recv(count - len(data))
            if not piece:
                raise EOFError("the peer is gone")
            data += piece
        return bytes(data)

    return read


def in_two_threads(sending, receiving, bits, **options):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(SECONDS)
        theirs.settimeout(SECONDS)
        run = sending.start(X)
        thread = threading.Thread(target=send, args=(run.parts(), ours.sendall, bits), kwargs=options)
        thread.start()
        results = receive(receiving.start(*[None] * len(sending.parts)), reader(theirs))
        thread.join()
    return run.results(SECONDS), results


@pytest.mark.parametrize("message_bytes", [1, 1 << 14, 1 << 30])
def test_raw_parts_give_the_bits_of_the_halves_one_after_the_other(message_bytes):
    head, tail = halves()
    sending = Arrivals(head, {})
    receiving = Arrivals(tail, dict(enumerate(sending.parts)))
    crossed, results = in_two_threads(sending, receiving, None, message_bytes=message_bytes)
    plain = head.run(X)
    assert len(plain) == 2  # the skip crosses too
    for a, b in zip([*crossed, *results], [*plain, *tail.run(*plain)], strict=True):
        assert a.tobytes() == b.tobytes()


def test_each_part_is_quantised_by_itself():
    head, tail = halves()
    sending = Arrivals(head, {})
    receiving = Arrivals(tail, dict(enumerate(sending.parts)))
    _, (coarse,) = in_two_threads(sending, receiving, 8)
    (exact,) = tail.run(*head.run(X))
    assert 0 < np.abs(coarse - exact).max() < 0.05


def test_the_virtual_clock_agrees_with_what_must_be():
    from benchmarks.split import overlap_clock

    head, tail = halves()
    sending = Arrivals(head, {})
    receiving = Arrivals(tail, dict(enumerate(sending.parts)))
    sizes = np.concatenate([(boxes[:, :, 1] - boxes[:, :, 0]).prod(axis=1) * 4 for boxes in sending.parts])
    compute = [graph.costs.sum() / 1e9 for graph in (head, tail)]
    for rate in (1e6, 1e8, 1e12):
        transfer = sizes.sum() / rate
        latency = overlap_clock.seconds(sending, receiving, sizes, rate)
        assert max(*compute, transfer) < latency < sum(compute) + transfer


def serve(connection, parts):
    _, tail = halves()
    receiving = Arrivals(tail, dict(enumerate(parts)))
    with connection:
        connection.settimeout(SECONDS)
        for _ in range(3):
            (result,) = receive(receiving.start(*[None] * len(parts)), reader(connection))
            connection.sendall(result.tobytes())


def test_two_processes():
    head, tail = halves()
    sending = Arrivals(head, {})
    ours, theirs = socket.socketpair()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, sending.parts))
    server.start()
    theirs.close()
    (expected,) = tail.run(*head.run(X))
    with ours:
        ours.settimeout(SECONDS)
        for _ in range(3):
            send(sending.start(X).parts(), ours.sendall)
            assert reader(ours)(expected.nbytes) == expected.tobytes()
    server.join(SECONDS)
    assert server.exitcode == 0


def messages(sending):
    """What the head writes."""
    written = []
    send(sending.start(X).parts(), written.append)
    return b"".join(written)


def receive_bytes(receiving, data):
    stream = memoryview(data)

    def read(count):
        nonlocal stream
        if count > len(stream):
            raise EOFError("the peer is gone")
        taken, stream = stream[:count], stream[count:]
        return bytes(taken)

    return receive(receiving.start(*[None] * len(receiving.pieces)), read)


def test_wrong_messages_are_refused_and_leave_no_run_behind():
    head, tail = halves()
    sending = Arrivals(head, {})
    receiving = Arrivals(tail, dict(enumerate(sending.parts)))
    right = messages(sending)
    expected = receive_bytes(receiving, right)
    length, count = struct.unpack_from("<II", right)
    first = right[: 8 + 8 * count + length]
    for wrong, error in [
        (struct.pack("<II", 2**31, 1), "a message of"),
        (struct.pack("<II", 8, 2**31), "a message of"),
        (struct.pack("<II", 8, 0), "a message of"),
        (first + first, "missing"),
        (struct.pack("<IIII", 8, 1, 7, 0) + bytes(8), "not missing"),
    ]:
        with pytest.raises(InputError, match=error):
            receive_bytes(receiving, wrong)
    for end in (0, 5, 12, len(first) - 1, len(right) - 1):
        with pytest.raises(EOFError):
            receive_bytes(receiving, right[:end])
    rng = np.random.default_rng(SEED)
    for _ in range(200):
        mutated = bytearray(right)
        for place in rng.integers(0, min(len(right), 300), 3):
            mutated[place] = rng.integers(256)
        with contextlib.suppress(AspenError, EOFError):
            receive_bytes(receiving, mutated)
    assert receive_bytes(receiving, right)[0].tobytes() == expected[0].tobytes()


def test_a_head_that_fails_ends_what_is_sent():
    head, _ = halves()
    run = Arrivals(head, {0: np.array([[(0, 1), (0, 32), (0, 32), (0, 16)]])}).start(None)
    run.cancel("no camera")
    with pytest.raises(EngineError, match="no camera"):
        send(run.parts(), lambda data: None)
