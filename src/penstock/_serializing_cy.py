# SPDX-License-Identifier: Apache-2.0
"""Runs the serializers of keys and values for a record, and checks its headers. Compiled if possible.

`Part` is the one place where a serializer is called: by `send`, by `send_many` and by the mock.
"""

from __future__ import annotations

import uuid
from typing import Any

from penstock._serializers_cy import BytesSerializer, MutableHeaders, Serializer, function_of_value
from penstock.errors import SerializationError
from penstock.types import as_headers

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromObject

TopicName = str  # With this name, compiled code does not check the type: it may be a subclass.

# What serializes values of these types, in the order in which they are looked at.
_BETTER: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (str, "StringSerializer"),
    ((dict, list, tuple), "JsonSerializer"),
    (int, "Int64Serializer"),
    (float, "Float64Serializer"),
    (uuid.UUID, "UUIDSerializer"),
)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.cfunc
@cython.exceptval(-2, check=True)
def headers_bound(headers: Any) -> cython.Py_ssize_t:
    """The most that headers can take, or -1: they are not a list or tuple of (str, bytes or None) pairs."""
    size: cython.Py_ssize_t = 5
    if type(headers) is not list and type(headers) is not tuple:
        return -1
    for pair in headers:
        if not isinstance(pair, tuple):
            return -1
        # To cast is slow in plain Python, where Cython is installed.
        two: tuple = cython.cast(tuple, pair) if cython.compiled else pair
        if len(two) != 2 or type(two[0]) is not str:
            return -1
        name: str = two[0]
        size += 10 + 4 * len(name)  # a character takes at most four bytes
        if two[1] is not None:
            if type(two[1]) is not bytes:
                return -1
            value: bytes = two[1]
            size += len(value)
    return size


@cython.cfunc
def copy_of(data: Any) -> Any:
    """The bytes of a bytearray or memoryview; everything else as it is, and so what cannot be read."""
    if type(data) is not bytearray and type(data) is not memoryview:
        return data
    try:
        return PyBytes_FromObject(data) if cython.compiled else bytes(data)  # the class is slow to call
    except (BufferError, ValueError):
        return data  # a memoryview that was released: the serializer says so


@cython.cfunc
def pairs_of(headers: dict) -> list:  # type: ignore[type-arg]
    """The pairs of a mapping."""
    return [(name, value) for name, value in headers.items()]  # noqa: C416 - in C


@cython.cfunc
def freeze_headers(headers: Any) -> Any:
    """Headers as they were given to a call: pairs that were checked, and that nobody else has; None: there are none."""
    if headers is None:
        return None
    if type(headers) is dict:
        headers = pairs_of(headers)
    elif type(headers) is list:
        headers = tuple(headers)
    if headers_bound(headers) < 0:
        headers = as_headers(headers)
    return headers or None


@cython.final
@cython.cclass
class Part:
    """Turns the keys, or the values, of records into bytes.

    Args:
        serializer: the configured one.
        name: "key" or "value".

    Attributes:
        passes_bytes: whether bytes are sent as they are.
        wants_headers: whether the serializer gets the headers of the record.
    """

    def __init__(self, serializer: Serializer, name: str) -> None:
        self.serializer = serializer
        self._name = name
        self._function: Any = function_of_value(serializer)
        self.passes_bytes = type(serializer) is BytesSerializer
        self.wants_headers = self._function is None

    def turn(self, topic: TopicName, headers: Any, data: Any) -> bytes | None:
        """The key or value as it is sent. Whatever goes wrong becomes a SerializationError.

        Args:
            topic: where the record goes.
            headers: the record's MutableHeaders; any value where the serializer wants none.
            data: the key or value itself; it is never shown in the error, only its type.
        """
        serialized: Any
        if self.passes_bytes and type(data) is bytes:
            return data
        try:
            if self._function is None:
                serialized = self.serializer.serialize(topic, headers, data)
            elif data is None:
                return None
            else:
                serialized = self._function(data)
        except Exception as error:
            raise self._failure(topic, data, error) from error
        if serialized is None or type(serialized) is bytes:
            return serialized
        if isinstance(serialized, (bytes, bytearray, memoryview)):
            return bytes(
                serialized
            )  # also of a subclass, such as numpy's: compiled code takes bytes as they are
        raise SerializationError(
            f"the serializer {self.serializer!r} of the {self._name} (type {type(data).__name__}) of a record for "
            f"topic {topic!r} must give bytes or None, not {type(serialized).__name__}"
        )

    def _failure(self, topic: str, data: Any, error: Exception) -> SerializationError:
        detail = str(error) or type(error).__name__
        if isinstance(self.serializer, BytesSerializer):  # nobody has set another one
            detail += _try_better(self._name, data)
        return SerializationError(
            f"cannot serialize the {self._name} (type {type(data).__name__}) of a record for topic {topic!r}: {detail}"
        )


def serialize_part(
    serializer: Serializer, part: str, topic: TopicName, headers: MutableHeaders, data: Any
) -> bytes | None:
    """Run a serializer for one record, and turn whatever goes wrong into a SerializationError.

    Args:
        serializer: the configured serializer.
        part: "key" or "value".
        topic: where the record goes.
        headers: the record's headers.
        data: the key or value itself; it is never shown in the error, only its type.
    """
    return Part(serializer, part).turn(topic, headers, data)


def _try_better(part: str, data: Any) -> str:
    """The serializer that takes what the default one does not, in words; "" where there is none."""
    for kinds, name in _BETTER:
        if isinstance(data, kinds) and not isinstance(data, bool):
            return f", or make the producer with {part}_serializer=penstock.serializers.{name}()"
    return ""
