"""Locks that the child of a fork finds free; engine/fork_safe_mutex.h has those of the engine."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, TypeVar

T = TypeVar("T")


class Lock:
    """A lock for `with` that no child of a fork waits for in vain.

    A child has a copy of each lock and none of the threads that held them. It gets a new one where another thread was inside.
    So what the lock guards must be whole whenever Python lets other threads run: change it by single operations, such as the
    setting of an item of a dict.

    A thread that is inside may enter again, as may its handlers of signals.
    """

    def __init__(self) -> None:
        self._inner = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._inner.acquire()

    def __exit__(self, *_: object) -> None:
        self._inner.release()

    def _free_in_child(self) -> None:
        """The thread that forked may be inside itself, and goes on there."""
        if self._inner.acquire(blocking=False):
            self._inner.release()
        else:
            self._inner = threading.RLock()


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _free_all_in_child() -> None:
    for lock in _locks:
        lock._free_in_child()


os.register_at_fork(after_in_child=_free_all_in_child)


class cached_property(functools.cached_property[T]):
    """A `functools.cached_property` without a lock. Two threads may compute it at once, and both get what was there first.

    That of Python 3.11 has one lock for all objects of a class. A child would wait for the thread that was computing it.
    """

    if not TYPE_CHECKING and sys.version_info < (3, 12):

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            known = vars(instance)
            if self.attrname not in known:
                known.setdefault(self.attrname, self.func(instance))
            return known[self.attrname]
