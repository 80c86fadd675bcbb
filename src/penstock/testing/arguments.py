# SPDX-License-Identifier: Apache-2.0
"""Arguments of the fake cluster and the mocks that are wrong: the error says what to write.

Of a name that nobody has, the one that was meant is named, as a Producer does it for its options.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

_ALIKE = 0.7


def try_nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name that looks most like this one; None when none does."""
    squeezed = {each.replace("_", ""): each for each in known}
    found = difflib.get_close_matches(name.lower().replace("_", ""), squeezed, n=1, cutoff=_ALIKE)
    return squeezed[found[0]] if found else None


def check_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Refuse a name of an argument that is not known.

    Raises:
        TypeError: one is not.
    """
    for name in names:
        if name in known:
            continue
        nearest = try_nearest(name, known)
        hint = "." if nearest is None else f"; did you mean {nearest!r}?"
        raise TypeError(f"there is no argument {name!r}{hint} There are {', '.join(known)}")


def checks_names(cls: C) -> C:
    """Decorates a dataclass, which then says which argument was meant."""
    init = cls.__init__  # type: ignore[misc]
    known = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        check_names(options, known)
        init(self, *args, **options)

    cls.__init__ = checked  # type: ignore[misc]
    return cls


def check_topics(topics: object) -> None:
    """Refuse what does not tell the partitions of each topic; None is allowed.

    Raises:
        TypeError: it is no mapping of names to numbers.
    """
    if topics is None:
        return
    if not isinstance(topics, Mapping) or not all(
        isinstance(name, str) and is_number(count) for name, count in topics.items()
    ):
        raise TypeError(f"topics are names with numbers of partitions, like {{'orders': 3}}, not {topics!r}")


def is_number(value: object) -> bool:
    """Whether it is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)
