"""Bolt's microbenchmarks (section 4.1): what it gains to keep a value between two ops, or an epilogue, out of memory."""
