"""Networks described once, as plain data, and built from it in JAX, PyTorch and ONNX with the same weights."""
