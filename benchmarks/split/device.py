"""The device of the test bed: a process on one core that times calls, as it is told by lines of JSON.

    {"address": HOST:PORT, "jpeg": false, "cut": 7, "bits": 8, "codec": "auto", "bandwidth": 1e6, "seconds": 3}

Each line is answered by one: latency and throughput, bytes on the link, difference from the whole function.
"""

from __future__ import annotations

import collections
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

    def profile(self, bits: list[int]) -> dict[str, Any]:
        """Of the network on this core."""
        return {"profile": measure(self._function, self._images[0], bits=bits).to_json()}

    def time(
        self,
        address: str,
        plain_text: bool,
        jpeg: bool,
        cut: int,
        bits: int | None,
        codec: str,
        bandwidth: float,
        seconds: float,
    ) -> Any:
        """Calls one behind the other, and many at once; each kind for so many seconds."""
        with Client(address, self._halves(jpeg), depth=_DEPTH, deadline=120, plain_text=plain_text) as client:
            client.configure(client.num_cuts - 1 if cut < 0 else cut, bits, codec=codec, bandwidth=bandwidth)
            differences = [
                largest_difference(client(self._input(number, jpeg)), self._expected[number]) for number in range(_PHOTOGRAPHS)
            ]
            latencies = []
            end = time.perf_counter() + seconds
            while time.perf_counter() < end or len(latencies) < _LEAST_CALLS:
                begin = time.perf_counter()
                client(self._input(len(latencies) % _PHOTOGRAPHS, jpeg))
                latencies.append(time.perf_counter() - begin)
            sent = statistics.median(record.sent_bytes for record in client.records)
            throughput = self._throughput(client, jpeg, seconds)
        return {
            "latency": statistics.median(latencies),
            "throughput": throughput,
            "sent_bytes": sent,
            "difference": max(differences),
        }

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
    for line in sys.stdin:
        asked = json.loads(line)
        answer = device.profile(asked["profile"]) if "profile" in asked else device.time(**asked)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
