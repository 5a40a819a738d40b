"""What each configuration costs: times of both sides, bytes on the link, load and network (DynO, section 3.4).

A profile is measured once: one run of the whole function gives the time before every cut. Two numbers then follow what changes:
the load of each side, and the link. So configurations that never ran are predicted too.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aspen_jax.errors import InputError
from aspen_jax.split.quantise import checked_bits
from aspen_jax.split.schedule import Metrics

# A side that computed for less in a run tells more about noise than about load.
_LEAST_SECONDS = 1e-4
_MOST_JSON = 2**26


# --- The link ---


@dataclasses.dataclass(frozen=True)
class Link:
    """A network as the time that a message takes.

    Attributes:
        latency: seconds.
        bandwidth: bytes a second; 0 where nothing gets through.
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not (0 <= self.latency < math.inf and self.bandwidth >= 0):  # false for NaN too
            raise InputError(f"a link of {self.latency} s and {self.bandwidth} bytes/s is none. Use numbers of 0 or more")

    def seconds(self, nbytes: np.ndarray) -> np.ndarray:
        """How long messages of so many bytes take; infinite over a link that lets nothing through."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(nbytes > 0, self.latency + nbytes / self.bandwidth, self.latency)


@dataclasses.dataclass(frozen=True)
class _Average:
    """A moving average of latency and of the seconds that a byte takes; None before the first message that tells."""

    latency: float | None = None
    seconds_per_byte: float | None = None

    def updated(self, nbytes: int, seconds: float, weight: float) -> _Average:
        if nbytes <= Network.SMALL:
            return dataclasses.replace(self, latency=_moved(self.latency, seconds, weight))
        rest = max(seconds - (self.latency or 0.0), seconds * 1e-3)
        return dataclasses.replace(self, seconds_per_byte=_moved(self.seconds_per_byte, rest / nbytes, weight))


def _moved(old: float | None, new: float, weight: float) -> float:
    return new if old is None else old + weight * (new - old)


@dataclasses.dataclass(frozen=True)
class Network:
    """What is known of the networks of a device, from the messages that it has sent.

    For each kind of network there are two moving averages. The fast one counts while its last message is at most five minutes
    old. After that the slow one of that kind does.

    Attributes:
        fast: by kind, the average and when its last message was.
        slow: by kind, the average.
    """

    fast: Mapping[str, tuple[float, _Average]] = dataclasses.field(default_factory=dict)
    slow: Mapping[str, _Average] = dataclasses.field(default_factory=dict)

    WINDOW = 300.0  # seconds
    SMALL = 1024  # bytes; shorter messages tell the latency, longer ones the bandwidth
    FAST, SLOW = 0.3, 0.02  # weights of a new message

    def observed(self, kind: str, nbytes: int, seconds: float, now: float) -> Network:
        """The network with one more message.

        Args:
            kind: of network, such as "wifi" or "4g".
            nbytes: length of the message.
            seconds: from sending to arrival.
            now: seconds of a steady clock.

        Raises:
            InputError: a number is negative or not finite.
        """
        if not (nbytes >= 0 and 0 <= seconds < math.inf and math.isfinite(now)):
            raise InputError(
                f"a message of {nbytes} bytes that took {seconds} s at {now} s is none. Use finite numbers, 0 or more"
            )
        last, fast = self.fast.get(kind, (-math.inf, _Average()))
        slow = self.slow.get(kind, _Average())
        if now - last > self.WINDOW:
            fast = _Average(latency=slow.latency)
        return Network(
            {**self.fast, kind: (now, fast.updated(nbytes, seconds, self.FAST))},
            {**self.slow, kind: slow.updated(nbytes, seconds, self.SLOW)},
        )

    def link(self, kind: str, now: float) -> Link | None:
        """The link to expect of a kind of network; None where no message over it told its bandwidth yet."""
        last, fast = self.fast.get(kind, (-math.inf, _Average()))
        slow = self.slow.get(kind, _Average())
        recent = fast if now - last <= self.WINDOW else _Average()
        per_byte = slow.seconds_per_byte if recent.seconds_per_byte is None else recent.seconds_per_byte
        latency = slow.latency if recent.latency is None else recent.latency
        return None if per_byte is None else Link(latency or 0.0, math.inf if per_byte == 0 else 1 / per_byte)


# --- One side ---


@dataclasses.dataclass(frozen=True, eq=False)
class Times:
    """How long a machine computes before each cut of a function, and so behind it.

    Attributes:
        before: float64 [cuts], seconds; 0 at the first cut, that of the whole function at the last.
        cores: how many computed. What one thread does beside them takes its share of one.
    """

    before: np.ndarray
    cores: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.cores, int) or self.cores < 1:
            raise InputError(f"{self.cores!r} cores computed. Pass how many workers there were")
        before = np.asarray(self.before)
        if before.ndim != 1 or before.size == 0 or before.dtype.kind != "f":
            raise InputError(f"times are {before.dtype}{list(before.shape)}. Pass a vector of seconds, one for each cut")
        if not (before[0] == 0 and np.isfinite(before).all() and (np.diff(before) >= 0).all()):
            raise InputError("times before cuts begin at 0, are finite and do not fall. Measure them by measure_times")

    @property
    def behind(self) -> np.ndarray:
        """Seconds behind each cut."""
        return self.before[-1] - self.before

    def to_json(self) -> str:
        """The times as text, for the other side."""
        return json.dumps(self.to_fields())

    def to_fields(self) -> dict[str, Any]:
        """The times as lists and numbers."""
        return {"before": self.before.tolist(), "cores": self.cores}

    @classmethod
    def from_json(cls, text: str) -> Times:
        """What `to_json` gave.

        Raises:
            InputError: the text is something else.
        """
        return cls.from_fields(_loaded(text))

    @classmethod
    def from_fields(cls, fields: Any) -> Times:
        """What `to_fields` gave.

        Raises:
            InputError: the fields are something else.
        """
        if not isinstance(fields, dict):
            raise InputError(f"times are a {type(fields).__name__}. Pass what to_json gave")
        cores = float(_array({"cores": 1, **fields}, "cores", 0))
        return cls(_array(fields, "before"), int(cores) if cores.is_integer() else 0)


def share_out(op_seconds: Sequence[float], op_equations: Sequence[Sequence[int]], weights: np.ndarray) -> np.ndarray:
    """The seconds of each equation, from those of ops that each come of one or more equations.

    Args:
        op_seconds: of each op.
        op_equations: the numbers of the equations that it comes of; none where that is not known.
        weights: float64 [equations], how the equations of one op share its time.

    Returns:
        float64 [equations]. Time of ops that come of no equation is shared by all.
    """
    result = np.zeros(len(weights))
    for seconds, equations in zip(op_seconds, op_equations, strict=True):
        own = np.array(sorted(set(equations)) if len(equations) else np.arange(len(weights)), int)
        parts = weights[own]
        result[own] += seconds * (parts / parts.sum() if parts.sum() > 0 else 1 / len(own))
    return result


# --- Both sides ---


@dataclasses.dataclass(frozen=True, eq=False)
class Profile:
    """All that the choice of a configuration depends on.

    Attributes:
        device: times of the side that asks.
        server: times of the side that answers, for the same cuts.
        bits: int64 [B], numbers of bits that may be chosen.
        nbytes: float64 [cuts, B], bytes of the message at each configuration.
        pack_seconds: float64 [cuts, B], to pack it on the device; the server takes as long to unpack it.
        result_bytes: bytes of the answer.
        accuracy: float64 [cuts, B] from 0 to 1, NaN where it is not known; None if it does not matter.
        device_load: by how much the device is slower than it was when `device` was measured.
        server_load: likewise.
        call_seconds: what a call that crosses takes on each side beside computing and packing, without load: threads, gRPC.
    """

    device: Times
    server: Times
    bits: np.ndarray
    nbytes: np.ndarray
    pack_seconds: np.ndarray
    result_bytes: int = 0
    accuracy: np.ndarray | None = None
    device_load: float = 1.0
    server_load: float = 1.0
    call_seconds: float = 0.0

    def __post_init__(self) -> None:
        cuts = len(self.device.before)
        if len(self.server.before) != cuts:
            raise InputError(
                f"the device has {cuts} cuts, the server {len(self.server.before)}. Profile the same function on both sides"
            )
        if np.ndim(self.bits) != 1 or not len(self.bits):
            raise InputError("bits are no vector. Pass the numbers of bits that may be chosen")
        for bits in np.asarray(self.bits).tolist():
            checked_bits(bits)
        for name in ("nbytes", "pack_seconds", "accuracy"):
            array = getattr(self, name)
            if array is not None and np.shape(array) != (cuts, len(self.bits)):
                raise InputError(
                    f"{name} has the shape {np.shape(array)}. Pass one of shape {(cuts, len(self.bits))}, [cuts, bits]"
                )
        for name in ("nbytes", "pack_seconds", *_NUMBERS):
            value = np.asarray(getattr(self, name))
            if not (np.isfinite(value).all() and (value >= 0).all()):
                raise InputError(f"{name} holds a value that is negative or not finite. Measure it again")
        if self.accuracy is not None and not (np.isnan(self.accuracy) | ((self.accuracy >= 0) & (self.accuracy <= 1))).all():
            raise InputError("an accuracy lies outside of 0 to 1. Pass the share of right answers")

    def observed(self, cut: int, device_seconds: float, server_seconds: float) -> Profile:
        """The profile with the load of the last run: measured by predicted time of each side (the paper's scaling factor).

        A side that had next to nothing to do keeps its load. Between calls that wait for a link, caches cool. Others on a core
        slow it more where it is busy. So take runs like those that are to be predicted.

        Args:
            cut: of the run.
            device_seconds: what the device computed for.
            server_seconds: what the server says that it computed for.

        Raises:
            InputError: there is no such cut, or seconds are negative or not finite.
        """
        self._check_cut(cut)
        loads = {}
        sides = ("device_load", self.device.before, device_seconds), ("server_load", self.server.behind, server_seconds)
        for name, times, seconds in sides:
            if not 0 <= seconds < math.inf:
                raise InputError(f"a run of {seconds} s is none. Pass the seconds that each side computed for")
            if times[cut] >= _LEAST_SECONDS:
                loads[name] = seconds / float(times[cut])
        return dataclasses.replace(self, **loads)

    def metrics(self, link: Link) -> Metrics:
        """What each configuration is predicted to do over a link, under the present loads.

        Where accuracies are known, cuts that lack any are left out. At the last cut the device has the
        result, so that nothing is packed, sent or computed elsewhere.

        Stages run side by side (the paper's pipelining), so that throughput is one request in the time of the slowest of them:
        device, packing, send, server, unpacking, answer. A side computes on all of its cores. So what one thread of it does
        meanwhile takes its share of one core from the next request's computing.
        """
        is_remote = (np.arange(len(self.device.before)) < len(self.device.before) - 1)[:, None]
        send, answer = (np.where(is_remote, link.seconds(np.asarray(size)), 0) for size in (self.nbytes, self.result_bytes))
        beside = is_remote * (self.pack_seconds + self.call_seconds)
        device, packing = self.device.before[:, None] * self.device_load, beside * self.device_load
        server, unpacking = self.server.behind[:, None] * self.server_load, beside * self.server_load
        stages = device + packing / self.device.cores, packing, send, server + unpacking / self.server.cores, unpacking, answer
        with np.errstate(divide="ignore"):
            throughput = 1 / functools.reduce(np.maximum, stages)
        values = {
            "latency": device + packing + send + server + unpacking + answer,
            "throughput": throughput,
            "server_cost": server + unpacking,
            "device_cost": device + packing,
        }
        cuts = np.arange(len(self.device.before))
        if self.accuracy is not None:
            values["accuracy"] = self.accuracy
            cuts = cuts[~np.isnan(self.accuracy).any(axis=1)]
            if not len(cuts):
                raise InputError("the accuracy of no cut is known for all numbers of bits. Measure it by accuracy_map")
        return Metrics(cuts, np.asarray(self.bits), {name: array[cuts] for name, array in values.items()})

    def to_json(self) -> str:
        """The profile as text, to be kept in a file."""
        fields = {name: np.asarray(getattr(self, name)).tolist() for name in _ARRAYS if getattr(self, name) is not None}
        if self.accuracy is not None:
            fields["accuracy"] = [[None if math.isnan(x) else x for x in row] for row in fields["accuracy"]]
        return json.dumps(
            fields
            | {"device": self.device.to_fields(), "server": self.server.to_fields()}
            | {name: getattr(self, name) for name in _NUMBERS}
        )

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """What `to_json` gave.

        Raises:
            InputError: the text is something else.
        """
        fields = _loaded(text)
        device, server = (Times.from_fields(fields.get(name)) for name in ("device", "server"))
        bits, nbytes, pack_seconds = (_array(fields, name) for name in ("bits", "nbytes", "pack_seconds"))
        accuracy = _array(fields, "accuracy") if "accuracy" in fields else None
        result_bytes, *numbers = (float(_array(fields, name, 0)) for name in _NUMBERS)
        if not (np.isfinite(bits).all() and 0 <= result_bytes < math.inf):
            raise InputError("bits or result_bytes of a profile are no numbers. Pass what to_json gave")
        return cls(device, server, bits.astype(np.int64), nbytes, pack_seconds, int(result_bytes), accuracy, *numbers)

    def _check_cut(self, cut: int) -> None:
        if not 0 <= cut < len(self.device.before):
            raise InputError(f"there is no cut {cut}. Use 0 to {len(self.device.before) - 1}")


_ARRAYS = ("bits", "nbytes", "pack_seconds", "accuracy")
# The fields that are numbers, in their order.
_NUMBERS = ("result_bytes", "device_load", "server_load", "call_seconds")


def _loaded(text: str) -> dict[str, Any]:
    if len(text) > _MOST_JSON:
        raise InputError(f"a profile of {len(text)} characters is longer than {_MOST_JSON}. Ask the peer for the right one")
    try:
        found = json.loads(text, parse_constant=lambda name: None)
    except (ValueError, RecursionError) as error:
        raise InputError(f"a profile is no JSON: {error}. Ask the peer for it again") from None
    if not isinstance(found, dict):
        raise InputError(f"a profile is a {type(found).__name__}. Pass what to_json gave")
    return found


def _array(fields: dict[str, Any], name: str, rank: int | None = None) -> np.ndarray:
    try:
        found = np.array(fields[name], np.float64)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} of a profile is missing or no array ({error!r}). Pass what to_json gave") from None
    if rank is not None and found.ndim != rank:
        raise InputError(f"{name} of a profile has the shape {found.shape}. Pass what to_json gave")
    return found
