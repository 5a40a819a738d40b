"""From a jaxpr to custom calls: the one room that knows all stages, and the choice between tiles and XLA.

Knows frontend, passes, cost, apu and graph. Begin at `compile.py`.
"""
