"""A device from outside the tree: `tests/extend/fake_target.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import AspenError, aspen
from aspen_jax.errors import InputError
from aspen_jax.targets import registry
from tests.extend import fake_target

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def device():
    registry.register(fake_target.FakeTarget)
    fake_target.called.clear()
    yield
    registry.unregister("fake")


def network(x, w):
    return jnp.tanh(x @ w).sum(0)


X, W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), np.linspace(0, 1, 20, dtype=np.float32).reshape(4, 5)


def test_it_runs_what_is_decorated_for_it():
    function = jax.jit(aspen(network, device="fake"))
    np.testing.assert_allclose(function(X, W), network(X, W), rtol=1e-5)
    assert fake_target.called
    assert all(op.name.endswith("on a fake") for op in fake_target.called[0].program.ops)
    gradient = jax.grad(lambda w: aspen(network, device="fake")(X, w).sum())(W)
    np.testing.assert_allclose(gradient, jax.grad(lambda w: network(X, w).sum())(W), rtol=1e-4)


def test_explain_says_what_it_says():
    text = str(aspen(network, device="fake").explain(X, W))
    assert "buy a device" in text
    assert "jax.lax runs it" in text
    left = aspen(lambda x: jnp.sort(x @ W), device="fake").explain(X)
    assert any("it sorts nothing here" in item.reason for item in left.fallbacks)


def test_other_functions_do_not_know_it():
    aspen(network)(X, W)
    assert not fake_target.called


def test_a_name_is_there_once():
    with pytest.raises(InputError, match="give yours another name"):
        registry.register(fake_target.FakeTarget)
    with pytest.raises(AspenError, match="'fake'"):
        aspen(network, device="none")


FORMS = "jitted or derivatives or gradients or vmap or control_flow or transposition or checkpoints"


def test_transformations_of_functions_for_it(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path[1:], str(ROOT)])}
    options = ["-q", "--numprocesses=0", "-p", "no:cacheprovider", "-p", "tests.extend.fake_target", "-k", FORMS]
    command = [sys.executable, "-P", "-m", "pytest", *options, str(ROOT / "tests/primitive/test_transformations.py")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=600)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
