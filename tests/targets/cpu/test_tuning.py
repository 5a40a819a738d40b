"""What is measured changes tiles and algorithms, never results; and it is believed only where it was measured."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import apu, aspen, cli, num_workers
from aspen_jax.cache.disk_cache import CACHE_VARIABLE
from aspen_jax.cost import measured
from aspen_jax.cost.measured import Measured, Measurements
from aspen_jax.cost.tiling import by_price, cut_points
from aspen_jax.errors import UnsupportedError
from aspen_jax.ops.winograd import TILES
from aspen_jax.passes import run_passes, winograd
from aspen_jax.targets.cpu.target import CpuTarget
from tests.content import generator
from tests.tracing import traced

RNG = generator(__name__)

WORKERS = 2


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    measured.forget()
    yield tmp_path / "cache"
    measured.forget()


def network(x, w1, w2):
    y = jax.lax.conv_general_dilated(x, w1, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(y).mean((1, 2)) @ w2


def arguments():
    return [RNG.standard_normal(shape, np.float32) for shape in ((1, 24, 24, 16), (3, 3, 16, 32), (32, 10))]


def of_file(directory):
    (path,) = directory.iterdir()
    return path, json.loads(path.read_text())


def test_tuning_keeps_results_and_serves_other_functions_and_processes(directory):
    operands = arguments()
    function = aspen(network)
    before = function(*operands)
    found = function.tune(*operands)
    assert found.candidates > found.ops >= 1
    assert found.tuned_s <= found.modelled_s
    path, content = of_file(directory)
    assert found.path == path
    assert path.name in str(found)
    np.testing.assert_allclose(function(*operands), before, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(aspen(network)(*operands), jax.jit(network)(*operands), rtol=1e-3, atol=1e-3)
    measured.forget()
    assert len(measured.measurements(num_workers()).entries) == len(content["measured"])


def test_measured_parts_cut_the_op():
    program = run_passes(traced(network, *arguments())[0])
    op = max(program.ops, key=lambda op: apu.Machine().of_ops([op]))
    for parts in by_price(op, WORKERS, apu.Machine())[:5]:
        machine = apu.Machine(measured=Measurements({measured.key(op): Measured(parts, 1.0)}))
        assert tuple(len(cuts) - 1 for cuts in cut_points(op, WORKERS, machine)) == parts


def test_parts_that_do_not_fit_are_not_used():
    (op,) = run_passes(traced(lambda x, w: x @ w, *map(np.ones, ((64, 64), (64, 64)), ("float32",) * 2))[0]).ops
    as_modelled = [cuts.tolist() for cuts in cut_points(op, WORKERS, apu.Machine())]
    for parts in ((1,), (65, 1), (1, 1, 1)):
        machine = apu.Machine(measured=Measurements({measured.key(op): Measured(parts, 1.0)}))
        assert [cuts.tolist() for cuts in cut_points(op, WORKERS, machine)] == as_modelled


def test_measured_times_choose_between_algorithms(monkeypatch):
    def convolution(x, w):
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    rng = np.random.default_rng(3)
    operands = rng.standard_normal((1, 56, 56, 64), np.float32), rng.standard_normal((3, 3, 64, 64), np.float32)
    program, _ = traced(convolution, *operands)
    ways = [run_passes(program, {"winograd"}).ops]
    for tile in TILES[3, 3]:
        with monkeypatch.context() as patch:
            patch.setattr(winograd, "TILES", {(3, 3): (tile,)})
            ways.append(run_passes(program).ops)
        assert {op.family.name for op in ways[-1]} == {"winograd_weights", "winograd"}
    for fast in ways:
        times = {measured.key(op): Measured((1, 1, 1, 1), 2.0 if ops is fast else 9.0) for ops in ways for op in ops}
        found = run_passes(program, (), apu.Machine(measured=Measurements(times))).ops
        assert [(op.family, op.attrs) for op in found] == [(op.family, op.attrs) for op in fast]


def test_equal_work_has_one_key_and_other_work_another():
    def keys(size, function=lambda x, y: x @ y):
        program, _ = traced(function, *np.ones((2, size, size), np.float32))
        return [measured.key(op) for op in run_passes(program).ops]

    assert keys(64) == keys(64)
    different = [keys(64), keys(80), keys(64, lambda x, y: x.T @ y), keys(64, lambda x, y: jnp.tanh(x @ y))]
    assert len({tuple(item) for item in different}) == len(different)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: b"",
        lambda content: b"{" * 100_000,
        lambda content: b"[1, 2]",
        lambda content: json.dumps(content).encode()[:-20],
        lambda content: json.dumps({**content, "machine": {**content["machine"], "processor": "another"}}).encode(),
        lambda content: json.dumps({**content, "machine": {**content["machine"], "kernels": "others"}}).encode(),
        lambda content: json.dumps({**content, "measured": {"a": [[0], 1.0]}}).encode(),
        lambda content: json.dumps({**content, "measured": {"a": [[1], -1.0]}}).encode(),
        lambda content: json.dumps({**content, "measured": {"a": None}}).encode(),
        lambda content: b"\xff\xfe",
    ],
)
def test_a_file_that_cannot_be_believed_is_ignored_with_a_warning(directory, spoil):
    measured.remember(WORKERS, {"a": Measured((1,), 1.0)})
    path, content = of_file(directory)
    measured.forget()
    assert measured.measurements(WORKERS).entries == {"a": Measured((1,), 1.0)}
    path.write_bytes(spoil(content))
    measured.forget()
    with pytest.warns(RuntimeWarning, match="ignored"):
        assert not measured.measurements(WORKERS).entries
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not measured.measurements(WORKERS).entries  # told once


def test_measurements_of_another_number_of_workers_are_others(directory):
    measured.remember(WORKERS, {"a": Measured((1,), 1.0)})
    assert not measured.measurements(WORKERS + 1).entries
    assert CpuTarget.here(WORKERS).machine.measured.entries
    assert not CpuTarget.here(WORKERS + 1).machine.measured.entries


def test_what_cannot_be_written_serves_this_process(directory):
    directory.write_text("a file where the directory should be")
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        assert measured.remember(WORKERS, {"a": Measured((1,), 1.0)}) is None
    assert measured.measurements(WORKERS).entries


def test_entries_of_two_processes_are_joined(directory):
    measured.remember(WORKERS, {"a": Measured((1,), 1.0)})
    code = (
        "from aspen_jax.cost import measured; from aspen_jax.cost.measured import Measured\n"
        f"measured.remember({WORKERS}, {{'b': Measured((2,), 2.0)}})"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=120, cwd=directory)
    measured.remember(WORKERS, {"c": Measured((3,), 3.0)})
    measured.forget()
    assert set(measured.measurements(WORKERS).entries) == {"a", "b", "c"}


def test_tunings_of_two_threads_and_two_processes_at_once_are_joined(directory):
    code = (
        "import sys; from aspen_jax.cost import measured; from aspen_jax.cost.measured import Measured\n"
        f"for k in range(20): measured.remember({WORKERS}, {{f'{{sys.argv[1]}} {{k}}': Measured((2,), 2.0)}})"
    )
    others = [subprocess.Popen([sys.executable, "-P", "-c", code, name], cwd=directory.parent) for name in ("first", "second")]

    def remember(name):
        for k in range(20):
            measured.remember(WORKERS, {f"{name} {k}": Measured((3,), 3.0)})

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(remember, ("third", "fourth")))
    assert [other.wait(120) for other in others] == [0, 0]
    measured.forget()
    names = ("first", "second", "third", "fourth")
    assert set(measured.measurements(WORKERS).entries) == {f"{name} {k}" for name in names for k in range(20)}


def test_a_function_without_tiles_cannot_be_tuned():
    with pytest.raises(UnsupportedError, match="no tiles to tune"):
        aspen(jnp.linalg.qr).tune(np.eye(3, dtype=np.float32))


def test_the_command_tunes_a_function_of_a_file(tmp_path, capsys):
    file = tmp_path / "model.py"
    file.write_text("import jax\ndef product(x, w):\n    return jax.nn.relu(x @ w)\n")
    assert cli.main(["tune", f"{file}:product", "--shape", "f32[64,128]", "--shape", "f32[128,256]"]) == 0
    assert "ops timed" in capsys.readouterr().out
