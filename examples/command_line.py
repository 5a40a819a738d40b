"""The command line: `aspen explain` and `aspen bench` on a function of this file.

In a shell:

    aspen explain examples/command_line.py:layer
    aspen bench examples/command_line.py:layer --rounds 3
"""

import jax
import jax.numpy as jnp

from aspen_jax.cli import main


def layer(filters, images):
    """A convolution with ReLU; undecorated, as the command decorates it."""
    return jax.nn.relu(jax.lax.conv(images, filters, (1, 1), "SAME"))


def layer_args():
    """What the command calls `layer` with: the function's name with _args behind it."""
    return jnp.full((32, 32, 3, 3), 0.1), jnp.ones((1, 32, 28, 28))


if __name__ == "__main__":  # the command imports this file
    function = f"{__file__}:{layer.__name__}"
    assert main(["explain", function]) == 0
    # Status 1 says that the results differ from those of the undecorated function under jax.jit.
    assert main(["bench", function, "--rounds", "3"]) == 0
