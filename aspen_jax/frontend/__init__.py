"""The frontend turns a jaxpr into Programs: one equation at a time, cut into parts where something cannot be tiled.

Knows ir, ops and the cost of equations. Begin at `trace.py`.
"""
