"""Which codec takes the least time on a link, as measured."""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from aspen_jax import forks
from aspen_jax.split.payload import CODECS, CodecName, compress, decompress


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a codec takes for one payload: seconds to compress and decompress it, bytes on the link."""

    seconds: float
    bytes: int


def measured_costs(payload: np.ndarray) -> dict[CodecName, Cost]:
    """Every codec on one payload, run twice, since the first call is slower. One that makes it no shorter is left out."""
    costs: dict[CodecName, Cost] = {}
    for codec in CODECS * 2:
        start = time.perf_counter()
        data = compress(payload, codec)
        if codec == "none" or len(data) < payload.nbytes:
            decompress(memoryview(data), codec, np.empty_like(payload))
            costs[codec] = Cost(time.perf_counter() - start, len(data))
    return costs


def quickest(costs: dict[CodecName, Cost], bandwidth: float) -> CodecName:
    """The codec with the least time: its own, and its bytes' at `bandwidth` bytes a second."""
    return min(costs, key=lambda codec: costs[codec].seconds + costs[codec].bytes / bandwidth)


class Measured:
    """What `measured_costs` gave last for tensors of about one size and of one kind. It is measured again now and then."""

    AGAIN_AFTER = 256

    def __init__(self) -> None:
        self._lock = forks.Lock()
        self._costs: dict[tuple[int, int, int], tuple[int, dict[CodecName, Cost]]] = {}

    def choose(self, payload: np.ndarray, bits: int, bandwidth: float) -> CodecName:
        """The codec for a tensor whose floats have so many bits."""
        key = (payload.nbytes.bit_length(), payload.itemsize, bits)
        with self._lock:
            uses, costs = self._costs.get(key, (self.AGAIN_AFTER, {}))
        if uses >= self.AGAIN_AFTER:
            uses, costs = 0, measured_costs(payload)
        with self._lock:
            self._costs[key] = (uses + 1, costs)
        return quickest(costs, bandwidth)


measured = Measured()
