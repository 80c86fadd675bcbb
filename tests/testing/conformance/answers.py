# SPDX-License-Identifier: Apache-2.0
"""What of an answer can be compared between two clusters, where two answers differ, and an answer in one line.

Names are the same on both sides and are compared as they are. Replaced are, and only are:

- ids that a cluster gives out: each kind is numbered by first appearance in the case, so that it still matters whether
  two fields hold the same id. The numbers that mean "none" stay.
- where brokers are: node ids, hosts and ports, numbered in the same way.
- times of now; older ones came with a record, and must come back with it.
- what an error says to people: there or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from testing.conformance.raw import CLOSED, Call

from penstock.protocol.messages import API_BY_KEY, API_VERSIONS
from penstock.protocol.schema import ZERO_UUID, Array, Primitive, Struct
from penstock.records.reader import RecordBatch, read_batches
from penstock.testing.apis import HANDLERS

_NONE = (None, "", -1, ZERO_UUID)
_HOUR_MS = 3_600_000
# The kind of id that a field holds.
_IDS = {
    "cluster_id": "cluster",
    "controller_id": "node",
    "finalized_features_epoch": "epoch of features",
    "host": "host",
    "isr_nodes": "node",
    "leader_id": "node",
    "node_id": "node",
    "offline_replicas": "node",
    "port": "port",
    "producer_id": "producer",
    "replica_nodes": "node",
    "session_id": "session",
    "topic_id": "topic",
}
_OWN_NAMES = ("brokers", "group_id", "key", "name", "topic", "topic_id", "transactional_id")
_ZERO_IS_NONE = ("producer", "session")
_TIMES = ("timestamp", "_timestamp", "_time_ms")
_TEXTS = ("error_message",)


class Normaliser:
    """Makes the answers of one side comparable.

    Args:
        now_ms: when the case ran.
    """

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._symbols: dict[str, dict[Any, str]] = {}

    def answers(self, calls: list[Call]) -> list[Any]:
        """The answers of a case, in order."""
        return [self._fields(present(call.api.response, call.version, _claimed(call))) for call in calls]

    def _fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: self._value(name, value) for name, value in fields.items()}

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self._value(name, each) for each in value]
        if isinstance(value, dict):
            return self._fields(value)
        if name == "records" and value is not None:
            return [self._batch(each) for each in read_batches(value, allow_partial=True)]
        if name in _IDS:
            return self._symbol(_IDS[name], value)
        if name.endswith(_TIMES):
            return "now" if abs(value - self._now_ms) < _HOUR_MS else value
        if name.endswith(_TEXTS):
            return value if value is None else "text"
        return value

    def _symbol(self, kind: str, value: Any) -> Any:
        if value in _NONE or (value == 0 and kind in _ZERO_IS_NONE):
            return value
        known = self._symbols.setdefault(kind, {})
        return known.setdefault(value, f"{kind} {len(known) + 1}")

    def _batch(self, batch: RecordBatch) -> dict[str, Any]:
        # The checksum was checked by the reader; it covers times and ids. The position is that in the answer.
        left_out = ("payload", "crc", "position")
        fields = {
            name: getattr(batch, name) for name in RecordBatch.__dataclass_fields__ if name not in left_out
        }
        rows = [record._asdict() for record in batch.records()]
        return self._fields(fields | {"contents": rows})


def present(kind: Primitive | Array | Struct, version: int, value: Any) -> Any:
    """The fields that a version of the answer has; a decoded body has the others with their default."""
    if isinstance(kind, Struct) and isinstance(value, dict) and value is not CLOSED:
        shown = [field for field in kind.fields if field.versions.includes(version)]
        return {field.name: present(field.type, version, value[field.name]) for field in shown}
    if isinstance(kind, Array) and isinstance(value, list):
        return [present(kind.element, version, each) for each in value]
    return value


def _claimed(call: Call) -> dict[str, Any]:
    """The answer; of ApiVersions, the APIs that the fake has, and of their versions those in the message tables."""
    if call.api is not API_VERSIONS or "api_keys" not in call.answer:
        return call.answer
    rows = []
    for row in call.answer["api_keys"]:
        api = API_BY_KEY.get(row["api_key"])
        if api is not None and api.key in HANDLERS:
            low, high = max(row["min_version"], api.min_version), min(row["max_version"], api.max_version)
            rows.append({"api_key": api.key, "min_version": low, "max_version": high})
    # Kafka lists features in the order of a hash.
    features = {
        name: sorted(call.answer[name], key=lambda row: str(row["name"]))
        for name in ("supported_features", "finalized_features")
    }
    return call.answer | features | {"api_keys": rows}


def differences(real: Any, ours: Any, path: str = "") -> Iterator[str]:
    """Where two answers differ, a line each."""
    if isinstance(real, dict) and isinstance(ours, dict) and real.keys() == ours.keys():
        for name in real:
            yield from differences(real[name], ours[name], f"{path}.{name}")
    elif isinstance(real, list) and isinstance(ours, list) and len(real) == len(ours):
        for index, pair in enumerate(zip(real, ours, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif real != ours:
        yield f"{path}: Kafka {real!r}, the fake {ours!r}"


def whole(answer: Any) -> str:
    """An answer with all its fields, in one line."""
    if isinstance(answer, dict):
        return "{" + " ".join(f"{name}={whole(value)}" for name, value in answer.items()) + "}"
    if isinstance(answer, list):
        return "[" + ", ".join(map(whole, answer)) + "]"
    return str(answer)


def brief(kind: Struct, answer: dict[str, Any]) -> str:
    """The error codes of an answer, then what else it says: no defaults, and no names that only this case has."""
    leaves = list(_leaves(kind, answer))
    codes = [text for name, text in leaves if name.endswith("error_code")]
    rest = [f"{name}={text}" for name, text in leaves if not name.endswith("error_code")]
    return " ".join(["/".join(codes) or "-", *rest])


def _leaves(kind: Struct, answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if answer == CLOSED:
        yield "connection", "closed"
    for field in kind.fields:
        value = answer.get(field.name, field.default_value())
        is_code = field.name.endswith("error_code") and field.name in answer
        if field.name in _OWN_NAMES or (value == field.default_value() and not is_code):
            continue
        if isinstance(field.type, Struct):
            yield from _leaves(field.type, value)
        elif isinstance(field.type, Array) and isinstance(field.type.element, Struct) and value is not None:
            for each in value:
                yield from _leaves(field.type.element, each)
        elif field.name == "records" and value is not None:
            yield "batches", str(len(value))
        else:
            yield field.name, str(value)
