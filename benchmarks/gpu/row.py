"""A row of the table: a model, a batch and a dtype."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Literal

import jax

from aspen_jax.errors import InputError
from benchmarks import zoo
from benchmarks.zoo.model import Model, Size

DType = Literal["float32", "bfloat16"]


@dataclasses.dataclass(frozen=True)
class Row:
    """What is timed.

    Attributes:
        model: a name in the zoo.
        batch: examples a call.
        dtype: of parameters, inputs and all between them.
        image_size: height and width of images; 0 is the model's own.
        tokens: length of texts; likewise.
    """

    model: str
    batch: int
    dtype: str
    image_size: int = 0
    tokens: int = 0

    @classmethod
    def of(cls, words: str) -> Row:
        """The row with these `words`; sizes may be left out."""
        model, batch, dtype, *sizes = words.split(":")
        return cls(model, int(batch), dtype, *map(int, sizes))

    @property
    def words(self) -> str:
        """The row on a command line."""
        return ":".join(map(str, dataclasses.astuple(self)))

    @property
    def size(self) -> Size:
        """How large the inputs are."""
        return Size(self.batch, self.image_size or None, self.tokens or None)

    def __str__(self) -> str:
        sizes = (("images of", self.image_size), ("tokens:", self.tokens))
        return ", ".join([self.model, self.dtype, str(self.batch), *(f"{what} {value}" for what, value in sizes if value)])

    def build(self) -> Model:
        """The model in float32, on the CPU; its weights are those of a single example, so that outputs can be compared."""
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            alone = zoo.build(self.model, dataclasses.replace(self.size, batch=1)).calibrated()
            if self.batch == 1:
                return alone
            return dataclasses.replace(zoo.build(self.model, self.size), params=alone.params)

    def cast(self, model: Model) -> Model:
        """The model in the row's dtype."""
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return model if self.dtype == "float32" else model.cast(self.dtype)

    def to_json(self) -> dict[str, Any]:
        """The row's fields as plain data."""
        return dataclasses.asdict(self)


_MODELS = ("resnet50", "mobilenet_v2", "bert-base", "gpt2-decode")
_ROWS = (
    *(Row(model, 1, "bfloat16") for model in _MODELS),
    *(Row(model, 32, "bfloat16") for model in ("resnet50", "bert-base")),
    *(Row(model, 1, "float32") for model in ("resnet50", "bert-base")),
)


def chosen(
    models: Sequence[str], batches: Sequence[int], dtypes: Sequence[str], image_size: int | None, tokens: int | None
) -> list[Row]:
    """The rows of docs/results/h200.md where no model, batch or dtype is chosen, and all combinations otherwise.

    Raises:
        InputError: there is no such model, or it does not take such inputs.
    """
    rows: Sequence[Row] = _ROWS
    if models or batches or dtypes:
        rows = [Row(*each) for each in itertools.product(models or _MODELS, batches or (1,), dtypes or ("bfloat16",))]
    for given, what in (
        *((batch, "the batch") for batch in batches),
        (image_size, "the height and width of images"),
        (tokens, "the length of a text"),
    ):
        if given is not None and given < 1:
            raise InputError(f"{what} is {given}; take 1 or more")
    rows = [dataclasses.replace(row, image_size=image_size or 0, tokens=tokens or 0) for row in rows]
    for row in rows:
        if row.model not in zoo.FUNCTIONS and not row.model[:1].isupper():  # those take long to build
            zoo.describe(row.model, row.size)
    return list(dict.fromkeys(rows))
