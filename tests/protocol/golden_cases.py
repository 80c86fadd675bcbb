# SPDX-License-Identifier: Apache-2.0
"""The golden requests and responses as the codec's own values."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from penstock.protocol.messages import API_BY_KEY
from penstock.protocol.schema import BYTES, RECORDS, UUID, ApiSchema, Array, Primitive, Struct

_GOLDEN = Path(__file__).parent.parent / "golden"


@dataclass(frozen=True)
class GoldenCase:
    name: str
    api: ApiSchema
    version: int
    correlation_id: int
    client_id: str | None
    fields: dict[str, Any]  # as in the file
    data: bytes  # header and body
    unknown_tags: bool
    is_request: bool

    @property
    def struct(self) -> Struct:
        return self.api.request if self.is_request else self.api.response

    @property
    def body(self) -> dict[str, Any]:
        """What the encoder is given: only the fields that the case names."""
        return _body(self.struct, self.fields, complete=False)

    @property
    def complete_body(self) -> dict[str, Any]:
        """What the decoder must give: every field of the schema."""
        return _body(self.struct, self.fields, complete=True)

    @property
    def header_size(self) -> int:
        """Of a request's header, worked out by hand from the protocol's description."""
        flexible = self.api.is_flexible(self.version)
        if self.is_request:
            return 10 + len((self.client_id or "").encode()) + flexible
        return 4 + (flexible and self.api.name != "ApiVersions")


@cache
def golden_requests() -> tuple[GoldenCase, ...]:
    return _load("requests.jsonl", is_request=True)


@cache
def golden_responses() -> tuple[GoldenCase, ...]:
    return _load("responses.jsonl", is_request=False)


def _load(name: str, *, is_request: bool) -> tuple[GoldenCase, ...]:
    cases = []
    for line in (_GOLDEN / name).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        cases.append(
            GoldenCase(
                name=row["name"],
                api=API_BY_KEY[row["api_key"]],
                version=row["api_version"],
                correlation_id=row["correlation_id"],
                client_id=row.get("client_id"),
                fields=row["fields"],
                data=bytes.fromhex(row["hex"]),
                unknown_tags=row.get("unknown_tags", False),
                is_request=is_request,
            )
        )
    return tuple(cases)


def _body(struct: Struct, fields: dict[str, Any], *, complete: bool) -> dict[str, Any]:
    given = {
        re.sub("[A-Z]", lambda match: "_" + match[0].lower(), name): value for name, value in fields.items()
    }
    body: dict[str, Any] = struct.defaults() if complete else {}
    types = {field.name: field.type for field in struct.fields}
    for name, value in given.items():
        body[name] = _value(types[name], value, complete=complete)
    return body


def _value(kind: Primitive | Array | Struct, value: Any, *, complete: bool) -> Any:
    if value is None:
        return None
    if isinstance(kind, Struct):
        return _body(kind, value, complete=complete)
    if isinstance(kind, Array):
        return [_value(kind.element, each, complete=complete) for each in value]
    return bytes.fromhex(value) if kind in (UUID, BYTES, RECORDS) else value
