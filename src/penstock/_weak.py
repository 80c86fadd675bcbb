# SPDX-License-Identifier: Apache-2.0
"""Objects that are watched, and are not kept alive for it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class WeakBag(Generic[T]):
    """A set of weak references.

    Other threads and finalizers may add and remove while one thread iterates over it. A `weakref.WeakSet` raises an
    error then: Python code iterates over it, and only a plain set is copied in one step.
    """

    def __init__(self) -> None:
        self._references: set[weakref.ref[T]] = set()

    def add(self, watched: T) -> None:
        self._references.add(weakref.ref(watched, self._references.discard))

    def discard(self, watched: T) -> None:
        self._references.discard(weakref.ref(watched))

    def clear(self) -> None:
        self._references.clear()

    def __len__(self) -> int:
        return len(self._references)

    def __iter__(self) -> Iterator[T]:
        """Those that are there now and alive."""
        for reference in self._references.copy():
            watched = reference()
            if watched is not None:
                yield watched
