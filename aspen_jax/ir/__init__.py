"""The ground floor: programs of ops on values, views of values, dtypes.

Knows nothing above it. Begin at `program.py`.
"""
