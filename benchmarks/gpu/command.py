"""The command `python -m benchmarks gpu`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from aspen_jax.cost.timing import check_rounds
from aspen_jax.errors import InputError
from aspen_jax.targets.cuda.device import ARCHITECTURE_VARIABLE
from benchmarks.benchmark import settings_of
from benchmarks.gpu import programs as of_cuda
from benchmarks.gpu.record import Record
from benchmarks.gpu.row import DType, chosen
from benchmarks.gpu.run import Steps, about_gpu
from benchmarks.options import Folder, Models

# What code is compiled for where there is no GPU: H100 and H200.
_ARCHITECTURE = "sm_90a"
_MINUTES = 5.0


def gpu(
    models: Models = (),
    batches: tuple[int, ...] = (),
    dtypes: tuple[DType, ...] = (),
    image_size: int | None = None,
    tokens: int | None = None,
    compile_only: bool = False,
    architecture: str | None = None,
    programs: Folder = None,
    torch: bool = True,
    rounds: int = 15,
    minutes: float | None = None,
    jobs: int | None = None,
    out: Folder = None,
) -> int:
    """Models on a GPU: executors alone, under jax.jit, XLA and PyTorch; errors from float32; what launches and copies cost.

    Without --models, --batches and --dtypes: the eight rows of docs/results/h200.md. With one of them: all combinations, of batch
    1 and bfloat16 unless told otherwise. Models compile at once; a lock lets one process at a time take times.

    Args:
        models: names in benchmarks/zoo/catalogue.py.
        batches: examples a call.
        dtypes: of parameters, inputs and all between them.
        image_size: height and width of images; each model's own by default.
        tokens: length of texts; each model's own by default.
        compile_only: models and programs into the cache and no more, for which no GPU is needed.
        architecture: what code is compiled for, such as sm_90a; this machine's GPU by default, or sm_90a without one.
        programs: a folder with `launches` and `copies`, built from benchmarks/gpu/*.cu; by default nvcc builds them.
        torch: whether PyTorch takes part, in eager mode in a CUDA graph and by torch.compile.
        rounds: of ten runs by the device's events; calls by the host's clock are twice as many.
        minutes: after so many nothing new is begun, and what runs is ended; 5 by default, and no end with --compile-only.
        jobs: processes at a time; half as many as there are cores by default.
        out: a folder for gpu.json and gpu.md; a new one by default.
    """
    settings = settings_of(locals())
    check_rounds(rounds)
    for what, number in (("minutes", minutes), ("jobs", jobs)):
        if number is not None and not number > 0:
            raise InputError(f"{number} {what} are asked for; take more than 0")
    rows = chosen(models, batches, dtypes, image_size, tokens)
    if programs is not None:
        of_cuda.check_folder(programs)
    if compile_only:
        architecture = architecture or os.environ.get(ARCHITECTURE_VARIABLE) or _ARCHITECTURE
        steps = Steps(architecture, rounds, minutes, jobs)
        steps.compile(rows, None)
        if programs is None:
            steps.build_programs()
        return 1 if steps.failures else 0
    device = about_gpu()
    folder = out or Path(time.strftime("gpu-%Y%m%d-%H%M%S"))
    record = Record(folder, rows, device, settings)
    steps = Steps(architecture or device["architecture"], rounds, minutes or _MINUTES, jobs)
    steps.run_programs(programs, record)
    compiled = steps.compile(rows, record)
    steps.time(compiled, torch, record)
    record.write()
    print(record.page)
    print(f"all of it is in {folder}")
    return 1 if steps.failures else 0
