# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in the cluster and on the network while sinks are at work; each fault undoes itself.

Processes die and freeze elsewhere (`spark.py`), as only their owner knows what that means.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from penstock.protocol.messages import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    PRODUCE,
)
from penstock.protocol.schema import ApiSchema
from penstock.testing.faults import Fault
from simulation.sink.world import NO_API, SinkWorld

_APIS = (
    INIT_PRODUCER_ID, INIT_PRODUCER_ID, PRODUCE, PRODUCE, END_TXN, END_TXN, END_TXN, FETCH, LIST_OFFSETS,
    ADD_PARTITIONS_TO_TXN, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS, METADATA, FIND_COORDINATOR,
)  # fmt: skip
# What a broker may say without having done anything.
_PASSING: dict[ApiSchema, tuple[int, ...]] = {
    INIT_PRODUCER_ID: (14, 15, 16, 51),
    END_TXN: (14, 15, 16, 51),
    DESCRIBE_TRANSACTIONS: (14, 15, 16),
    LIST_TRANSACTIONS: (14,),
    ADD_PARTITIONS_TO_TXN: (14, 15, 16, 51),
    PRODUCE: (6, 7, 19),
}


class Chaos:
    """Makes faults.

    Args:
        world: the network and the brokers.
        rng: chooses.
        note: told what happens.
    """

    def __init__(self, world: SinkWorld, rng: random.Random, note: Callable[..., None]) -> None:
        self.world = world
        self.cluster = world.cluster
        self.rng = rng
        self.note = note
        self.happened = 0
        self.calm = False
        self.kinds: list[Callable[[], str | None]] = [
            self.cut, self.cut_busy, self.cut_on, self.cut_on, self.cut_on, self.request_fault, self.request_fault,
            self.request_fault, self.passing_error, self.passing_error, self.slow_answer, self.stop_broker,
            self.restart_broker, self.move_leader, self.move_coordinators, self.move_coordinators, self.silence,
            self.upgrade, self.clock_jump,
        ]  # fmt: skip

    def strike(self) -> None:
        """Let something go wrong."""
        if self.calm:
            return
        for _ in range(20):
            what = self.rng.choice(self.kinds)()
            if what is not None:
                self.happened += 1
                self.note("FAULT: %s", what)
                self.world.pump()
                return

    def calm_down(self) -> None:
        """From now on all is well."""
        self.calm = True
        self.cluster.faults.clear()
        self.world.silent.clear()
        self.world.cut_when_under_way = float("inf")
        self.world.cut_on = NO_API
        self.world.lost_inits = 0.0
        for broker in set(self.cluster.nodes) - self.cluster.live:
            self.cluster.start_broker(broker)
        self.world.pump()

    # ---- connections and requests

    def cut(self) -> str | None:
        links = [link for link in self.world.links if link.in_transit] or self.world.links
        if not links:
            return None
        chosen = [self.rng.choice(links)] if self.rng.random() < 0.7 else list(self.world.links)
        for link in chosen:
            self.world.cut(link)
        return f"cut {len(chosen)} connection(s)"

    def cut_busy(self) -> str:
        self.world.cut_when_under_way = 1
        return "the next connection with a request on its way will be cut"

    def cut_on(self) -> str:
        api = self.rng.choice(
            (INIT_PRODUCER_ID, INIT_PRODUCER_ID, PRODUCE, END_TXN, END_TXN, ADD_PARTITIONS_TO_TXN)
        )
        self.world.cut_on = api.key
        return f"the connection of the next {api.name} will be cut with the request on its way"

    def request_fault(self) -> str:
        api = self.rng.choice(_APIS)
        kind = self.rng.choice(("before", "after", "after"))
        cut = "before" if kind == "before" else "after"
        self.cluster.faults.add(Fault(api=api, cut=cut, skip=self.rng.randrange(3)))  # type: ignore[arg-type]
        return f"the connection of a coming {api.name} is cut {kind} it takes effect"

    def passing_error(self) -> str:
        api = self.rng.choice(list(_PASSING))
        code = self.rng.choice(_PASSING[api])
        times = self.rng.randint(1, 3)
        self.cluster.faults.add(Fault(api=api, error=code, times=times, skip=self.rng.randrange(3)))
        return f"error {code} for {times} coming {api.name}"

    def slow_answer(self) -> str:
        api = self.rng.choice(_APIS)
        seconds = self.rng.choice((0.5, 5.0, 20.0, 45.0))
        self.cluster.faults.add(Fault(api=api, delay=seconds, skip=self.rng.randrange(2)))
        return f"the answer to a coming {api.name} takes {seconds} s"

    def silence(self) -> str:
        broker = self.rng.choice(list(self.cluster.nodes))
        self.world.silent.add(broker)
        self.world.after(self.rng.choice((0.3, 3.0, 30.0)), self.world.silent.discard, broker)
        for link in list(self.world.links):
            if link.broker_id == broker:
                self.world.cut(link)
        return f"broker {broker} cannot be reached"

    # ---- brokers

    def stop_broker(self) -> str | None:
        if len(self.cluster.live) < len(self.cluster.nodes):
            return None
        broker = self.rng.choice(list(self.cluster.nodes))
        self.cluster.stop_broker(broker)
        seconds = self.rng.choice((0.3, 2.0, 8.0, 35.0))
        self.world.after(seconds, self._start_broker, broker)
        return f"broker {broker} is stopped for {seconds} s"

    def _start_broker(self, broker: int) -> None:
        if broker not in self.cluster.live:
            self.cluster.start_broker(broker)
            self.note("broker %s is back", broker)
            self.world.pump()

    def restart_broker(self) -> str | None:
        if len(self.cluster.live) < len(self.cluster.nodes):
            return None
        broker = self.rng.choice(list(self.cluster.nodes))
        self.cluster.restart_broker(broker, lose_unreplicated=True)
        return f"broker {broker} is restarted"

    def move_leader(self) -> str | None:
        partition = self.rng.choice(list(self.cluster.topics.partitions()))
        others = [each for each in partition.isr if each != partition.leader and each in self.cluster.live]
        if not others:
            return None
        to = self.rng.choice(others)
        self.cluster.move_leader(*partition.key, to)
        return f"{partition.key} is led by broker {to}"

    def move_coordinators(self) -> str | None:
        ids = [txn.transactional_id for txn in self.cluster.transactions]
        if not self.cluster.live or not ids:
            return None
        to = self.rng.choice(sorted(self.cluster.live))
        chosen = self.rng.choice(ids)
        self.cluster.move_transaction_coordinator(chosen, to)
        return f"broker {to} coordinates {chosen}"

    def upgrade(self) -> str | None:
        name = "transaction.version"
        if (
            self.cluster.features.get(name, 2) >= 2
            or not self.cluster.release.features
            or self.rng.random() < 0.5
        ):
            return None
        self.cluster.set_feature(name, 2)
        self.cluster.drop_connections()
        return "the cluster goes over to the second transaction protocol"

    def clock_jump(self) -> str:
        seconds = self.rng.choice((-900.0, -60.0, 60.0, 900.0))
        self.world.clock.wall_offset += seconds
        return f"the clocks of all clients are set by {seconds} s"
