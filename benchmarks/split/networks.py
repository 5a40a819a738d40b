"""Networks of the zoo as `aspen serve` takes them: MODULE:NAME, and NAME_args beside it.

A name may end in the image size, as resnet50_at_128, and in _jpeg: then its input is the bytes of a JPEG file, which the server
decodes.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from aspen_jax.demo import PHOTOGRAPH
from benchmarks import zoo
from benchmarks.zoo.model import Size

_QUALITY = 90


@functools.cache
def network(name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A network with its parameters closed over, and an input.

    Args:
        name: such as mobilenet_v2, resnet50_at_128 or resnet50_at_128_jpeg.
    """
    if name.endswith("_jpeg"):
        return _of_jpeg(*network(name.removesuffix("_jpeg")))
    kind, _, size = name.partition("_at_")
    model = zoo.build(kind, Size(image_size=int(size) if size else None)).calibrated()
    params = model.params

    def apply(*inputs: Any) -> Any:
        return model.apply(params, *inputs)

    apply.__name__ = apply.__qualname__ = kind
    return apply, model.inputs


def photographs(shape: tuple[int, ...], count: int) -> list[np.ndarray]:
    """Parts of a photograph, float32 from -1 to 1.

    Args:
        shape: [1, height, width, 3].
        count: how many, each from another place.
    """
    from PIL import Image
    from sklearn import datasets

    picture = Image.fromarray(datasets.load_sample_image(PHOTOGRAPH))
    _, height, width, _ = shape
    found = []
    for number in range(count):
        offset = 8 * number
        part = picture.crop((offset, offset, offset + 360, offset + 360)).resize((width, height))
        found.append(np.asarray(part, np.float32)[None] / 127.5 - 1)
    return found


def encoded(image: np.ndarray) -> np.ndarray:
    """A photograph as the bytes of a JPEG file, uint8, with zeros behind it."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.round((image[0] + 1) * 127.5).astype(np.uint8)).save(file, "JPEG", quality=_QUALITY)
    result = np.zeros(_longest(image.shape), np.uint8)
    result[: file.tell()] = np.frombuffer(file.getvalue(), np.uint8)
    return result


def _longest(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape)) + 4096


def _of_jpeg(function: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    (image,) = inputs
    struct = jax.ShapeDtypeStruct(image.shape, np.float32)

    def decoded(data: Any) -> np.ndarray:
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(np.asarray(data).tobytes())), np.float32)[None] / 127.5 - 1

    def apply(data: Any) -> Any:
        return function(jax.pure_callback(decoded, struct, data))

    return apply, (jax.ShapeDtypeStruct((_longest(image.shape),), np.uint8),)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    kind = name.removesuffix("_args")
    if kind.partition("_at_")[0] not in zoo.NETWORKS:
        raise AttributeError(name)
    return network(kind)[0] if kind == name else lambda: network(kind)[1]
