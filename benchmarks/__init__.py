"""How fast aspen_jax is: `python -m benchmarks --help` in a checkout (docs/benchmarks.md)."""
