"""A decorated function traced or lowered, as `jax.jit` does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from aspen_jax.api import arguments, results

if TYPE_CHECKING:
    from aspen_jax.api.function import AspenFunction


def staged(function: AspenFunction[..., Any], stage: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a method of the function under `jax.jit` gives, its static arguments left out."""

    def do(structure: arguments.Structure, traced: list[Any]) -> Any:
        def on_kept(*kept: Any, **named: Any) -> Any:
            args, kwargs = structure.whole(jax.tree.leaves((kept, named)))
            result = results.parted(function(*args, **kwargs), (), function.__name__)
            return results.whole(result, arrays_only=True)

        def is_kept(argument: Any, original: Any) -> bool:
            return bool(jax.tree.leaves(argument)) or not jax.tree.leaves(original)

        on_kept.__name__ = on_kept.__qualname__ = function.__name__
        of_args, of_kwargs = structure.traced(traced)
        kept = [item for item, original in zip(of_args, args, strict=True) if is_kept(item, original)]
        named = {name: item for name, item in of_kwargs.items() if is_kept(item, kwargs[name])}
        if len(kept) == len(args):
            vars(on_kept)["__wrapped__"] = function.__wrapped__  # its signature names the arguments
        return getattr(jax.jit(on_kept), stage)(*kept, **named)

    args, kwargs = function._seen(args, kwargs)
    return function._jitted.on_arguments(do, args, kwargs, shapes_traced=True)
