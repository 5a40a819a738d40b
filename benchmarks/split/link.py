"""A device and a server over shaped links: latency and throughput against bandwidth, DynO's figure 12."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tqdm import tqdm

from aspen_jax.errors import AspenError, InputError
from aspen_jax.split.profile import Link, Profile
from aspen_jax.split.quantise import RAW
from aspen_jax.split.schedule import Choice, Target, choose
from benchmarks.split import bed

# What the paper compares. Neurosurgeon is the same code with all bits, without compression, for latency alone.
DEVICE, RAW_INPUT, PACKED_INPUT, JPEG_INPUT = "device only", "server only, raw", "server only, packed", "server only, JPEG"
NEUROSURGEON, OURS = "Neurosurgeon", "ours"
SIDES = (DEVICE, RAW_INPUT, PACKED_INPUT, JPEG_INPUT, NEUROSURGEON, OURS)

_INPUT_BITS = 8  # of an image of 8 bits a channel


@dataclasses.dataclass(frozen=True)
class Configuration:
    """What a side does; `cut` -1 is the last one."""

    cut: int
    bits: int | None
    codec: str = "auto"
    jpeg: bool = False


@dataclasses.dataclass(frozen=True)
class Row:
    """One side over one link.

    Attributes:
        side: of `SIDES`.
        configuration: what it did.
        latency: seconds a call, one behind the other.
        throughput: calls a second, many at once.
        sent_bytes: packed, a call.
        difference: largest difference from the whole function, as a share of the largest output.
        predicted_latency: seconds, from the profile; None where nothing was predicted.
        predicted_throughput: calls a second, likewise.
    """

    side: str
    configuration: Configuration
    latency: float
    throughput: float
    sent_bytes: float
    difference: float
    predicted_latency: float | None = None
    predicted_throughput: float | None = None


class _Device:
    """The device's process."""

    def __init__(self, words: Sequence[str], network: str, core: int):
        self._child = bed.started(core, [*words, sys.executable, "-m", "benchmarks.split.device", network], stdin=subprocess.PIPE)

    def ask(self, **question: Any) -> dict[str, Any]:
        """Ask, and wait for the answer."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps(question) + "\n")
            self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise AspenError("the device's process has ended; its messages are above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait()
        self._child.stdout.close()


@dataclasses.dataclass(frozen=True)
class Joined:
    """A device and a server, each on a core of its own, over a link.

    Attributes:
        link: as the sides know it.
        cores: the device's and the server's.
    """

    link: Link
    cores: tuple[int, int]
    _device: _Device
    _addresses: dict[bool, str]
    _plain_text: bool

    def profile(self, bits: Sequence[int]) -> Profile:
        """Profile the network on the device, for this link; the server's core is like it."""
        found = self._device.ask(do="profile", bits=list(bits), bandwidth=self.link.bandwidth)
        return Profile.from_json(found["profile"])

    def stages(self, asked: Configuration, count: int, at_once: bool = False) -> dict[str, float]:
        """Seconds of `device.STAGES`: medians over so many calls, many at once or one behind the other.

        Of those one behind the other also those of a call, as "latency".
        """
        return self._device.ask(do="stages", call=self._call(asked), count=count, at_once=at_once)

    def row(self, side: str, profile: Profile, bits: Sequence[int], seconds: float) -> Row:
        """What a side reaches with the configuration that suits the profile, in so many seconds of each kind of calls."""
        asked, predicted = configuration(side, profile, self.link, bits)
        answer = self._device.ask(do="time", call=self._call(asked), seconds=seconds)
        predictions = (predicted["latency"], predicted["throughput"]) if predicted else (None, None)
        return Row(side, asked, **answer, predicted_latency=predictions[0], predicted_throughput=predictions[1])

    def _call(self, asked: Configuration) -> dict[str, Any]:
        where = {"address": self._addresses[asked.jpeg], "plain_text": self._plain_text, "bandwidth": self.link.bandwidth}
        return {**where, **dataclasses.asdict(asked)}


@contextlib.contextmanager
def joined(network: str, shape: bed.Shape, namespaces: bool, inputs: Iterable[bool] = (False,)) -> Iterator[Joined]:
    """Start both sides.

    Args:
        network: of the zoo.
        shape: of the link.
        namespaces: shape by the kernel, not by the forwarder; there is no delay then.
        inputs: for each kind of input, whether it is a JPEG file; each has a server of its own.

    Raises:
        InputError: this process may not use two cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise InputError("a device and a server need two cores; this process may use one")
    with contextlib.ExitStack() as stack:
        words, options, delay = [], [], shape.delay
        if namespaces:
            words, host = stack.enter_context(bed.namespace(shape))
            options, delay = ["--host", host, "--plain-text"], 0.0
        addresses = {}
        for is_jpeg in inputs:
            function = f"benchmarks.split.networks:{network}{'_jpeg' if is_jpeg else ''}"
            address = stack.enter_context(bed.server(function, cores[1], *options)).address
            addresses[is_jpeg] = address if namespaces else stack.enter_context(bed.forwarder(address, shape))
        device = _Device(words, network, cores[0])
        stack.callback(device.close)
        yield Joined(Link(delay, shape.up / 8), (cores[0], cores[1]), device, addresses, namespaces)


def of_bits(profile: Profile, bits: Sequence[int]) -> Profile:
    """The profile of these numbers of bits alone."""
    kept = [number for number, item in enumerate(profile.bits) if int(item) in bits]
    return dataclasses.replace(
        profile, bits=profile.bits[kept], nbytes=profile.nbytes[:, kept], pack_seconds=profile.pack_seconds[:, kept]
    )


def configuration(side: str, profile: Profile, link: Link, bits: Sequence[int]) -> tuple[Configuration, Any]:
    """What a side does over a link, and what is predicted of it."""
    if side == NEUROSURGEON:
        found = choose(of_bits(profile, [RAW]).metrics(link), targets=[Target("latency", "min")])
        return Configuration(found.cut, None, "none"), found.metrics
    if side == OURS:
        # Many messages fly at once, so that delay does not slow the pipeline.
        metrics = of_bits(profile, bits).metrics(Link(0.0, link.bandwidth))
        found = choose(metrics, targets=[Target("throughput", "max", 0.02), Target("latency", "min")])
        return chosen(found), found.metrics
    return {
        DEVICE: Configuration(-1, None),
        RAW_INPUT: Configuration(0, None, "none"),
        PACKED_INPUT: Configuration(0, _INPUT_BITS),
        JPEG_INPUT: Configuration(0, None, "auto", jpeg=True),
    }[side], None


def chosen(found: Choice) -> Configuration:
    """A choice of the scheduler."""
    return Configuration(found.cut, None if found.bits == RAW else found.bits)


def measured(
    network: str, shapes: dict[str, bed.Shape], sides: Sequence[str], bits: Sequence[int], seconds: float, namespaces: bool
) -> Iterator[tuple[str, Row]]:
    """Rows for each link and side, as they are measured.

    Args:
        network: of the zoo.
        shapes: links by name.
        sides: of `SIDES`.
        bits: numbers of bits that ours may choose.
        seconds: for each measurement.
        namespaces: shape by the kernel, not by the forwarder.
    """
    for side in sides:
        if side not in SIDES:
            raise InputError(f"there is no side {side!r}; take {', '.join(SIDES)}")
    inputs = sorted({side == JPEG_INPUT for side in sides})
    for name, shape in tqdm(shapes.items(), desc="links", dynamic_ncols=True):
        with joined(network, shape, namespaces, inputs) as pair:
            profile = pair.profile(sorted({*bits, RAW}))
            for side in sides:
                yield name, pair.row(side, profile, bits, seconds)


def gains(rows: Sequence[tuple[str, Row]]) -> dict[str, tuple[float, float, float]]:
    """Gains by link: the smaller of local and remote throughput by the larger; ours by the larger, and by the best side's."""
    found = {}
    for name in dict.fromkeys(name for name, _ in rows):
        here = {row.side: row.throughput for link, row in rows if link == name}
        remote = max((here[side] for side in (RAW_INPUT, PACKED_INPUT, JPEG_INPUT) if side in here), default=0.0)
        local = here.get(DEVICE, 0.0)
        others = [value for side, value in here.items() if side != OURS]
        if OURS in here and local and remote:
            found[name] = (min(local, remote) / max(local, remote), here[OURS] / max(local, remote), here[OURS] / max(others))
    return found
