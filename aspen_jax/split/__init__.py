"""Split execution: a function is cut in two, and each half runs where you say, on a device or on a server.

It knows the public face of aspen_jax, `errors` and the cache's folder, and is never imported by aspen_jax itself.
Begin at `cut` in cut.py, or with the tutorial docs/tutorials/split.md.
"""

from aspen_jax.split.cut import Crossing, ScanStep, crossing, crossings, cut, num_cuts

__all__ = ["Crossing", "ScanStep", "crossing", "crossings", "cut", "num_cuts"]
