"""What a user holds: the decorator, arguments, weights, modules of flax nnx.

Knows the primitive and the lowering. Begin at `decorator.py`.
"""
