"""What work costs: flops of equations, the machine and what was measured on it.

Asked by passes, apu, lowering and cuda; knows ops' work alone. Begin at `machine.py`.
"""
