"""A neighbour: a process that takes a share of one core."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def neighbour_on(core: int) -> Iterator[None]:
    """A process that computes on this core without end."""
    code = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it is on its core
            yield
        finally:
            process.kill()
