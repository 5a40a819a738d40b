"""The device of the test bed: a process on one core that times calls, as it is told by lines of JSON.

    {"do": "profile", "bits": [8, 32], "bandwidth": 1e6}
    {"do": "time", "call": {"address": HOST:PORT, "jpeg": false, "cut": 7, "bits": 8, ...}, "seconds": 3}
    {"do": "stages", "call": {...}, "count": 5, "at_once": false}

Each line is answered by one, an object of JSON.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax

from aspen_jax import aspen
from aspen_jax.report.difference import largest_difference
from aspen_jax.split import Client, Halves
from aspen_jax.split.measure import measure
from benchmarks.split.networks import encoded, network, photographs

STAGES = ("head", "pack", "link", "tail")  # fields of a client's records

_LEAST_CALLS = 4
_PHOTOGRAPHS = 8
_DEPTH = 8


class Device:
    """A device that knows a network."""

    def __init__(self, name: str):
        self._name = name
        self._function, (x,) = network(name)
        self._whole = aspen(self._function)
        self._images = photographs(x.shape, _PHOTOGRAPHS)
        self._expected = [jax.device_get(self._whole(image)) for image in self._images]

    @functools.cache  # noqa: B019, the process has one
    def _halves(self, jpeg: bool) -> Halves:
        function, args = network(self._name + "_jpeg") if jpeg else (self._function, (self._images[0],))
        return Halves(function, args)

    @contextlib.contextmanager
    def _client(
        self, address: str, plain_text: bool, jpeg: bool, cut: int, bits: int | None, codec: str, bandwidth: float
    ) -> Iterator[Client]:
        with Client(address, self._halves(jpeg), depth=_DEPTH, deadline=120, plain_text=plain_text) as client:
            client.configure(client.num_cuts - 1 if cut < 0 else cut, bits, codec=codec, bandwidth=bandwidth)
            yield client

    def profile(self, bits: list[int], bandwidth: float) -> dict[str, Any]:
        """Profile the network on this core, for a link of `bandwidth` bytes a second."""
        return {"profile": measure(self._function, self._images[0], bits=bits, bandwidth=bandwidth).to_json()}

    def stages(self, call: dict[str, Any], count: int, at_once: bool) -> dict[str, float]:
        """Medians over so many calls, in seconds: of each stage, and of the call where they come one behind the other."""
        with self._client(**call) as client:
            client(self._input(0, call["jpeg"]))  # connects and compiles
            client.records.clear()
            if at_once:
                collections.deque(client.map(self._input(item % _PHOTOGRAPHS, call["jpeg"]) for item in range(count)), maxlen=0)
                return self._medians(client)
            latencies = self._latencies(client, call["jpeg"], 0.0, count)
            return {"latency": statistics.median(latencies), **self._medians(client)}

    def _medians(self, client: Client) -> dict[str, float]:
        return {stage: statistics.median(getattr(record, stage) for record in client.records) for stage in STAGES}

    def time(self, call: dict[str, Any], seconds: float) -> dict[str, float]:
        """Calls one behind the other, and many at once; each kind for so many seconds."""
        jpeg = call["jpeg"]
        with self._client(**call) as client:
            differences = [
                largest_difference(client(self._input(number, jpeg)), self._expected[number]) for number in range(_PHOTOGRAPHS)
            ]
            latencies = self._latencies(client, jpeg, seconds, _LEAST_CALLS)
            sent = statistics.median(record.sent_bytes for record in client.records)
            throughput = self._throughput(client, jpeg, seconds)
        return {
            "latency": statistics.median(latencies),
            "throughput": throughput,
            "sent_bytes": sent,
            "difference": max(differences),
        }

    def _latencies(self, client: Client, jpeg: bool, seconds: float, least: int) -> list[float]:
        """Seconds of calls one behind the other, for so many seconds, and at least so many calls."""
        found: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(found) < least:
            begin = time.perf_counter()
            client(self._input(len(found) % _PHOTOGRAPHS, jpeg))
            found.append(time.perf_counter() - begin)
        return found

    def _throughput(self, client: Client, jpeg: bool, seconds: float) -> float:
        """Answers a second while the pipeline is full: the first ones, and those that come after the last input, do not count."""
        end: list[float] = []

        def inputs() -> Iterator[Any]:
            for number in itertools.count():
                if number >= _DEPTH + 2 * _LEAST_CALLS and end and time.perf_counter() > end[0]:
                    return
                yield self._input(number % _PHOTOGRAPHS, jpeg)

        times: collections.deque[float] = collections.deque()
        for _ in client.map(inputs()):
            times.append(time.perf_counter())
            if not end:
                end.append(times[0] + seconds)
        full = list(times)[: -_DEPTH + 1]
        return (len(full) - 1) / (full[-1] - full[0])

    def _input(self, number: int, jpeg: bool) -> Any:
        return encoded(self._images[number]) if jpeg else self._images[number]


def main() -> None:
    """Serve one parent, until it closes the pipe."""
    device = Device(sys.argv[1])
    actions = {"profile": device.profile, "stages": device.stages, "time": device.time}
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(actions[asked.pop("do")](**asked)), flush=True)


if __name__ == "__main__":
    main()
