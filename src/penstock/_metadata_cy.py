# SPDX-License-Identifier: Apache-2.0
"""Makes a RecordMetadata, which everybody gets who asks for the outcome of a record. Compiled if possible.

The constructor of a named tuple is a function of Python that calls the constructor of tuple with a tuple. All of that
takes longer than the six fields.
"""

from __future__ import annotations

from typing import Any

from penstock.types import RecordMetadata

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock._metadata_cy import (
        Py_INCREF,
        PyTuple_SET_ITEM,
        PyType_GenericAlloc,
        PyTypeObject,
        penstock_forget_hash,
    )

_CLASS = cython.declare(object, RecordMetadata)  # a C variable when compiled


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.cfunc
def new_metadata(
    topic: Any, partition: Any, offset: Any, timestamp: Any, key_size: Any, value_size: Any
) -> Any:
    """Make a RecordMetadata without its constructor."""
    if not cython.compiled:
        return tuple.__new__(RecordMetadata, (topic, partition, offset, timestamp, key_size, value_size))
    made: Any = PyType_GenericAlloc(cython.cast(cython.pointer(PyTypeObject), _CLASS), 6)
    penstock_forget_hash(made)
    _put(made, 0, topic)
    _put(made, 1, partition)
    _put(made, 2, offset)
    _put(made, 3, timestamp)
    _put(made, 4, key_size)
    _put(made, 5, value_size)
    return made


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put(made: Any, at: cython.Py_ssize_t, item: Any) -> cython.void:
    Py_INCREF(item)
    PyTuple_SET_ITEM(made, at, item)
