"""What libraries of NVIDIA compute in the place of a kernel."""
