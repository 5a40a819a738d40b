"""What a measurement, or a report of a fault, was made on."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import jax

import aspen_jax
from aspen_jax import _engine, runtime
from aspen_jax.cost.measured import processor
from aspen_jax.passes import disabled_by_environment
from aspen_jax.targets.cpu.trial import by_environment


def machine() -> dict[str, Any]:
    """Versions, processor, workers and what this build has kernels for; plain data, ready for JSON."""
    return {
        "aspen_jax": aspen_jax.__version__,
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "built for jaxlib": _engine.built_for_jaxlib,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": processor().get("model name") or platform.processor(),
        "usable cores": len(os.sched_getaffinity(0)),
        "workers": runtime.num_workers(),
        "cpu targets": _engine.cpu_targets(),
        "cpu targets compiled": _engine.cpu_targets_compiled(),
        "cpu targets left out": runtime.targets_left_out(),
        "cpu target in use": _engine.cpu_target(),
        "cuda back-end": False,
        "custom call": runtime.CUSTOM_CALL_TARGET,
        "passes switched off": sorted(disabled_by_environment()),
        "times of close choices": by_environment().value,
    }
