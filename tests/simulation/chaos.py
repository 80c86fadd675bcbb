# SPDX-License-Identifier: Apache-2.0
"""What goes wrong: each fault is one function, and undoes itself after a while in virtual time.

Only what a real cluster can do is done here: an error that says "not written" comes for a batch that was not written,
and what the high watermark covers is never lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from penstock.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from penstock.protocol.schema import ApiSchema
from penstock.testing.apis import HANDLERS
from penstock.testing.apis.context import ApiRequest
from penstock.testing.faults import Fault
from penstock.testing.topics import Partition
from penstock.types import TopicPartition
from simulation.plan import IDEMPOTENT, PLAIN, TRANSACTIONAL

if TYPE_CHECKING:
    from simulation.run import Simulation

# What a broker may answer without having written anything.
_RETRIABLE = (2, 3, 5, 6, 7, 19, 56, 72, 74, 89)
_FAILING = (1, 17, 29, 32, 42, 87)
_TRANSACTION_APIS = (INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT, END_TXN)
_ANY_API = (PRODUCE, PRODUCE, PRODUCE, METADATA, API_VERSIONS, FIND_COORDINATOR, *_TRANSACTION_APIS)
# Of the others, which have no list, random bytes may be an answer that can be read, and no client can notice that.
_UNREADABLE = (
    PRODUCE,
    PRODUCE,
    PRODUCE,
    METADATA,
    FIND_COORDINATOR,
    ADD_PARTITIONS_TO_TXN,
    TXN_OFFSET_COMMIT,
)
_TRANSACTION_ERRORS: dict[ApiSchema, tuple[int, ...]] = {
    FIND_COORDINATOR: (15, 14, 7),
    INIT_PRODUCER_ID: (14, 15, 16, 51, 7),
    ADD_PARTITIONS_TO_TXN: (3, 14, 15, 16, 51, 29, 120),
    ADD_OFFSETS_TO_TXN: (14, 15, 16, 51, 30, 120),
    TXN_OFFSET_COMMIT: (3, 7, 14, 15, 16, 22, 25, 30, 120),
    END_TXN: (14, 15, 16, 51),
}
# After such an error the producer cannot go on, and another one takes its place.
_FATAL_ERRORS: dict[ApiSchema, tuple[int, ...]] = {
    PRODUCE: (31, 53),
    FIND_COORDINATOR: (30, 53, 120),
    INIT_PRODUCER_ID: (31, 47, 50, 53, 90, 120),
    ADD_PARTITIONS_TO_TXN: (47, 48, 49, 53, 55),
    ADD_OFFSETS_TO_TXN: (47, 48, 49, 53, 90),
    TXN_OFFSET_COMMIT: (43, 53, 69, 82, 90, 113),
    END_TXN: (48, 49, 53),
}


_BEHIND = 0.4  # how often another broker learns late of a new leader


class Chaos:
    """Makes faults.

    Attributes:
        happened: how many did.
        loses: records that were acknowledged with acks=1 may be lost.
    """

    def __init__(self, sim: Simulation, rng: random.Random) -> None:
        self.sim = sim
        self.rng = rng
        self.world = sim.world
        self.cluster = sim.cluster
        self.happened = 0
        self._views: dict[tuple[int, TopicPartition], tuple[int, int]] = {}  # of brokers that are behind
        self._behind_rng = random.Random(f"{sim.seed} behind")
        self.loses = False
        self.kinds: list[Callable[[], str | None]] = [
            self.cut, self.cut_busy, self.cut_busy, self.request_fault, self.request_fault, self.produce_error,
            self.produce_error, self.move_leader, self.move_leader, self.stop_broker, self.restart_broker,
            self.hold_replication, self.throttle, self.slow_answers, self.clock_jump, self.silence, self.shrink_isr,
            self.refuse_records, self.isolate_leader,
        ]  # fmt: skip
        self.kinds.append(self.unreachable_leader)
        if sim.plan.changes:
            self.kinds += [self.change_release] * 5
        if sim.plan.mode == PLAIN:
            # Nothing but muting keeps the order there.
            self.kinds += [self.move_leader] * 2 + [self.isolate_leader] * 6
        if sim.plan.mode == IDEMPOTENT:
            self.kinds += [self.unreachable_leader] * 4
        if sim.plan.mode == TRANSACTIONAL:
            self.kinds += [
                self.move_coordinator, self.transaction_error, self.transaction_error, self.transaction_error,
                self.fatal, self.upgrade,
            ]  # fmt: skip

    def strike(self) -> None:
        """Let something go wrong."""
        for _ in range(20):
            what = self.rng.choice(self.kinds)()
            if what is not None:
                self.happened += 1
                self.sim.note("FAULT: %s", what)
                self.sim.note_trouble(0.0)
                self.world.pump()
                return

    def _later(self, seconds: float, action: Callable[..., None], *args: object) -> None:
        """Undo it, or go on with it, after a while; until then there is trouble."""
        self.sim.note_trouble(seconds)
        self.world.after(seconds, action, *args)

    # ---- connections and requests

    def cut(self) -> str | None:
        links = [link for link in self.world.links if link.in_transit] or self.world.links
        if not links:
            return None
        links = [self.rng.choice(links)] if self.rng.random() < 0.7 else list(self.world.links)
        for link in links:
            self.world.cut(link)
        return f"cut {len(links)} connection(s)"

    def cut_busy(self) -> str:
        """Cut a connection at the moment at which the most is lost."""
        count = min(
            self.rng.choice((1, 2, 2, 3)), self.sim.plan.options["max_in_flight_requests_per_connection"]
        )
        self.world.cut_when_under_way = count
        return f"the next connection with {count} request(s) on their way will be cut"

    def request_fault(self) -> str:
        rng = self.rng
        api = rng.choice(_ANY_API)
        kind = rng.choice(("before", "after", "after", "truncate", "garbage"))
        if kind == "truncate":
            fault = Fault(api=api, truncate=rng.randrange(1, 30), skip=rng.randrange(3))
        elif kind == "garbage":
            # An answer that cannot be read is none: the connection ends, and what it answered is in doubt.
            api = rng.choice(_UNREADABLE)
            fault = Fault(api=api, garbage=True, skip=rng.randrange(3))
        else:
            fault = Fault(api=api, cut="before" if kind == "before" else "after", skip=rng.randrange(3))
        self.cluster.faults.add(fault)
        return f"the answer to a coming {api.name}: {kind}"

    def slow_answers(self) -> str:
        rng = self.rng
        seconds = rng.choice((0.05, 0.3, 0.6, 1.5))
        self.cluster.faults.add(
            Fault(api=rng.choice((PRODUCE, PRODUCE, None)), delay=seconds, times=rng.randint(1, 4))
        )
        return f"answers take {seconds} s"

    def throttle(self) -> str:
        ms = self.rng.choice((30, 200, 900))
        self.cluster.faults.add(Fault(api=PRODUCE, throttle_ms=ms, times=self.rng.randint(1, 3)))
        return f"throttled for {ms} ms"

    def silence(self) -> str:
        broker = self.rng.choice(list(self.cluster.nodes))
        self.world.silent.add(broker)
        self._later(0.1 + self.rng.random(), self.world.silent.discard, broker)
        for link in list(self.world.links):
            if link.broker_id == broker:
                self.world.cut(link)
        return f"broker {broker} cannot be reached"

    # ---- errors

    def produce_error(self) -> str:
        rng = self.rng
        code = rng.choice(_RETRIABLE if rng.random() < 0.8 else _FAILING)
        took_effect = code == 7 and rng.random() < 0.5
        times = rng.randint(1, 3)
        match = None if took_effect else self._unwritten
        self.cluster.faults.add(
            Fault(
                api=PRODUCE,
                error=code,
                took_effect=took_effect,
                times=times,
                skip=rng.randrange(3),
                match=match,
            )
        )
        return f"error {code} for {times} coming Produce, {'took effect' if took_effect else 'not written'}"

    def _unwritten(self, request: ApiRequest) -> bool:
        """Whether none of the request's batches has been written before: only then may an error say so."""
        return self.sim.plan.mode == PLAIN or not self.sim.holds_written_batch(request)

    def refuse_records(self) -> str:
        code = self.rng.choice((10, 10, 87))
        self.cluster.faults.add(
            Fault(api=PRODUCE, error=code, match=self._unwritten, skip=self.rng.randrange(3))
        )
        return f"error {code} for a coming Produce"

    def transaction_error(self) -> str:
        api = self.rng.choice(list(_TRANSACTION_ERRORS))
        code = self.rng.choice(_TRANSACTION_ERRORS[api])
        self.cluster.faults.add(Fault(api=api, error=code, times=self.rng.randint(1, 2)))
        return f"error {code} for a coming {api.name}"

    def fatal(self) -> str:
        if self.rng.random() < 0.4:
            for txn in list(self.cluster.transactions):
                self.cluster.fence(txn.transactional_id, self.world.clock.time)
            return "the producer is fenced"
        api = self.rng.choice(list(_FATAL_ERRORS))
        code = self.rng.choice(_FATAL_ERRORS[api])
        match = self._unwritten if api is PRODUCE else None
        self.cluster.faults.add(Fault(api=api, error=code, match=match))
        return f"error {code} for a coming {api.name}"

    # ---- brokers, leaders, coordinators

    def move_leader(self) -> str | None:
        partition = self._partition()
        others = [
            broker for broker in partition.isr if broker != partition.leader and broker in self.cluster.live
        ]
        if not others:
            return None
        to = self.rng.choice(others)
        self._move(partition, to)
        return f"{partition.key} is led by broker {to}"

    def isolate_leader(self) -> str | None:
        """A leader that clients hardly reach loses its partition: what was sent to it comes back late, unwritten."""
        partition = self._partition()
        leader = partition.leader
        if leader not in self.cluster.live or len(partition.isr) < 2:
            return None
        seconds = self.rng.choice((0.1, 0.2, 0.4))
        for link in self.world.links:
            if link.broker_id == leader:
                link.stall(seconds)
        self.sim.note_trouble(seconds)
        self._later(self.rng.random() * 0.05, self._depose, partition, leader)
        return f"requests to broker {leader} take {seconds} s, and it will lose {partition.key}"

    def unreachable_leader(self) -> str | None:
        """A leader that cannot reach clients loses its partition: what was sent to it is written, without an answer."""
        partition = self._partition()
        leader = partition.leader
        if leader not in self.cluster.live or len(partition.isr) < 2:
            return None
        seconds = self.rng.choice((0.2, 0.6, 2.0))
        for link in self.world.links:
            if link.broker_id == leader:
                link.stall_answers(seconds)
        self.sim.note_trouble(seconds)
        moves_in = self.rng.random() * 0.1
        self._later(moves_in, self._depose, partition, leader)
        if self.rng.random() < 0.7:
            # As an error of some other partition would make it do: the former leader tells it nothing.
            self._later(moves_in + 0.01, self._ask_who_leads)
        return f"answers of broker {leader} take {seconds} s, and it will lose {partition.key}"

    def _ask_who_leads(self) -> None:
        self.sim.parts.metadata.request_update(self.world.clock.time)

    def _depose(self, partition: Partition, leader: int) -> None:
        others = [broker for broker in partition.isr if broker != leader and broker in self.cluster.live]
        if partition.leader == leader and others:
            self._move(partition, others[0])
            self.sim.note("%s is led by broker %s", partition.key, others[0])
            self.world.pump()

    def _move(self, partition: Partition, to: int) -> None:
        """Elect a leader; another broker may learn of it later than clients do."""
        self._note_loss(partition)
        former = (partition.leader, partition.leader_epoch)
        self.cluster.move_leader(*partition.key, to)
        others = [broker for broker in self.cluster.live if broker != to]
        if others and self._behind_rng.random() < _BEHIND:
            broker = self._behind_rng.choice(sorted(others))
            seconds = self._behind_rng.choice((0.05, 0.2, 0.6))
            self._views[broker, partition.key] = former
            self._later(seconds, self._views.pop, (broker, partition.key), None)
            self.sim.note(
                "broker %s does not know of the new leader of %s for %s s", broker, partition.key, seconds
            )

    @contextmanager
    def brokers_behind(self) -> Iterator[None]:
        """Let brokers that are behind say in their metadata what was before, while the block runs."""
        handler = HANDLERS[METADATA.key]

        def handle(request: ApiRequest) -> Any:
            answer = handler.handle(request)
            for topic in answer["topics"] if self._views else ():
                for row in topic["partitions"]:
                    place = TopicPartition(topic["name"], row["partition_index"])
                    former = self._views.get((request.broker_id, place))
                    if former is not None and former[0] in self.cluster.live:
                        row["leader_id"], row["leader_epoch"] = former
                        row["error_code"] = 0
            return answer

        with mock.patch.dict(HANDLERS, {METADATA.key: handler._replace(handle=handle)}):
            yield

    def stop_broker(self) -> str | None:
        if len(self.cluster.live) < len(self.cluster.nodes):
            return None
        broker = self.rng.choice(list(self.cluster.nodes))
        for partition in self.cluster.topics.partitions():
            self._note_loss(partition)
        self.cluster.stop_broker(broker)
        seconds = self.rng.choice((0.05, 0.3, 1.0))
        lose = self.rng.random() < 0.5
        self._later(seconds, self._start_broker, broker, lose)
        return f"broker {broker} is stopped for {seconds} s"

    def _start_broker(self, broker: int, lose: bool) -> None:
        self.cluster.start_broker(broker, lose_unreplicated=lose)
        self.sim.note("broker %s is back", broker)
        self.world.pump()

    def restart_broker(self) -> str | None:
        if len(self.cluster.live) < len(self.cluster.nodes):
            return None
        broker = self.rng.choice(list(self.cluster.nodes))
        for partition in self.cluster.topics.partitions():
            self._note_loss(partition)
        self.cluster.restart_broker(broker, lose_unreplicated=True)
        return f"broker {broker} is restarted and loses what was above the high watermark"

    def change_release(self) -> str:
        broker, release = self.rng.choice(list(self.cluster.nodes)), self.rng.choice(self.sim.plan.changes)
        self.cluster.set_release(broker, release)
        return f"broker {broker} becomes Kafka {release}"

    def hold_replication(self) -> str:
        partition = self._partition()
        self.cluster.hold_replication(*partition.key)
        self._later(self.rng.choice((0.03, 0.2, 0.6)), self._resume, partition)
        return f"the followers of {partition.key} fall behind"

    def _resume(self, partition: Partition) -> None:
        self.cluster.resume_replication(*partition.key)
        self.sim.note("the followers of %s catch up", partition.key)
        self.world.pump()

    def shrink_isr(self) -> str | None:
        partition = self._partition()
        if partition.leader < 0 or len(partition.isr) < 2:
            return None
        before = list(partition.isr)
        self.cluster.shrink_isr(*partition.key, [partition.leader])
        self._later(0.3, self._grow_isr, partition, before)
        return f"only the leader of {partition.key} is in step"

    def _grow_isr(self, partition: Partition, isr: list[int]) -> None:
        if partition.leader in isr:
            partition.isr = [
                broker for broker in isr if broker in self.cluster.live or broker == partition.leader
            ]

    def move_coordinator(self) -> str | None:
        if not self.cluster.live:
            return None
        transactional_id = f"t-{self.sim.ids}"
        to = self.rng.choice(sorted(self.cluster.live))
        self.cluster.move_transaction_coordinator(transactional_id, to)
        self.cluster.move_group_coordinator(self.sim.plan.group, self.rng.choice(sorted(self.cluster.live)))
        return f"broker {to} coordinates {transactional_id}"

    def upgrade(self) -> str | None:
        name = "transaction.version"
        if self.cluster.features.get(name, 2) >= 2 or not self.cluster.release.features:
            return None
        self.cluster.set_feature(name, 2)
        self.cluster.drop_connections()  # clients learn of it when they connect again
        return "the cluster goes over to the second transaction protocol"

    def _partition(self) -> Partition:
        return self.rng.choice(list(self.cluster.topics.partitions()))

    def _note_loss(self, partition: Partition) -> None:
        log = partition.log
        if log.high_watermark < log.log_end_offset:
            self.loses = True

    # ---- time

    def clock_jump(self) -> str:
        seconds = self.rng.choice((0.1, 0.5, 2.0))
        self.world.clock.time += seconds
        wall = self.rng.choice((-600.0, 0.0, 600.0))
        self.world.clock.wall_offset += wall
        self.sim.note_jump()
        return f"nothing runs for {seconds} s, the wall clock moves by {wall} s"
