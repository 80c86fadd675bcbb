# SPDX-License-Identifier: Apache-2.0
"""The I/O thread from start to end: turns of the sender until the producer is closed, then the end of all parts.

Rules:
1. An `Exception` in a turn is logged, and after a short wait in the network the next turn follows. Any other
   exception, one in that wait, and one outside of a turn end the thread.
2. However the thread ends, every accepted record gets an outcome, and every call that waits is released.
3. A close without force takes turns until no record is left: each record has its outcome when its delivery.timeout.ms
   is over, or earlier. The transaction coordinator may be waited for twice: for the requests that were under way, and
   for the abort of an open transaction; each time at most request.timeout.ms.

`lifecycle` starts the thread. Any thread may call `initiate_close` and `force_close`, which set a flag and wake the I/O
thread, and may set `losses_logged`. Everything else belongs to the I/O thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from penstock._events import Event, tell, tell_error
from penstock._time import Clock
from penstock.errors import KafkaError, ProducerClosedError
from penstock.network._client_cy import NetworkClient
from penstock.producer.batch._accumulator_cy import RecordAccumulator
from penstock.producer.guarantee.gate import Gate
from penstock.producer.io._sender_cy import AFTER_UNEXPECTED, Sender
from penstock.producer.metadata.metadata import ProducerMetadata
from penstock.producer.owner import mark_io_thread
from penstock.producer.unseen import name_topics
from penstock.telemetry.watch import TelemetryWatch

log = logging.getLogger("penstock.producer")


class Ending(NamedTuple):
    """The parts that the I/O thread ends.

    Attributes:
        accumulator: fails the records that have no outcome.
        gate: finishes what it asks of the transaction coordinator.
        metadata: releases the calls that wait for topics.
        client: closes the connections.
        telemetry: pushes once more; None if enable.metrics.push is off.
    """

    accumulator: RecordAccumulator
    gate: Gate
    metadata: ProducerMetadata
    client: NetworkClient
    telemetry: TelemetryWatch | None


class IOThread:
    """What the I/O thread of one producer does.

    Args:
        sender: takes the turns.
        parts: what is ended with the thread.
        clock: the time of each turn.
        coordinator_seconds: how long the end waits for the transaction coordinator.

    Attributes:
        losses_logged: set by another thread when it has logged how many records are given up at the end.
    """

    def __init__(self, sender: Sender, parts: Ending, clock: Clock, coordinator_seconds: float) -> None:
        self._sender = sender
        self._parts = parts
        self._now = clock.now
        self._coordinator_seconds = coordinator_seconds
        self.losses_logged = False
        # Set by any thread, read by the I/O thread.
        self._running = True
        self._forced = False

    # ------------------------------------------------------------------------------------- any thread

    def initiate_close(self) -> None:
        """Send all accepted records, then stop."""
        self._running = False
        self._parts.client.wakeup()

    def force_close(self) -> None:
        """Stop now. Records without an outcome fail."""
        self._forced = True
        self._running = False
        self._parts.client.wakeup()

    def why_held_up(self) -> KafkaError | None:
        """What keeps the oldest record from its outcome; None if nothing is known, or all have theirs."""
        batch = self._parts.accumulator.try_oldest_incomplete()
        if batch is None:
            return None
        stuck: KafkaError | None = self._sender.why_stuck(batch)
        return batch.last_error if stuck is None else stuck

    # ------------------------------------------------------------------------------------- I/O thread

    def run(self) -> None:
        """Work until closed: the body of the thread."""
        accumulator, telemetry = self._parts.accumulator, self._parts.telemetry
        try:
            mark_io_thread(accumulator.owner)
            tell(log, logging.DEBUG, Event.IO_THREAD_STARTED, "the I/O thread starts")
            while self._running:
                self._turn()
            while not self._forced and accumulator.deferred.waiting:  # they count as accepted
                self._turn()
            # A producer that was collected without close() could not do this itself: a finalizer must take no lock.
            accumulator.close()
            while not self._forced and accumulator.has_incomplete():
                self._turn()
            self._finish_gate()
            if not self._forced:
                self._parts.gate.begin_close()
                if telemetry is not None:
                    telemetry.push_last(lambda: self._forced)
            self._finish_gate()
        finally:
            self._shut_down()
        tell(log, logging.DEBUG, Event.IO_THREAD_ENDED, "the I/O thread ends")

    def _turn(self) -> None:
        try:
            self._sender.run_once(self._now(), may_rest=True)
        except Exception as error:  # noqa: BLE001 - it is logged
            text = "an unexpected error on the I/O thread; it goes on"
            tell_error(log, Event.IO_THREAD_ERROR, text, error=error)
            self._sender.start_over()
            self._parts.client.poll(AFTER_UNEXPECTED, self._now())

    def _finish_gate(self) -> None:
        """Let the gate finish its requests to the transaction coordinator, within a limit."""
        gate = self._parts.gate
        deadline = self._now() + self._coordinator_seconds
        while not self._forced and gate.busy:
            if self._now() >= deadline:
                tell(
                    log, logging.WARNING, Event.CLOSED_WITHOUT_COORDINATOR,
                    "no answer of the transaction coordinator for request.timeout.ms: the producer closes without it, "
                    "and if a transaction is open, it is aborted when its time-out is over",
                )  # fmt: skip
                self._forced = True
                return
            self._turn()

    def _shut_down(self) -> None:
        """End all parts. A step that fails does not keep the next ones from being taken."""
        accumulator, gate, metadata, client, telemetry = self._parts
        what = (
            "the I/O thread of the producer ended by an error" if self._running else "the producer was closed"
        )
        no_answer = ProducerClosedError(f"{what} before the coordinator answered")
        cause = self._try_cause_of_losses()
        not_sent = ProducerClosedError(f"{what} before the record was acknowledged{last_trouble(cause)}")
        not_sent.__cause__ = cause
        steps: list[Callable[[], object]] = [
            accumulator.close,
            # Before the records fail: a caller that waits for them must not take their end for a success.
            partial(gate.close, no_answer),
            partial(accumulator.deferred.fail_all, not_sent),
            partial(self._fail_records, not_sent),
            metadata.close,
            client.close,
        ]
        if telemetry is not None:
            steps.append(telemetry.stop)
        steps.append(accumulator.unseen.end)
        _take_all(steps)

    def _try_cause_of_losses(self) -> KafkaError | None:
        """What `why_held_up` gives, but never an error: the end must not depend on a text."""
        try:
            return self.why_held_up()
        except Exception as error:  # noqa: BLE001 - it is logged
            tell_error(log, Event.IO_THREAD_ERROR, "why records are held up cannot be told", error=error)
            return None

    def _fail_records(self, error: ProducerClosedError) -> None:
        """Fail the records that have no outcome, and log how many they are: perhaps no caller asks for them."""
        accumulator = self._parts.accumulator
        if not accumulator.has_incomplete():
            return
        lost = accumulator.abort_all(error)
        if lost.records and not self.losses_logged:
            tell(
                log, logging.WARNING, Event.RECORDS_GIVEN_UP,
                "the producer was closed and gave up %d record%s for %s: %d of them had been sent and may have been "
                "written, the others were not%s. Closing without a time-out waits until each record has its outcome.",
                lost.records, "" if lost.records == 1 else "s", name_topics(sorted(lost.topics)), lost.maybe_written,
                last_trouble(error.__cause__),
                records=lost.records,
            )  # fmt: skip


def last_trouble(cause: BaseException | None) -> str:
    """What held records up, as the end of a sentence without its full stop; "" if that is not known."""
    return "" if cause is None else f". The last trouble: {str(cause).rstrip('.')}"


def _take_all(steps: Iterable[Callable[[], object]]) -> None:
    """Take each step in order, also if others raise.

    Raises:
        Only what is no `Exception`, after the last step.
    """
    with ExitStack() as stack:
        for step in reversed(list(steps)):
            stack.callback(_take_step, step)


def _take_step(step: Callable[[], object]) -> None:
    try:
        step()
    except Exception as error:  # noqa: BLE001 - it is logged
        text = "an unexpected error at the end of the I/O thread; the rest is ended all the same"
        tell_error(log, Event.IO_THREAD_ERROR, text, error=error)
