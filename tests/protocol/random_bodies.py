# SPDX-License-Identifier: Apache-2.0
"""Random message bodies, drawn from the schemas."""

from __future__ import annotations

import random
from typing import Any

from penstock.protocol.schema import (
    BOOL,
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID,
    Array,
    Field,
    Primitive,
    Struct,
)

_BITS = {INT8: 8, INT16: 16, INT32: 32, INT64: 64}
_TEXTS = ("", "a", "orders", "\u043a\u043b\u0438\u043a\u0438", "\U0001f41f", "x" * 126, "x" * 127, "y" * 300)
_SIZES = (0, 1, 3, 127, 128, 2000)


def random_body(struct: Struct, version: int, rng: random.Random) -> dict[str, Any]:
    """A body with every field that the version has, tagged ones half of the time; the others have their default."""
    body = struct.defaults()
    for field in struct.fields:
        if field.versions.includes(version) and (field.tag is None or rng.random() < 0.5):
            body[field.name] = _value(field, version, rng)
    return body


def _value(field: Field, version: int, rng: random.Random) -> Any:
    if field.nullable.includes(version) and rng.random() < 0.25:
        return None
    if isinstance(field.type, Struct):
        return random_body(field.type, version, rng)
    if isinstance(field.type, Array):
        return [_element(field.type.element, version, rng) for _ in range(rng.randrange(4))]
    # Times within a century or so, and error codes that exist: the oracle knows no others.
    if field.name.endswith("_ms"):
        return rng.choice((0, 1, 86_400_000, rng.randrange(2**31 - 1)))
    if field.name.endswith("error_code"):
        return rng.randrange(-1, 120)
    return _element(field.type, version, rng)


def _element(kind: Primitive | Struct, version: int, rng: random.Random) -> Any:
    if isinstance(kind, Struct):
        return random_body(kind, version, rng)
    if kind is BOOL:
        return rng.random() < 0.5
    if kind is STRING:
        return rng.choice(_TEXTS)
    if kind in (BYTES, RECORDS):
        return rng.randbytes(rng.choice(_SIZES))
    if kind is UUID:
        return rng.choice((bytes(16), rng.randbytes(16)))
    half = 1 << (_BITS[kind] - 1)
    return rng.choice((0, 1, -1, -half, half - 1, rng.randrange(-half, half)))
