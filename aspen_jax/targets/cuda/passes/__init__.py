"""Passes for GPUs alone, and the order in which programs for GPUs take all passes (`stages.py`)."""
