"""Names the licence of everything that `pip install 'aspen_jax[EXTRA]'` brings, as a table of Markdown.

    python tools/licences.py [EXTRA ...] [--permit NAME ...]

Run it with the Python in whose environment aspen_jax, the extras and `packaging` are installed. It ends with an error where a
licence is unknown or not free, or a package is missing. `--permit` names a package that may be there with any licence.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# SPDX identifiers of free licences: those that the packages have so far. All are OSI's or the FSF's.
FREE = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "HPND",
    "ISC",
    "MIT",
    "MIT-CMU",
    "MPL-2.0",
    "PSF-2.0",
    "Python-2.0",
    "Unlicense",
    "Zlib",
}

# What packages wrote before there were SPDX expressions: beginnings of the field License, or names of classifiers, in lower case.
OLD_NAMES = {
    "apache": "Apache-2.0",
    "bsd license": "BSD-3-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "3-clause bsd": "BSD-3-Clause",
    "bsd-2-clause": "BSD-2-Clause",
    "isc": "ISC",
    "historical permission notice and disclaimer (hpnd)": "HPND",
    "mit": "MIT",
    "mozilla public license 2.0": "MPL-2.0",
    "psf": "PSF-2.0",
    "python software foundation license": "PSF-2.0",
    "the unlicense": "Unlicense",
}

# For packages with a licence file alone.
TEXTS = {
    "Licensed under the Apache License, Version 2.0": "Apache-2.0",
    "Permission is hereby granted, free of charge": "MIT",
    "Redistribution and use in source and binary forms": "BSD-3-Clause",
}


def main() -> None:
    """Print the table; exit with 1 after it where something may not be there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", metavar="EXTRA")
    parser.add_argument("--permit", action="append", default=[], metavar="NAME")
    arguments = parser.parse_args()
    permitted = {canonicalize_name(name) for name in arguments.permit}
    print("| package | version | licence |\n|---|---|---|")
    faults = []
    for name in sorted(brought("aspen_jax", frozenset(arguments.extras))):
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            faults.append(f"{name} is not installed")
            continue
        expression = licence(distribution)
        print(f"| {name} | {distribution.version} | {expression or 'unknown'} |")
        if not is_free(expression) and name not in permitted:
            faults.append(f"{name} {distribution.version}: {expression or 'its metadata names no licence that is known here'}")
    if faults:
        sys.exit("\n".join(["", "Not known to be free:", *faults]))


def brought(root: str, extras: frozenset[str]) -> set[str]:
    """The names of a distribution and of all that it asks for on this machine, with extras, directly or not."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(str(canonicalize_name(root)), extras)]
    while waiting:
        entry = waiting.pop()
        if entry in seen:
            continue
        seen.add(entry)
        waiting += needs(*entry)
    return {name for name, _ in seen}


def needs(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """What a distribution asks for, and with which extras; nothing if it is not installed."""
    try:
        lines = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for line in lines:
        requirement = Requirement(line)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras | {""}):
            yield str(canonicalize_name(requirement.name)), frozenset(requirement.extras)


def licence(distribution: importlib.metadata.Distribution) -> str | None:
    """An SPDX expression, from the newest of the places where a distribution may name it; None if none is understood."""
    fields = distribution.metadata.json
    if expression := fields.get("license_expression"):
        return str(expression)
    plain = str(fields.get("license", "")).strip()
    if re.fullmatch(r"[\w.+-]+( (AND|OR) [\w.+-]+)+", plain):
        return plain
    classifiers = [str(line).rpartition(" :: ")[2] for line in fields.get("classifier", []) if str(line).startswith("License ::")]
    known = {old_name(text) for text in [*classifiers, plain]}
    if not any(known):
        files = [distribution.read_text(f"licenses/{name}") or "" for name in distribution.metadata.get_all("License-File") or []]
        known = {spdx for text, spdx in TEXTS.items() if any(text in file for file in files)}
    return " AND ".join(sorted(spdx for spdx in known if spdx)) or None


def old_name(text: str) -> str | None:
    if text in FREE:
        return text
    return next((spdx for old, spdx in OLD_NAMES.items() if re.match(rf"{re.escape(old)}(?!\w)", text.lower())), None)


def is_free(expression: str | None) -> bool:
    """Whether each part joined by AND offers a free licence; cautious where AND stands in parentheses."""
    if expression is None:
        return False
    # An exception permits more than its licence.
    parts = re.split(r"\s+AND\s+", re.sub(r"\s+WITH\s+[\w.-]+", "", expression))
    return all(any(word.strip("() ") in FREE for word in re.split(r"\s+OR\s+", part)) for part in parts)


if __name__ == "__main__":
    main()
