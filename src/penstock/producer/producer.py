# SPDX-License-Identifier: Apache-2.0
"""The producer that blocks: what users import."""

from __future__ import annotations

import logging
import math
import threading
import warnings
from collections.abc import Generator, Mapping
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from penstock._arguments import check_timeout
from penstock._latch import Latch
from penstock._locks import forbid_reentry, inside, new_lock
from penstock._refusals import noting_refusals
from penstock._ticket import Ticket, TicketKind
from penstock.config.config import ProducerConfig
from penstock.errors import (
    BufferExhaustedError,
    ForkedProducerError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
)
from penstock.producer import lifecycle
from penstock.producer.assembly import ProducerParts, assemble
from penstock.producer.batch._delivery_cy import Delivery
from penstock.producer.batch.delivery import check_may_wait, on_io_thread
from penstock.producer.blocking import run_steps
from penstock.producer.bulk_face import BulkFace
from penstock.producer.io._sender_cy import Sender
from penstock.producer.io.client_metrics import add_nanoseconds
from penstock.producer.metadata.cluster import PartitionInfo
from penstock.producer.send._send_cy import SendFace
from penstock.producer.transaction_face import TransactionFace
from penstock.types import OnDelivery, ProducerRecord

if TYPE_CHECKING:
    from penstock.config.typed import ProducerOptions

log = logging.getLogger("penstock.producer")

R = TypeVar("R")

_AFTER_ERROR_SECONDS = 10.0  # how long leaving `with` after an exception waits for records
_EXIT_APPEND_SECONDS = 1.0  # what was put aside is appended at once, unless there is no memory for it
_FORCED_END_SECONDS = 5.0  # a forced close is quick, unless a user's callback holds the I/O thread


class Producer(SendFace, BulkFace, TransactionFace):
    """Sends records to Kafka.

    Safe to share between threads; make one per process and keep it. `send` returns at once with a Delivery; records are
    gathered into batches and sent by an I/O thread.

        with Producer(bootstrap_servers="localhost:9092") as producer:
            producer.send("orders", b"value", key=b"k1").result(timeout=10)

    Args:
        config: options by their Java names ("linger.ms"), as a mapping or the path of a properties file.
        **options: the same names in snake case (linger_ms).

    Raises:
        ConfigError: an option is unknown, malformed or contradicts another; nothing was started.
        BootstrapError: none of the bootstrap servers' names can be resolved.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str | PathLike[str] | None = None,
        /,
        **options: Unpack[ProducerOptions],
    ) -> None:
        self._closed = True  # until all is built: a failed constructor leaves nothing to close
        self._forked = False
        self._config = ProducerConfig.from_user(config, options)
        try:
            self._start(assemble(self._config))
        except BaseException:
            self._config.close_plugins()
            raise

    def _start(self, parts: ProducerParts) -> None:
        self._parts = parts
        self._clock = parts.clock
        self._fast_path = parts.fast_path
        self._notes_refusals = parts.transactions is not None
        self._owner = parts.accumulator.owner
        self._max_block = parts.config.max_block_ms / 1000
        self._lock: Any = new_lock()  # guards _closed against two threads that close at once
        # Set when the I/O thread has done its work. Thread.join() will not do: after Ctrl-C in it, Python 3.11 takes
        # a running thread for ended.
        self._ended = Latch()
        self._thread = threading.Thread(
            target=_work,
            args=(parts.sender, self._ended),
            name=f"penstock-producer-{parts.config.client_id}",
            daemon=True,
        )
        try:
            self._thread.start()
        except BaseException:
            parts.client.close()  # there is no thread that would
            raise
        self._closed = False
        lifecycle.register(self)

    # ------------------------------------------------------------------------------------------ sending

    @noting_refusals
    def send_record(self, record: ProducerRecord, on_delivery: OnDelivery | None = None) -> Delivery:
        """Send a record that was made as a value; see `send`."""
        if not isinstance(record, ProducerRecord):
            raise TypeError(f"record must be a ProducerRecord, not {type(record).__name__}")
        if on_delivery is not None and not callable(on_delivery):
            raise TypeError(f"on_delivery must be callable, not {type(on_delivery).__name__}")
        self._check_process()
        if inside():
            return self._put_aside(record, on_delivery)
        return self._run_sending(self._parts.send_path.steps(record, on_delivery), "send()")

    def _put_aside(self, record: ProducerRecord, on_delivery: OnDelivery | None) -> Delivery:
        """Accept a record in the middle of another call of this thread, which may hold any lock."""
        later = self._parts.send_path.later(record, on_delivery)
        return self._parts.accumulator.deferred.put_aside(later, on_delivery, self._max_block)

    def _run_sending(self, steps: Generator[Ticket[Any] | str, Any, R], call: str) -> R:
        try:
            return run_steps(steps, self._max_block, self._clock, call, self._note_wait, self._owner)
        except Exception as error:
            self._note_send_error(error)
            raise

    def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """The partitions of a topic, asked from the cluster if need be; waits at most max.block.ms."""
        self._check_open()
        ProducerRecord(topic)  # refuses what is no topic
        forbid_reentry("partitions_for()")
        steps = self._parts.send_path.await_topic(topic, None)
        snapshot = run_steps(
            steps, self._max_block, self._clock, "partitions_for()", self._note_wait, self._owner
        )
        return snapshot.topics[topic].partitions

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record accepted so far has its outcome. Lingering batches go out at once.

        Raises:
            KafkaTimeoutError: the time is up; the records go on.
        """
        check_timeout(timeout)
        self._check_open()
        check_may_wait("flush()", self._parts.accumulator.owner)
        started = self._clock.now()
        ticket = self._parts.accumulator.flush()
        try:
            if not ticket.wait(_clamp(timeout)):
                left = self._parts.accumulator.incomplete_records()
                raise KafkaTimeoutError(
                    f"flush() waited {timeout} s and {left} records have no outcome yet; they are still on their way"
                )
        finally:
            ticket.give_up()
            add_nanoseconds(self._parts.client_metrics.flush_ns, self._clock.now() - started)

    # ------------------------------------------------------------------------------------------ closing

    def close(self, timeout: float | None = None) -> None:
        """Deliver what was accepted, waiting at most `timeout` seconds, then fail the rest and stop. Twice is harmless.

        From a delivery callback it does not wait at all.

        Raises:
            ValueError: the time is negative.
        """
        check_timeout(timeout)
        if timeout is not None and timeout < 0:
            raise ValueError(f"the time to close must not be negative: {timeout}")
        if self._forked or getattr(self, "_lock", None) is None:
            return
        forbid_reentry("close()")
        deadline = None if timeout is None else self._clock.now() + timeout
        if not on_io_thread(self._parts.accumulator.owner):
            # Records that finalizers and signal handlers sent in the middle of other calls were accepted, too.
            self._parts.accumulator.deferred.all_appended().wait(_clamp(timeout))
        is_first = self._begin_close()
        if on_io_thread(self._parts.accumulator.owner):
            self._parts.sender.force_close()
            if is_first:
                self._end_close()
            return
        try:
            # Also when it was closed before, by another thread or a callback: whoever returns has waited.
            self._ended.wait(None if deadline is None else _clamp(max(0.0, deadline - self._clock.now())))
        finally:
            # Also after Ctrl-C: what has no outcome by now fails, and the thread ends.
            try:
                if not self._ended.is_set():
                    self._parts.sender.force_close()
                    self._ended.wait(_FORCED_END_SECONDS)
            finally:
                if is_first:
                    self._end_close()
        if self._ended.is_set():
            self._thread.join(_FORCED_END_SECONDS)
        else:
            log.warning("the I/O thread of %r did not end: a delivery callback seems to block it", self)

    def _begin_close(self) -> bool:
        """Stop accepting; False when the producer was closed before."""
        with self._lock:
            is_first = not self._closed
            self._closed = True
        # Done by every call, since Ctrl-C may have interrupted the first one anywhere; twice is harmless.
        parts = self._parts
        parts.fast_path.enabled = False
        parts.send_path.closed = True
        parts.accumulator.close()
        parts.metadata.close()
        parts.sender.initiate_close()
        return is_first

    def _end_close(self) -> None:
        lifecycle.unregister(self)
        self._parts.config.close_plugins()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(None if kind is None else _AFTER_ERROR_SECONDS)

    def __del__(self) -> None:
        # Forgotten without close(): let the I/O thread finish by itself. At exit this has been done before.
        # No lock may be taken here: this can run in the middle of anything, on a thread that holds that very lock.
        if not getattr(self, "_forked", True) and not getattr(self, "_closed", True):
            accumulator, name = self._parts.accumulator, repr(self)
            left = accumulator.incomplete_records()
            self._closed = True
            self._parts.sender.initiate_close()
            lifecycle.adopt(self._thread, accumulator.incomplete_records)
            warnings.warn(
                f"{name} was forgotten without close(): {left} records have no outcome yet. They are still sent, but "
                "nobody waits for them. Call close(), or use the producer in a with statement.",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    def _after_fork_in_child(self) -> None:
        """Called in the child of a fork, which has a copy of the producer but not its thread."""
        self._forked = True
        self._parts.fast_path.enabled = False

    def _begin_exit(self) -> None:
        """Called when the program ends without close(): accept nothing more, and let the I/O thread finish."""
        if not self._forked:
            self._parts.accumulator.deferred.all_appended().wait(_EXIT_APPEND_SECONDS)
            self._begin_close()

    def _end_exit(self, seconds: float) -> None:
        """Wait that long for the I/O thread, then give the rest up, with a warning."""
        if self._forked:
            return
        if not self._ended.wait(seconds):
            left = self._parts.accumulator.incomplete_records()
            log.warning(
                "%r was not closed before the program ended, and %d records were given up. Call close(), or use the "
                "producer in a with statement.",
                self, left,
            )  # fmt: skip
            self._parts.sender.losses_told = True
        self.close(0)
        self._end_close()

    # ------------------------------------------------------------------------------------------ watching

    def metrics(self) -> dict[str, dict[str, Any]]:
        """All metrics now: {group: {name: value}}; by topic and by node {group: {"orders": {name: value}}}."""
        self._check_process()
        now = self._clock.now()
        self._parts.client_metrics.catch_up(now)
        return self._parts.registry.snapshot(now)

    def __repr__(self) -> str:
        state = "forked" if self._forked else "closed" if self._closed else "open"
        return (
            f"<Producer {self._config.client_id!r} for {','.join(self._config.bootstrap_servers)}: {state}>"
        )

    # ------------------------------------------------------------------------------------------ inside

    def _check_process(self) -> None:
        if self._forked:
            raise ForkedProducerError(
                "this producer was made before a fork and cannot be used in the child process: its connections and its "
                "I/O thread belong to the parent. Make a new producer in the child."
            )

    def _check_open(self) -> None:
        self._check_process()
        if self._closed:
            raise ProducerClosedError("the producer is closed")

    def _note_wait(self, ticket: Ticket[Any], seconds: float) -> None:
        metrics = self._parts.client_metrics
        is_metadata = ticket.kind is TicketKind.METADATA
        add_nanoseconds(metrics.metadata_wait_ns if is_metadata else metrics.buffer_wait_ns, seconds)

    def _note_refused(self, error: BaseException) -> None:
        transactions = self._parts.transactions
        if transactions is not None and not self._forked:  # whose lock may never be free in a forked child
            transactions.note_refused(error)

    def _note_send_error(self, error: Exception) -> None:
        now = self._clock.now()
        if isinstance(error, BufferExhaustedError):
            self._parts.client_metrics.buffer_exhausted.record(1, now)
        if isinstance(error, KafkaError):
            self._parts.sender_metrics.send_errors.record(1, now)


def _work(sender: Sender, ended: Latch) -> None:
    """The I/O thread. It must not hold the producer: a forgotten one could never be collected."""
    try:
        sender.run()
    finally:
        ended.set()


def _clamp(timeout: float | None) -> float | None:
    """A time that the operating system can wait; None, and what is longer than it can express, is for ever."""
    if timeout is None or math.isinf(timeout) or timeout > threading.TIMEOUT_MAX:
        return None
    return timeout
