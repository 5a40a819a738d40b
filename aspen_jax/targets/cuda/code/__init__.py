"""From kernels to code: C++ as text, ops that are launched together, and the compiler."""
