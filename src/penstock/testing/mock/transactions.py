# SPDX-License-Identifier: Apache-2.0
"""The transactions of a MockProducer: which call is allowed when, and what a commit publishes.

    no transactions -> init -> ready -> begin -> open -> commit or abort -> ready
                                                  |
                                                  `- a record failed: only abort is allowed

From anywhere `fence` leads to a state without a way out, as when a newer producer has taken over the transactional id.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock._refusals import NO_TRANSACTION, Refusals
from penstock.errors import IllegalStateError, KafkaError, ProducerFencedError, TransactionAbortableError
from penstock.transaction_handle import TransactionHandle
from penstock.types import ProducerRecord, TopicPartition

GroupOffsets = dict[str, dict[TopicPartition, int]]


class MockTransactions:
    """The state. Not safe for threads by itself: the MockProducer's lock guards it.

    Args:
        transactional_id: the configured one, if any.
    """

    def __init__(self, transactional_id: str | None) -> None:
        self.transactional_id = transactional_id
        self.initialized = False
        self.in_transaction = False
        self.fenced = False
        self.error: KafkaError | None = None  # why the open transaction can only be aborted
        self.refusals = Refusals()  # sends of the open transaction that raised
        self.uncommitted: list[ProducerRecord] = []
        self.uncommitted_offsets: GroupOffsets = {}
        self.committed_offsets: list[GroupOffsets] = []  # one entry for each commit that had offsets
        self.commit_count = 0
        self.abort_count = 0
        self.detached: dict[
            TransactionHandle, list[ProducerRecord]
        ] = {}  # what each handle's transaction held

    def check_init(self, transactional_id: str | None) -> None:
        """Refuse a second init, and one without any id."""
        self._check_not_fenced()
        if self.initialized:
            raise IllegalStateError("init_transactions() was called before: once is enough")
        if not (transactional_id or self.transactional_id):
            raise IllegalStateError(
                "init_transactions() needs a transactional id: MockProducer(transactional_id=...), or as its argument"
            )

    def init(self, transactional_id: str | None) -> None:
        """Get ready for the first transaction."""
        self.transactional_id = transactional_id or self.transactional_id
        self.initialized = True

    def check_begin(self) -> None:
        """Refuse a transaction before init, and one inside another."""
        self._check_initialized("begin_transaction()")
        if self.in_transaction:
            raise IllegalStateError("begin_transaction(): a transaction is open already; commit or abort it")

    def begin(self) -> None:
        self.in_transaction = True

    def check_send(self) -> None:
        """Refuse a record that a broker would not take.

        Raises:
            ProducerFencedError: the producer is fenced; it has another one as its cause.
            TransactionAbortableError: an earlier record of the transaction failed; that error is the cause.
            IllegalStateError: the producer is transactional and no transaction is open.
        """
        if self.fenced:
            raise ProducerFencedError("send(): the producer cannot go on, it was fenced") from _fenced_error()
        self._check_no_error("send()")
        if self._transactional and not self.in_transaction:
            self._check_initialized("send()")
            raise IllegalStateError(NO_TRANSACTION)

    def check_open(self, call: str, *, may_have_failed: bool = False) -> None:
        """Refuse a call that needs an open transaction."""
        self._check_initialized(call)
        if not self.in_transaction:
            raise IllegalStateError(f"{call}: no transaction is open; begin_transaction() comes first")
        if not may_have_failed:
            self._check_no_error(call)

    def add_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        """Let the transaction commit a group's offsets; a later offset of the same partition replaces an earlier."""
        self.uncommitted_offsets.setdefault(group, {}).update(offsets)

    def record_failed(self, error: KafkaError) -> None:
        """Take note of a failed record: its transaction cannot be committed any more."""
        if isinstance(error, ProducerFencedError):
            self.fenced = True
        elif self.in_transaction and self.error is None:
            self.error = error

    def note_refused(self, error: BaseException) -> None:
        """Take note of a send that raised: its transaction lacks a record."""
        if self.in_transaction and self.error is None:
            self.refusals.note(error)

    def commit(self) -> list[ProducerRecord]:
        """End the transaction; its records, which are visible from now on."""
        published = self.uncommitted
        if self.uncommitted_offsets:
            self.committed_offsets.append(self.uncommitted_offsets)
        self.commit_count += 1
        self._end()
        return published

    def abort(self) -> None:
        """End the transaction and drop what was in it."""
        self.abort_count += 1
        self._end()

    def detach(self) -> TransactionHandle:
        """Give the transaction away; a new init is needed before the next one."""
        handle = TransactionHandle(
            transactional_id=self.transactional_id or "mock",
            producer_id=0,
            producer_epoch=self.commit_count + self.abort_count + len(self.detached),
            end_txn_version=5,
            record_count=len(self.uncommitted),
            timeout_ms=60_000,
            empty=not self.uncommitted and not self.uncommitted_offsets,
        )
        self.detached[handle] = list(self.uncommitted)
        self._end()
        self.initialized = False
        return handle

    def fence(self) -> None:
        """Behave from now on as if a newer producer had the same transactional id."""
        self._check_initialized("fence_producer()")
        self.fenced = True

    def clear(self) -> None:
        """Forget records and offsets; the state stays."""
        self.uncommitted, self.uncommitted_offsets = [], {}
        self.committed_offsets = []
        self.commit_count = self.abort_count = 0
        self.error = None
        self.refusals.clear()

    @property
    def _transactional(self) -> bool:
        return self.initialized or self.transactional_id is not None

    def _end(self) -> None:
        self.in_transaction = False
        self.error = None
        self.refusals.clear()
        self.uncommitted, self.uncommitted_offsets = [], {}

    def _check_not_fenced(self) -> None:
        if self.fenced:
            raise _fenced_error()

    def _check_initialized(self, call: str) -> None:
        self._check_not_fenced()
        if not self.initialized:
            raise IllegalStateError(f"{call}: init_transactions() comes first")

    def _check_no_error(self, call: str) -> None:
        if self.error is not None:
            raise TransactionAbortableError(
                f"{call}: a record of the transaction failed, so that it can only be aborted"
            ) from self.error


def _fenced_error() -> ProducerFencedError:
    return ProducerFencedError(
        "a newer producer with the same transactional id has taken over: close this one, or give each its own id"
    )
