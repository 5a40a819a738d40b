"""Options that benchmarks have in common, as tyro reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from benchmarks.zoo.model import Size

Models = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")]
Sizes = Annotated[Size, tyro.conf.arg(name="")]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")]
Folder = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]
