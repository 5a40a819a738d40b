"""A device or a server that others use too: DynO's figures 9 to 11. Others are processes that compute on the same core."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from tqdm import tqdm

from aspen_jax.split.profile import Profile
from aspen_jax.split.quantise import RAW
from aspen_jax.split.schedule import Constraint, Target, choose
from benchmarks.neighbour import neighbour_on
from benchmarks.split import bed, link
from benchmarks.split.link import DEVICE, OURS, PACKED_INPUT, Configuration, Joined
from benchmarks.split.plans import spread

ON_DEVICE, ON_SERVER = "device", "server"
SIDES = (DEVICE, PACKED_INPUT, OURS)

_CALLS = 9  # of which the median counts
_CALLS_AT_ONCE = 30


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all parts here have in common.

    Attributes:
        network: of the zoo.
        shapes: links by name.
        bits: numbers of bits that may be chosen.
        seconds: for each measurement.
        namespaces: shape by the kernel, not by the forwarder.
    """

    network: str
    shapes: dict[str, bed.Shape]
    bits: Sequence[int]
    seconds: float
    namespaces: bool

    def pairs(self) -> Iterator[tuple[str, Joined, Profile]]:
        """A device and a server for each link, and the profile of a core that nobody else uses."""
        for name, shape in tqdm(self.shapes.items(), desc="links", disable=None):
            with link.joined(self.network, shape, self.namespaces) as pair:
                yield name, pair, pair.profile(sorted({*self.bits, RAW}))


# --- Stages of a call over cuts: figure 9 ---


@dataclasses.dataclass(frozen=True)
class Stages:
    """A call at one cut over one link; times in seconds, medians.

    Attributes:
        link: its name.
        cut: where the function is cut.
        predicted: what the profile says of the latency, after a few calls at another cut.
        latency: of the call.
        head, pack, link_time, tail: of its stages.
    """

    link: str
    cut: int
    predicted: float
    latency: float
    head: float
    pack: float
    link_time: float
    tail: float


def stages(setting: Setting, cuts: int) -> Iterator[Stages]:
    """Calls at the first cut, the last one, and so many between, spread over the device's time."""
    bits = setting.bits[0]
    for name, pair, profile in setting.pairs():
        now = observed(pair, profile, setting.bits)
        predicted = link.of_bits(now, [bits]).metrics(pair.link).values["latency"][:, 0]
        for cut in sorted({0, *spread(profile.device.before, cuts)}):
            found = pair.stages(Configuration(cut, bits), _CALLS)
            times = (found[stage] for stage in ("latency", "head", "pack", "link", "tail"))
            yield Stages(name, cut, float(predicted[cut]), *times)


# --- Throughput under load: figure 10 ---


@dataclasses.dataclass(frozen=True)
class Loaded:
    """One side over one link while others compute on a core.

    Attributes:
        link: its name.
        core: whose core it is, `ON_DEVICE` or `ON_SERVER`.
        others: how many compute there.
        device_load: by how much the device is slower than alone, as a few calls found.
        server_load: likewise.
        row: what the side reaches. Ours chooses by the profile under these loads.
    """

    link: str
    core: str
    others: int
    device_load: float
    server_load: float
    row: link.Row


@contextlib.contextmanager
def others_on(core: int, count: int) -> Iterator[None]:
    """Run `count` processes that compute on a core, as long as the context lasts."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(neighbour_on(core))
        yield


def throughputs(setting: Setting, counts: Sequence[int]) -> Iterator[Loaded]:
    """Device only, server only and ours, while others compute on the device's core, then while they do on the server's.

    Args:
        setting: network and links.
        counts: how many others.
    """
    for name, pair, profile in setting.pairs():
        for core, number in zip((ON_DEVICE, ON_SERVER), pair.cores, strict=True):
            for count in counts:
                if core == ON_SERVER and not count:
                    continue  # nobody is on the device's core either
                with others_on(number, count):
                    now = observed_at_once(pair, observed(pair, profile, setting.bits), setting.bits)
                    for side in SIDES:
                        row = pair.row(side, now, setting.bits, setting.seconds)
                        yield Loaded(name, core, count, now.device_load, now.server_load, row)


def observed(pair: Joined, profile: Profile, bits: Sequence[int]) -> Profile:
    """The profile under the present loads, from a few calls one behind the other at a cut that leaves work to both sides."""
    cut = shared_cut(profile, bits)
    found = pair.stages(Configuration(cut, bits[0]), _CALLS)
    now = profile.observed(cut, found["head"], found["tail"])
    # What the stages leave of the call is packing, which both sides do, and the call's own work on both, all under load.
    beside = found["latency"] - sum(found[stage] for stage in ("head", "link", "tail"))
    packing = float(link.of_bits(profile, [bits[0]]).pack_seconds[cut, 0])
    return dataclasses.replace(now, call_seconds=max(0.0, beside / (now.device_load + now.server_load) - packing))


def observed_at_once(pair: Joined, profile: Profile, bits: Sequence[int]) -> Profile:
    """The profile under the loads of many calls at once: the device's from calls of its own, the server's from shared ones.

    What a core does for others shows only where it is busy: calls that sleep between each other go first on it. The server's tail
    is timed beside unpacking, so that its load is too high where unpacking takes long.
    """
    cut = shared_cut(profile, bits)
    shared = pair.stages(Configuration(cut, bits[0]), _CALLS_AT_ONCE, at_once=True)
    alone = pair.stages(Configuration(-1, None), _CALLS_AT_ONCE, at_once=True)
    last = len(profile.device.before) - 1
    return profile.observed(cut, shared["head"], shared["tail"]).observed(last, alone["head"], 0.0)


def shared_cut(profile: Profile, bits: Sequence[int]) -> int:
    """The cut that sends the fewest bytes, of those that leave each side a quarter of the work or more."""
    before = profile.device.before
    inner = np.flatnonzero((before >= before[-1] / 4) & (before <= before[-1] * 3 / 4))
    if not len(inner):
        inner = np.array([np.abs(before - before[-1] / 2).argmin()])
    sizes = link.of_bits(profile, [bits[0]]).nbytes[inner, 0]
    return int(inner[sizes.argmin()])


# --- What the server is spared: figure 11 ---


@dataclasses.dataclass(frozen=True)
class Spared:
    """The configuration that keeps a deadline with the least work for the server.

    Attributes:
        link: its name.
        others: how many processes compute on the device's core.
        device_load: by how much the device is slower than alone, as a few calls found.
        deadline: seconds.
        configuration: what was chosen; None where no configuration is predicted to keep the deadline.
        predicted: latency in seconds.
        latency: likewise, the median that was measured.
        predicted_share: the share of the server's computation that is spared, beside all of it on the server.
        share: likewise, measured.
    """

    link: str
    others: int
    device_load: float
    deadline: float
    configuration: Configuration | None = None
    predicted: float | None = None
    latency: float | None = None
    predicted_share: float | None = None
    share: float | None = None


def spared(setting: Setting, counts: Sequence[int], deadlines: Sequence[float]) -> Iterator[Spared]:
    """What is spared at each link, number of others on the device's core, and deadline.

    Args:
        setting: network and links.
        counts: how many others.
        deadlines: multiples of the time that the device takes for all of a call alone.
    """
    for name, pair, profile in setting.pairs():
        for count in counts:
            with others_on(pair.cores[0], count):
                now = observed(pair, profile, setting.bits)
                whole = pair.stages(Configuration(0, setting.bits[0]), _CALLS)["tail"]
                for multiple in deadlines:
                    deadline = multiple * float(profile.device.before[-1])
                    yield _spared(pair, now, setting.bits, whole, Spared(name, count, now.device_load, deadline))


def _spared(pair: Joined, profile: Profile, bits: Sequence[int], whole: float, row: Spared) -> Spared:
    """Fill a row with what was chosen and measured; `whole` is the server's time for all of a call, in seconds."""
    found = choose(
        link.of_bits(profile, bits).metrics(pair.link),
        [Constraint("latency", "<=", row.deadline)],
        [Target("server_cost", "min"), Target("latency", "min")],
    )
    if found.broken is not None:
        return row
    configuration = link.chosen(found)
    taken = pair.stages(configuration, _CALLS)
    return dataclasses.replace(
        row,
        configuration=configuration,
        predicted=found.metrics["latency"],
        latency=taken["latency"],
        predicted_share=1 - float(profile.server.behind[found.cut] / profile.server.before[-1]),
        share=1 - taken["tail"] / whole,
    )
