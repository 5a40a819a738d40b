"""The test bed of split execution: a link has the bandwidth and the delay that it is said to have, and sides choose by them."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pytest

from aspen_jax.split.profile import Link, Profile, Times
from benchmarks.split import bed, link, loads, plans
from tests.content import generator

RANDOM = generator(__name__)


@pytest.fixture
def echo():
    """An address that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        peer, _ = listener.accept()
        with peer:
            while data := peer.recv(1 << 16):
                peer.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    thread.join(30)
    listener.close()


def test_a_link_is_as_slow_as_it_is_said_to_be(echo):
    sent = RANDOM.bytes(100_000)
    shape = bed.Shape(up=8e6, down=16e6, delay=0.05)
    with bed.forwarder(echo, shape) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as device:
            begin = time.perf_counter()
            threading.Thread(target=device.sendall, args=(sent,), daemon=True).start()
            got = bytearray()
            while len(got) < len(sent):
                got += device.recv(1 << 16)
            seconds = time.perf_counter() - begin
    assert got == sent
    assert seconds >= len(sent) * 8 / shape.up + 2 * shape.delay - 0.02


def profile():
    """Ten cuts of 10 ms each; 200 kB cross at the first ones, 20 kB at the others, and a quarter of it at 8 bits."""
    times = Times(np.linspace(0, 0.1, 11))
    nbytes = np.where(np.arange(11) < 5, 200e3, 20e3)[:, None] * np.array([0.25, 1.0])
    return Profile(times, times, np.array([8, 32]), nbytes, np.full((11, 2), 1e-4))


def test_ours_balances_and_neurosurgeon_goes_to_one_end():
    fast = Link(0.0, 10e6)
    ours, predicted = link.configuration(link.OURS, profile(), fast, (8,))
    assert ours == link.Configuration(5, 8)
    assert predicted["throughput"] == pytest.approx(1 / 0.0501)
    theirs, predicted = link.configuration(link.NEUROSURGEON, profile(), fast, (8,))
    assert theirs == link.Configuration(10, None, "none"), "any link is slower than none, where both sides are alike"
    assert predicted["throughput"] == pytest.approx(10)
    slow = link.configuration(link.OURS, profile(), Link(0.0, 1e3), (8,))[0]
    assert slow.cut == 10


def test_gains_are_by_the_better_of_local_and_remote():
    def row(side, throughput):
        return "4G", link.Row(side, link.Configuration(0, None), 1.0, throughput, 0, 0.0)

    rows = [row(link.DEVICE, 10.0), row(link.PACKED_INPUT, 8.0), row(link.NEUROSURGEON, 12.0), row(link.OURS, 15.0)]
    assert link.gains(rows)["4G"] == pytest.approx((0.8, 1.5, 1.25))
    assert link.gains(rows[:3]) == {}


def test_cuts_are_spread_over_time():
    before = np.concatenate([[0.0], np.cumsum(RANDOM.random(40))])
    chosen = plans.spread(before, 5)
    assert chosen == sorted(set(chosen))
    assert chosen[-1] == 40
    assert np.abs(before[chosen[:-1]] - before[-1] * np.arange(1, 6) / 6).max() <= 1
    assert plans.spread(np.array([0.0, 1.0]), 5) == [1], "one equation has all the time"


def test_errors_are_shares_of_what_was_measured():
    items = [plans.Prediction(1, 1.5, 1.0), plans.Prediction(2, 1.0, 2.0)]
    np.testing.assert_allclose(plans.relative_errors(items), [0.5, 0.5])


class Remembered:
    """Answers as a device and a server would that are two and three times slower than alone, and twice that under many calls."""

    def __init__(self, of):
        self.of, self.asked = of, []

    def stages(self, asked, count, at_once=False):
        self.asked.append((asked, at_once))
        before, behind = self.of.device.before[asked.cut], self.of.server.behind[asked.cut]
        head, tail = (2 + 2 * at_once) * float(before), (3 + 3 * at_once) * float(behind)
        if at_once and asked.cut >= 0:
            head *= 5  # beside packing
        packing = float(self.of.pack_seconds[asked.cut, 0]) + 0.125
        stages = {"head": head, "pack": packing, "link": 0.0, "tail": tail}
        return stages if at_once else {**stages, "latency": head + tail + (2 + 3) * packing}


def test_loads_are_found_at_a_cut_that_leaves_work_to_both():
    pair = Remembered(profile())
    middle = link.Configuration(5, 8)  # the first one with the fewest bytes
    found = loads.observed(pair, profile(), (8,))
    assert pair.asked == [(middle, False)]
    assert (found.device_load, found.server_load, found.call_seconds) == pytest.approx((2, 3, 0.125))
    predicted = link.of_bits(found, [8]).metrics(Link(0.0, np.inf)).values["latency"][5, 0]
    assert predicted == pytest.approx(pair.stages(middle, 1)["latency"]), "what was observed is predicted"
    busy = loads.observed_at_once(pair, found, (8,))
    assert pair.asked[-2:] == [(middle, True), (link.Configuration(-1, None), True)]
    assert (busy.device_load, busy.server_load, busy.call_seconds) == pytest.approx((4, 6, 0.125))
