# SPDX-License-Identifier: Apache-2.0
"""Turning keys and values into bytes.

A serializer is an object with `serialize(topic, headers, data)`; a plain function of one argument will do as well. The
built-in ones write the same bytes as the Java client's serializers of the same purpose, so that the deserializers on
the other side need not know which client wrote a record. For all of them None stays None: a null key or value.
"""

from __future__ import annotations

from penstock._serializers_cy import (
    BytesSerializer,
    Float32Serializer,
    Float64Serializer,
    Int16Serializer,
    Int32Serializer,
    Int64Serializer,
    JsonSerializer,
    ListSerializer,
    MutableHeaders,
    Serializer,
    StringSerializer,
    UUIDSerializer,
    VoidSerializer,
    as_serializer,
)
from penstock._serializing_cy import serialize_part

__all__ = [
    "BytesSerializer",
    "Float32Serializer",
    "Float64Serializer",
    "Int16Serializer",
    "Int32Serializer",
    "Int64Serializer",
    "JsonSerializer",
    "ListSerializer",
    "MutableHeaders",
    "Serializer",
    "StringSerializer",
    "UUIDSerializer",
    "VoidSerializer",
    "as_serializer",
    "serialize_part",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # where users import them from, for pickle and in tracebacks
del _name
