"""Measurements in a process of their own: for peak memory, and for what is chosen once a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aspen_jax.errors import AspenError

_ROOT = Path(__file__).resolve().parents[1]
_LONGEST_MESSAGE = 300


def measure_in_child(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    timeout: float | None = None,
    python: Path | None = None,
) -> Any:
    """Run a module that ends in `serve`, and give what it measured.

    Args:
        module: such as benchmarks.memory.
        arguments: words on its command line.
        environment: variables to add.
        timeout: seconds that it may take.
        python: the interpreter; this process's own by default.

    Raises:
        AspenError: what the child raised, or that it ended otherwise, or was ended.
    """
    command = [str(python or sys.executable), "-m", module, *arguments]
    variables = {**os.environ, **(environment or {})}
    try:
        child = subprocess.run(command, cwd=_ROOT, env=variables, stdout=subprocess.PIPE, check=False, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise AspenError(f"{' '.join(command)} took longer than {timeout:.0f} s and was ended") from error
    lines = child.stdout.splitlines()
    if child.returncode or not lines:
        raise AspenError(f"{' '.join(command)} ended with status {child.returncode}; its messages are above")
    answer = json.loads(lines[-1])  # others may have printed before
    if "error" in answer:
        raise AspenError(answer["error"])
    return answer["measured"]


def serve(measure: Callable[..., Any]) -> None:
    """Print what `measure` gives for the words on the command line, as the last line."""
    try:
        answer = {"measured": measure(*sys.argv[1:])}
    except AspenError as error:
        answer = {"error": str(error)}
    except Exception as error:  # libraries raise what they like
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE]}
    print("\n" + json.dumps(answer))
