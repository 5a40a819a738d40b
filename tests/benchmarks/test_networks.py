"""Descriptions of networks: JAX, ONNX, PyTorch and TensorFlow compute the same, with the published number of parameters."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from aspen_jax import CUSTOM_CALL_TARGET, aspen
from aspen_jax.report.difference import largest_difference
from benchmarks import zoo
from benchmarks.zoo import bert, gpt2, vit
from benchmarks.zoo.blocks import RELU, conv, max_pool, mean_pool, norm_conv
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.in_jax import in_jax
from benchmarks.zoo.network.layers import Activation, Flatten, GlobalMean, Linear, Upsample
from benchmarks.zoo.network.layout import to_nchw, to_nhwc
from benchmarks.zoo.network.network import Network
from benchmarks.zoo.network.parameters import calibrated, draw, draw_inputs
from benchmarks.zoo.transformer import Config

# As their authors, torchvision or Hugging Face count them.
PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg11": 132_863_336,
    "vgg11_bn": 132_868_840,
    "vgg13": 133_047_848,
    "vgg13_bn": 133_053_736,
    "vgg16": 138_357_544,
    "vgg16_bn": 138_365_992,
    "vgg19": 143_667_240,
    "vgg19_bn": 143_678_248,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "densenet121": 7_978_856,
    "densenet161": 28_681_000,
    "densenet169": 14_149_480,
    "densenet201": 20_013_928,
    "squeezenet1_0": 1_248_424,
    "squeezenet1_1": 1_235_496,
    "inception_v3": 23_834_568,  # without the auxiliary classifier, which only training uses
    "mobilenet_v2": 3_504_872,
    "efficientnet_b0": 5_288_548,
    "repvgg_a0": 8_309_384,
    "repvgg_a1": 12_789_864,
    "repvgg_b0": 14_339_048,
    "yolov3": 61_949_149,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "gpt2": 124_439_808,
    "vit-b16": 86_567_656,
}


@pytest.mark.parametrize("name", zoo.NETWORKS)
def test_published_networks_have_their_number_of_parameters(name):
    assert zoo.describe(name).number_of_parameters() == PARAMETERS[name]


def test_yolo_predicts_at_three_scales():
    network = zoo.describe("yolov3", Size(batch=2))
    shapes = {node.name: node.shape for node in network.nodes}
    assert [shapes[name] for name in network.outputs] == [(2, extent, extent, 255) for extent in (13, 26, 52)]


def every_layer_of_images() -> Network:
    net = Network()
    x = net(net.image(2, 37), *norm_conv(8, 3, 2, activation="leaky_relu"), *norm_conv(12, (1, 5), activation="relu6"))
    x = net(x, conv(12, 3, groups=4), RELU, max_pool(3, 2, ceil=True), mean_pool(3, 1, 1))
    gate = net(x, GlobalMean(), conv(4, 1), Activation("silu"), conv(12, 1), Activation("sigmoid"))
    gate = net(gate, Activation("hardswish"), Activation("softplus"))
    fine = net.multiply(x, gate)
    coarse = net(fine, max_pool(3, 3))
    x = net.concat(net(coarse, Upsample(3)), net.add(fine, x, fine))
    pixel = net(x, GlobalMean(), Flatten())
    return net.returns(coarse, net(x, max_pool(3, 4), Linear(10), Activation("tanh"), Linear(7)), pixel)


_SMALL = Config(layers=2, width=48, heads=4, hidden=80, tokens=13, vocabulary=57)
SMALL = {
    "every layer of images": every_layer_of_images,
    "bert": lambda: bert.bert(Size(2), config=_SMALL),
    "gpt2": lambda: gpt2.gpt2(Size(2), config=_SMALL),
    "vit": lambda: vit.vit(Size(2, image_size=48), config=_SMALL),
    "squeezenet1_1": lambda: zoo.describe("squeezenet1_1", Size(2, image_size=45)),
    "alexnet": lambda: zoo.describe("alexnet", Size(2, image_size=98)),
    "resnet18": lambda: zoo.describe("resnet18", Size(2, image_size=65)),
}


@pytest.fixture(scope="module", params=SMALL)
def small(request):
    """A network, its parameters and inputs, and what it gives in JAX."""
    network = SMALL[request.param]()
    params, inputs = calibrated(network, draw(network)), draw_inputs(network)
    with jax.default_matmul_precision("highest"):
        return network, params, inputs, [np.asarray(x) for x in jax.tree.leaves(jax.jit(in_jax(network))(params, *inputs))]


def test_outputs_tell_inputs_apart(small):
    _, _, _, expected = small
    for output in expected:
        assert np.abs(output[0] - output[1]).max() > 1e-3 * np.abs(output).max() > 0


def test_all_of_it_is_tiled(small):
    network, params, inputs, expected = small
    compiled = jax.jit(aspen(in_jax(network), weights=0, strict=True)).lower(params, *inputs).compile()
    assert (compiled.as_text() or "").count(f'custom_call_target="{CUSTOM_CALL_TARGET}"') == 1
    assert largest_difference(jax.tree.leaves(compiled(params, *inputs)), expected) < 1e-4


def test_onnx_runtime_gives_the_same(small, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from benchmarks.zoo.network.in_onnx import write_onnx

    network, params, inputs, expected = small
    write_onnx(network, params, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    outputs = session.run(None, dict(zip(network.inputs, map(to_nchw, inputs), strict=True)))
    assert largest_difference([to_nhwc(output) for output in outputs], expected) < 1e-5


def test_torch_gives_the_same(small):
    torch = pytest.importorskip("torch", reason="PyTorch is a peer, and optional")
    from benchmarks.zoo.network.in_torch import in_torch, inputs_in_torch

    network, params, inputs, expected = small
    with torch.no_grad():
        outputs = in_torch(network, params)(*inputs_in_torch(inputs))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    assert largest_difference([to_nhwc(output.numpy()) for output in outputs], expected) < 1e-5


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "XLA"])
def test_tensorflow_gives_the_same(small, jit_compile):
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is a peer, and optional")
    from benchmarks.zoo.network.in_tensorflow import in_tensorflow

    network, params, inputs, expected = small
    function = tf.function(functools.partial(in_tensorflow(network), params), jit_compile=jit_compile)
    outputs = [output.numpy() for output in function(*map(tf.constant, inputs))]
    assert largest_difference(outputs, expected) < 1e-5


@pytest.mark.parametrize(
    ("name", "extent"),
    [
        ("alexnet", 224),
        ("resnet18", 75),
        ("resnet50", 75),
        ("densenet121", 75),
        ("squeezenet1_0", 75),
        ("squeezenet1_1", 75),
        ("inception_v3", 107),
        ("mobilenet_v2", 75),
        ("efficientnet_b0", 75),
    ],
)
def test_torchvisions_network_gives_the_same(name, extent):
    """Layers are matched by the order in which they run, and so is what stands between them by what comes out."""
    torch = pytest.importorskip("torch", reason="PyTorch is a peer, and optional")
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:  # the latter where it was built for another PyTorch
        pytest.skip(f"torchvision cannot be imported: {error}")
    from benchmarks.zoo.network.in_torch import in_torch

    network = zoo.describe(name, Size(2, image_size=extent))
    ours = in_torch(network, draw(network))
    theirs = getattr(models, name)(
        weights=None, **({"aux_logits": False, "init_weights": False} if name == "inception_v3" else {})
    ).eval()
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, extent, extent), np.float32))

    def layers(module):
        """Those with parameters, in the order in which they run."""
        kinds = (torch.nn.Conv2d, torch.nn.BatchNorm2d, torch.nn.Linear)
        met = []
        hooks = [
            item.register_forward_hook(lambda item, *_: met.append(item)) for item in module.modules() if isinstance(item, kinds)
        ]
        module(x)
        for hook in hooks:
            hook.remove()
        return met

    with torch.no_grad():
        for mine, other in zip(layers(ours), layers(theirs), strict=True):
            assert type(mine) is type(other)
            assert getattr(mine, "eps", None) == getattr(other, "eps", None)
            other.load_state_dict(mine.state_dict(), strict=False)  # all but how many batches were seen
        assert largest_difference(ours(x).numpy(), theirs(x).numpy()) < 1e-5
