"""From a jaxpr to a Program: its equations one by one, cut into parts where something cannot be tiled.

Knows ir, ops and the cost of equations. Begin at `trace.py`.
"""
