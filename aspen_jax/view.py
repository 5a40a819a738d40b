"""Views: how an op reads a value, as a dense reshape followed by an affine map per dimension (docs/graph_format.md)."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np


class ViewDim(NamedTuple):
    """One dimension of a view: the R-dimension it walks (-1: none, a broadcast), its step and its extent."""

    source: int
    step: int
    extent: int


@dataclasses.dataclass(frozen=True)
class View:
    """A dense reshape to `base`, then `index[source] = start + step * i` for each view dimension."""

    base: tuple[int, ...]
    starts: tuple[int, ...]
    dims: tuple[ViewDim, ...]
