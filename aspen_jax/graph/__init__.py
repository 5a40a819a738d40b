"""Graphs of tiles: arrays, their bytes and files.

Knows ir. Begin at `tilegraph.py`.
"""
