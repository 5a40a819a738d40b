"""Lowering turns a jaxpr into custom calls: the one room that knows all stages.

Knows frontend, passes, cost, apu and graph, and of targets `Target` and the registry, no device. Begin at `compile.py`.
"""
