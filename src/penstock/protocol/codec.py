# SPDX-License-Identifier: Apache-2.0
"""The one encoder and decoder for every message.

Bodies are plain dicts, keyed by Kafka's field names in snake case. On encoding, a missing key means the field's
default. A decoded body has every field of the schema; those which the version does not have hold their default. A plan
for each (struct, version) is built at its first use and kept; it holds no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from penstock.error_codes import ErrorCode
from penstock.errors import ProtocolError
from penstock.protocol._wire_reader import Cursor, Malformed, Reader, struct_reader
from penstock.protocol._wire_writer import Output, Unencodable, Writer, struct_writer
from penstock.protocol.schema import ApiSchema, Buffer

_API_VERSIONS_KEY = 18
_NO_TAGS = b"\0"


def encode_request_body(api: ApiSchema, version: int, body: Mapping[str, Any]) -> list[Buffer]:
    """The bytes of a request, as buffers to be sent one after the other; records are not copied.

    Raises:
        ValueError: the body has an unknown field, a value that does not fit, or one that the version cannot say.
    """
    return _encode(api, version, body, is_request=True)


def encode_response_body(api: ApiSchema, version: int, body: Mapping[str, Any]) -> list[Buffer]:
    """The bytes of a response, as a broker would send it.

    Raises:
        ValueError: as for `encode_request_body`.
    """
    return _encode(api, version, body, is_request=False)


def decode_request_body(api: ApiSchema, version: int, data: Buffer) -> dict[str, Any]:
    """Read a request, as a broker would.

    Raises:
        ProtocolError: the bytes are not a request of this version.
    """
    return _decode(api, version, data, is_request=True)


def decode_response_body(api: ApiSchema, version: int, data: Buffer) -> dict[str, Any]:
    """Read a response. Unknown tagged fields are skipped, unknown error codes stay numbers.

    Fields of type records refer to `data`; everything else is copied out of it. Lists and defaults that are the same
    may be one object in several places: what was decoded is not to be changed.

    Raises:
        ProtocolError: the bytes are not a response of this version, or would take far more memory than they have bytes.
    """
    if api.key == _API_VERSIONS_KEY and version > 0 and _is_refused_version(data):
        # A broker that does not know the version asked for cannot answer in it: it says so in version 0.
        try:
            return _decode(api, 0, data, is_request=False)
        except ProtocolError:
            pass  # not the short form after all: read it as it was asked for
    return _decode(api, version, data, is_request=False)


def _is_refused_version(data: Buffer) -> bool:
    return int.from_bytes(data[:2], "big", signed=True) == ErrorCode.UNSUPPORTED_VERSION


def _encode(api: ApiSchema, version: int, body: Mapping[str, Any], *, is_request: bool) -> list[Buffer]:
    writer = _writer(api, version, is_request)
    out = Output()
    try:
        writer(out, body)
    except Unencodable as error:
        where = _where(api, version, is_request, error.path)
        raise ValueError(f"cannot encode {where}: {error.reason}") from None
    return out.buffers()


def _decode(api: ApiSchema, version: int, data: Buffer, *, is_request: bool) -> dict[str, Any]:
    reader = _reader(api, version, is_request)
    cursor = Cursor(memoryview(data))
    try:
        body: dict[str, Any] = reader(cursor)
        check_end(api, version, cursor, is_request=is_request)
    except Malformed as error:
        raise undecodable(api, version, error, is_request=is_request) from None
    return body


def undecodable(api: ApiSchema, version: int, error: Malformed, *, is_request: bool = False) -> ProtocolError:
    """The error for bytes that do not fit the schema."""
    return ProtocolError(f"cannot decode {_where(api, version, is_request, error.path)}: {error.reason}")


def check_end(api: ApiSchema, version: int, cursor: Cursor, *, is_request: bool = False) -> None:
    """Refuse what follows a body; but an answer may have an empty list of tagged fields once more.

    librdkafka's mock cluster ends its Metadata like that, and other clients read it.
    """
    second_end = not is_request and api.is_flexible(version) and cursor.data[cursor.pos :] == _NO_TAGS
    if cursor.pos != cursor.end and not second_end:
        raise Malformed(f"{cursor.end - cursor.pos} bytes too many")


def _where(api: ApiSchema, version: int, is_request: bool, path: str) -> str:
    message = f"{api.name} {'request' if is_request else 'response'} v{version}"
    return f"{message}, field {path}" if path else message


@cache
def _writer(api: ApiSchema, version: int, is_request: bool) -> Writer:
    _check_version(api, version)
    return struct_writer(api.request if is_request else api.response, version, api.is_flexible(version))


@cache
def _reader(api: ApiSchema, version: int, is_request: bool) -> Reader:
    _check_version(api, version)
    return struct_reader(api.request if is_request else api.response, version, api.is_flexible(version))


def _check_version(api: ApiSchema, version: int) -> None:
    if not api.min_version <= version <= api.max_version:
        raise ValueError(f"{api.name} v{version} is not known, only {api.min_version} to {api.max_version}")
