"""The command `python -m benchmarks gpu`: models and launches on a GPU, timed beside others; see docs/how-to/gpu.md."""
