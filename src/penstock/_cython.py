# SPDX-License-Identifier: Apache-2.0
"""Stand-ins that let the `*_cy.py` modules run as plain Python where Cython is not installed.

Those modules start with `import cython` when Cython is there and fall back to this module. Only what they use is here:
type names (annotations mean nothing to the interpreter) and decorators that return their argument.
"""

from __future__ import annotations

from builtins import int as int  # noqa: A004, PLC0414 - cython.int is asked for by that name
from collections.abc import Callable
from typing import Any, TypeVar

compiled = False

F = TypeVar("F", bound=Callable[..., Any])

# C types, used as annotations and as cast functions.
bint = bool
char = uchar = short = ushort = int
uint = int
long = longlong = ulong = ulonglong = Py_ssize_t = size_t = int
double = float
p_char = p_uchar = p_const_uchar = bytearray
p_int = p_const_int = p_longlong = p_const_longlong = p_ulonglong = pp_const_uchar = memoryview


def _unchanged(function: F) -> F:
    return function


ccall = cfunc = cclass = final = no_gc = inline = _unchanged


class _NoGil:
    """`with cython.nogil:` lets other threads run meanwhile, which plain Python cannot; @cython.nogil promises to."""

    def __call__(self, function: F) -> F:
        return function

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


nogil = _NoGil()


def _with_argument(*_args: Any, **_kwargs: Any) -> Callable[[F], F]:
    return _unchanged


boundscheck = wraparound = initializedcheck = cdivision = freelist = exceptval = _with_argument


def declare(_type: Any = None, value: Any = None, **_kwargs: Any) -> Any:
    """A C variable: in Python, just its value."""
    return value


def cast(type_: Any, value: Any, typecheck: bool = False) -> Any:
    """A C cast: in Python it only cuts a float down to an integer."""
    del typecheck
    return int(value) if type_ is int else value
