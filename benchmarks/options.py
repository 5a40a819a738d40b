"""Options that benchmarks have in common, as tyro reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

Models = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]
