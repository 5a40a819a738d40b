"""Latency and throughput against bandwidth: DynO's figures 9, 10 and 12, and its table of links."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from tqdm import tqdm

from aspen_jax.errors import AspenError, InputError
from aspen_jax.split.profile import Link, Profile
from aspen_jax.split.quantise import RAW
from aspen_jax.split.schedule import Target, choose
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
        import subprocess

        self._child = bed.bound_to(
            core, [*words, sys.executable, "-m", "benchmarks.split.device", network], stdin=subprocess.PIPE
        )

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


def configuration(side: str, profile: Profile, link: Link, bits: Sequence[int]) -> tuple[Configuration, Any]:
    """What a side does over a link, and what is predicted of it."""
    if side == NEUROSURGEON:
        at = [int(number) for number in profile.bits].index(RAW)
        raw = dataclasses.replace(
            profile,
            bits=profile.bits[at : at + 1],
            nbytes=profile.nbytes[:, at : at + 1],
            pack_seconds=profile.pack_seconds[:, at : at + 1],
        )
        found = choose(raw.metrics(link), targets=[Target("latency", "min")])
        return Configuration(found.cut, None, "none"), found.metrics
    if side == OURS:
        kept = [number for number, item in enumerate(profile.bits) if int(item) in bits]
        ours = dataclasses.replace(
            profile, bits=profile.bits[kept], nbytes=profile.nbytes[:, kept], pack_seconds=profile.pack_seconds[:, kept]
        )
        # Many messages fly at once, so that delay does not slow the pipeline.
        found = choose(
            ours.metrics(Link(0.0, link.bandwidth)), targets=[Target("throughput", "max", 0.02), Target("latency", "min")]
        )
        return Configuration(found.cut, None if found.bits == RAW else found.bits), found.metrics
    return {
        DEVICE: Configuration(-1, None),
        RAW_INPUT: Configuration(0, None, "none"),
        PACKED_INPUT: Configuration(0, _INPUT_BITS),
        JPEG_INPUT: Configuration(0, None, "auto", jpeg=True),
    }[side], None


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
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise InputError("a device and a server need two cores; this process may use one")
    for side in sides:
        if side not in SIDES:
            raise InputError(f"there is no side {side!r}; take {', '.join(SIDES)}")
    profile = None
    for name, shape in tqdm(shapes.items(), desc="links", dynamic_ncols=True):
        with contextlib.ExitStack() as stack:
            words, options, link = [], [], shape
            if namespaces:
                words, host = stack.enter_context(bed.namespace(shape))
                options, link = ["--host", host, "--plain-text"], dataclasses.replace(shape, delay=0.0)
            targets = {}
            for is_jpeg in sorted({side == JPEG_INPUT for side in sides}):
                function = f"benchmarks.split.networks:{network}{'_jpeg' if is_jpeg else ''}"
                address = stack.enter_context(bed.server(function, cores[1], *options))
                targets[is_jpeg] = address if namespaces else stack.enter_context(bed.forwarder(address, shape))
            device = _Device(words, network, cores[0])
            stack.callback(device.close)
            if profile is None:
                profile = Profile.from_json(device.ask(profile=sorted({*bits, RAW}))["profile"])
            for side in sides:
                known = Link(link.delay, link.up / 8)
                asked, predicted = configuration(side, profile, known, bits)
                answer = device.ask(
                    address=targets[asked.jpeg],
                    bandwidth=known.bandwidth,
                    seconds=seconds,
                    plain_text=namespaces,
                    **dataclasses.asdict(asked),
                )
                predictions = (predicted["latency"], predicted["throughput"]) if predicted else (None, None)
                yield name, Row(side, asked, **answer, predicted_latency=predictions[0], predicted_throughput=predictions[1])


def gains(rows: Sequence[tuple[str, Row]]) -> dict[str, tuple[float, float, float]]:
    """For each link: the smaller of local and remote throughput by the larger; ours by the larger, and by the best side's."""
    found = {}
    for name in dict.fromkeys(name for name, _ in rows):
        here = {row.side: row.throughput for link, row in rows if link == name}
        remote = max((here[side] for side in (RAW_INPUT, PACKED_INPUT, JPEG_INPUT) if side in here), default=0.0)
        local = here.get(DEVICE, 0.0)
        others = [value for side, value in here.items() if side != OURS]
        if OURS in here and local and remote:
            found[name] = (min(local, remote) / max(local, remote), here[OURS] / max(local, remote), here[OURS] / max(others))
    return found
