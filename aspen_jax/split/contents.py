"""What Python objects hold, as a hash that is the same in another process: arrays, closures, and globals that functions read."""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import hashlib
import importlib.util
import re
import sys
import sysconfig
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), slice, range)
_DICTS = (dict, OrderedDict, types.MappingProxyType)
_BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
_WRAPPERS = (staticmethod, classmethod, property, functools.cached_property)
# Of a class: what Python writes there itself, or what no call reads.
_NOT_HELD = {"__annotations__", "__dict__", "__doc__", "__firstlineno__", "__module__", "__static_attributes__", "__weakref__"}
_NOT_HELD |= {"__annotate__", "__annotate_func__", "__annotations_cache__", "__abstractmethods__", "__slotnames__", "_abc_impl"}


class Unknown(Exception):
    """An object whose contents cannot be told.

    Attributes:
        where: how it is reached, such as "scale.table".
        value: the object.
    """

    def __init__(self, where: str, value: Any):
        super().__init__(where)
        self.where, self.value = where, value


class Contents:
    """A SHA-256 that takes objects. Two get the same one if they hold the same.

    Of what is installed (Python, NumPy, JAX ...) names count. Of a user's functions the code counts, with defaults, closures, and
    globals that they read. Other objects count by what pickle would take of them. Nothing is run but that.
    """

    def __init__(self, special: Callable[[Contents, Any], bool] = lambda contents, value: False):
        """Begin with nothing.

        Args:
            special: is asked about each object first. It adds what it knows, and says whether it did.
        """
        self._state = hashlib.sha256()
        self._special = special
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # objects whose ids are in `_seen`, so that no other gets the id

    def digest(self) -> bytes:
        """32 bytes."""
        return self._state.digest()

    def text(self, text: str) -> None:
        """Add text."""
        self._state.update(text.encode("utf-8", "surrogatepass"))
        self._state.update(b";")

    def add(self, value: Any, where: str = "") -> None:
        """Add an object.

        Args:
            value: the object.
            where: how it is reached, for `Unknown`.

        Raises:
            Unknown: it, or what it holds, cannot be told.
        """
        if self._special(self, value):
            return
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            self.text(f"{type(value).__name__} {value!r}")
        elif isinstance(value, Tracer):
            raise Unknown(where, value)
        elif isinstance(value, np.ndarray | np.generic | jax.Array):
            self._add_array(value, where)
        elif isinstance(value, np.dtype):
            self.text(f"dtype {value}")
        elif isinstance(value, set | frozenset) and type(value) in (set, frozenset):  # their order differs between processes
            self.text(f"set {len(value)}")
            for digest in sorted(self._alone(item, where) for item in value):
                self._state.update(digest)
        else:
            self._add_once(value, where)

    def _alone(self, value: Any, where: str) -> bytes:
        other = Contents(self._special)
        other._seen = dict(self._seen)  # what leads back to the set ends there
        other._kept = self._kept
        other.add(value, where)
        return other.digest()

    def _add_array(self, value: Any, where: str) -> None:
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            self.text(str(value.dtype))
            value = jax.random.key_data(value)
        self.text(f"{value.dtype}{value.shape}")
        if value.dtype.hasobject:
            for item in value.reshape(-1).tolist():
                self.add(item, where)
        else:
            self._state.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)

    def _add_once(self, value: Any, where: str) -> None:
        """An object that may hold others, among them itself."""
        kind = type(value)
        if not (isinstance(value, tuple) or _is_of_jax(kind)):  # of these, Python and JAX keep one or several by chance
            if id(value) in self._seen:
                self.text(f"seen {self._seen[id(value)]}")
                return
            self._seen[id(value)] = len(self._seen)
            self._kept.append(value)
        if isinstance(value, list | tuple):
            self.text(f"{kind.__qualname__} {len(value)}")
            for number, item in enumerate(value):
                self.add(item, f"{where}[{number}]")
        elif kind in _DICTS:
            self.text(f"{kind.__qualname__} {len(value)}")
            self._add_items(value, where)
        elif isinstance(value, jax.tree_util.PyTreeDef):
            self._add_tree(value, where)
        elif isinstance(value, enum.Enum):
            self.add(kind, where)
            self.text(value.name)
        elif isinstance(value, types.ModuleType):
            if not is_installed(value):
                raise Unknown(where, value)
            self.text(value.__name__)
        elif isinstance(value, types.FunctionType):
            self._add_function(value, where)
        elif isinstance(value, type):
            self._add_class(value, where)
        elif isinstance(value, types.MethodType):
            self.add(value.__func__, where)
            self.add(value.__self__, f"{where}.__self__")
        elif isinstance(value, _BUILTIN):
            self._add_builtin(value, where)
        elif isinstance(value, types.CodeType):
            self._add_code(value, where)
        elif isinstance(value, _WRAPPERS):
            self.text(kind.__qualname__)
            parts = ("fget", "fset") if isinstance(value, property) else ("__func__", "func")
            self.add([getattr(value, name, None) for name in parts], where)
        else:
            self._add_object(value, where)

    def _add_items(self, value: Mapping[Any, Any], where: str) -> None:
        for key, item in sorted(value.items(), key=lambda pair: (type(pair[0]).__qualname__, repr(pair[0]))):
            self.add(key, where)
            self.add(item, f"{where}.{key}" if isinstance(key, str) else f"{where}[{key!r}]")

    def _add_tree(self, tree: Any, where: str) -> None:
        data = tree.node_data()
        if data is None:
            self.text(f"leaves {tree.num_leaves}")
            return
        kind, auxiliary = data
        self.text(kind.__qualname__)
        self.add(auxiliary, where)
        self.add(list(tree.children()), where)

    def _add_function(self, function: types.FunctionType, where: str) -> None:
        self.text(function.__qualname__)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            try:
                held = cell.cell_contents
            except ValueError:  # nothing is in it yet
                self.text(f"empty {name}")
                continue
            self.add(held, f"{where}.{name}")
        self.add([function.__defaults__, function.__kwdefaults__], where)
        if is_installed(function):
            self.text(function.__module__)
            return
        self._add_code(function.__code__, where)
        for name, held in _globals_read(function.__code__, function.__globals__):
            self.text(name)
            self.add(held, f"{where}: {name}")
        wrapped = vars(function).get("__wrapped__")
        if wrapped is not None:
            self.add(wrapped, where)

    def _add_code(self, code: types.CodeType, where: str) -> None:
        self._state.update(code.co_code)
        self.add([code.co_names, code.co_freevars, code.co_consts], where)

    def _add_class(self, kind: type, where: str) -> None:
        self.text(kind.__qualname__)
        if is_installed(kind):
            self.text(_module_of(kind))
            return
        self.add(list(kind.__bases__), where)
        self._add_items({name: item for name, item in vars(kind).items() if name not in _NOT_HELD and _is_held(item)}, where)

    def _add_builtin(self, function: Any, where: str) -> None:
        self.text(function.__qualname__)
        owner = getattr(function, "__self__", None)
        if owner is not None and not isinstance(owner, types.ModuleType):
            self.add(owner, where)
        else:
            self.text(str(getattr(function, "__module__", None) or getattr(function, "__objclass__", None)))

    def _add_object(self, value: Any, where: str) -> None:
        kind = type(value)
        self.add(kind, where)
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None and callable(value):  # jax.jit, functools.lru_cache, aspen
            self.add(wrapped, where)
        elif dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                self.add(getattr(value, field.name, None), f"{where}.{field.name}")
        elif _is_of_jax(kind) and not (callable(value) or kind.__repr__ is object.__repr__):
            self.text(_ADDRESS.sub("", repr(value)))  # what JAX puts into an equation, such as shardings
        elif isinstance(value, np.ufunc):
            self.text(value.__name__)
        else:
            self._add_state(value, where)

    def _add_state(self, value: Any, where: str) -> None:
        """What pickle would take."""
        try:
            state = value.__reduce_ex__(4)
        except Exception:
            raise Unknown(where, value) from None
        if isinstance(state, str):  # a global name
            self.text(f"{_module_of(value)}.{state}")
            self.add(getattr(value, "__self__", None), where)
            return
        make, arguments, *rest = state
        self.add(make, where)
        self.add([item for item in arguments if item is not value], where)
        attributes, items, pairs = (*rest, None, None, None)[:3]
        if isinstance(attributes, dict):
            self._add_items(attributes, where)
        elif attributes is not None:
            self.add(attributes, where)
        self.add([*(items or ()), *(pairs or ())], where)


@functools.cache
def _installed_folders() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return (*{Path(sysconfig.get_path(name)).resolve() for name in names}, Path(__file__).resolve().parents[1])


@functools.cache
def _is_installed_package(name: str) -> bool:
    """Whether a top-level package comes with Python or was installed, and so is told by its name."""
    if name in sys.builtin_module_names or name in sys.stdlib_module_names:
        return True
    if name == "__main__":
        return False
    module = sys.modules.get(name)
    try:
        spec = getattr(module, "__spec__", None) or importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return False
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.origin else ())]
    return any(Path(place).resolve().is_relative_to(folder) for place in places for folder in _installed_folders())


def is_installed(value: Any) -> bool:
    """Whether a module, function or class belongs to an installed package or to Python."""
    name = value.__name__ if isinstance(value, types.ModuleType) else _module_of(value)
    return bool(name) and _is_installed_package(name.partition(".")[0])


def _module_of(value: Any) -> str:
    name = getattr(value, "__module__", None)
    return name if isinstance(name, str) else type(value).__module__  # classes of Cython have a descriptor there


def _is_of_jax(kind: type) -> bool:
    return _module_of(kind).partition(".")[0] in ("jax", "jaxlib", "aspen_jax")


def _is_held(item: Any) -> bool:
    """Whether an attribute of a class is the user's, and not a slot that Python made."""
    return not isinstance(item, types.MemberDescriptorType | types.GetSetDescriptorType)


def _globals_read(code: types.CodeType, known: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values of globals that code reads, in its order. Of a user's module, the attributes that it reads.

    Raises:
        Unknown: the code imports a user's module when it is called.
    """
    instructions = list(dis.get_instructions(code))
    for number, instruction in enumerate(instructions):
        name = str(instruction.argval)
        if instruction.opname == "IMPORT_NAME":
            if not _is_installed_package(name.partition(".")[0]):
                raise Unknown(f"import {name}", sys.modules.get(name))
        elif instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and name in known:
            value = known[name]
            for further in instructions[number + 1 :]:
                is_read = further.opname in ("LOAD_ATTR", "LOAD_METHOD")
                if not (is_read and isinstance(value, types.ModuleType) and not is_installed(value)):
                    break
                name += f".{further.argval}"
                value = getattr(value, str(further.argval), None)
            yield name, value
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_read(constant, known)
