# SPDX-License-Identifier: Apache-2.0
"""What a producer asks of a tracing system (the option `tracing`).

A Tracing serves all producers that have it; of each it makes a ProducerTracing. No call of either raises: who traces
records must not stop them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock._events import Event, tell_error

if TYPE_CHECKING:
    from penstock.types import Header, HeadersLike, ProducerRecord, RecordMetadata

    # Ends the span of one record; called once, mostly on the I/O thread.
    RecordEnd = Callable[[RecordMetadata, BaseException | None], object]
    # Ends the span of one bulk: how many records were acknowledged, and why the first of the others was not.
    BulkEnd = Callable[[int, BaseException | None], object]

log = logging.getLogger("penstock.producer")


class AnsweredRequest(NamedTuple):
    """A produce request that has ended.

    Attributes:
        node_id: the broker's id, with its `host` and `port`.
        seconds: from the request to its end.
        batches: topic, partition and number of records of each batch.
        error: why there is no answer, or None.
        refused: what the broker says of batches that it refused, by topic and partition: its error code.
    """

    node_id: int
    host: str
    port: int
    seconds: float
    batches: Sequence[tuple[str, int, int]]
    error: BaseException | None
    refused: dict[tuple[str, int], int]


def telling_of_requests(tracing: ProducerTracing) -> Callable[[Any, Sequence[Any]], None]:
    """What is called with each InFlightRequest that has ended, and its Batches. It never raises."""

    def on_end(response: Any, batches: Sequence[Any]) -> None:
        try:
            tracing.on_request_end(_answered_request(response, batches))
        except BaseException as error:  # noqa: BLE001 - whatever its class, it may not end the I/O thread
            tell_error(
                log, Event.TRACING_FAILED, "the end of a produce request could not be traced",
                node=response.node, error=error,
            )  # fmt: skip

    return on_end


def _answered_request(response: Any, batches: Sequence[Any]) -> AnsweredRequest:
    """What a trace says of a request that has ended: of an InFlightRequest and its Batches."""
    node, body = response.node, response.body
    refused = {}
    if body is not None:
        refused = {
            (one.topic, one.partition): one.error_code for one in body.partitions if one.error_code != 0
        }
    counted = [(*batch.topic_partition, batch.record_count) for batch in batches]
    return AnsweredRequest(node.id, node.host, node.port, response.latency, counted, response.error, refused)


class ProducerTracing(Protocol):
    """Traces one producer.

    Attributes:
        has_spans: whether each call has a span. If not, `with_context` is all that a record needs.
    """

    has_spans: bool

    def with_context(self, headers: Any, /) -> Any:
        """Headers as they were given to `send`, with the caller's context; what is no list or tuple is given back."""

    def writes(self, name: str, /) -> bool:
        """Whether a header of that name carries a context."""

    def begin(self, record: ProducerRecord, /) -> tuple[ProducerRecord, RecordEnd | None]:
        """A record on its way out, and what is called with its outcome."""

    def begin_bulk(
        self, topic: str | None, count: int, /
    ) -> tuple[Callable[[HeadersLike | None], tuple[Header, ...]], BulkEnd | None]:
        """A call for many records; gives what adds the context to the headers of each.

        Args:
            topic: where they go, where that is one.
            count: how many, -1 where that is not known yet.
        """

    def on_request_end(self, ended: AnsweredRequest, /) -> object:
        """A produce request has ended; on the I/O thread."""


class Tracing(Protocol):
    """A tracing system; see `penstock.watching.opentelemetry`."""

    def trace_producer(self, client_id: str, /) -> ProducerTracing:
        """Trace a producer that is being made."""
