"""The command `python -m benchmarks`: a subcommand for each module, made from its function by tyro."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import tyro

from aspen_jax.errors import AspenError
from benchmarks import (
    accuracy,
    beside_simgrid,
    build,
    ends,
    hybrid,
    kernels,
    lab,
    layers,
    layouts,
    memory,
    overhead,
    paper,
    policies,
    residuals,
    scaling,
    scheduler,
    serving,
    sharing,
    tiles,
    together,
    unequal,
    weights,
    whole_models,
)
from benchmarks.benchmark import Disagreement
from benchmarks.chains.command import chains
from benchmarks.chooser.command import chooser
from benchmarks.clients.command import clients
from benchmarks.codesign.command import codesign
from benchmarks.gpu import candidates, check
from benchmarks.gpu.command import gpu
from benchmarks.page import page
from benchmarks.peers import command
from benchmarks.split.command import split
from benchmarks.stacks.command import stacks
from benchmarks.tuning.command import tuning

COMMANDS = {
    "models": whole_models.models,
    "accuracy": accuracy.accuracy,
    "peers": command.peers,
    "kernels": kernels.kernels,
    "scheduler": scheduler.scheduler,
    "policies": policies.policies,
    "sharing": sharing.sharing,
    "overhead": overhead.overhead,
    "chooser": chooser,
    "clients": clients,
    "build": build.build,
    "memory": memory.memory,
    "weights": weights.weights,
    "residuals": residuals.residuals,
    "scaling": scaling.scaling,
    "tiles": tiles.tiles,
    "layers": layers.layers,
    "layouts": layouts.layouts,
    "ends": ends.ends,
    "unequal": unequal.unequal,
    "hybrid": hybrid.hybrid,
    "together": together.together,
    "serving": serving.serving,
    "paper": paper.paper,
    "stacks": stacks,
    "chains": chains,
    "tuning": tuning,
    "codesign": codesign,
    "split": split,
    "lab": lab.lab,
    "graphs": lab.graphs,
    "simgrid": beside_simgrid.simgrid,
    "gpu": gpu,
    "candidates": candidates.candidates,
    "gpu-check": check.gpu_check,
    "page": page,
}
_DESCRIPTION = "Benchmarks of aspen_jax. Each checks results before it takes times, takes turns, and gives minima and medians."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark and give its exit status: 0, 1 where results are wrong, 2 where it cannot run."""
    try:
        return tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="python -m benchmarks", description=_DESCRIPTION, args=argv)
    except Disagreement as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except AspenError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
