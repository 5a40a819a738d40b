"""The devices that there are, by the names that `aspen(device=)` takes. A device is imported when it is asked for."""

from __future__ import annotations

import importlib

import jax

from aspen_jax.errors import InputError
from aspen_jax.targets.target import Target

AUTO = "auto"

# Of each name JAX's platform, and where the class is. The first of a platform is the one for device="auto".
_known: dict[str, tuple[str, str]] = {
    "cpu": ("cpu", "aspen_jax.targets.cpu.target:CpuTarget"),
    "cuda": ("cuda", "aspen_jax.targets.cuda.target:CudaTarget"),
}
# JAX's words for some.
_ALIASES = {"gpu": "cuda"}
_loaded: dict[str, type[Target]] = {}


def devices() -> tuple[str, ...]:
    """What `aspen(device=)` takes."""
    return AUTO, *_known, *_ALIASES


def checked(device: object) -> str:
    """The name of a device, or "auto".

    Raises:
        InputError: there is none of that name.
    """
    if not isinstance(device, str) or device not in devices():
        raise InputError(f"device={device!r} is unknown; choose one of {', '.join(map(repr, devices()))}")
    return _ALIASES.get(device, device)


def platforms() -> tuple[str, ...]:
    """What JAX calls the platforms of all devices."""
    return tuple(dict.fromkeys(platform for platform, _ in _known.values()))


def named(name: str) -> type[Target]:
    """The device of a name."""
    if name not in _loaded:
        module, _, attribute = _known[name][1].partition(":")
        _loaded[name] = getattr(importlib.import_module(module), attribute)
    return _loaded[name]


def all_named(device: str) -> tuple[type[Target], ...]:
    """The device of a name; all of them for "auto"."""
    return tuple(map(named, _known if device == AUTO else [device]))


def on_platform(device: str, platform: str) -> type[Target] | None:
    """The device that a call on a platform is for; None where it is for one elsewhere."""
    if device != AUTO:
        return named(device) if _known[device][0] == platform else None
    return next((named(name) for name, (own, _) in _known.items() if own == platform), None)


def of_function(device: str) -> type[Target]:
    """The device that a function is explained for: by "auto" the CPU, which is always there."""
    return named("cpu" if device == AUTO else device)


def here(device: str) -> type[Target] | None:
    """The device that a function runs on: by "auto" that of JAX's default platform; None where there is none for that."""
    if device != AUTO:
        return named(device)
    backend = jax.default_backend()
    return on_platform(AUTO, _ALIASES.get(backend, backend))


def register(target: type[Target]) -> None:
    """Let `aspen(device=)` take the name of a device.

    Raises:
        InputError: it is no class that derives from `Target` with all methods, or its name is taken.
    """
    if not (isinstance(target, type) and issubclass(target, Target)):
        raise InputError(f"{target!r} is no target; register a class that derives from Target")
    missing = sorted(getattr(target, "__abstractmethods__", ()))
    missing += [name for name in ("name", "platform", "chooses", "runs_graphs", "arranges_weights") if not hasattr(target, name)]
    if missing:
        raise InputError(f"the target {target.__name__} lacks {', '.join(missing)}; write them")
    if not target.name:
        raise InputError(f"the target {target.__name__} has an empty name; give it one")
    if target.name in devices():
        raise InputError(f"there is a device {target.name!r} already; give yours another name")
    _loaded[target.name] = target
    _known[target.name] = target.platform, ""


def unregister(name: str) -> None:
    """Forget a device that was registered."""
    del _known[name], _loaded[name]
