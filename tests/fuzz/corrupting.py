# SPDX-License-Identifier: Apache-2.0
"""A whole producer, without its thread, on a network in memory whose brokers send corrupt answers.

The brokers behind it are the validating fake cluster, so what they have written can be trusted: only the answers are
wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from network.fakes import FakeNetwork
from network.served import ServedCluster

from penstock._ticket import Ticket
from penstock.config.config import ProducerConfig
from penstock.errors import KafkaTimeoutError
from penstock.producer.assembly import assemble
from penstock.producer.batch._delivery_cy import Delivery
from penstock.producer.steps import TimeIsUp
from penstock.testing import FakeCluster

TOPIC = "t"
PARTITIONS = 3


class CorruptingNetwork(ServedCluster):
    """A fake cluster at the far end of a network in memory; each answer goes through `corrupt` on its way."""

    def __init__(self, brokers: int = 2, **cluster: Any) -> None:
        network = FakeNetwork()
        kafka = FakeCluster(brokers, clock=network.clock.now, rng=random.Random(5), **cluster)
        kafka.create_topic(TOPIC, PARTITIONS)
        super().__init__(network, kafka)


class ThreadlessProducer:
    """The producer, and the few calls that a test makes of it; waiting is taking turns in virtual time.

    Attributes:
        offsets: partition and offset of each record that was acknowledged; the test adds to it.
    """

    def __init__(self, around: CorruptingNetwork, **options: Any) -> None:
        self.network = around.network
        self.clock = self.network.clock
        node = around.cluster.nodes[0]
        given = {
            "bootstrap_servers": f"{node.host}:{node.port}",
            "linger_ms": 0,
            "client_id": "corrupted",
            "request_timeout_ms": 2000,
            "delivery_timeout_ms": 120_000,
            "max_block_ms": 60_000,
        }
        self.config = ProducerConfig.from_user(None, given | options)
        self.parts = assemble(self.config, self.clock, self.network.backend(), random.Random(3))
        self.offsets: set[tuple[int, int]] = set()
        self._alarm = 0.0

    def send(self, value: bytes, partition: int, on_delivery: Any = None) -> Delivery:
        delivery = self.parts.fast_path.try_send(TOPIC, value, None, None, partition, None, on_delivery)
        if delivery is not None:
            return delivery
        steps = self.parts.send_path.steps(
            self.parts.send_path.call(TOPIC, value, None, None, partition, None, on_delivery)
        )
        try:
            item = next(steps)
            while True:
                item = self._wait(item, steps) if isinstance(item, Ticket) else next(steps)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def _wait(self, ticket: Ticket[Any], steps: Any) -> Any:
        if not self.run_until(lambda: ticket.done, self.config.max_block_ms / 1000):
            return steps.throw(TimeIsUp(self.config.max_block_ms))
        try:
            result = ticket.result
        except Exception as error:
            return steps.throw(error)
        return steps.send(result)

    def settle(self, ticket: Ticket[None], seconds: float = 120.0) -> None:
        """Wait for a transaction call, as the blocking face does."""
        if not self.run_until(lambda: ticket.done, seconds):
            raise KafkaTimeoutError("no outcome")
        assert self.parts.transactions is not None
        self.parts.transactions.fetched(ticket)
        ticket.result  # noqa: B018 - raises what it failed with

    def run_until(self, condition: Callable[[], object], seconds: float) -> bool:
        """Take turns until it is so; False when it is not after that much virtual time."""
        until = self.clock.now() + seconds
        turns = 0
        while not condition():
            if self.clock.now() >= until:
                return False
            turns += 1
            assert turns < 20_000, "the I/O loop spins: turns pass, and time does not"
            self._set_alarm(min(until, self.clock.now() + 1.0))
            self.parts.sender.run_once(self.clock.now())
        return True

    def _set_alarm(self, at: float) -> None:
        """See to it that the loop wakes up by then; one alarm at a time, or turns would make turns."""
        if not self.clock.now() < self._alarm <= at:
            self._alarm = at
            self.network.after(at - self.clock.now(), self.network.wakeup)

    @property
    def memory_is_back(self) -> bool:
        return self.parts.accumulator.pool.available() == self.config.buffer_memory

    def close(self) -> None:
        self.parts.client.close()
