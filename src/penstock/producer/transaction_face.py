# SPDX-License-Identifier: Apache-2.0
"""The transaction calls of the producer that blocks.

Each starts an operation and waits for its Ticket, at most max.block.ms. When the time is up the operation goes on, and
only the same call may be made again: it then waits for the same outcome.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from penstock._arguments import check_bool, check_text
from penstock._locks import forbid_reentry
from penstock._ticket import Ticket
from penstock.consumer_groups import as_group, as_positions
from penstock.errors import IllegalStateError, KafkaError, KafkaTimeoutError, ProducerFencedError
from penstock.producer.assembly import ProducerParts
from penstock.producer.guarantee.transactions.manager import TransactionManager
from penstock.producer.io.client_metrics import add_nanoseconds
from penstock.producer.owner import check_may_wait
from penstock.transaction_handle import TransactionHandle
from penstock.types import GroupLike, PositionsLike


class TransactionFace:
    """What `Producer` offers for transactions; needs a transactional.id."""

    _parts: ProducerParts
    _max_block: float

    def _check_open(self) -> None:
        raise NotImplementedError

    def flush(self, timeout: float | None = None) -> None:
        """See Producer."""
        raise NotImplementedError

    def init_transactions(self, transactional_id: str | None = None) -> None:
        """Take over the transactional id: fence older producers that use it, and abort what they left open.

        Call it once before the first transaction, and after each `detach_transaction`.

        Args:
            transactional_id: another id than the configured one, from now on.

        Raises:
            KafkaTimeoutError: no answer within max.block.ms; call it again.
            ProducerFencedError: another producer took over meanwhile.
        """
        if transactional_id is not None:
            check_text(transactional_id, "transactional_id")
        manager = self._transactions("init_transactions", waits=True)
        self._finish(manager, manager.initialize(transactional_id), "init_transactions")

    @property
    def initialization_in_doubt(self) -> bool:
        """Whether an answer to the last `init_transactions` was lost on the way, and the request made again.

        The lost request may still reach the coordinator, and would then abort what this producer has open. Within a
        transaction that it ends itself the next call fails, and nothing is lost; a transaction that is detached should
        not be begun with such an id.
        """
        manager = self._parts.transactions
        return manager is not None and manager.initialization_in_doubt

    def begin_transaction(self) -> None:
        """Begin a transaction: the records sent from now on become visible together, or not at all."""
        self._transactions("begin_transaction").begin()

    def send_offsets_to_transaction(
        self,
        offsets: PositionsLike,
        group: GroupLike,
    ) -> None:
        """Make the positions of a consumer group part of the transaction.

        Both are taken as the consumers of confluent-kafka, kafka-python and aiokafka give them.

        Args:
            offsets: the next offset to be read, for each partition: a mapping, or confluent-kafka's list.
            group: the group's id or, better, with member and generation, so that a member that was replaced is refused:
                a ConsumerGroupMetadata, what confluent-kafka's `consumer_group_metadata()` or kafka-python's
                `group_metadata()` gives.

        Raises:
            TypeError, ValueError: one of them is nothing of that.
        """
        manager = self._transactions("send_offsets_to_transaction", waits=True)
        member = as_group(group)
        positions = as_positions(offsets)
        if not positions:
            return
        self._finish(manager, manager.send_offsets(positions, member), "send_offsets_to_transaction")

    def commit_transaction(self, *, incomplete: bool = False) -> None:
        """Send what is left, and commit.

        Args:
            incomplete: commit although a `send` in this transaction was refused, whose record is then not part of it.

        Raises:
            TransactionAbortableError: a `send` in this transaction raised, and the program went on; or a record failed.
            KafkaTimeoutError: no answer within max.block.ms; call it again, nothing else.
            KafkaError: a record failed; abort the transaction.
            ProducerFencedError: another producer uses the transactional id; close this one.
        """
        check_bool(incomplete, "incomplete")
        manager = self._transactions("commit_transaction", waits=True)
        if not self._parts.accumulator.deferred.all_appended().wait(self._max_block):
            raise KafkaTimeoutError(
                "commit_transaction() waited for max.block.ms, and a record that a finalizer or a signal handler sent "
                "has not been appended yet; call it again, or abort_transaction()"
            )
        self._finish(manager, manager.commit(incomplete=incomplete), "commit_transaction")

    def abort_transaction(self) -> None:
        """Drop what was not sent, and abort."""
        manager = self._transactions("abort_transaction", waits=True)
        self._finish(manager, manager.abort(), "abort_transaction")

    @contextmanager
    def transaction(self, *, incomplete: bool = False) -> Generator[None, None, None]:
        """Begin a transaction, and commit it at the end of the block.

        When the block raises, or a record was not delivered so that there is no commit, it is aborted and the error
        raised on. A commit that had no answer in time is not: call `commit_transaction` again.

        Args:
            incomplete: commit also when a `send` in the block was refused, and the block caught that.

        Raises:
            ProducerFencedError: another producer uses the transactional id; also where a record failed because of it
                and the abort found out why.
        """
        check_bool(incomplete, "incomplete")
        self.begin_transaction()
        try:
            yield
            self.commit_transaction(incomplete=incomplete)
        except BaseException as error:
            self._abort_after(error)
            raise

    def _abort_after(self, error: BaseException) -> None:
        """Abort what is open; where that fails, too, the first error is the one to raise, with a note.

        Raises:
            ProducerFencedError: that is why a record or call has failed, which said no more than that it did.
        """
        manager = self._parts.transactions
        if manager is None:
            return
        failure: KafkaError | None = None
        if manager.is_open:
            try:
                self.abort_transaction()
            except KafkaError as caught:
                failure = caught
        fence = manager.fence()
        if fence is not None and isinstance(error, KafkaError) and not isinstance(error, ProducerFencedError):
            raise fence from error
        if failure is not None:
            error.add_note(f"the transaction could not be aborted either: {failure}")

    def detach_transaction(self, *, incomplete: bool = False) -> TransactionHandle:
        """Hand the open transaction over, to be ended from anywhere with `complete_transaction`.

        All records are delivered first. The producer is uninitialized afterwards: `init_transactions` with another id
        goes on with the same memory and connections.

        Args:
            incomplete: as for `commit_transaction`.
        """
        check_bool(incomplete, "incomplete")
        manager = self._transactions("detach_transaction")
        self.flush(self._max_block)
        return manager.detach(incomplete=incomplete)

    def _transactions(self, call: str, *, waits: bool = False) -> TransactionManager:
        """The manager; `waits`: the call blocks, so that the I/O thread must not make it, nor begin it."""
        self._check_open()
        if waits:
            check_may_wait(f"{call}()", self._parts.accumulator.owner)
        forbid_reentry(f"{call}()")
        manager = self._parts.transactions
        if manager is None:
            raise IllegalStateError(f"{call}() needs a transactional.id in the producer's configuration")
        return manager

    def _no_answer(self, call: str) -> KafkaTimeoutError:
        """The error of a call whose time is up, with what is known to stand in the way."""
        cause = self._parts.metadata.explain_timeout("", None, 0).__cause__
        why = f" The last trouble: {cause}." if cause is not None else ""
        error = KafkaTimeoutError(
            f"{call}() had no answer within max.block.ms.{why} It goes on, and calling {call}() again waits for it"
        )
        error.__cause__ = cause
        return error

    def _finish(self, manager: TransactionManager, ticket: Ticket[None], call: str) -> None:
        started = self._parts.clock.now()
        ended = ticket.wait(self._max_block)
        add_nanoseconds(self._parts.client_metrics.transaction_ns[call], self._parts.clock.now() - started)
        if not ended:
            raise self._no_answer(call)
        manager.fetched(ticket)
        return ticket.result
