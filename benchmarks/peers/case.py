"""What a table's row is of: a network and the size of its inputs, named as in ASPEN's figure 6."""

from __future__ import annotations

import dataclasses
import re

from aspen_jax.errors import InputError
from benchmarks import zoo
from benchmarks.zoo.model import Size


@dataclasses.dataclass(frozen=True)
class Case:
    """A network at a size.

    Attributes:
        name: such as resnet50, resnet50:B8 or bert-base:S480B8.
        network: its name in the zoo.
        size: of the inputs.
    """

    name: str
    network: str
    size: Size


def read_case(name: str, size: Size) -> Case:
    """What a name means: B is the batch, S the length of a text. What the name leaves out is as in `size`.

    Raises:
        InputError: there is no such network, or it does not take inputs of that size.
    """
    network, colon, suffix = name.partition(":")
    if colon:
        match = re.fullmatch(r"(?:S(\d+))?B(\d+)", suffix)
        if match is None:
            raise InputError(
                f"{name!r} gives no size; write {network}:B8 for a batch of 8, or {network}:S480B8 for 480 tokens too"
            )
        tokens, batch = match.groups()
        size = dataclasses.replace(size, batch=int(batch), tokens=int(tokens) if tokens else size.tokens)
    zoo.describe(network, size)
    return Case(name, network, size)
