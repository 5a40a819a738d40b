"""Code of kernels: C++ as text, ops that are launched together, and the compiler."""
