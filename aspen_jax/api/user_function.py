"""A user's function named on the command line, MODULE:FUNCTION, and arguments to try it on."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from aspen_jax.errors import AspenError, InputError
from aspen_jax.frontend.user_code import is_users
from aspen_jax.ir.dtypes import DTYPES

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_HOW_TO_NAME = "write MODULE:FUNCTION, or path/to/file.py:FUNCTION"
_SHORT_NAMES = {"bool": "pred", "bfloat16": "bf16", "float": "f", "int": "i", "uint": "u"}
_RANDOM_SEED = 0
_LARGEST_RANDOM_INT = 10  # of class labels, token ids and the like, any model can take these


def load(name: str) -> tuple[ModuleType, Callable[..., Any]]:
    """The module and the function that `name` means; the current directory is searched first, as `python -m` does.

    Args:
        name: MODULE:FUNCTION or path/to/file.py:FUNCTION, where FUNCTION may have dots, such as model.predict.

    Raises:
        InputError: there is no such module, file or function, or importing it fails.
    """
    where, colon, attribute = name.rpartition(":")
    if not (colon and where and attribute):
        raise InputError(f"{name!r} names no function; {_HOW_TO_NAME}")
    module = _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
    return module, _function_of(module, attribute)


def example_arguments(module: ModuleType, function: str, args: str | None, shapes: Sequence[str]) -> Arguments:
    """Arguments to try a function on.

    Args:
        module: where the function was found.
        function: the function's name in it.
        args: [MODULE:]CALLABLE, or None. What it returns is the arguments: a tuple of positional ones, a dict of keywords, or
            anything else as the only one.
        shapes: positional arguments such as f32[1,224,224,3]; each becomes a `jax.ShapeDtypeStruct`.

    Without `args` and `shapes` the module is asked for a callable of the function's name with `_args` behind it.

    Raises:
        InputError: a shape cannot be read, a callable is missing or fails, or nothing says what the arguments are.
    """
    if args is not None and shapes:
        raise InputError(f"both --args {args} and --shape {shapes[0]} are given; the arguments come from one of them")
    if shapes:
        return tuple(map(parse_shape, shapes)), {}
    convention = function.rpartition(".")[2] + "_args"
    if args is not None:
        maker = load(args)[1] if ":" in args else _function_of(module, args)
    elif hasattr(module, convention):
        args, maker = convention, _function_of(module, convention)
    elif _takes_nothing(_function_of(module, function)):
        return (), {}
    else:
        raise InputError(
            f"nothing says which arguments {function} is to be called with; give --shape f32[2,3] for each array, or --args "
            f"CALLABLE for a function that returns them, or define {convention}() beside it"
        )
    with blaming(f"calling {args}()"):
        made = maker()
    if isinstance(made, dict):
        return (), made
    return (made if isinstance(made, tuple) else (made,)), {}


def parse_shape(text: str) -> jax.ShapeDtypeStruct:
    """The array that a text such as f32[1,224,224,3], bool[8] or f32 (a scalar) describes.

    Raises:
        InputError: it is not of that form, the dtype is unknown, or JAX's 64-bit types are switched off.
    """
    match = re.fullmatch(r"(\w+)(?:\[([\d\s,]*)\])?", text.strip())
    short = {_short_name(dtype): dtype for dtype in DTYPES}
    names = {**short, **{dtype.name: dtype for dtype in DTYPES}}
    if match is None or match[1] not in names:
        raise InputError(f"{text!r} is no array; write a dtype of {', '.join(short)} and a shape, as in f32[1,224,224,3]")
    dtype = names[match[1]]
    if dtype.itemsize == 8 and not jax.config.read("jax_enable_x64"):
        raise InputError(f"{text!r} needs JAX's 64-bit types; set JAX_ENABLE_X64=1, or use {match[1].replace('64', '32')}")
    extents = [extent.strip() for extent in (match[2] or "").split(",")]
    if "" in extents and extents != [""]:
        raise InputError(f"{text!r} misses a dimension between commas; write a shape as in f32[1,224,224,3]")
    shape = tuple(int(extent) for extent in extents if extent)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = math.prod(shape) * dtype.itemsize
    if size > memory:
        raise InputError(f"{text!r} has {size} bytes and this machine {memory}; take a smaller shape")
    return jax.ShapeDtypeStruct(shape, dtype)


def filled(arguments: Arguments) -> Arguments:
    """The arguments with seeded random numbers in place of each `jax.ShapeDtypeStruct`: floats normal, integers from 0 to 9."""
    random = np.random.default_rng(_RANDOM_SEED)

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if leaf.dtype == bool:
            return jax.numpy.asarray(random.integers(0, 2, leaf.shape), leaf.dtype)
        if np.issubdtype(leaf.dtype, np.integer):
            return jax.numpy.asarray(random.integers(0, _LARGEST_RANDOM_INT, leaf.shape), leaf.dtype)
        return jax.numpy.asarray(random.standard_normal(leaf.shape, np.float32), leaf.dtype)

    return jax.tree.map(fill, arguments)


@contextlib.contextmanager
def blaming(doing: str) -> Iterator[None]:
    """Turns what the user's code raises into an `InputError` that says where it was raised.

    Args:
        doing: what is being done, to begin the message with.
    """
    try:
        yield
    except AspenError:
        raise
    except (Exception, SystemExit) as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
        where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        raise InputError(f"{doing} raised {type(error).__name__}: {error}{where}; mend that first") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}; {_HOW_TO_NAME}")
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # As for `python path/to/file.py`: modules beside the file can be imported, and the module is found by name (dataclasses).
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    with blaming(f"importing {path}"):
        spec.loader.exec_module(module)
    return module


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        with blaming(f"importing {name}"):
            return importlib.import_module(name)
    except InputError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and f"{name}.".startswith(f"{cause.name}."):
            raise InputError(
                f"there is no module {cause.name!r} in this directory or among the installed ones; {_HOW_TO_NAME}"
            ) from None
        raise


def _function_of(module: ModuleType, name: str) -> Callable[..., Any]:
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            close = difflib.get_close_matches(part, dir(found), n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"{_HOW_TO_NAME} of something that is there"
            raise InputError(f"{module.__name__} has no {name!r}; {hint}") from None
    if not callable(found):
        raise InputError(f"{module.__name__}:{name} is a {type(found).__name__}, which cannot be called; name a function")
    return found


def _takes_nothing(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return not any(parameter.default is parameter.empty for parameter in parameters)


def _short_name(dtype: np.dtype) -> str:
    kind = dtype.name.rstrip("0123456789")
    return _SHORT_NAMES.get(dtype.name) or _SHORT_NAMES[kind] + dtype.name[len(kind) :]
