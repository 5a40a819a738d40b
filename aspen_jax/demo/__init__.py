"""What `aspen demo` shows: models that run as one graph of tiles, with the results and the times of both sides."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from aspen_jax import aspen, runtime
from aspen_jax.demo import digits
from aspen_jax.demo.keras_application import keras_application, missing
from aspen_jax.report.comparison import TOLERANCE, Comparison, compare
from aspen_jax.report.difference import largest_difference

MODELS = ("ResNet50", "MobileNetV2")
PHOTOGRAPH = "china.jpg"


def run(rounds: int) -> int:
    """Print the demonstration.

    Args:
        rounds: how often each model is timed.

    Returns:
        0, or 1 where aspen's results are not those of `jax.jit`.

    Raises:
        AspenError: a package of the extra `demo` is missing.
    """
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise missing(error) from error
    photograph = _photograph()
    agree = []
    print(f"{runtime.num_workers()} workers, and as many cores for XLA")
    for name in MODELS:
        with tqdm(total=2 + rounds, desc=name, leave=False) as bar:
            result = _photograph_through(name, photograph, rounds, bar)
        print(f"\nThe photograph {PHOTOGRAPH} through keras.applications.{result}")
        agree.append(result.agrees)

    data = digits.load_digits()
    with tqdm(total=digits.STEPS, desc="training on digits", leave=False) as bar:
        params = digits.train(data, bar.update)
    agree.append(_serve_digits(params, data))
    return 0 if all(agree) else 1


def _photograph() -> np.ndarray:
    """A photograph that comes with scikit-learn, float32 [height, width, 3], 0 to 255."""
    try:
        from sklearn import datasets

        return datasets.load_sample_image(PHOTOGRAPH).astype(np.float32)
    except ImportError as error:
        raise missing(error) from error


def _photograph_through(name: str, photograph: np.ndarray, rounds: int, bar: Any) -> Comparison:
    model = keras_application(name)
    params = model.calibrated_params()
    bar.update()
    image = np.asarray(jax.image.resize(photograph, model.image_shape, "linear"))
    image = jax.numpy.asarray(model.preprocess(image[None].copy()))
    bar.update()
    decorated = aspen(model.predict, weights="params")
    return compare(decorated, (params, image), name=name, rounds=rounds, on_round=bar.update)


def _serve_digits(params: dict[str, jax.Array], data: digits.Digits) -> bool:
    serve = aspen(digits.logits, weights="params")
    expected = jax.jit(digits.logits)(params, data.test_images)
    actual = serve(params, data.test_images)
    difference = largest_difference(actual, expected)
    wanted, got = (np.asarray(item).argmax(axis=1) for item in (expected, actual))
    graph = serve.graph(params, data.test_images)
    print(f"\nA network trained on {len(data.images)} digits, served to {len(wanted)} others: {graph.num_tiles} tiles")
    print(f"accuracy {np.mean(wanted == data.test_labels):.2%} by jax.jit, {np.mean(got == data.test_labels):.2%} by aspen")
    print(f"{np.sum(wanted != got)} predictions differ; largest difference {difference:.1e} of the largest output")
    return difference <= TOLERANCE
