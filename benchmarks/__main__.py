"""The command `python -m benchmarks`: a subcommand for each module, made from its function by tyro."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import tyro

from aspen_jax.errors import AspenError
from benchmarks import (
    accuracy,
    build,
    gpu_check,
    kernels,
    layers,
    memory,
    overhead,
    paper,
    scaling,
    scheduler,
    sharing,
    tiles,
    unequal,
    weights,
    whole_models,
)
from benchmarks.chooser.command import chooser
from benchmarks.clients.command import clients
from benchmarks.gpu.command import gpu
from benchmarks.peers import command

COMMANDS = {
    "models": whole_models.models,
    "accuracy": accuracy.accuracy,
    "peers": command.peers,
    "kernels": kernels.kernels,
    "scheduler": scheduler.scheduler,
    "sharing": sharing.sharing,
    "overhead": overhead.overhead,
    "chooser": chooser,
    "clients": clients,
    "build": build.build,
    "memory": memory.memory,
    "weights": weights.weights,
    "scaling": scaling.scaling,
    "tiles": tiles.tiles,
    "layers": layers.layers,
    "unequal": unequal.unequal,
    "paper": paper.paper,
    "gpu": gpu,
    "gpu-check": gpu_check.gpu_check,
}
_DESCRIPTION = "Benchmarks of aspen_jax. Each checks results before it takes times, takes turns, and gives minima and medians."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark and give its exit status: 0, 1 where results are wrong, 2 where it cannot run."""
    try:
        return tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="python -m benchmarks", description=_DESCRIPTION, args=argv)
    except AspenError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
