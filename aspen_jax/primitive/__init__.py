"""The primitive `aspen_call` with its rules for JAX's transformations, control flow and sharding.

Knows the ground floor; what lowers the primitive is imported when it is lowered. Begin at `primitive.py`.
"""
