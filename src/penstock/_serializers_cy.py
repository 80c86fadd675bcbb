# SPDX-License-Identifier: Apache-2.0
# cython: annotation_typing=False
"""The serializers of `penstock.serializers`. Compiled if possible.

Annotations are no C types here: what users give may be of a subclass.
"""

from __future__ import annotations

import codecs
import inspect
import json
import struct
import uuid
from collections.abc import Callable, Iterable, MutableSequence, Sequence
from typing import Any, ClassVar, overload

from penstock.errors import IllegalStateError, SerializationError
from penstock.types import Header, HeadersLike, as_headers

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromObject
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8String


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


class MutableHeaders(MutableSequence[Header]):
    """The headers of a record while its key and value are being serialized.

    A serializer may read, add and remove headers. Once the record is complete they are frozen: a serializer that kept
    a reference and writes to it later gets an IllegalStateError, rather than losing the header silently.
    """

    __slots__ = ("_frozen", "_headers")

    def __init__(self, headers: HeadersLike | None = None) -> None:
        self._headers = list(as_headers(headers))
        self._frozen = False

    def add(self, key: str, value: bytes | None) -> None:
        """Append a header with this name and value."""
        self.append(Header(key, value))

    def freeze(self) -> tuple[Header, ...]:
        """Refuse further changes, and give the headers as they are now."""
        self._frozen = True
        return tuple(self._headers)

    def insert(self, index: int, value: tuple[str, bytes | None]) -> None:
        """Insert a header before `index`."""
        self._check_open()
        self._headers.insert(index, as_headers((value,))[0])

    @overload
    def __getitem__(self, index: int) -> Header: ...
    @overload
    def __getitem__(self, index: slice) -> list[Header]: ...
    def __getitem__(self, index: int | slice) -> Header | list[Header]:
        return self._headers[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._check_open()
        if isinstance(index, slice):
            self._headers[index] = as_headers(value)
        else:
            self._headers[index] = as_headers((value,))[0]

    def __delitem__(self, index: int | slice) -> None:
        self._check_open()
        del self._headers[index]

    def __len__(self) -> int:
        return len(self._headers)

    def __repr__(self) -> str:
        return f"MutableHeaders({self._headers!r})"

    def _check_open(self) -> None:
        if self._frozen:
            raise IllegalStateError("the record's headers cannot be changed any more: it has been serialized")


class Serializer:
    """Base class of serializers. It need not be used: any object with these methods is a serializer."""

    def serialize(self, topic: str, headers: MutableHeaders, data: Any) -> bytes | None:
        """Give the bytes of `data`, or None for a null; headers may be added to the record until it returns."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what the serializer holds; called once, when the producer closes."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _refuse(serializer: Serializer, expected: str, data: Any) -> SerializationError:
    return SerializationError(
        f"{type(serializer).__name__} takes {expected} or None, not {type(data).__name__}"
    )


class _OfValue(Serializer):
    """Turns the value by itself: neither topic nor headers matter."""

    def serialize(self, topic: str, headers: MutableHeaders, data: Any) -> bytes | None:
        """Give the bytes of `data`; None stays None."""
        return None if data is None else self._of(data)

    def _of(self, data: Any) -> bytes:
        raise NotImplementedError


class BytesSerializer(_OfValue):
    """Bytes as they are: bytes, bytearray and memoryview. The default of keys and values."""

    def _of(self, data: Any) -> bytes:
        if isinstance(data, bytes):
            return data
        if isinstance(data, (bytearray, memoryview)):
            return PyBytes_FromObject(data) if cython.compiled else bytes(data)  # the class is slow to call
        raise SerializationError(f"{_refuse(self, 'bytes', data)}; encode it")


class StringSerializer(_OfValue):
    """Text in an encoding, UTF-8 unless told otherwise."""

    def __init__(self, encoding: str = "utf-8") -> None:
        "".encode(encoding)  # an unknown encoding is found here, not at the first record
        self._encoding = encoding
        self._is_utf8 = codecs.lookup(encoding).name == "utf-8"

    def _of(self, data: Any) -> bytes:
        if type(data) is str and self._is_utf8:
            # Compiled code does not look the method up, which takes longer than to encode a short text.
            return PyUnicode_AsUTF8String(data) if cython.compiled else data.encode()
        if not isinstance(data, str):
            raise _refuse(self, "a str", data)
        return data.encode(self._encoding)

    def __repr__(self) -> str:
        return f"StringSerializer({self._encoding!r})"


class _IntSerializer(_OfValue):
    """A big-endian signed integer of a fixed width."""

    _layout: ClassVar[struct.Struct]

    def _of(self, data: Any) -> bytes:
        if not isinstance(data, int) or isinstance(data, bool):
            raise _refuse(self, "an int", data)
        try:
            return self._layout.pack(data)
        except struct.error:
            raise SerializationError(f"{data} does not fit into {self._layout.size} bytes") from None


class Int16Serializer(_IntSerializer):
    """Two bytes, as Java's ShortSerializer."""

    _layout = struct.Struct(">h")


class Int32Serializer(_IntSerializer):
    """Four bytes, as Java's IntegerSerializer."""

    _layout = struct.Struct(">i")


class Int64Serializer(_IntSerializer):
    """Eight bytes, as Java's LongSerializer."""

    _layout = struct.Struct(">q")


class _FloatSerializer(_OfValue):
    """A big-endian IEEE 754 number."""

    _layout: ClassVar[struct.Struct]

    def _of(self, data: Any) -> bytes:
        if not isinstance(data, (int, float)) or isinstance(data, bool):
            raise _refuse(self, "a float", data)
        try:
            return self._layout.pack(data)
        except OverflowError:
            raise SerializationError(f"{data} does not fit into {self._layout.size} bytes") from None


class Float32Serializer(_FloatSerializer):
    """Four bytes, as Java's FloatSerializer."""

    _layout = struct.Struct(">f")


class Float64Serializer(_FloatSerializer):
    """Eight bytes, as Java's DoubleSerializer."""

    _layout = struct.Struct(">d")


class UUIDSerializer(_OfValue):
    """The 36 characters of a UUID, as Java's UUIDSerializer."""

    def _of(self, data: Any) -> bytes:
        if not isinstance(data, uuid.UUID):
            raise _refuse(self, "a uuid.UUID", data)
        return str(data).encode("ascii")


class VoidSerializer(_OfValue):
    """For keys or values that must be null."""

    def _of(self, data: Any) -> bytes:
        raise SerializationError(f"VoidSerializer takes None only, not {type(data).__name__}")


class JsonSerializer(_OfValue):
    """Compact JSON in UTF-8. None is a null value (a tombstone), not the text `null`.

    Args:
        default: what to do with objects that JSON does not know, as in json.dumps.
        sort_keys: write keys in order, so that equal dicts give equal bytes (worth it for keys).
        dumps: writes the JSON instead, with options of its own: `orjson.dumps`, for instance. It returns str or bytes.

    Raises:
        TypeError: `dumps` is given together with one of the others.
    """

    def __init__(
        self,
        default: Callable[[Any], Any] | None = None,
        *,
        sort_keys: bool = False,
        dumps: Callable[[Any], str | bytes] | None = None,
    ) -> None:
        if dumps is None:
            # NaN is not JSON: parsers of other languages would refuse it at the consumer.
            dumps = json.JSONEncoder(
                ensure_ascii=False,
                allow_nan=False,
                separators=(",", ":"),
                default=default,
                sort_keys=sort_keys,
            ).encode
        elif default is not None or sort_keys:
            raise TypeError(
                "JsonSerializer(dumps=...) takes no default= and no sort_keys=: give them to that function"
            )
        self._dumps = dumps

    def _of(self, data: Any) -> bytes:
        written = self._dumps(data)
        return written.encode("utf-8") if isinstance(written, str) else written


_CONSTANT_SIZE, _VARIABLE_SIZE = 0, 1
_NULL_ENTRY = -1
_INT32 = struct.Struct(">i")
# Exactly the classes for which Java's ListDeserializer knows the size of an entry; a subclass might write anything.
_FIXED_SIZE_SERIALIZERS = frozenset(
    {Int16Serializer, Int32Serializer, Int64Serializer, Float32Serializer, Float64Serializer, UUIDSerializer}
)


class ListSerializer(Serializer):
    """A list of entries that another serializer writes, in the format of Java's ListSerializer.

    One byte says which of two layouts follows (all numbers are int32):

        0, fixed size:     count of nulls, the index of each, count of entries, the entries that are not null
        1, variable size:  count of entries, then for each its length (-1: null) and its bytes
    """

    def __init__(self, inner: Serializer | Callable[[Any], bytes | None]) -> None:
        self._inner = as_serializer(inner, "inner")
        self._fixed_size = type(self._inner) in _FIXED_SIZE_SERIALIZERS

    def serialize(self, topic: str, headers: MutableHeaders, data: Any) -> bytes | None:
        """Give the entries in order; entries may be None."""
        if data is None:
            return None
        if not isinstance(data, Sequence) or isinstance(data, (str, bytes, bytearray, memoryview)):
            raise _refuse(self, "a list", data)
        entries = [None if item is None else self._entry(topic, headers, item) for item in data]
        return b"".join(self._fixed_layout(entries) if self._fixed_size else self._variable_layout(entries))

    def close(self) -> None:
        """Close the serializer of the entries."""
        close = getattr(self._inner, "close", None)
        if close is not None:
            close()

    def __repr__(self) -> str:
        return f"ListSerializer({self._inner!r})"

    def _entry(self, topic: str, headers: MutableHeaders, item: Any) -> bytes:
        entry = self._inner.serialize(topic, headers, item)
        if not isinstance(entry, bytes):
            raise SerializationError(f"{self._inner!r} gave {type(entry).__name__} for an entry, not bytes")
        return entry

    @staticmethod
    def _fixed_layout(entries: list[bytes | None]) -> Iterable[bytes]:
        nulls = [index for index, entry in enumerate(entries) if entry is None]
        yield bytes((_CONSTANT_SIZE,))
        yield _INT32.pack(len(nulls))
        yield from map(_INT32.pack, nulls)
        yield _INT32.pack(len(entries))
        yield from (entry for entry in entries if entry is not None)

    @staticmethod
    def _variable_layout(entries: list[bytes | None]) -> Iterable[bytes]:
        yield bytes((_VARIABLE_SIZE,))
        yield _INT32.pack(len(entries))
        for entry in entries:
            yield _INT32.pack(_NULL_ENTRY if entry is None else len(entry))
            if entry is not None:
                yield entry


class _FunctionSerializer(_OfValue):
    """A function of one argument. It is not asked about None, which stays a null."""

    def __init__(self, function: Callable[[Any], bytes | None]) -> None:
        self._of = function  # type: ignore[method-assign,assignment]  # so it is called without another call around it

    def __repr__(self) -> str:
        return f"<serializer function {getattr(self._of, '__qualname__', self._of)!s}>"


def function_of_value(serializer: Serializer) -> Callable[[Any], bytes | None] | None:
    """The function that a serializer is, which is not called with None; None: it wants topic or headers as well."""
    if isinstance(serializer, _OfValue) and type(serializer).serialize is _OfValue.serialize:
        return serializer._of
    return None


def as_serializer(obj: Any, what: str) -> Serializer:
    """Accept a serializer, or wrap a function of one argument as one.

    Args:
        obj: an object with `serialize(topic, headers, data)`, or a callable.
        what: the option or parameter it was given for; named in the error.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(obj, type):
        raise TypeError(f"{what} must be a serializer, not the class {obj.__name__}: make an instance of it")
    if callable(getattr(obj, "serialize", None)):
        return obj  # type: ignore[no-any-return]  # duck typing is the interface
    if not callable(obj):
        raise TypeError(
            f"{what} must have serialize(topic, headers, data), or be a function of one argument; "
            f"{type(obj).__name__} is neither"
        )
    if not _takes_one_argument(obj):
        raise TypeError(
            f"{what} must be a function of one argument, or an object with serialize(topic, headers, data): "
            f"{obj!r} cannot be called with one"
        )
    return _FunctionSerializer(obj)


def _takes_one_argument(function: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True  # some built-in functions do not tell; the first record will
    try:
        signature.bind(None)
    except TypeError:
        return False
    return True
