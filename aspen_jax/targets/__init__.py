"""Devices. A target says which kernels a device has, what they cost, and how a part of a function is called there.

Knows passes, apu, frontend and lowering; no other room knows one device from another. Begin at `target.py`.
"""
