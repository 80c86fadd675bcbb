# SPDX-License-Identifier: Apache-2.0
"""What the brokers saw and answered, for the trace of a seed: one line for each batch and each transaction request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from penstock.protocol.messages import API_BY_KEY, API_VERSIONS, METADATA, PRODUCE
from penstock.records.format import MAGIC, MAGIC_AT
from penstock.records.legacy.reader import read_set
from penstock.records.reader import Record, read_batches
from penstock.testing.apis import HANDLERS, produce
from penstock.testing.apis.context import ApiRequest, Handler

Note = Callable[..., None]

_UNTOLD = {PRODUCE.key, API_VERSIONS.key}
_LONG = (
    "topics", "brokers", "v3_and_below_topics", "results_by_topic_v3_and_below", "responses", "replica_state",
    "forgotten_topics_data", "session_id", "session_epoch", "max_bytes", "rack_id", "replica_id", "cluster_id",
)  # fmt: skip


@contextmanager
def broker_side(note: Note) -> Iterator[None]:
    """Note what the brokers are asked, and what they answer, while the block runs."""
    told = {
        key: handler._replace(handle=_told(handler, note))
        for key, handler in HANDLERS.items()
        if key not in _UNTOLD
    }
    with mock.patch.dict(HANDLERS, told), mock.patch.object(produce, "_append", _told_append(note)):
        yield


def _told(handler: Handler, note: Note) -> Callable[[ApiRequest], Any]:
    def handle(request: ApiRequest) -> Any:
        answer = handler.handle(request)
        asked = "" if request.api is METADATA else _brief(request.body)
        note(
            "  broker %s: %s %s -> %s",
            request.broker_id,
            API_BY_KEY[request.api.key].name,
            asked,
            _brief(answer),
        )
        return answer

    return handle


def _brief(body: Any) -> str:
    if not isinstance(body, dict):
        return str(body)
    return " ".join(f"{name}={value}" for name, value in body.items() if name not in _LONG)


def _told_append(note: Note) -> Callable[..., Any]:
    append = produce._append

    def told(request: ApiRequest, topic_row: Any, row: Any) -> Any:
        result = append(request, topic_row, row)
        if row["records"][MAGIC_AT] != MAGIC:
            values = [
                str((each.value or b"?").partition(b":")[0], "utf-8") for each in read_set(row["records"])
            ]
            note(
                "  broker %s: Produce %s magic %s, records %s -> code %s, offset %s",
                request.broker_id, result.partition and result.partition.key, row["records"][MAGIC_AT],
                ",".join(values), int(result.code), result.base_offset,
            )  # fmt: skip
            return result
        (batch,) = read_batches(row["records"])
        numbers = [_label(record) for record in batch.records()]
        note(
            "  broker %s: Produce %s id %s epoch %s sequence %s, records %s -> code %s, offset %s",
            request.broker_id, result.partition and result.partition.key, batch.producer_id, batch.producer_epoch,
            batch.base_sequence, ",".join(numbers), int(result.code), result.base_offset,
        )  # fmt: skip
        return result

    return told


def _label(record: Record) -> str:
    """A record by its number or name; those of a sink's log, whose values are long, by their keys."""
    told = record.key if record.key is not None and record.key.startswith(b"{") else record.value
    return (told or b"?").partition(b":")[0].decode() if told is not record.key else str(told, "utf-8")
