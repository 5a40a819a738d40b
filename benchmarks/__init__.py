"""Benchmarks of aspen_jax; see docs/how-to/benchmarks.md."""

import sys
from pathlib import Path

# Python puts the folder it is started in first. There the checkout would shadow the installed package, which has the extension
# module; behind all others it only serves to find this package.
_root = str(Path(__file__).resolve().parents[1])
sys.path[:] = [entry for entry in sys.path if entry not in ("", _root)] + [_root]
