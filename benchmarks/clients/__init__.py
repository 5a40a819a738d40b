"""Programs as users of JAX write them, against the libraries that they use: what decorating them must not make slower."""
