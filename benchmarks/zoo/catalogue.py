"""Every model by its name."""

from __future__ import annotations

import dataclasses

from aspen_jax.errors import InputError
from benchmarks.zoo import (
    bert,
    bolt,
    densenet,
    gpt2,
    inception,
    llama,
    mobile,
    repvgg,
    resnet,
    squeezenet,
    vgg,
    vision,
    vit,
    yolo,
)
from benchmarks.zoo.model import Build, Describe, Model, Size, of_network
from benchmarks.zoo.network.network import Network

_DESCRIPTIONS = (vgg, resnet, densenet, squeezenet, inception, mobile, repvgg, yolo, bert, gpt2, vit)

# Described once, for JAX, PyTorch and ONNX.
NETWORKS: dict[str, Describe] = {name: describe for module in _DESCRIPTIONS for name, describe in module.NETWORKS.items()}
# Parts of networks, taken by name; no command takes all of them by default.
WORKLOADS: dict[str, Describe] = {name: workload.describe for name, workload in bolt.WORKLOADS.items()}
# In JAX only.
FUNCTIONS: dict[str, Build] = {**gpt2.MODELS, **llama.MODELS}


def build(name: str, size: Size | None = None) -> Model:
    """Build a model with seeded parameters and inputs.

    Args:
        name: one of `NETWORKS`, `WORKLOADS` or `FUNCTIONS`, such as bert-base, or a name in keras.applications, such as ResNet50.
        size: of its inputs; its own by default.

    Raises:
        InputError: there is no such model, or it does not take inputs of that size.
        AspenError: Keras is needed and not installed, or runs on another backend already.
    """
    size = _checked(size or Size())
    if name in FUNCTIONS:
        return FUNCTIONS[name](size)
    if name[:1].isupper():  # so are all names there, and none here
        return vision.build(name, size)
    return of_network(name, describe(name, size))


def describe(name: str, size: Size | None = None) -> Network:
    """The description of a network.

    Raises:
        InputError: there is no such network, or it does not take inputs of that size.
    """
    described = {**NETWORKS, **WORKLOADS}
    if name not in described:
        known = ", ".join([*NETWORKS, *FUNCTIONS])
        raise InputError(f"there is no model {name!r}; take one of {known}, or of keras.applications")
    return described[name](_checked(size or Size()))


def _checked(size: Size) -> Size:
    for what, value in {**dataclasses.asdict(size)}.items():
        if value is not None and value < 1:
            raise InputError(f"{_MEANING[what]} is {value}; take 1 or more")
    return size


_MEANING = {"batch": "the batch", "image_size": "the height and width of images", "tokens": "the length of a text"}
