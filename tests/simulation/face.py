# SPDX-License-Identifier: Apache-2.0
"""The calls of `Producer`, as steps in virtual time: the simulator's face of the core, beside the blocking one.

Each call mirrors the method of the same name, with a yielded `Wait` where that blocks. `close` is the
producer's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

from fix_network import VirtualClock

from penstock import AsyncProducer
from penstock._ticket import Ticket
from penstock.errors import KafkaTimeoutError, ProducerClosedError
from penstock.producer.batch._delivery_cy import Delivery
from penstock.producer.guarantee.transactions.manager import TransactionManager
from penstock.producer.producer import Producer
from penstock.producer.steps import TimeIsUp
from penstock.transaction_handle import TransactionHandle
from penstock.types import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
)
from simulation.ledger import Entry
from simulation.lockstep import BlockingCall, pause
from simulation.scheduler import DONE, INTERRUPTED, Interrupted, Wait

Call = Generator[Any, Any, Any]


class Face:
    """One producer, as an application thread of the simulator sees it."""

    def __init__(
        self,
        producer: Producer | AsyncProducer,
        clock: VirtualClock,
        max_block: float,
        on_appended: Callable[[Entry], None],
    ) -> None:
        self.producer = producer
        self.parts = producer._parts
        self.clock = clock
        self.max_block = max_block
        self._on_appended = on_appended
        for part in (self.parts.accumulator, self.parts.metadata):
            # Others may run in between, as on real threads.
            part.close = _after_a_pause(part.close)  # type: ignore[method-assign]

    @property
    def closed(self) -> bool:
        return self.producer._core.closed

    # ---- records

    def send(self, entry: Entry, key: bytes | None, partition: int | None, headers: Any) -> Call:
        parts = self.parts
        # Every other record takes the general path at once: only there can others come in between while a batch is
        # opened. On real threads they can on the fast path, too, in the same places.
        delivery: Delivery | None = None
        if entry.number % 2:
            delivery = parts.fast_path.try_send(
                entry.topic, entry.value, key, headers, partition, None, entry.on_delivery
            )
        if delivery is None:
            call = parts.send_path.call(
                entry.topic, entry.value, key, headers, partition, None, entry.on_delivery
            )
            if entry.number % 2 and parts.send_path.is_ready():
                delivery = parts.send_path.attempt(call)
        if delivery is None:
            delivery = yield from self._drive(parts.send_path.steps(call))
        self._on_appended(entry)
        yield "sent"  # a step is one record at most
        return delivery

    def send_from_callback(self, entry: Entry) -> Delivery:
        """Send on the I/O thread, where nothing may wait."""
        path = self.parts.send_path
        steps = path.steps(path.call(entry.topic, entry.value, None, None, None, None, entry.on_delivery))
        try:
            item = next(steps)
            while True:
                if isinstance(item, str):
                    item = next(steps)
                elif item.done:
                    item = steps.send(item.result)
                else:
                    item = steps.throw(KafkaTimeoutError("send() would wait on the I/O thread"))
        except StopIteration as stop:
            delivery: Delivery = stop.value
            self._on_appended(entry)
            return delivery

    def _drive(self, steps: Generator[Any, Any, Delivery]) -> Call:
        waited = 0.0
        try:
            item = next(steps)
            while True:
                if isinstance(item, str):
                    answer = yield item
                    item = steps.throw(Interrupted()) if answer == INTERRUPTED else next(steps)
                    continue
                started = self.clock.time
                answer = yield Wait(item, max(0.0, self.max_block - waited))
                waited += self.clock.time - started
                try:
                    result = _after(answer, item, round(waited * 1000))
                except BaseException as error:
                    item = steps.throw(error)
                else:
                    item = steps.send(result)
        except StopIteration as stop:
            return stop.value

    def flush(self, seconds: float) -> Call:
        self._check_open()
        ticket = self.parts.accumulator.flush()
        try:
            answer = yield Wait(ticket, seconds)
            _check_interrupt(answer)
            if answer != DONE:
                raise KafkaTimeoutError("flush")
            return ticket.result
        finally:
            ticket.give_up()

    def outcome(self, delivery: Delivery, seconds: float) -> Call:
        """Wait for a Delivery; whether it came."""
        ticket: Ticket[None] = Ticket("a delivery")
        delivery.add_done_callback(lambda _: ticket.complete(None))
        answer = yield Wait(ticket, seconds)
        return answer == DONE

    # ---- transactions

    @property
    def manager(self) -> TransactionManager:
        manager = self.parts.transactions
        assert manager is not None
        return manager

    def init_transactions(self, transactional_id: str | None = None) -> Call:
        self._check_open()
        yield from self._finish(self.manager.initialize(transactional_id), "init_transactions")

    def begin_transaction(self) -> None:
        self._check_open()
        self.manager.begin()

    def send_offsets(self, offset: int, group: str) -> Call:
        self._check_open()
        offsets = {TopicPartition("a", 0): OffsetAndMetadata(offset)}
        ticket = self.manager.send_offsets(offsets, ConsumerGroupMetadata(group))
        yield from self._finish(ticket, "send_offsets_to_transaction")

    def commit_transaction(self) -> Call:
        self._check_open()
        yield from self._finish(self.manager.commit(), "commit_transaction")

    def abort_transaction(self) -> Call:
        self._check_open()
        yield from self._finish(self.manager.abort(), "abort_transaction")

    def detach_transaction(self) -> Generator[Any, Any, TransactionHandle]:
        self._check_open()
        yield from self.flush(self.max_block)
        return self.manager.detach()

    def _finish(self, ticket: Ticket[None], call: str) -> Call:
        answer = yield Wait(ticket, self.max_block)
        _check_interrupt(answer)
        if answer != DONE:
            raise KafkaTimeoutError(f"{call}() had no answer within max.block.ms")
        self.manager.fetched(ticket)
        return ticket.result

    # ---- the end

    def close(self, seconds: float) -> Call:
        """`Producer.close` itself; a thread that is interrupted in it calls it again."""
        producer = self.producer
        assert isinstance(producer, Producer)
        while True:
            call = BlockingCall(lambda: producer.close(None if seconds == math.inf else seconds))
            try:
                yield from call.steps()
            except Interrupted:
                continue
            return

    def _check_open(self) -> None:
        if self.closed:
            raise ProducerClosedError("the producer is closed")


def _after_a_pause(work: Callable[[], None]) -> Callable[[], None]:
    def close() -> None:
        pause("closing")
        work()

    return close


def _check_interrupt(answer: str) -> None:
    if answer == INTERRUPTED:
        raise Interrupted


def _after(answer: str, ticket: Ticket[Any], waited_ms: int) -> Any:
    _check_interrupt(answer)
    if answer != DONE:
        raise TimeIsUp(waited_ms)
    return ticket.result
