# SPDX-License-Identifier: Apache-2.0
"""The life of a producer, from the start of its I/O thread to its end.

`Core` is one producer without its public calls. If a call has to wait, `Producer` blocks, and `AsyncProducer` lets the
event loop go on: both run the steps of the same Core. This module also handles fork, exit, and producers that are
forgotten without close().

The registry of living producers is kept for the whole process, because fork and exit are events of the process; it
decides nothing while a program runs.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock._counted import counted
from penstock._events import Event, tell, tell_error, working_for
from penstock._last_calls import LastCalls
from penstock._locks import forbid_reentry, inside, new_lock
from penstock._reporting import show_in_glass_box
from penstock._ticket import Ticket
from penstock._weak import WeakBag
from penstock.config.config import ProducerConfig
from penstock.errors import (
    BufferExhaustedError,
    ForkedProducerError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    ProducerFencedError,
)
from penstock.producer.assembly import ProducerParts, assemble
from penstock.producer.batch._delivery_cy import Delivery
from penstock.producer.guarantee.transactions.manager import TransactionManager
from penstock.producer.io.client_metrics import add_nanoseconds
from penstock.producer.io.thread import IOThread, last_trouble
from penstock.producer.metadata.cluster import PartitionInfo
from penstock.producer.owner import check_may_wait
from penstock.producer.send._path_cy import SendCall
from penstock.producer.steps import Checkpoint, Steps, TimeIsUp
from penstock.producer.unseen import tell_at_exit
from penstock.transaction_handle import TransactionHandle
from penstock.types import ConsumerGroupMetadata, OffsetAndMetadata, ProducerRecord, TopicPartition

log = logging.getLogger("penstock.producer")

# Long enough for a healthy cluster. Short enough that a program without a cluster still ends.
EXIT_FLUSH_SECONDS = 10.0
FORCED_END_SECONDS = 5.0  # a forced close is quick, unless a user's callback holds the I/O thread
_EXIT_APPEND_SECONDS = 1.0  # what was put aside is appended at once, unless there is no memory for it


class Wording(NamedTuple):
    """How texts name a producer.

    Attributes:
        kind: its class.
        close: what ends it.
        block: the statement that does.
    """

    kind: str
    close: str
    block: str


class Core:
    """One producer: its parts, its I/O thread, and what its calls do, as steps where they may have to wait.

    Args:
        config: its options.
        wording: how texts name it.

    Attributes:
        ended: granted when the I/O thread has done its work. Thread.join() cannot be used: after Ctrl-C in it, Python
            3.11 takes a running thread for ended.
    """

    def __init__(self, config: ProducerConfig, wording: Wording) -> None:
        # Until all is built: a failed constructor leaves nothing to close.
        self.closed = True
        self._ending: LastCalls | None = None
        self.forked = False
        self.config = config
        self.wording = wording
        try:
            self._start(assemble(config))
        except BaseException:
            config.close_plugins()
            raise

    def _start(self, parts: ProducerParts) -> None:
        self.parts = parts
        self.clock = parts.clock
        self.owner = parts.accumulator.owner
        self.max_block = parts.config.max_block_ms / 1000
        self._lock: Any = new_lock()  # guards _ending against two threads that close at once
        self._at_end: list[Callable[[], None]] = []  # what the I/O thread does last; it alone adds to it
        self.ended: Ticket[None] = Ticket("the end of the I/O thread")
        starts = [None]  # taken by the thread when it begins, or by this one if it must not begin any more
        self.thread = threading.Thread(
            target=_begin_work,
            args=(starts, parts.io_thread, self.ended, self._at_end),
            name=f"penstock-producer-{parts.config.client_id}",
            daemon=True,
        )
        ending = LastCalls([*parts.reporting.stops(), *parts.config.plugins.closes()])
        try:
            self.thread.start()
        except BaseException:
            # Ctrl-C may come when the thread works: then it ends the parts itself.
            parts.begin_close()
            parts.io_thread.force_close()
            if _try_take(starts):
                parts.client.close()
            raise
        self.closed, self._ending = False, ending
        register(self)
        ended = self.ended  # not the Core: a reporter keeps a reference to its arguments
        parts.reporting.start(lambda: ended.done)
        with working_for(self.owner.events):
            show_in_glass_box(parts.config.glass_box, parts, self.thread, ended)

    # ------------------------------------------------------------------------------------------ checks

    def check_process(self) -> None:
        """Refuse a copy in a forked child."""
        if self.forked:
            raise ForkedProducerError(
                "this producer was made before a fork and cannot be used in the child process: its connections and its "
                "I/O thread belong to the parent. Make a new producer in the child."
            )

    def check_open(self) -> None:
        """Refuse a producer that was closed, or is a copy in a forked child."""
        self.check_process()
        if self.closed:
            raise ProducerClosedError("the producer is closed")

    def transactions(self, call: str, *, waits: bool = False) -> TransactionManager:
        """The manager; `waits`: the call waits, so the I/O thread must not make it, and must not begin it."""
        self.check_open()
        if waits:
            check_may_wait(f"{call}()", self.owner)
        forbid_reentry(f"{call}()")
        manager = self.parts.transactions
        if manager is None:
            raise IllegalStateError(f"{call}() needs a transactional.id in the producer's configuration")
        return manager

    # ------------------------------------------------------------------------------------------ calls

    def partitions_for(self, topic: str) -> Steps[tuple[PartitionInfo, ...]]:
        """The partitions of a topic, asked from the cluster if need be."""
        self.check_open()
        ProducerRecord(topic)  # raises if the topic is not valid
        forbid_reentry("partitions_for()")
        snapshot = yield from self.parts.send_path.await_topic(topic, None)
        return snapshot.topics[topic].partitions

    def flush(self, timeout: float | None) -> Steps[None]:
        """Wait until every record accepted so far has its outcome; `timeout` is for the error's text."""
        self.check_open()
        check_may_wait("flush()", self.owner)
        started = self.clock.now()
        ticket = self.parts.accumulator.flush()
        try:
            yield ticket
        except TimeIsUp:
            left = self.parts.accumulator.incomplete_records()
            cause = self.parts.io_thread.why_held_up()
            error = KafkaTimeoutError(
                f"flush() waited {timeout} s, and {_have(left)} no outcome yet: still on the way{last_trouble(cause)}"
            )
            error.records_left = left
            raise error from cause
        finally:
            ticket.give_up()
            add_nanoseconds(self.parts.client_metrics.flush_ns, self.clock.now() - started)

    # Each call that waits starts an operation and waits for its Ticket, at most max.block.ms. When the time is up, or
    # brokers refuse this client, the operation goes on. Only the same call may be made again: it waits for the outcome.

    def init_transactions(self, transactional_id: str | None) -> Steps[None]:
        """Take over a transactional id."""
        manager = self.transactions("init_transactions", waits=True)
        yield from self._finish(manager, manager.initialize(transactional_id), "init_transactions")

    def send_offsets(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> Steps[None]:
        """Make positions of a consumer group part of the transaction."""
        manager = self.transactions("send_offsets_to_transaction", waits=True)
        if offsets:
            ticket = manager.send_offsets(offsets, group)
            yield from self._finish(manager, ticket, "send_offsets_to_transaction")

    def commit(self, *, incomplete: bool) -> Steps[None]:
        """Send what is left of the transaction, and commit."""
        manager = self.transactions("commit_transaction", waits=True)
        try:
            yield self.parts.accumulator.deferred.all_appended()
        except TimeIsUp:
            raise KafkaTimeoutError(
                "commit_transaction() waited for max.block.ms, and a record that a finalizer or a signal handler sent "
                "has not been appended yet; call it again, or abort_transaction()"
            ) from None
        yield Checkpoint.PROGRESS
        yield from self._finish(manager, manager.commit(incomplete=incomplete), "commit_transaction")

    def abort(self) -> Steps[None]:
        """Drop what was not sent, and abort."""
        manager = self.transactions("abort_transaction", waits=True)
        yield from self._finish(manager, manager.abort(), "abort_transaction")

    def detach(self, *, incomplete: bool) -> Steps[TransactionHandle]:
        """Hand the open transaction over."""
        manager = self.transactions("detach_transaction")
        yield from self.flush(self.max_block)
        return manager.detach(incomplete=incomplete)

    def abort_after(self, error: BaseException) -> Steps[None]:
        """Abort an open transaction. If that fails, too, add a note to the first error, which the caller raises.

        Raises:
        ProducerFencedError: it is the cause of `error`, whose own text does not say so.
        """
        manager = self.parts.transactions
        if manager is None:
            return
        failure: KafkaError | None = None
        if manager.is_open:
            try:
                yield from self.abort()
            except KafkaError as caught:
                failure = caught
        fence = manager.fence()
        if fence is not None and isinstance(error, KafkaError) and not isinstance(error, ProducerFencedError):
            raise fence from error
        if failure is not None:
            error.add_note(f"the transaction could not be aborted either: {failure}")

    def _finish(self, manager: TransactionManager, ticket: Ticket[None], call: str) -> Steps[None]:
        started = self.clock.now()
        try:
            yield ticket
        except TimeIsUp:
            error = self._no_answer(call)
            raise error from error.__cause__
        except Exception:
            if ticket.done:
                manager.fetched(ticket)
            raise
        finally:
            add_nanoseconds(self.parts.client_metrics.transaction_ns[call], self.clock.now() - started)
        manager.fetched(ticket)

    def _no_answer(self, call: str) -> KafkaTimeoutError:
        """The error of a call whose time is up, with the last known error as its cause."""
        cause = self.parts.metadata.explain_timeout("", None, 0).__cause__
        why = f" The last error: {cause}." if cause is not None else ""
        error = KafkaTimeoutError(
            f"{call}() had no answer within max.block.ms.{why} The operation goes on: call {call}() again to "
            "wait for it"
        )
        error.__cause__ = cause
        return error

    # ------------------------------------------------------------------------------------------ watching

    def client_instance_id(self, timeout: float) -> Steps[uuid.UUID]:
        """The id under which the cluster knows this client's telemetry."""
        self.check_open()
        if self.parts.telemetry is None:
            raise IllegalStateError("client_instance_id() needs enable.metrics.push, which is off")
        check_may_wait("client_instance_id()", self.owner)
        forbid_reentry("client_instance_id()")
        ticket = self.parts.telemetry.instance_id()
        try:
            given: uuid.UUID = yield ticket
        except TimeIsUp:
            raise KafkaTimeoutError(f"no broker gave a client instance id within {timeout} s") from None
        finally:
            ticket.give_up()
        return given

    def metrics(self) -> dict[str, dict[str, Any]]:
        """All metrics now."""
        self.check_process()
        now = self.clock.now()
        self.parts.client_metrics.catch_up(now)
        return self.parts.registry.snapshot(now)

    def begin_otherwise(self, call: SendCall) -> SendCall | Delivery:
        """A `send` that needs care: after a fork, in the middle of another call, or while the producer takes nothing.

        Returns:
            The call, whose steps find out what is the matter, or the Delivery of a record that was put aside.
        """
        self.check_process()
        if not inside():
            return call
        # In the middle of another call of this thread, which may hold any lock.
        later = self.parts.send_path.later(call)
        return self.parts.accumulator.deferred.put_aside(later, call.on_delivery, self.max_block)

    def note_wait(self, ticket: Ticket[Any], seconds: float) -> None:
        """Count the wait of a call that sends."""
        self.parts.client_metrics.on_wait(ticket.kind, seconds, self.clock.now())

    def note_refused(self, error: BaseException) -> None:
        """Tell the open transaction that a call that sends has raised."""
        transactions = self.parts.transactions
        if transactions is not None and not self.forked:  # in a forked child its lock may never become free
            transactions.note_refused(error)

    def note_send_error(self, error: Exception) -> None:
        """Count the error of a call that sends."""
        now = self.clock.now()
        if isinstance(error, BufferExhaustedError):
            self.parts.client_metrics.buffer_exhausted.record(1, now)
        if isinstance(error, KafkaError):
            self.parts.sender_metrics.send_errors.record(1, now)

    def __repr__(self) -> str:
        state = "forked" if self.forked else "closed" if self.closed else "open"
        return f"<{self._described()}: {state}>"

    def _described(self) -> str:
        servers = ",".join(self.config.bootstrap_servers)
        return f"{self.wording.kind} {self.config.client_id!r} for {servers}"

    # ------------------------------------------------------------------------------------------ the end

    # Every call of close takes both steps, because Ctrl-C may have interrupted an earlier one anywhere.

    def begin_close(self) -> None:
        """Accept no more records. A second call does nothing."""
        self.closed = True
        self.parts.begin_close()

    def end_close(self) -> None:
        """A call of close has done its work: stop the reporters, and close the plugins. Later calls do nothing.

        Ctrl-C in the code of one plugin does not keep the others open. If it comes elsewhere, the next call, or the end
        of the program, finishes what is left.
        """
        ending: LastCalls | None = None
        try:
            with self._lock:
                ending, self._ending = self._ending, None
            if ending is not None:
                ending.make()
        finally:
            if ending is not None:
                if ending.left:
                    self._ending = ending
                else:
                    unregister(self)

    def end_close_on_io_thread(self) -> None:
        """Call `end_close` when the thread ends; for a close in a callback. Plugins get more records until then."""
        if not self._at_end:
            self._at_end.append(self.end_close)

    def warn_of_thread(self) -> None:
        """Warn that the I/O thread did not end: a delivery callback, or other code of the user, runs there."""
        held = held_at(self.thread)
        tell(
            log, logging.WARNING, Event.IO_THREAD_STUCK, "the I/O thread of %r did not end: it is still in %s",
            self, held or "a call",
            of=self.owner.events,
        )  # fmt: skip

    def __del__(self) -> None:
        # Forgotten without close(), or after a close() that Ctrl-C interrupted: let the I/O thread finish by itself. At
        # exit this has been done before.
        # No lock may be taken here: this can run at any place, also on a thread that holds the same lock.
        if not getattr(self, "forked", True) and getattr(self, "_ending", None) is not None:
            accumulator, name = self.parts.accumulator, repr(self)
            left = accumulator.incomplete_records()
            self.closed = True
            self.parts.io_thread.initiate_close()
            adopt(self.thread, accumulator.incomplete_records)
            warnings.warn(
                f"{name} was forgotten without {self.wording.close}: {_have(left)} no outcome yet. What is left is "
                f"still sent, but nobody waits for it. Call {self.wording.close}, or use the producer in "
                f"{self.wording.block}.",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    def after_fork_in_child(self) -> None:
        """Called in the child of a fork, which has a copy of the producer but not its thread."""
        self.forked = True
        self.parts.fast_path.enabled = self.parts.send_path.accepts = False

    def begin_exit(self) -> None:
        """Called when the program ends without close(): accept nothing more, and let the I/O thread finish."""
        if not self.forked:
            self.parts.accumulator.deferred.all_appended().wait(_EXIT_APPEND_SECONDS)
            self.begin_close()

    def end_exit(self, seconds: float) -> None:
        """Wait for the I/O thread, at most `seconds`. Then give up the remaining records, with a warning."""
        if self.forked:
            return
        if not self.ended.wait(seconds):
            left = self.parts.accumulator.incomplete_records()
            trouble = last_trouble(self.parts.io_thread.why_held_up())
            tell(
                log, logging.WARNING, Event.NOT_CLOSED_AT_EXIT,
                "%s was not closed before the program ended, and %s %s given up%s. Call %s, or use the "
                "producer in %s.",
                self._described(), counted(left, "record"), "was" if left == 1 else "were", trouble, self.wording.close,
                self.wording.block,
                of=self.owner.events, records=left,
            )  # fmt: skip
            self.parts.io_thread.losses_logged = True
        self.parts.io_thread.force_close()
        if self.ended.wait(FORCED_END_SECONDS):
            self.thread.join(FORCED_END_SECONDS)
        else:
            self.warn_of_thread()
        self.end_close()


def _begin_work(
    starts: list[None], io_thread: IOThread, ended: Ticket[None], at_end: list[Callable[[], None]]
) -> None:
    if _try_take(starts):
        _work(io_thread, ended, at_end)


def _try_take(starts: list[None]) -> bool:
    """Take the only entry; False if the other thread has."""
    try:
        starts.pop()
    except IndexError:
        return False
    return True


def _have(records: int) -> str:
    return f"{counted(records, 'record')} {'has' if records == 1 else 'have'}"


def _work(io_thread: IOThread, ended: Ticket[None], at_end: list[Callable[[], None]]) -> None:
    """The I/O thread. It does not refer to the Core until that is closed: else a forgotten one would never be freed."""
    try:
        io_thread.run()
    finally:
        ended.complete(None)
        while at_end:  # empty the list: its entries refer to the Core, which refers to the list
            at_end.pop()()


# ---------------------------------------------------------------------------------------------- of the process

_living: WeakBag[Core] = WeakBag()
# I/O threads that finish the work of a forgotten producer; each with a function that counts the records left.
_orphans: dict[threading.Thread, Callable[[], int]] = {}


def register(producer: Core) -> None:
    """Note a producer for fork and exit, until it is closed."""
    _living.add(producer)


def unregister(producer: Core) -> None:
    """A producer was closed: fork and exit need not handle it any more."""
    _living.discard(producer)


def adopt(io_thread: threading.Thread, records_left: Callable[[], int]) -> None:
    """Wait at exit for the I/O thread of a producer that was forgotten without close().

    Args:
        io_thread: the thread.
        records_left: how many records have no outcome yet.
    """
    for orphan in [orphan for orphan in list(_orphans) if not orphan.is_alive()]:
        _orphans.pop(orphan, None)
    _orphans[io_thread] = records_left


def _after_fork_in_child() -> None:
    _orphans.clear()
    for producer in list(_living):
        producer.after_fork_in_child()
    _living.clear()


def _at_exit() -> None:
    try:
        _end_all(time.monotonic() + EXIT_FLUSH_SECONDS)
    finally:  # Ctrl-C may end the wait
        tell_at_exit()


def _end_all(deadline: float) -> None:
    # All producers end at the same time, with one deadline: a program with many producers ends as soon as one with one.
    living = list(_living)
    for ends in (False, True):
        for producer in living:
            try:
                if ends:
                    producer.end_exit(max(0.0, deadline - time.monotonic()))
                else:
                    producer.begin_exit()
            except Exception as error:  # noqa: BLE001 - it is logged
                text = "a producer could not be closed at exit"
                tell_error(log, Event.CLOSE_FAILED, text, error=error)
    for orphan, records_left in list(_orphans.items()):
        orphan.join(max(0.0, deadline - time.monotonic()))
        if orphan.is_alive():
            left = records_left()
            tell(
                log, logging.WARNING, Event.NOT_CLOSED_AT_EXIT,
                "%s was given up with %s not delivered: its producer was forgotten without close() or "
                "aclose()",
                orphan.name, counted(left, "record"),
                records=left,
            )  # fmt: skip


def held_at(thread: threading.Thread) -> str:
    """Where a thread is now, for a warning: the function, the file and the line; "" if that is not known.

    It is the innermost frame outside the standard library: the code that waits, not the function that it waits in.
    """
    frames = []
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        frames.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    library = os.path.dirname(os.__file__) + os.sep
    own = [
        (code, line)
        for code, line in frames
        if not code.co_filename.startswith(library) or "-packages" in code.co_filename
    ]
    for code, line in own or frames:
        return f"{code.co_qualname} ({code.co_filename}:{line})"
    return ""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
