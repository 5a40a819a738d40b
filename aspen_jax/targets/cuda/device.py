"""The GPU of this process, and what code is compiled for."""

from __future__ import annotations

import os

import jax

ARCHITECTURE_VARIABLE = "ASPEN_CUDA_ARCH"

# Of an H100 or H200.
MULTIPROCESSORS = 132


def card() -> str | None:
    """The kind of this process's GPU; None where it has none."""
    try:
        return jax.local_devices(backend="cuda")[0].device_kind
    except RuntimeError:
        return None


def has_clusters(architecture: str) -> bool:
    """Whether thread blocks of a cluster read each other's shared memory there."""
    return int(architecture.partition("_")[2].rstrip("af")) >= 90


def architecture() -> str:
    """What code is compiled for: the GPU of this process, or any since compute capability 8.0 where there is none."""
    wanted = os.environ.get(ARCHITECTURE_VARIABLE)
    if wanted:
        return wanted
    try:
        capability: str = jax.local_devices(backend="cuda")[0].compute_capability
    except RuntimeError:
        return "compute_80"
    major, _, minor = capability.partition(".")
    # From 9.0 on some instructions are those of one generation only.
    return f"sm_{major}{minor}" + ("a" if int(major) >= 9 else "")
