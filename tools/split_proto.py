"""Writes the generated halves of aspen_jax/split/split.proto.

Run it in an environment of its own: `pip install grpcio-tools==1.75.1`. Code that this version writes is accepted by every newer
grpcio, and by protobuf 6.31.1 to 7.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Run protoc."""
    from grpc_tools import protoc  # pyright: ignore[reportMissingImports]

    outputs = [f"--{kind}_out={ROOT}" for kind in ("python", "pyi", "grpc_python")]
    return protoc.main(["protoc", f"-I{ROOT}", *outputs, str(ROOT / "aspen_jax/split/split.proto")])


if __name__ == "__main__":
    sys.exit(main())
