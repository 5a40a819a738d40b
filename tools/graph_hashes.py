"""Prints hashes of what models become: tile graphs for CPUs and GPUs, and generated CUDA code. A refactoring changes none.

    python tools/graph_hashes.py > before.txt

Nothing is timed, and nothing that was timed before counts. No GPU is needed.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import tyro

ROOT = Path(__file__).parents[1]
MODELS = (
    "resnet50",
    "mobilenet_v2",
    "densenet121",
    "efficientnet_b0",
    "squeezenet1_1",
    "inception_v3",
    "repvgg_a0",
    "yolov3",
    "vgg11",
    "bert-base",
    "vit-b16",
    "gpt2-decode",
)
ARCHITECTURES = ("compute_80", "sm_90a")


def main(
    models: Sequence[str] = MODELS,
    workers: Sequence[int] = (1, 2, 64),
    target: str = "avx512",
    architectures: Sequence[str] = ARCHITECTURES,
) -> None:
    """Print a line for each model and device.

    Args:
        models: names in benchmarks/zoo/catalogue.py.
        workers: of CPUs.
        target: the CPU's, as ASPEN_CPU_TARGET names it.
        architectures: of GPUs.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(ASPEN_CACHE_DIR=folder, ASPEN_CPU_TARGET=target, ASPEN_TIME_CHOICES="off", JAX_PLATFORMS="cpu")
        sys.path.append(str(ROOT))
        for name in models:
            for line in lines(name, workers, architectures):
                print(f"{name:18} {line}", flush=True)


def lines(name: str, workers: Sequence[int], architectures: Sequence[str]) -> Iterable[str]:
    """What a model becomes on each device."""
    import jax

    from aspen_jax.lowering.compile import Options, compile_jaxpr
    from aspen_jax.primitive.choices import Choices
    from aspen_jax.targets.cpu.target import CpuTarget
    from aspen_jax.targets.cuda.code.image import distinct, kernels
    from aspen_jax.targets.cuda.target import CudaTarget
    from benchmarks import zoo

    model = zoo.build(name)
    for dtype in ("float32", "bfloat16"):
        own = model if dtype == "float32" else model.cast(dtype)
        jaxpr = jax.make_jaxpr(lambda *inputs, own=own: own.apply(own.params, *inputs))(*own.inputs)
        for count in workers:
            for chooses in (False, True):
                compiled = compile_jaxpr(jaxpr, Options(target=CpuTarget.here(count), chooses=chooses))
                told = "chosen" if chooses else "all"
                yield f"{dtype:8} cpu {count:2} workers {told:6} {digest(part.graph.to_bytes() for part in compiled.parts)}"
        for architecture in architectures:
            os.environ["ASPEN_CUDA_ARCH"] = architecture
            compiled = compile_jaxpr(jaxpr, Options(Choices(device="cuda"), CudaTarget.here()))
            graphs = digest(part.graph.to_bytes() for part in compiled.parts)
            own = [distinct(part.program.ops, part.graph) for part in compiled.parts]
            code = digest(kernels(found.ops, found.most_ops).encode() for found in own)
            yield f"{dtype:8} {architecture:10} graphs {graphs} code {code}"


def digest(items: Iterable[bytes]) -> str:
    """Of bytes in their order, with their number."""
    found = list(items)
    return f"{len(found)}:{hashlib.sha256(b''.join(found)).hexdigest()[:16]}"


if __name__ == "__main__":
    tyro.cli(main)
