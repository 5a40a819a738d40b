"""What work costs: flops of equations, the machine and what was measured on it.

Asked by passes, apu, lowering and targets; knows ops' work alone. Begin at `machine.py`.
"""
