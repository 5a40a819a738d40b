"""How speed depends on a network's depth, size and width (ASPEN, section 4.4, figures b to d)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aspen_jax import aspen
from aspen_jax.errors import InputError
from aspen_jax.report.comparison import PLAIN, TILED, compare
from benchmarks.benchmark import Disagreement, Run, Table, benchmark
from benchmarks.options import File
from benchmarks.picture import save_curves

# The network in the middle of each sweep: 3x3 convolutions with bias and ReLU, one after the other.
_LAYERS, _SIZE, _CHANNELS = 8, 56, 64
SWEEPS = {
    "layers": (1, 2, 4, 8, 16, 32),
    "size": (7, 14, 28, 56, 112, 224),
    "channels": (8, 16, 32, 64, 128, 256),
}


@benchmark
def layers(
    sweeps: tuple[str, ...] = tuple(SWEEPS), rounds: int = 10, workers: int | None = None, json: File = None, picture: File = None
) -> Run:
    """Chains of 3x3 convolutions over their number, image size and channels: aspen against jax.jit, and GFLOP/s.

    Args:
        sweeps: what to vary: layers, size, channels.
        rounds: how often each side is timed.
        workers: cores for both sides; all usable ones by default.
        json: where to write the figures as well.
        picture: where to draw the speed-ups, a PNG, PDF or SVG file.
    """
    for sweep in sweeps:
        if sweep not in SWEEPS:
            raise InputError(f"no sweep is called {sweep!r}; take {', '.join(SWEEPS)}")
    curves = {}
    for sweep in sweeps:
        table = Table("", {sweep: "d", PLAIN: "s", TILED: "s", "times as fast": ".2f", "GFLOP/s": ".0f"})
        curves[sweep] = []
        for number in SWEEPS[sweep]:
            shape = {"layers": _LAYERS, "size": _SIZE, "channels": _CHANNELS, sweep: number}
            params, x = _arguments(**shape)
            result = compare(aspen(chain), (params, x), name=f"{sweep} {number}", rounds=rounds, jitted=True)
            if not result.agrees:
                raise Disagreement(str(result))
            plain, tiled = (result.timings[side].minimum for side in (PLAIN, TILED))
            table.add(number, plain, tiled, result.speedup, result.flops / tiled / 1e9, **result.to_json())
            curves[sweep].append((number, result.speedup))
        yield table
    if picture is not None:
        title = f"{_LAYERS} layers of {_CHANNELS} channels on {_SIZE}x{_SIZE}, one of them varied"
        save_curves(picture, title, "layers, size or channels", "times as fast as jax.jit", curves, log_x=True)


def chain(params: Any, x: jax.Array) -> jax.Array:
    """The network: params is a list of (weights [3, 3, channels, channels], bias [channels])."""
    for weights, bias in params:
        x = jax.lax.conv_general_dilated(x, weights, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + bias)
    return x


def _arguments(layers: int, size: int, channels: int) -> tuple[Any, jax.Array]:
    rng = np.random.default_rng(0)
    scale = np.sqrt(2 / (9 * channels))
    params = [
        (jnp.asarray(rng.standard_normal((3, 3, channels, channels), np.float32) * scale), jnp.zeros(channels, np.float32))
        for _ in range(layers)
    ]
    return params, jnp.asarray(rng.standard_normal((1, size, size, channels), np.float32))
