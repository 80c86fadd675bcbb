# SPDX-License-Identifier: Apache-2.0
"""The gate between a partition's queue and the wire.

Before a batch leaves its queue the gate is asked whether it may, and gives it the identity that its header carries;
when its request has ended, the gate decides what becomes of it. There is a gate without guarantees (`OpenGate`), an
idempotent one (`IdempotentGate`), and a transactional one (`TransactionManager`). All have the same methods: no caller
asks which one it has.

The methods belong to the I/O thread, but for those whose docstring says "From any thread".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from penstock.errors import KafkaError
from penstock.network import InFlightRequest
from penstock.network.failures import describe
from penstock.producer.batch._batch_cy import ANONYMOUS, Batch, BatchIdentity
from penstock.producer.batch._queue_cy import PartitionQueue
from penstock.producer.guarantee.response_policy import BatchSituation, Decision, decide
from penstock.protocol.releases import UNKNOWN
from penstock.protocol.requests import NodeApiVersions, Request
from penstock.types import Node, TopicPartition

NOTHING_REFUSED: Final[Mapping[TopicPartition, KafkaError]] = MappingProxyType({})


def name_with_release(node: Node, versions: NodeApiVersions | None) -> str:
    """A broker in a sentence, with its release if that is known."""
    if versions is None or versions.release == UNKNOWN:
        return f"{describe(node)} (of an unknown release)"
    how = "taken for " if versions.guessed else ""
    return f"{describe(node)} ({how}Kafka {versions.release})"


class GateRequest(NamedTuple):
    """A request that the gate needs answered.

    Attributes:
        request: what to send.
        node: where; None: any broker will do.
        on_response: called with the end of it, and the present moment.
        on_unreachable: called instead when the node cannot be reached; nothing was sent.
    """

    request: Request
    node: Node | None
    on_response: Callable[[InFlightRequest, float], None]
    on_unreachable: Callable[[KafkaError, float], None]


class BatchNumbering(Protocol):
    """What is asked and told for every batch: whether it may leave, its identity, and that it was written."""

    @property
    def at_rest(self) -> bool:
        """Whether a turn need not ask the gate: `before_turn`, `refused_partitions`, `next_request` have nothing."""
        ...

    def may_drain(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Whether the batch at the head of the queue may be sent now."""
        ...

    def assign(self, batch: Batch) -> BatchIdentity:
        """The identity of a batch that is about to be sent; the same again when it is retried."""
        ...

    def on_success(self, batch: Batch, base_offset: int) -> None:
        """A batch was written."""
        ...


class Gate(Protocol):
    """Decides what becomes of batches. Its numbering decides which may leave, and gives them their identity."""

    @property
    def numbering(self) -> BatchNumbering:
        """What the drain and the outcomes ask for every batch."""
        ...

    @property
    def transactional_id(self) -> str | None:
        """The id that produce requests carry."""
        ...

    @property
    def transaction(self) -> object:
        """An object that differs for each transaction; None without transactions. From any thread."""
        ...

    @property
    def max_produce_version(self) -> int:
        """The highest version of Produce that may be used now."""
        ...

    @property
    def completing(self) -> bool:
        """Whether batches need not wait for more records, because a transaction is being ended."""
        ...

    @property
    def busy(self) -> bool:
        """Whether something is under way that a graceful close waits for."""
        ...

    @property
    def failed(self) -> bool:
        """Whether the producer cannot go on: batches that wait to be sent again fail, too."""
        ...

    @property
    def refused_partitions(self) -> Mapping[TopicPartition, KafkaError]:
        """Partitions that cannot become part of the transaction, and why: what waits for them fails."""
        ...

    def check_send(self) -> None:
        """Raise when no record can be accepted now. From any thread."""
        ...

    def before_turn(self, now: float) -> KafkaError | None:
        """Settle what can be settled; an error with which batches that were never sent must fail."""
        ...

    def next_request(self, now: float, data_waits: bool) -> GateRequest | None:
        """The request to send next, when none of the gate's own is under way."""
        ...

    def seconds_to_request(self, now: float) -> float:
        """Seconds until `next_request` is worth asking again; infinity when an event will tell."""
        ...

    def decide(self, code: int, log_start_offset: int, batch: Batch, situation: BatchSituation) -> Decision:
        """What to do with a batch whose request ended with that code; not asked when it was simply written."""
        ...

    @property
    def numbers_all(self) -> bool:
        """Whether every batch is numbered, so that a retry is written once. From any thread."""
        ...

    @property
    def headerless(self) -> Collection[PartitionQueue]:
        """Partitions that are known to be stored in a format without headers: brokers drop them and say nothing."""
        ...

    def may_go_unnumbered(self, batch: Batch, broker: str) -> bool:
        """Whether a numbered batch may be sent to a broker that is too old for numbers; if so, it has none any more.

        Args:
            batch: drained, and not sent yet.
            broker: its leader, for people.
        """
        ...

    def expect_memory(self, batches: int) -> None:
        """Leaders remember this number of batches of a partition: number no more before the oldest is settled."""
        ...

    def on_failure(self, batch: Batch, error: KafkaError, decision: Decision) -> None:
        """A batch failed for good."""
        ...

    def on_expired(self, batch: Batch, error: KafkaError) -> None:
        """A batch's delivery time-out is over."""
        ...

    def on_split(self, batch: Batch, pieces: Sequence[Batch]) -> None:
        """A batch was replaced by its pieces."""
        ...

    def may_forget(self, queue: PartitionQueue) -> bool:
        """Whether nothing about a queue without batches is left to be settled."""
        ...

    def forget(self, queues: Sequence[PartitionQueue]) -> None:
        """Their topics are not used any more; other queues come in their place when they are used again."""
        ...

    def begin_close(self) -> None:
        """The producer closes, and all that was accepted has its outcome: leave nothing open."""
        ...

    def close(self, error: KafkaError) -> None:
        """The producer has closed: calls that wait for the gate fail."""
        ...


class NoNumbering:
    """Lets every batch leave, and numbers none."""

    at_rest = False

    def may_drain(self, queue: PartitionQueue, batch: Batch) -> bool:
        return True

    def assign(self, batch: Batch) -> BatchIdentity:
        return ANONYMOUS

    def on_success(self, batch: Batch, base_offset: int) -> None:
        """Do nothing: no batch has numbers."""


class OpenGate:
    """The gate without guarantees: every batch may leave, and none is numbered.

    Args:
        retries: how often a batch may be queued again.
    """

    transactional_id: str | None = None
    transaction: object = None
    max_produce_version = 13
    completing = False
    busy = False
    failed = False
    refused_partitions = NOTHING_REFUSED
    numbers_all = False
    headerless: Collection[PartitionQueue] = ()

    def __init__(self, retries: int) -> None:
        self.numbering: BatchNumbering = NoNumbering()
        self._retries = retries

    def check_send(self) -> None:
        """Do nothing: every record is accepted."""

    def before_turn(self, now: float) -> KafkaError | None:
        return None

    def next_request(self, now: float, data_waits: bool) -> GateRequest | None:
        return None

    def seconds_to_request(self, now: float) -> float:
        return float("inf")

    def decide(self, code: int, log_start_offset: int, batch: Batch, situation: BatchSituation) -> Decision:
        return decide(code, situation, self._retries)

    def may_go_unnumbered(self, batch: Batch, broker: str) -> bool:
        """True: no batch has numbers."""
        return True

    def expect_memory(self, batches: int) -> None:
        """Do nothing: no batch has numbers."""

    def on_failure(self, batch: Batch, error: KafkaError, decision: Decision) -> None:
        """Do nothing: no batch has numbers."""

    def on_expired(self, batch: Batch, error: KafkaError) -> None:
        """Do nothing: no batch has numbers."""

    def on_split(self, batch: Batch, pieces: Sequence[Batch]) -> None:
        """Do nothing: no batch has numbers."""

    def may_forget(self, queue: PartitionQueue) -> bool:
        return True

    def forget(self, queues: Sequence[PartitionQueue]) -> None:
        """Do nothing: there are no numbers to forget."""

    def begin_close(self) -> None:
        """Do nothing: there is no transaction."""

    def close(self, error: KafkaError) -> None:
        """Do nothing: no call waits for this gate."""
