"""A graph of tiles: counted, verified, saved to a file, loaded from it, and run by the engine itself."""

import tempfile
from pathlib import Path

import jax
import numpy as np

from aspen_jax import TileGraph, aspen


@aspen
def network(params, x):
    """Two layers and class probabilities."""
    return jax.nn.softmax(jax.nn.relu(x @ params["expand"]) @ params["contract"])


keys = jax.random.split(jax.random.key(0), 3)
params = {
    "expand": jax.random.normal(keys[0], (256, 512)) / 16,
    "contract": jax.random.normal(keys[1], (512, 10)) / 23,
}
x = jax.random.normal(keys[2], (64, 256))

graph = network.graph(params, x)
graph.verify()  # every box and edge; an error says what is wrong
stats = graph.stats()
print(f"{stats['ops']} ops, {stats['tiles']} tiles, {stats['edges']} edges, {stats['flops'] / 1e6:.0f} MFLOP")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "network.aspen"
    graph.save(path)
    loaded = TileGraph.load(path)  # verified again
    print(f"{path.name}: {path.stat().st_size} bytes")
assert loaded == graph

(result,) = loaded.run(params, x)  # the function's arguments, and its results in a list
np.testing.assert_allclose(result, network.__wrapped__(params, x), rtol=1e-4, atol=1e-6)

timeline = loaded.timeline(params, x)  # of each tile: worker, begin and end in nanoseconds
print(f"{len(timeline)} tiles ran in {(timeline[:, 2].max() - timeline[:, 1].min()) / 1e3:.0f} microseconds")
