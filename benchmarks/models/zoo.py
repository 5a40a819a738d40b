"""Every model by its name."""

from __future__ import annotations

import difflib

from aspen_jax.errors import InputError
from benchmarks.models import bert, gpt2, llama, vision, vit
from benchmarks.models.model import Build, Model, Size

TRANSFORMERS: dict[str, Build] = {**bert.MODELS, **gpt2.MODELS, **vit.MODELS, **llama.MODELS}


def build(name: str, size: Size | None = None) -> Model:
    """Build a model with seeded parameters and inputs.

    Args:
        name: one of `TRANSFORMERS`, such as bert-base, or a name in keras.applications, such as ResNet50.
        size: of its inputs; its own by default.

    Raises:
        InputError: there is no such model, or it does not take inputs of that size.
        AspenError: Keras is needed and not installed, or runs on another backend already.
    """
    size = size or Size()
    if size.batch < 1:
        raise InputError(f"the batch is {size.batch}; take 1 or more examples")
    if size.tokens is not None and size.tokens < 1:
        raise InputError(f"the length of a text is {size.tokens}; take 1 or more tokens")
    if name in TRANSFORMERS:
        return TRANSFORMERS[name](size)
    if name.lower() in TRANSFORMERS or difflib.get_close_matches(name, TRANSFORMERS):
        raise InputError(f"there is no model {name!r}; take {', '.join(TRANSFORMERS)}, or one of keras.applications")
    return vision.build(name, size)
