"""JAX's profile with our tiles in it: they lie where JAX saw the custom call, and none goes missing silently."""

from __future__ import annotations

import concurrent.futures
import gzip
import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aspen_jax
from aspen_jax import aspen, set_num_workers
from aspen_jax.errors import AspenError, InputError
from aspen_jax.report import profile as profiles

# Between the clocks, on a machine that is busy; see `_Marks`.
TOLERANCE_US = 200

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")  # of jax's profiler


@aspen(strict=True)
def layer(x, w):
    return jax.nn.relu(x @ w) @ w


@aspen(strict=True)
def small(x):
    return jnp.tanh(x)


X, W = jnp.ones((512, 256)), jnp.ones((256, 256))


@pytest.fixture(autouse=True)
def compiled_anew():
    """Calls are cut for the workers that there are when they are compiled, and graphs for those that there are now."""
    jax.clear_caches()


class Merged:
    """The file after the block."""

    def __init__(self, folder: Path):
        (path,) = folder.glob("plugins/profile/*/perfetto_trace.json.gz")
        assert not list(path.parent.glob("*.partial"))
        self.events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        (self.process,) = [
            event["pid"] for event in self.events if event.get("ph") == "M" and event["args"] == {"name": profiles.PROCESS}
        ]
        own = [event for event in self.events if event.get("pid") == self.process]
        self.tracks = {event["tid"]: event["args"]["name"] for event in own if event["name"] == "thread_name"}
        self.slices = [event for event in own if event["ph"] == "X"]
        self.tiles = [event for event in self.slices if "tile" in event["args"]]
        for track in self.tracks:
            spans = sorted((round(e["ts"] * 1e3), round((e["ts"] + e["dur"]) * 1e3)) for e in self.slices if e["tid"] == track)
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))

    def calls(self) -> list[tuple[float, float]]:
        """When JAX saw each custom call: from its launch to the end of waiting for it."""
        launches = sorted(event["ts"] for event in self.events if event.get("args", {}).get("hlo_op", "").startswith("ffi_call"))
        executes = [
            (e["ts"], e["ts"] + e["dur"]) for e in self.events if e.get("name", "").endswith("::ExecuteHelperOnSingleDevice")
        ]
        return [(begin, min(end for start, end in executes if start <= begin <= end)) for begin in launches]

    def runs(self) -> dict[int, list[dict]]:
        numbers = {event["args"]["run"] for event in self.tiles}
        return {number: [event for event in self.tiles if event["args"]["run"] == number] for number in numbers}


@pytest.mark.parametrize("workers", [1, 2])
def test_tiles_lie_inside_of_the_calls(workers, tmp_path):
    set_num_workers(workers)
    graph = layer.graph(X, W)
    layer(X, W).block_until_ready()
    with aspen_jax.profile(tmp_path):
        for _ in range(3):
            layer(X, W).block_until_ready()
    merged = Merged(tmp_path)
    runs = merged.runs()
    calls = merged.calls()
    assert len(runs) == len(calls) == 3
    for (begin, end), number in zip(calls, sorted(runs), strict=True):
        tiles = runs[number]
        assert sorted(event["args"]["tile"] for event in tiles) == list(range(graph.num_tiles))
        assert all(event["name"] in graph.op_names for event in tiles)
        assert min(event["ts"] for event in tiles) > begin - TOLERANCE_US
        assert max(event["ts"] + event["dur"] for event in tiles) < end + TOLERANCE_US
    assert set(merged.tracks.values()) <= {"worker 0", "worker 1", "caller"}


def test_two_threads_call_at_once(tmp_path):
    graphs = {"layer": layer.graph(X, W).num_tiles, "small": small.graph(W).num_tiles}
    layer(X, W).block_until_ready()
    small(W).block_until_ready()

    def call(_):
        for _ in range(5):
            layer(X, W).block_until_ready()
            small(W).block_until_ready()

    with aspen_jax.profile(tmp_path), concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(call, range(2)))
    runs = Merged(tmp_path).runs()
    assert len(runs) == 20
    sizes = sorted(len(tiles) for tiles in runs.values())
    assert sizes == sorted([*graphs.values()] * 10)
    for tiles in runs.values():
        assert sorted(event["args"]["tile"] for event in tiles) == list(range(len(tiles)))


def test_what_finds_no_room_is_counted(tmp_path, caplog):
    num_tiles = layer.graph(X, W).num_tiles
    layer(X, W).block_until_ready()
    with aspen_jax.profile(tmp_path, max_tiles=5):
        layer(X, W).block_until_ready()
        layer(X, W).block_until_ready()
    merged = Merged(tmp_path)
    assert len(merged.tiles) == 5
    (note,) = [event for event in merged.slices if merged.tracks[event["tid"]] == profiles.LEFT_OUT]
    assert note["name"].startswith(f"{2 * num_tiles - 5} tiles are left out")
    assert note["dur"] > 0
    assert note["name"] in caplog.text


def test_a_graph_may_go_before_the_block_ends(tmp_path):
    with aspen_jax.profile(tmp_path):
        for size in range(2, 8):
            aspen(lambda x: jnp.exp(x) * 2, strict=True)(jnp.ones((size, 64))).block_until_ready()
            jax.clear_caches()
    assert len(Merged(tmp_path).runs()) == 6


def test_a_block_without_tiles(tmp_path):
    with aspen_jax.profile(tmp_path):
        jnp.ones(3).block_until_ready()
    assert Merged(tmp_path).tiles == []


def test_a_block_that_fails_leaves_its_profile(tmp_path):
    def fail():
        layer(X, W).block_until_ready()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), aspen_jax.profile(tmp_path):
        fail()
    assert Merged(tmp_path).tiles
    with aspen_jax.profile(tmp_path / "next"):
        pass


def test_a_profile_inside_of_another_is_refused(tmp_path):
    with jax.profiler.trace(tmp_path / "outer"), pytest.raises(AspenError, match="one at a time"), aspen_jax.profile(tmp_path):
        pass
    inner = aspen_jax.profile(tmp_path / "inner")
    with aspen_jax.profile(tmp_path / "other"), pytest.raises(AspenError, match="end that one first"), inner:
        pass


@pytest.mark.parametrize("count", [0, -1, True, 2.5, "many"])
def test_no_room_is_refused(count, tmp_path):
    with pytest.raises(InputError, match="positive number of tiles"), aspen_jax.profile(tmp_path, max_tiles=count):
        pass


def test_clocks_that_go_at_different_paces_are_compared():
    clock = profiles._Clock((10**18, 1000.0), (10**18 + 10**9, 1000.0 + 1.0001e9))
    ours = 10**18 + np.array([0, 5 * 10**8, 10**9])
    np.testing.assert_allclose(clock.theirs(ours), [1000, 1000 + 500_050_000, 1000 + 1_000_100_000], atol=1)
    still = profiles._Clock((10.0, 500.0), (10.0, 500.0))
    np.testing.assert_array_equal(still.theirs(np.array([10, 30])), [500, 520])
