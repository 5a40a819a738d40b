"""Questions about a directed graph in CSR form, answered a level at a time by numpy: order, longest path, reachability."""

from __future__ import annotations

import numpy as np

from aspen_jax import forks


def expand(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The row of each element and its position there, in rows of these lengths, one after the other."""
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)


def unique(keys: np.ndarray) -> np.ndarray:
    """The different ones of int64 keys, ascending.

    By sorting: numpy.unique hashes them since 2.3, which takes twenty times as long for millions that are mostly different.
    """
    keys = np.sort(keys)
    return keys[np.append(True, keys[1:] != keys[:-1])[: len(keys)]]


class Dag:
    """Nodes 0 .. n-1 and their children.

    Args:
        child_counts: int array [n].
        children: int array [sum(child_counts)]; the children of node 0, then of node 1, and so on.
    """

    def __init__(self, child_counts: np.ndarray, children: np.ndarray):
        self.size = len(child_counts)
        self.child_counts = child_counts
        self.children = children
        self._starts = np.cumsum(child_counts) - child_counts

    @classmethod
    def from_edges(cls, size: int, parents: np.ndarray, children: np.ndarray) -> Dag:
        """The graph of these edges, each kept once; children ascend."""
        keys = unique(parents * size + children)
        return cls(np.bincount(keys // max(size, 1), minlength=size), keys % max(size, 1))

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Parent and child of each edge."""
        return np.repeat(np.arange(self.size), self.child_counts), self.children

    def parent_counts(self) -> np.ndarray:
        """How often each node occurs among the children."""
        return np.bincount(self.children, minlength=self.size)

    def step(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All children of `nodes`: (index into nodes, child)."""
        row, position = expand(self.child_counts[nodes])
        return row, self.children[self._starts[nodes][row] + position]

    @forks.cached_property
    def levels(self) -> list[np.ndarray]:
        """The nodes by the longest path that leads to them. Nodes on a cycle or behind one are missing."""
        missing = self.parent_counts()
        frontier = np.flatnonzero(missing == 0)
        result: list[np.ndarray] = []
        while frontier.size:
            result.append(frontier)
            reached = self.step(frontier)[1]
            np.subtract.at(missing, reached, 1)
            frontier = unique(reached[missing[reached] == 0])
        return result

    def is_acyclic(self) -> bool:
        return sum(map(len, self.levels)) == self.size

    def finish_times(self, costs: np.ndarray) -> np.ndarray:
        """The end of each node if all run as soon as their parents have ended; the graph must be acyclic."""
        finish = np.zeros(self.size, np.int64)
        for nodes in self.levels:
            finish[nodes] += costs[nodes]
            row, reached = self.step(nodes)
            np.maximum.at(finish, reached, finish[nodes][row])
        return finish

    def upward_ranks(self, costs: np.ndarray) -> np.ndarray:
        """The longest path that begins with each node, its own cost included, float64; the graph must be acyclic."""
        ranks = np.array(costs, np.float64)
        for nodes in reversed(self.levels):
            row, reached = self.step(nodes)
            best = np.zeros(len(nodes))
            np.maximum.at(best, row, ranks[reached])
            ranks[nodes] += best
        return ranks

    def has_edges(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Whether each pair is an edge."""
        keys = before * self.size + after
        place = np.searchsorted(self._keys, keys)
        return np.append(self._keys, -1)[place] == keys

    def has_short_paths(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Whether a path of exactly two edges leads from before[i] to after[i]."""
        result = np.zeros(len(before), bool)
        # The node between is a child of the one and a parent of the other, which mostly leaves few numbers.
        lowest, highest = self._parent_range
        first = np.searchsorted(self._keys, before * self.size + lowest[after])
        last = np.searchsorted(self._keys, before * self.size + highest[after], "right")
        # Most paths lead through one of the first: the others are looked at where those have none.
        how_many = 1
        open_pairs = np.flatnonzero(first < last)
        while open_pairs.size:
            row, position = expand(np.minimum(last[open_pairs] - first[open_pairs], how_many))
            pair = open_pairs[row]
            between = self._keys[first[pair] + position] % self.size
            result[pair[self.has_edges(between, after[pair])]] = True
            first[open_pairs] += how_many
            how_many *= 2
            open_pairs = open_pairs[~result[open_pairs] & (first[open_pairs] < last[open_pairs])]
        return result

    def has_paths(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Whether a path of one edge or more leads from before[i] to after[i]; the graph must be acyclic."""
        result = self.has_edges(before, after)
        open_pairs = np.flatnonzero(~result)
        result[open_pairs] = self.has_short_paths(before[open_pairs], after[open_pairs])
        open_pairs = np.flatnonzero(~result)
        # What is still open spreads from 64 sources at a time, a bit each, through the levels.
        sources, source_of_pair = np.unique(before[open_pairs], return_inverse=True)
        for first in range(0, len(sources), 64):
            batch = sources[first : first + 64]
            reach = np.zeros(self.size, np.uint64)
            reach[batch] = np.uint64(1) << np.arange(len(batch), dtype=np.uint64)
            for nodes in self.levels:
                nodes = nodes[reach[nodes] != 0]
                row, reached = self.step(nodes)
                np.bitwise_or.at(reach, reached, reach[nodes][row])
            asked = open_pairs[(source_of_pair >= first) & (source_of_pair < first + 64)]
            bit = np.searchsorted(batch, before[asked]).astype(np.uint64)
            result[asked] = (reach[after[asked]] >> bit & np.uint64(1)).astype(bool) & (before[asked] != after[asked])
        return result

    @forks.cached_property
    def _parent_range(self) -> tuple[np.ndarray, np.ndarray]:
        """The lowest and the highest parent of each node; of one without any, numbers that make an empty range."""
        parents, children = self.edges()
        lowest, highest = np.full(self.size, self.size), np.full(self.size, -1)
        np.minimum.at(lowest, children, parents)
        np.maximum.at(highest, children, parents)
        return lowest, highest

    @forks.cached_property
    def _keys(self) -> np.ndarray:
        parents, children = self.edges()
        return np.sort(parents * self.size + children)
