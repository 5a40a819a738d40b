"""Names for the arrays of pytrees, as a graph's inputs and tensors in files of weights have them."""

from __future__ import annotations

from typing import Any

import jax


def leaf_names(prefix: str, tree: Any) -> list[str]:
    """A name for each leaf: keys, indices and attributes on the way to it, joined by dots behind the prefix.

    Example:
        >>> leaf_names("params", {"dense": {"kernel": 1.0}, "list": [2.0]})
        ['params.dense.kernel', 'params.list.0']
    """
    return [path_name(prefix, path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def path_name(prefix: str, path: Any) -> str:
    """The name of the leaf at this path of `jax.tree_util`."""
    return ".".join([prefix, *(jax.tree_util.keystr((key,), simple=True) for key in path)])
