"""Equal cores for XLA and the engine, without which a comparison compares nothing."""

from __future__ import annotations

import os

from aspen_jax import runtime
from aspen_jax.errors import InputError


def share_cores(count: int | None = None) -> int:
    """Give the engine `count` workers and XLA `count` cores, which is how many threads it then starts.

    Call it before JAX computes anything: XLA counts its cores once, and only threads started later are bound to them.

    Args:
        count: None means as many as the engine has workers, or usable cores if that is fewer.

    Returns:
        The number of cores shared.

    Raises:
        InputError: there are fewer usable cores than that, or none are asked for.
    """
    usable = sorted(os.sched_getaffinity(0))
    if count is None:
        count = min(runtime.num_workers(), len(usable))
    if not 1 <= count <= len(usable):
        raise InputError(f"{count} workers are asked for and this process may use {len(usable)} cores; take 1 to {len(usable)}")
    runtime.set_num_workers(count)
    os.sched_setaffinity(0, usable[:count])
    return count
