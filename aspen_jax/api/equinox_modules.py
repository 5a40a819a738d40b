"""Numbers in modules of Equinox: they are static, as with `equinox.filter_jit`.

Traced, they would be arrays to `equinox.filter_grad`, and a train step would train the rate of a dropout.
"""

from __future__ import annotations

import functools
import sys
from typing import Any


def leaves_of_modules(tree: Any) -> frozenset[int]:
    """Which leaves of a tree lie in modules."""
    equinox = sys.modules.get("equinox")  # before somebody has imported it, there is no module
    return frozenset() if equinox is None else _found(tree, equinox.Module)


@functools.lru_cache(maxsize=256)
def _found(tree: Any, module: type) -> frozenset[int]:
    found: set[int] = set()

    def walk(tree: Any, first: int) -> None:
        node = tree.node_data()
        if node is None:
            return
        if issubclass(node[0], module):
            found.update(range(first, first + tree.num_leaves))
            return
        for child in tree.children():
            walk(child, first)
            first += child.num_leaves

    walk(tree, 0)
    return frozenset(found)
