"""Set before JAX is imported: two CPU devices, so that sharding is real, and Keras on JAX."""

import os

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
os.environ["KERAS_BACKEND"] = "jax"
