"""Where the channels of images stand: last in JAX, before the pixels in PyTorch and ONNX."""

from __future__ import annotations

import numpy as np


def to_nchw(x: np.ndarray) -> np.ndarray:
    """Images with the channels before the pixels, and anything else as it is."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if x.ndim == 4 else x


def to_nhwc(x: np.ndarray) -> np.ndarray:
    """The inverse."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if x.ndim == 4 else x
