# SPDX-License-Identifier: Apache-2.0
"""Small values around the TransactionManager: its settings, its surroundings, and what it raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock._identity import ProducerIdentity
from penstock.error_codes import ErrorCode
from penstock.errors import KafkaError, TransactionAbortableError
from penstock.producer.guarantee.transactions.cluster_facts import ClusterFacts


class TransactionSettings(NamedTuple):
    """The options that matter to transactions."""

    transactional_id: str
    timeout_ms: int
    retries: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int


class Surroundings(NamedTuple):
    """What the manager asks of the parts around it.

    Attributes:
        cluster: what is known of the cluster. I/O thread only.
        has_incomplete: whether any batch has no outcome yet.
        accept: opens (True) or closes (False) the fast path of send().
        wake: wakes the I/O thread.
    """

    cluster: ClusterFacts
    has_incomplete: Callable[[], bool]
    accept: Callable[[bool], None]
    wake: Callable[[], object]


class FirstWrite:
    """Where the first acknowledged batch of a transaction is, and how many records there are."""

    __slots__ = ("offset", "partition", "records", "topic")

    def __init__(self) -> None:
        self.topic: str | None = None
        self.partition = -1
        self.offset = -1
        self.records = 0


def for_the_transaction(error: KafkaError) -> KafkaError:
    """The error that calls raise: one that looks as if the call could be repeated is wrapped, for it cannot."""
    if not error.retriable and getattr(error, "code", 0) != ErrorCode.INVALID_TXN_STATE:
        return error
    wrapped = TransactionAbortableError(f"a record was not delivered: {error}")
    wrapped.__cause__ = error
    return wrapped


def fence_text(transactional_id: str, identity: ProducerIdentity, timeout_ms: int) -> str:
    """What a fenced producer is told: by whom, and what to do."""
    used = (
        f" (this one is producer id {identity.producer_id}, epoch {identity.epoch})" if identity.valid else ""
    )
    return (
        f"another producer has taken over the transactional id {transactional_id!r}{used}; or a transaction was open "
        f"for longer than transaction.timeout.ms ({timeout_ms}), and was ended by its coordinator. What this one had "
        "not committed is aborted. Close it: a newer one goes on, and where there is none, make one. Producers that "
        "work at the same time need a transactional.id each"
    )
