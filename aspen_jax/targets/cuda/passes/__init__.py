"""Passes for GPUs alone."""
