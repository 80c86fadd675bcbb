# SPDX-License-Identifier: Apache-2.0
"""The message tables against an independent implementation of the protocol (kio).

Ours encodes, kio reads it and finds the same values; kio writes them again and gives the same bytes.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import random
import typing
import uuid
from typing import Any

import pytest
from protocol.random_bodies import random_body

from penstock.protocol import messages
from penstock.protocol.codec import (
    decode_request_body,
    decode_response_body,
    encode_request_body,
    encode_response_body,
)
from penstock.protocol.messages import API_BY_KEY
from penstock.protocol.schema import ApiSchema, Array, Struct, Versions

kio_index = pytest.importorskip("kio.index")
kio_serial = pytest.importorskip("kio.serial")

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)

# Newer or older than kio; their bytes are written out in test_api_versions.py, test_txn_offset_commit.py and
# test_produce_legacy.py.
UNKNOWN_TO_KIO = {("ApiVersions", 5), ("TxnOffsetCommit", 6), *(("Produce", version) for version in range(3))}

every_version = pytest.mark.parametrize(
    ("api", "version"),
    [
        (api, version)
        for api in API_BY_KEY.values()
        for version in range(api.min_version, api.max_version + 1)
        if (api.name, version) not in UNKNOWN_TO_KIO
    ],
    ids=lambda value: value.name if isinstance(value, ApiSchema) else f"v{value}",
)


def as_ours(value: Any, struct: Struct | None) -> Any:
    """A value of kio's as the codec would give it."""
    if isinstance(value, tuple):
        return [as_ours(each, struct) for each in value]
    if dataclasses.is_dataclass(value):
        assert struct is not None
        return entity_as_ours(value, struct)
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MILLISECOND
    if isinstance(value, uuid.UUID):
        return value.bytes
    return value


def entity_as_ours(entity: Any, struct: Struct) -> dict[str, Any]:
    """The whole body; kio leaves the unit out of the names of times, and gives None for a zero uuid or time."""
    body = struct.defaults()
    kinds = {field.name: field for field in struct.fields}
    for field in dataclasses.fields(entity):
        name = field.name if field.name in kinds else f"{field.name}_ms"
        kind = kinds[name].type
        inner = kind.element if isinstance(kind, Array) else kind
        value = as_ours(getattr(entity, field.name), inner if isinstance(inner, Struct) else None)
        if value is None and field.metadata.get("kafka_type") == "uuid":
            value = bytes(16)
        body[name] = value
    return body


@every_version
@pytest.mark.parametrize("kind", ["request", "response"])
def test_kio_reads_what_we_write_and_we_read_what_kio_writes(api: ApiSchema, version: int, kind: str) -> None:
    if kind == "request":
        entity_type, struct = kio_index.load_request_schema(api.key, version), api.request
        encode, decode = encode_request_body, decode_request_body
    else:
        entity_type, struct = kio_index.load_response_schema(api.key, version), api.response
        encode, decode = encode_response_body, decode_response_body
    read, write = kio_serial.entity_reader(entity_type), kio_serial.entity_writer(entity_type)
    rng = random.Random(f"{api.key} {version} {kind}")
    for _ in range(8):
        body = random_body(struct, version, rng)
        ours = b"".join(encode(api, version, body))
        entity, size = read(ours, 0)
        assert size == len(ours)
        assert entity_as_ours(entity, struct) == body
        theirs = io.BytesIO()
        write(theirs, entity)
        assert theirs.getvalue() == ours
        assert decode(api, version, theirs.getvalue()) == body


def described_by_kio(entity_type: Any, ours: Struct) -> dict[str, Any]:
    """The fields of one version: name to (tag, may be null, inner fields)."""
    names = {field.name: field for field in ours.fields}
    hints = typing.get_type_hints(entity_type)
    described = {}
    for field in dataclasses.fields(entity_type):
        name = field.name if field.name in names else f"{field.name}_ms"
        hint = hints[field.name]
        # Its None for a zero uuid or an absent time is kio's own, not the wire's.
        nullable = type(None) in typing.get_args(hint) and field.metadata.get("kafka_type") in (
            None,
            "string",
            "bytes",
            "records",
        )
        inner = next((each for each in _leaves(hint) if dataclasses.is_dataclass(each)), None)
        kind = names[name].type
        struct = kind.element if isinstance(kind, Array) else kind
        inside = described_by_kio(inner, struct) if inner and isinstance(struct, Struct) else None
        described[name] = (field.metadata.get("tag"), nullable, inside)
    return described


def _leaves(hint: Any) -> list[Any]:
    arguments = typing.get_args(hint)
    return [leaf for argument in arguments for leaf in _leaves(argument)] if arguments else [hint]


def described_by_us(struct: Struct, version: int) -> dict[str, Any]:
    described = {}
    for field in struct.fields:
        if field.versions.includes(version):
            inner = field.type.element if isinstance(field.type, Array) else field.type
            inside = described_by_us(inner, version) if isinstance(inner, Struct) else None
            described[field.name] = (field.tag, field.nullable.includes(version), inside)
    return described


@every_version
def test_fields_tags_and_nulls_are_those_of_kio(api: ApiSchema, version: int) -> None:
    request = kio_index.load_request_schema(api.key, version)
    assert described_by_us(api.request, version) == described_by_kio(request, api.request)
    response = kio_index.load_response_schema(api.key, version)
    assert described_by_us(api.response, version) == described_by_kio(response, api.response)


@every_version
def test_headers_are_those_of_kio(api: ApiSchema, version: int) -> None:
    request = kio_index.load_request_schema(api.key, version)
    assert request.__header_schema__.__version__ == api.request_header_version(version)
    assert request.__flexible__ == api.is_flexible(version)
    response = kio_index.load_response_schema(api.key, version)
    assert response.__header_schema__.__version__ == api.response_header_version(version)


def test_every_exported_schema_is_found_by_its_key() -> None:
    exported = {value for value in vars(messages).values() if isinstance(value, ApiSchema)}
    assert set(API_BY_KEY.values()) == exported
    assert len(API_BY_KEY) == 20
    assert all(api.key == key for key, api in API_BY_KEY.items())


@pytest.mark.parametrize("api", API_BY_KEY.values(), ids=lambda api: api.name)
def test_names_and_tags_are_unique_in_each_struct(api: ApiSchema) -> None:
    waiting = [api.request, api.response]
    while waiting:
        fields = waiting.pop().fields
        assert len({field.name for field in fields}) == len(fields)
        tags = [field.tag for field in fields if field.tag is not None]
        assert sorted(tags) == list(range(len(tags)))
        for field in fields:
            inner = field.type.element if isinstance(field.type, Array) else field.type
            if isinstance(inner, Struct):
                waiting.append(inner)


@pytest.mark.parametrize(("text", "first", "last"), [("3+", 3, 32767), ("0-3", 0, 3), ("5", 5, 5)])
def test_version_ranges(text: str, first: int, last: int) -> None:
    versions = Versions.parse(text)
    assert versions == (first, last)
    assert versions.includes(first)
    assert not versions.includes(first - 1)
    assert versions.includes(last)
    assert not versions.includes(last + 1)


def test_a_range_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError):
        Versions.parse("none")
