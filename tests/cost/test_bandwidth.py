"""What a run reads from memory, and how much longer tiles take where many read at once."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from aspen_jax import aspen
from benchmarks.bandwidth import memory_bytes, read_bandwidth, with_bandwidth


def test_weights_and_inputs_come_from_memory_once_and_results_stay_in_caches():
    first = np.ones((256, 512), np.float32)
    second = np.ones((512, 128), np.float32)

    def model(x):
        hidden = jnp.tanh(jnp.matmul(x, first, precision="highest"))  # by default AMX reads six bytes of a weight
        return jnp.matmul(hidden, second, precision="highest")

    x = np.ones((64, 256), np.float32)
    graph = aspen(model).graph(x)
    total = memory_bytes(graph).sum()
    wanted = x.nbytes + first.nbytes + second.nbytes
    # Products may read weights in another layout, with a little padding.
    assert wanted <= total <= 1.1 * wanted


def test_a_gather_reads_some_rows_of_its_table():
    table = np.ones((100_000, 64), np.float32)
    graph = aspen(lambda rows: jnp.asarray(table)[rows] * 2).graph(np.arange(10))
    assert memory_bytes(graph).sum() < 100 * 64 * 4


def test_only_tiles_that_wait_for_memory_take_longer():
    times = with_bandwidth(np.array([100, 100, 100]), np.array([0, 50, 1000]), 4, 4e9)
    np.testing.assert_array_equal(times, [100, 100, 1000])


def test_reading_memory_is_timed():
    assert 1e8 < read_bandwidth(1, rounds=1) < 1e13
