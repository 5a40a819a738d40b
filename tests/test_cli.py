"""The command `aspen`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import math
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aspen_jax
from aspen_jax import InputError, demo, runtime
from aspen_jax.api.user_function import filled, load, parse_shape
from aspen_jax.cli import main
from aspen_jax.cost.timing import Timing, duration, interleaved, speedup
from aspen_jax.report import cores
from aspen_jax.report.difference import largest_difference
from tests.report.decoded_trace import Decoded

MODULE = """
import functools
import jax
import jax.numpy as jnp
import numpy as np
from aspen_jax import aspen

calls = 0
limit = 3

def dense(x, w):
    return jax.nn.relu(x @ w)

def powers(x, n, negate=False):
    for _ in range(n):
        x = x * x
    return -x if negate else x

def powers_args():
    return {"x": jnp.full((5, 7), 0.5), "n": 2, "negate": True}

def pair():
    return np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)

def matrix():
    return np.ones((3, 4), np.float32)

def constant():
    return jnp.arange(4.0) + 1

def ordered(x):
    return jax.lax.lgamma(x * 2)

def impure(x):
    global calls
    calls += 1
    return x * calls

def misuses(x):
    return x.nothing

def failing_args():
    raise OSError("no data here")

@aspen(strict=True)
def decorated(x):
    return jnp.tanh(x)

@aspen(strict=True)
def strictly_ordered(x):
    return jax.lax.lgamma(x)

class Model:
    def __init__(self):
        self.weights = jnp.ones((4, 3))
    @aspen
    def predict(self, x):
        return x @ self.weights

model = Model()
"""

NNX = """
from flax import nnx
from aspen_jax import aspen
import jax.numpy as jnp

linear = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
net = aspen(linear)

def apply(module, x):
    return module(x)

def apply_args():
    return linear, jnp.ones((5, 3))
"""


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A directory with the module `mine`, and nothing left behind in this process."""
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import json\nraise ValueError('half written')\n")
    (tmp_path / "needs.py").write_text("import surely_not_installed\n")
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    yield tmp_path
    for name in ("mine", "broken", "needs", "leaves", "modules"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["mine:dense", "--shape", "f32[5,7]", "--shape", "f32[7,9]"],
        ["mine.py:dense", "--args", "pair"],
        ["mine:dense", "--args", "mine:pair"],
        ["mine:powers"],
        ["mine:constant"],
        ["mine:ordered", "--args", "matrix"],
        ["mine:decorated", "--shape", "f32[3]"],
        ["mine:model.predict", "--args", "matrix"],
    ],
    ids=" ".join,
)
def test_bench_checks_and_times(workplace, capsys, arguments):
    assert main(["bench", *arguments, "--rounds", "3", "--json", "figures.json"]) == 0
    out = capsys.readouterr().out
    assert "largest difference" in out
    assert "jax.jit" in out
    assert "times as fast" in out
    figures = json.loads((workplace / "figures.json").read_text())
    assert figures["agrees"]
    assert figures["difference"] <= 1e-4
    assert figures["machine"]["jax"] == jax.__version__
    assert figures["custom_calls"] == 1 or "all of it" in figures["left_to_xla"] or figures["tiles"] == 0
    for side in ("jax.jit", "aspen"):
        samples = figures["timings"][side]["samples_s"]
        assert len(samples) == 3
        assert figures["timings"][side]["min_s"] == min(samples) > 0


def test_bench_times_nothing_where_results_differ(workplace, capsys):
    assert main(["bench", "mine:impure", "--shape", "f32[4]", "--rounds", "3", "--json", "figures.json"]) == 1
    assert "THE RESULTS DIFFER" in capsys.readouterr().out
    figures = json.loads((workplace / "figures.json").read_text())
    assert not figures["agrees"]
    assert figures["timings"] == {}


def test_explain_shows_tiles_and_what_is_left(workplace, capsys):
    assert main(["explain", "mine:ordered", "--shape", "f32[512,133]"]) == 0  # enough work for tiles beside the fallback
    out = capsys.readouterr().out
    assert "block" in out
    assert "lgamma" in out
    assert "mine.py" in out


def test_explain_shows_what_each_pass_did(workplace, capsys):
    assert main(["explain", "mine:ordered", "--shape", "f32[512,133]", "--passes"]) == 0
    out = capsys.readouterr().out
    assert "part 0, as it was traced" in out
    assert "winograd: (unchanged)" in out


def test_explain_allocates_nothing(workplace, capsys):
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4 // 2
    assert main(["explain", "mine:decorated", "--shape", f"f32[{half}]"]) == 0


def test_info_names_versions_and_machine(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for text in (aspen_jax.__version__, jax.__version__, "usable cores", "portable", "workers"):
        assert text in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine"], "'mine' names no function"),
        (["mine:"], "'mine:' names no function"),
        ([":dense"], "':dense' names no function"),
        (["mine:dens"], "did you mean dense?"),
        (["mine:limit"], "mine:limit is a int, which cannot be called"),
        (["mime:dense"], "there is no module 'mime'"),
        (["mime.deep:dense"], "there is no module 'mime'"),
        (["nowhere/mine.py:dense"], "there is no file 'nowhere/mine.py'"),
        (["broken:dense"], "half written at"),
        (["broken.py:dense"], "broken.py:2"),
        (["needs:dense"], "surely_not_installed"),
        (["leaves:dense"], "SystemExit"),
        (["mine:dense"], "nothing says which arguments dense is to be called with"),
        (["mine:dense", "--args", "nothing"], "mine has no 'nothing'"),
        (["mine:dense", "--args", "failing_args"], "no data here at"),
        (["mine:dense", "--args", "pair", "--shape", "f32[2]"], "both --args pair and --shape f32[2]"),
        (["mine:dense", "--shape", "f33[2]"], "'f33[2]' is no array"),
        (["mine:dense", "--shape", "f32[2"], "'f32[2' is no array"),
        (["mine:dense", "--shape", "f32[-2]"], "'f32[-2]' is no array"),
        (["mine:dense", "--shape", "f32[2,,3]"], "misses a dimension"),
        (["mine:dense", "--shape", "f64[2]"], "JAX_ENABLE_X64=1, or use f32"),
        (["mine:dense", "--shape", "f32[1000000,1000000]"], "4000000000000 bytes"),
        (["mine:dense", "--shape", "f32[2,3]", "--shape", "f32[4,5]"], "dense under jax.jit raised TypeError"),
        (["mine:misuses", "--shape", "f32[2]"], "raised AttributeError"),
        (["mine:strictly_ordered", "--shape", "f32[2]"], "strict=True"),
        (["mine:dense", "--args", "pair", "--rounds", "0"], "the number of rounds is 0"),
        (["mine:dense", "--args", "pair", "--rounds", "-3"], "the number of rounds is -3"),
        (["mine:dense", "--args", "pair", "--tolerance", "nan"], "the tolerance is nan"),
        (["mine:dense", "--args", "pair", "--tolerance", "-1"], "the tolerance is -1.0"),
        (["mine:dense", "--args", "pair", "--workers", "0"], "0 workers are asked for"),
        (["mine:dense", "--args", "pair", "--workers", "100000"], "100000 workers are asked for"),
        (["mine:dense", "--args", "pair", "--rounds", "1", "--json", "nowhere/x.json"], "'nowhere/x.json' cannot be written"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bench_refuses_with_a_message(workplace, capsys, arguments, message):
    assert main(["bench", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("aspen: ")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["mine:dense", "--shape", "f32[512,256]", "--shape", "f32[256,256]", "--workers", "2"],
        ["mine:dense", "--args", "pair"],
        ["mine:powers"],  # a number that is needed as it is, and a static argument
        ["mine:decorated", "--shape", "f32[3]"],
        ["mine:model.predict", "--args", "matrix"],
        ["mine:constant"],
    ],
    ids=" ".join,
)
def test_trace_writes_the_fastest_run(workplace, capsys, arguments):
    files = ["--output", "here.perfetto-trace", "--page", "here.html"]
    assert main(["trace", *arguments, "--rounds", "3", *files]) == 0
    assert "<canvas" in (workplace / "here.html").read_text()
    out = capsys.readouterr().out
    assert "the fastest of 3 runs" in out
    assert "open here.perfetto-trace at https://ui.perfetto.dev" in out
    decoded = Decoded((workplace / "here.perfetto-trace").read_bytes())
    assert decoded.process == "aspen_jax"
    assert any("tile" in item.categories for item in decoded.slices)
    workers = [f"worker {number}" for number in range(runtime.num_workers())]
    assert decoded.names() in (["caller", "ready tiles"], [*workers, "ready tiles"])


def test_trace_takes_the_arrays_of_a_module(workplace, capsys):
    pytest.importorskip("flax.nnx")
    (workplace / "modules.py").write_text(NNX)
    assert main(["trace", "modules.py:net", "--shape", "f32[5,3]", "--rounds", "1"]) == 0
    assert main(["trace", "modules.py:apply", "--rounds", "1"]) == 0
    assert (workplace / "run.perfetto-trace").stat().st_size > 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine:dense", "--args", "pair", "--rounds", "0"], "the number of rounds is 0"),
        (["mine:dense", "--args", "pair", "--output", "nowhere/x"], "'nowhere/x' cannot be written"),
        (["mine:ordered", "--shape", "f32[512,133]"], "left to XLA: lgamma"),
        (["mine:misuses", "--shape", "f32[2]"], "raised AttributeError"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_trace_refuses_with_a_message(workplace, capsys, arguments, message):
    assert main(["trace", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("aspen: ")
    assert message in err
    assert "Traceback" not in err


def test_split_lists_cuts(workplace, capsys):
    assert main(["split", "mine:dense", "--shape", "f32[5,7]", "--shape", "f32[7,9]"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()[1:-1]]
    assert rows[0][:2] == ["0", str(4 * (5 * 7 + 7 * 9))]
    assert rows[-1][1] == str(4 * 5 * 9)
    assert f"{len(rows)} cuts" in out


def test_split_runs_through_a_server(workplace, capsys):
    pytest.importorskip("grpc")
    from aspen_jax import split

    (workplace / "token").write_text(" right\n")
    (workplace / "wrong").write_text("left")
    shapes = ["--shape", "f32[5,7]", "--shape", "f32[7,9]"]
    structs = tuple(map(parse_shape, shapes[1::2]))
    dense = load("mine:dense")[1]
    with split.serve({"dense": (dense, structs)}, token="right") as server:
        call = ["split", "mine:dense", *shapes, "--server", server.address, "--rounds", "3", "--token-file"]
        assert main([*call, "token", "--cut", "1"]) == 0
        out = capsys.readouterr().out
        assert "cut 1, all bits" in out
        assert "pipelined" in out
        assert main([*call, "token", "--cut", "0", "--bits", "2"]) == 0
        assert "cut 0, 2 bits" in capsys.readouterr().out
        assert main([*call, "token", "--cut", "77"]) == 2
        assert "there is no cut 77" in capsys.readouterr().err
        assert main([*call, "mine.py", "--cut", "0"]) == 2
        assert "must be printable ASCII" in capsys.readouterr().err
        assert main([*call, "wrong", "--cut", "0"]) == 2
        assert "refused the token" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "mine:powers", "--port", "70000"], "there is no port 70000"),
        (["serve", "mine:dense", "--args", "pair", "--host", "192.0.2.1"], "is not this machine"),
        (["serve", "mine:dense", "--args", "pair", "--tls-cert", "mine.py"], "needs a certificate and its key"),
        (["serve", "mine:dense", "--args", "pair", "--tls-cert", "nothing"], "'nothing' cannot be read"),
        (["serve", "mine:dense", "--args", "pair", "--token-file", "nothing"], "'nothing' cannot be read"),
        (["serve", "mine:dense", "--args", "pair", "--token-file", "empty"], "must be printable ASCII"),
        (["serve", "mine:dense", "--args", "pair", "--cuts", "99"], "there is no cut 99"),
        (["split", "mine:powers", "--server", "127.0.0.1:70000"], "there is no port 70000"),
        (["split", "mine:dense", "--args", "pair", "--server", "here"], "'here' is no address"),
        (["split", "mine:dense", "--args", "pair", "--server", "192.0.2.1:1"], "is not this machine"),
        (["split", "mine:dense", "--args", "pair", "--server", "127.0.0.1:1", "--rounds", "0"], "the number of rounds is 0"),
        (["split", "mine:dense", "--args", "pair", "--server", "127.0.0.1:1"], "is lost or not there"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_serve_and_split_refuse_with_a_message(workplace, capsys, arguments, message):
    pytest.importorskip("grpc")
    (workplace / "empty").write_text("\n")
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("aspen: ")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [[], ["fly"], ["bench"], ["bench", "mine:dense", "--rounds", "many"], ["info", "--loud"]])
def test_unknown_commands_and_options_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2


def test_explain_blames_the_users_line(workplace, capsys):
    assert main(["explain", "mine:misuses", "--shape", "f32[2]"]) == 2
    assert "mine.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("f32[1,224,224,3]", (1, 224, 224, 3), "float32"),
        ("float32[2, 3]", (2, 3), "float32"),
        ("i8[0]", (0,), "int8"),
        ("pred[]", (), "bool"),
        ("bool[2]", (2,), "bool"),
        ("bf16[4]", (4,), "bfloat16"),
        ("u32", (), "uint32"),
    ],
)
def test_shapes_are_read_and_filled(text, shape, dtype):
    struct = parse_shape(text)
    assert (struct.shape, struct.dtype) == (shape, jnp.dtype(dtype))
    (first, second), _ = filled(((struct, struct), {}))
    (again, _), _ = filled(((struct, struct), {}))
    assert (first.shape, first.dtype) == (shape, jnp.dtype(dtype))
    np.testing.assert_array_equal(np.asarray(first), np.asarray(again))
    if first.size > 100:
        assert not np.array_equal(np.asarray(first), np.asarray(second))


def test_statistics_of_a_timing():
    samples = Timing((4.0, 1.0, 2.0, 3.0, 100.0))
    assert samples.minimum == 1
    assert samples.median == 3
    assert samples.spread == pytest.approx((4 - 2) / 3)
    assert Timing((2.0,)).spread == 0


def test_speedup_compares_what_was_measured_in_the_same_round():
    # A neighbour slowed the second round tenfold; quotients of medians or minima would mix rounds.
    assert speedup(Timing((4.0, 40.0, 4.0)), Timing((2.0, 20.0, 1.0))) == 2
    assert speedup(Timing((1.0,)), Timing((4.0,))) == 0.25


def test_interleaved_functions_take_turns():
    clock = 0.0
    calls: list[str] = []

    def taking(name: str, seconds: float):
        def function():
            nonlocal clock
            clock += seconds
            calls.append(name)

        return function

    rounds_seen = []
    timings = interleaved(
        {"slow": taking("slow", 0.5), "fast": taking("fast", 0.0005)}, 4, lambda: rounds_seen.append(len(calls)), lambda: clock
    )
    assert [len(timing.samples) for timing in timings.values()] == [4, 4]
    assert timings["slow"].samples == pytest.approx((0.5,) * 4)
    assert timings["fast"].samples == pytest.approx((0.0005,) * 4)
    assert len(rounds_seen) == 4
    # A sample of the fast one is three calls, 1.5 ms. The warm-up comes before the first round.
    rounds = [calls[end - 4 : end] for end in rounds_seen]
    assert rounds == [["slow", "fast", "fast", "fast"], ["fast", "fast", "fast", "slow"]] * 2


def test_interleaved_refuses_no_rounds():
    with pytest.raises(InputError, match="rounds is 0"):
        interleaved({"f": lambda: None}, 0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (12.34, "12.3 s"),
        (1.0, "1.00 s"),
        (0.1234, "123 ms"),
        (4.56e-3, "4.56 ms"),
        (7.891e-6, "7.89 us"),
        (3e-9, "3.00 ns"),
        (0, "0.00 ns"),
    ],
)
def test_durations_have_three_digits_and_a_unit(seconds, text):
    assert duration(seconds) == text


def test_difference_is_a_share_of_the_largest_output():
    expected = np.array([1.0, -200.0, 3.0], np.float32)
    assert largest_difference(expected, expected) == 0
    assert largest_difference(expected + np.array([0, 0, 0.5], np.float32), expected) == pytest.approx(0.5 / 200)
    # Each array on its own scale: a large neighbour hides nothing.
    small = np.array([1e-3], np.float32)
    assert largest_difference({"a": expected, "b": small * 2}, {"a": expected, "b": small}) == pytest.approx(1, rel=1e-6)
    assert largest_difference(np.float32(0.25), np.float32(0)) == 0.25


@pytest.mark.parametrize(
    ("actual", "expected", "difference"),
    [
        ([math.nan, 1.0], [math.nan, 1.0], 0),
        ([math.inf, 1.0], [math.inf, 1.0], 0),
        ([math.nan, 1.0], [1.0, 1.0], math.inf),
        ([1.0, 1.0], [math.nan, 1.0], math.inf),
        ([math.inf], [-math.inf], math.inf),
        ([math.inf], [math.nan], math.inf),
        ([], [], 0),
        ([1.0], [1.0, 1.0], math.inf),
    ],
)
def test_difference_where_not_all_is_finite(actual, expected, difference):
    assert largest_difference(np.array(actual), np.array(expected)) == difference


def test_difference_of_other_trees_and_dtypes_is_infinite():
    one = np.ones(3, np.float32)
    assert largest_difference((one,), [one]) == math.inf
    assert largest_difference(one.astype(np.float64), one) == math.inf
    assert largest_difference(np.array([True]), np.array([False])) == 1
    assert largest_difference(np.array([1 + 1j]), np.array([1j])) == 1


def test_both_sides_share_cores(workplace, monkeypatch):
    bound = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 7, 9})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: bound.append(cores))
    assert cores.share_cores(2) == runtime.num_workers() == 2
    assert bound == [[4, 7]]


def test_demo_serves_a_network_that_was_trained(capsys, monkeypatch):
    monkeypatch.setattr(demo, "MODELS", ())
    assert demo.run(rounds=1) == 0
    out = capsys.readouterr().out
    assert "\n0 predictions differ" in out
    shares = [float(word.rstrip("%")) for word in out.split() if word.endswith("%")]
    assert len(shares) == 2
    assert shares[0] == shares[1] > 95
    monkeypatch.setattr(demo, "TOLERANCE", -1)
    assert demo.run(rounds=1) == 1


def test_demo_says_how_to_install_what_is_missing(capsys, monkeypatch, workplace):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert main(["demo"]) == 2
    assert "pip install 'aspen_jax[demo]'" in capsys.readouterr().err
