"""A profile: what is measured once, and what follows from it under other loads and links."""

from __future__ import annotations

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import aspen
from aspen_jax.api.decorator import flat_call
from aspen_jax.errors import InputError
from aspen_jax.split import codec_choice, cut, num_cuts
from aspen_jax.split.codec import pack
from aspen_jax.split.equations import flatten
from aspen_jax.split.measure import _labelled, measure, measure_times, op_equations
from aspen_jax.split.profile import Link, Network, Profile, Times, share_out
from aspen_jax.split.quantise import RAW
from aspen_jax.split.schedule import Target, choose
from tests.content import generator

RNG = generator(__name__)


def network(x):
    """Two branches that meet, a skip connection, a convolution."""
    w = jnp.asarray(np.random.default_rng(3).normal(size=(3, 3, 4, 4)), jnp.float32)
    y = jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    z = jnp.tanh(y @ jnp.ones((4, 4), jnp.float32)) + jax.nn.relu(y - 1)
    return (z + y).mean((1, 2)), y.sum()


X = RNG.normal(size=(2, 12, 12, 4)).astype(np.float32)


def random_profile(cuts: int = 6, bits: int = 3) -> Profile:
    times = [Times(np.concatenate([[0.0], np.cumsum(RNG.random(cuts - 1) + 0.01)])) for _ in range(2)]
    sizes = RNG.integers(100, 10**6, (cuts, bits)).astype(float)
    return Profile(*times, np.array([4, 8, RAW][:bits]), sizes, RNG.random((cuts, bits)) / 50, int(RNG.integers(10, 1000)))


# --- Times ---


def test_seconds_of_ops_are_shared_by_their_equations():
    weights = np.array([1.0, 3.0, 0.0, 0.0])
    found = share_out([8.0, 2.0, 5.0, 4.0], [[0, 1], [2, 3], [1, 1], []], weights)
    np.testing.assert_allclose(found, [2 + 1, 6 + 5 + 3, 1, 1])


@pytest.mark.parametrize("fun", [network, aspen(network), aspen(network, strict=True)], ids=["plain", "aspen", "strict"])
def test_times_before_all_cuts_come_from_one_timeline(fun):
    times = measure_times(fun, X, rounds=2)
    assert times.before.shape == (num_cuts(fun, X),)
    assert times.before[0] == 0 < times.before[-1]
    assert (np.diff(times.before) >= 0).all()
    np.testing.assert_allclose(times.before + times.behind, times.before[-1])


def test_each_op_knows_its_equations():
    call = flat_call(network, (X,), {})
    flat = flatten(call)
    labelled, inputs = _labelled(flat, list(call.leaves), call)
    graph = labelled.graph(*inputs)
    known = op_equations(graph)
    assert all(known)
    assert {number for numbers in known for number in numbers} <= set(range(len(flat.equations)))
    convolution = next(
        number for number, equation in enumerate(flat.equations) if equation.primitive.name == "conv_general_dilated"
    )
    assert any(convolution in numbers for numbers in known)
    for mine, theirs in zip(graph.run(*inputs), jax.tree.leaves(network(X)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def test_a_function_that_xla_runs_in_part_has_times_too():
    def fun(x):
        return jnp.linalg.cholesky(x @ x.T + jnp.eye(9)).sum()

    times = measure_times(fun, RNG.normal(size=(9, 9)).astype(np.float32), rounds=1)
    assert (np.diff(times.before) >= 0).all()
    assert times.before[-1] > 0


def test_a_function_without_equations_has_one_cut():
    assert measure_times(lambda x: x, X, rounds=1).before.tolist() == [0.0]


def test_weights_are_no_part_of_messages():
    @aspen(weights="w")
    def fun(w, x):
        return jax.nn.relu(x @ w) @ w

    w = RNG.normal(size=(64, 64)).astype(np.float32)
    profile = measure(fun, w, X[0, 0, 0].repeat(16), bits=(4, RAW), rounds=1)
    assert profile.nbytes.max() < w.nbytes / 8


def test_messages_are_as_long_as_those_that_are_sent():
    profile = measure(network, X, bits=(3, 8, RAW), codec="zstd", rounds=1)
    for k in range(num_cuts(network, X)):
        head, _ = cut(network, k, X)
        sent = [np.asarray(value) for value in head(X)]
        # Values of the head may differ in their last bits from those that the profile saw.
        assert profile.nbytes[k].tolist() == pytest.approx([len(pack(sent, bits, "zstd")) for bits in (3, 8, RAW)], rel=0.05)
    assert (profile.pack_seconds >= 0).all()
    assert profile.result_bytes == len(pack(jax.tree.leaves(network(X)), None, "none"))


def test_slow_links_get_fewer_bytes(monkeypatch):
    costs = {"none": codec_choice.Cost(1e-6, 1000), "zstd": codec_choice.Cost(1e-3, 100)}
    monkeypatch.setattr(codec_choice, "measured", codec_choice.Measured())
    monkeypatch.setattr(codec_choice, "measured_costs", lambda payload: costs)
    smooth = np.broadcast_to(np.linspace(0, 1, 12, dtype=np.float32), (2, 12, 12, 12)).swapaxes(1, 3)[..., :4].copy()
    slow, fast = (measure(network, smooth, bits=(8,), bandwidth=bandwidth, rounds=1) for bandwidth in (1e4, 1e12))
    assert slow.nbytes.sum() < fast.nbytes.sum()


def test_shapes_cannot_be_timed():
    with pytest.raises(InputError, match="Pass an array"):
        measure_times(network, jax.ShapeDtypeStruct(X.shape, X.dtype))
    with pytest.raises(InputError, match="rounds"):
        measure_times(network, X, rounds=0)


# --- Predictions ---


def test_predictions_are_sums_of_stages():
    profile = dataclasses.replace(random_profile(), device_load=1.5, server_load=2.0, call_seconds=0.002)
    profile = dataclasses.replace(profile, server=Times(profile.server.before, 4))
    link = Link(0.01, 5e6)
    found = profile.metrics(link).values
    for k in range(6):
        for b in range(3):
            device, server = 1.5 * profile.device.before[k], 2 * (profile.server.before[-1] - profile.server.before[k])
            pack_s, unpack_s = (load * (profile.pack_seconds[k, b] + 0.002) for load in (1.5, 2))
            send, answer = 0.01 + profile.nbytes[k, b] / 5e6, 0.01 + profile.result_bytes / 5e6
            stages = [device, pack_s, send, unpack_s, server, answer] if k < 5 else [device, 0, 0, 0, 0, 0]
            assert found["latency"][k, b] == pytest.approx(sum(stages))
            # The device's one core computes and packs. Of the server's four one unpacks.
            slowest = max(device + stages[1], send, stages[3], server + stages[3] / 4, answer)
            assert found["throughput"][k, b] == pytest.approx(1 / slowest)
            assert found["device_cost"][k, b] == pytest.approx(device + stages[1])
            assert found["server_cost"][k, b] == pytest.approx(server + stages[3] if k < 5 else 0)


def test_a_run_of_one_cut_tells_the_load_at_all_others():
    profile = random_profile()
    seen = profile.observed(3, 2 * profile.device.before[3], 5 * profile.server.behind[3])
    assert (seen.device_load, seen.server_load) == (pytest.approx(2), pytest.approx(5))
    link = Link(0, math.inf)
    np.testing.assert_allclose(seen.metrics(link).values["device_cost"][:5], 2 * profile.metrics(link).values["device_cost"][:5])
    np.testing.assert_allclose(seen.metrics(link).values["server_cost"], 5 * profile.metrics(link).values["server_cost"])
    # A side that did nothing tells nothing.
    assert seen.observed(0, 99.0, 5 * profile.server.behind[0]).device_load == seen.device_load
    assert seen.observed(5, 2 * profile.device.before[5], 99.0).server_load == seen.server_load


def test_a_dead_link_leaves_the_device():
    profile = random_profile()
    metrics = profile.metrics(Link(0.1, 0.0))
    assert np.isinf(metrics.values["latency"][:5]).all()
    assert (metrics.values["throughput"][:5] == 0).all()
    assert choose(metrics, [], [Target("latency", "min")]).cut == 5


def test_cuts_of_unknown_accuracy_are_left_out():
    accuracy = np.full((6, 3), np.nan)
    accuracy[[2, 5]] = [[0.5, 0.6, 0.7], [0.9, 0.9, 0.9]]
    accuracy[3, 1] = 0.8
    metrics = dataclasses.replace(random_profile(), accuracy=accuracy).metrics(Link(0, 1e6))
    assert metrics.cuts.tolist() == [2, 5]
    assert metrics.values["accuracy"].tolist() == [[0.5, 0.6, 0.7], [0.9, 0.9, 0.9]]
    with pytest.raises(InputError, match="accuracy_map"):
        dataclasses.replace(random_profile(), accuracy=np.full((6, 3), np.nan)).metrics(Link(0, 1e6))


# --- The network ---


def test_recent_messages_count_before_the_history():
    network = Network()
    assert network.link("wifi", 0.0) is None
    for at in range(50):
        network = network.observed("wifi", 100, 0.002, float(at)).observed("wifi", 10**6, 0.002 + 0.1, float(at))
    link = network.link("wifi", 60.0)
    assert link is not None
    assert (link.latency, link.bandwidth) == (pytest.approx(0.002), pytest.approx(1e7))
    for at in range(60, 80):  # ten times as slow
        network = network.observed("wifi", 10**6, 0.002 + 1.0, float(at))
    recent, later = network.link("wifi", 90.0), network.link("wifi", 79.0 + 301)
    assert recent is not None
    assert later is not None
    assert recent.bandwidth == pytest.approx(1e6, rel=0.05)
    assert 2e6 < later.bandwidth < 1e7  # the history of all 70
    assert network.link("4g", 90.0) is None
    after = network.observed("wifi", 10**6, 0.002 + 0.5, 1000.0).link("wifi", 1001.0)
    assert after is not None
    assert after.bandwidth == pytest.approx(2e6)  # what was recent then is forgotten


@pytest.mark.parametrize("arguments", [(-1, 1, 0), (1, -1, 0), (1, math.nan, 0), (1, math.inf, 0), (1, 1, math.nan)])
def test_messages_that_are_none_are_refused(arguments):
    with pytest.raises(InputError, match="is none"):
        Network().observed("wifi", *arguments)


@pytest.mark.parametrize("arguments", [(-1, 1), (math.nan, 1), (1, -1), (1, math.nan), (math.inf, 1)])
def test_links_that_are_none_are_refused(arguments):
    with pytest.raises(InputError, match="is none"):
        Link(*arguments)


# --- As text, from a peer that may say anything ---


def test_text_gives_the_same_profile():
    profile = dataclasses.replace(random_profile(), call_seconds=0.003, server_load=1.5)
    profile = dataclasses.replace(profile, server=Times(profile.server.before, 3))
    assert Times.from_json(profile.server.to_json()).before.tolist() == profile.server.before.tolist()
    assert Times.from_json(profile.server.to_json()).cores == 3
    accuracy = np.where(RNG.random((6, 3)) < 0.3, np.nan, 0.5)
    accuracy[-1] = 1
    for given in (profile, dataclasses.replace(profile, accuracy=accuracy, device_load=2.5)):
        back = Profile.from_json(given.to_json())
        for mine, theirs in zip(
            back.metrics(Link(0, 1e6)).values.values(), given.metrics(Link(0, 1e6)).values.values(), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)
        assert (back.bits.tolist(), back.result_bytes) == (given.bits.tolist(), given.result_bytes)
        assert (back.server.cores, back.call_seconds, back.server_load) == (3, 0.003, 1.5)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "null", "[" * 100_000),
        *(f'{{"before": {before}}}' for before in ("1", "[]", "[0, -1]", "[1, 2]", "[0, NaN]", "[0, Infinity]", "[0, 1e999]")),
        *(f'{{"before": [0, 1], "cores": {cores}}}' for cores in ("0", "-1", "1.5", "1e999", "NaN", "[1]", '"a"', "null")),
        *(f'{{"before": {before}}}' for before in ("[[0], [1, 2]]", '["a"]', '{"a": 1}', '"1"', "[true, null]")),
    ],
    ids=lambda text: text[:30],
)
def test_text_of_other_times_is_refused(text):
    with pytest.raises(InputError):
        Times.from_json(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [("device", [0, 1]), ("server", None), ("bits", [4, 8]), ("bits", [4, 8, 99]), ("bits", [4, None, 8]), ("nbytes", 3),
     ("nbytes", [[-1] * 3] * 6), ("pack_seconds", [[1e999] * 3] * 6), ("result_bytes", -1), ("result_bytes", [1]),
     ("result_bytes", None), ("device_load", None), ("device_load", -1), ("accuracy", [[2.0] * 3] * 6), ("accuracy", "high"),
     ("call_seconds", -1)],
)  # fmt: skip
def test_text_of_other_profiles_is_refused(name, value):
    fields = json.loads(random_profile().to_json())
    fields[name] = value
    with pytest.raises(InputError):
        Profile.from_json(json.dumps(fields))
