# SPDX-License-Identifier: Apache-2.0
"""Producers with idempotence and transactions, without their thread, in virtual time.

`GateRig` has a coordinator that follows a script: it answers without errors, until a test tells it what to answer next.
`ClusterRig` has the validating cluster of `penstock.testing` at the other end, which refuses what Kafka would refuse.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

import pytest
from network.fakes import FakeBroker, FakeNetwork, Received, api_versions_body
from network.served import ServedCluster
from producer.fakes_sender import QUIET, Rig

from penstock._identity import ProducerIdentity
from penstock._ticket import Ticket
from penstock.config.config import ProducerConfig
from penstock.consumer_groups import as_group
from penstock.producer.assembly import assemble
from penstock.producer.batch._delivery_cy import Delivery
from penstock.producer.guarantee.transactions.manager import TransactionManager
from penstock.producer.guarantee.transactions.states import TxnState
from penstock.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from penstock.protocol.schema import ApiSchema
from penstock.records.reader import RecordBatch, read_batches
from penstock.testing import ClusterSettings, FakeCluster, Fault
from penstock.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

PRODUCER_ID = 4000
CUT = "cut"  # in a script: break the connection in place of an answer
V1, V2 = 1, 2
both = pytest.mark.parametrize("protocol", [V1, V2], ids=["v1", "v2"])
NO_BUMP = {"InitProducerId": (0, 2)}  # a coordinator that cannot raise an epoch when asked

_GATE_APIS = (
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    TXN_OFFSET_COMMIT,
    END_TXN,
)


class TransactionCalls(Rig):
    """The calls of the transaction face, taking turns instead of waiting."""

    @property
    def manager(self) -> TransactionManager:
        manager = self.parts.transactions
        assert manager is not None
        return manager

    @property
    def state(self) -> TxnState:
        return self.manager.state

    def finish(self, ticket: Ticket[None], seconds: float = 20.0) -> None:
        """Take turns until an operation has ended; it must not need longer than that."""
        started = self.clock.now()
        self.network.after(seconds, self.network.wakeup)
        while not ticket.done:
            assert self.clock.now() < started + seconds, f"no end of {ticket.what} in {seconds} s"
            self.turn()
        self.manager.fetched(ticket)
        ticket.result  # noqa: B018 - raises

    def init(self, transactional_id: str | None = None) -> None:
        self.finish(self.manager.initialize(transactional_id))

    def begin(self) -> None:
        self.manager.begin()

    def commit(self) -> None:
        self.finish(self.manager.commit())

    def abort(self) -> None:
        self.finish(self.manager.abort())

    def offsets_ticket(
        self, offsets: Mapping[tuple[str, int], int], group: str | ConsumerGroupMetadata = "g"
    ) -> Ticket[None]:
        positions = {TopicPartition(*place): OffsetAndMetadata(offset) for place, offset in offsets.items()}
        return self.manager.send_offsets(positions, as_group(group))

    def send_offsets(
        self, offsets: Mapping[tuple[str, int], int], group: str | ConsumerGroupMetadata = "g"
    ) -> None:
        self.finish(self.offsets_ticket(offsets, group))

    def deliver(self, *deliveries: Delivery, seconds: float = 20.0) -> None:
        """Take turns until these have their outcome; it must not take longer than that."""
        started = self.clock.now()
        self.network.after(seconds, self.network.wakeup)
        while not all(delivery.done() for delivery in deliveries):
            assert self.clock.now() < started + seconds, f"no outcome in {seconds} s"
            self.turn()

    @property
    def fast_path_open(self) -> bool:
        return bool(self.parts.fast_path.enabled)


class GateRig(TransactionCalls):
    """Brokers with a scripted coordinator at broker `coordinator`, and the group's at `group_coordinator`.

    Args:
        protocol: the finalized transaction.version; None for a cluster that is older than features.
        versions: ranges of APIs that differ from this client's, by name.
        options: the producer's.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        protocol: int | None = 2,
        versions: Mapping[str, tuple[int, int]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(brokers, **({"enable_idempotence": True} | QUIET | options))
        self.protocol = protocol
        self.features_epoch = 1
        self.versions = dict(versions or {})
        self.coordinator = 0
        self.group_coordinator = 0
        self.identity = ProducerIdentity(PRODUCER_ID, 0)  # what InitProducerId gives next
        self.log: list[Received] = []  # requests to coordinators, and produce requests
        self._scripts: dict[int, deque[int | str]] = defaultdict(deque)
        self._held: set[int] = set()
        for broker in self.brokers:
            broker.rules[API_VERSIONS.key] = self._versions
            for api in _GATE_APIS:
                broker.rules[api.key] = self._rule(broker, api)

    @classmethod
    def transactional(cls, *, protocol: int | None = 2, **options: Any) -> GateRig:
        """A rig that is initialized: broker 0 leads the two partitions of topic t, broker 1 coordinates.

        So the coordinator answers while produce requests wait; on one connection answers come in order.
        """
        rig = cls(2, protocol=protocol, transactional_id="x", **options)
        rig.coordinator = rig.group_coordinator = 1
        rig.know("t", leaders=[0, 0])
        rig.init()
        return rig

    # ---- the script

    def script(self, api: ApiSchema, *answers: int | str) -> None:
        """Let the next requests of an API be answered with these codes (or CUT); afterwards all is well again."""
        self._scripts[api.key].extend(answers)

    def hold(self, *apis: ApiSchema) -> None:
        """Leave these requests without an answer until `release`."""
        self._held |= {api.key for api in apis}

    def release(self, *apis: ApiSchema) -> None:
        """Answer what was held, hold it no longer, and let the producer see the answers."""
        self.answer_held(*apis)
        self.settle(2)

    def answer_held(self, *apis: ApiSchema) -> None:
        """The same without a turn, for a producer that takes its turns itself."""
        self._held -= {api.key for api in apis}
        for broker in self.brokers:
            for request in [waiting for waiting in broker.waiting if waiting.api in apis]:
                broker.waiting.remove(request)
                self._respond(broker, request)

    def held(self, api: ApiSchema) -> list[Received]:
        return [request for broker in self.brokers for request in broker.waiting if request.api is api]

    def names(self) -> list[str]:
        """The APIs that were asked, in order, without the search for coordinators."""
        return [request.api.name for request in self.log if request.api is not FIND_COORDINATOR]

    def asked(self, api: ApiSchema) -> list[dict[str, Any]]:
        """The bodies of the requests of an API, in order."""
        return [request.body for request in self.log if request.api is api]

    def asked_versions(self, api: ApiSchema) -> list[int]:
        return [request.version for request in self.log if request.api is api]

    def set_protocol(self, level: int) -> None:
        """Finalize another transaction.version, and let the client learn it."""
        self.protocol = level
        self.features_epoch += 1
        for index in range(len(self.brokers)):
            self.break_connection(index)

    def acknowledge_all(self) -> None:
        super().acknowledge_all()
        for broker in self.brokers:
            acknowledge = broker.rules[PRODUCE.key]

            def note(request: Received, acknowledge: Any = acknowledge) -> Any:
                self.log.append(request)
                return acknowledge(request)

            broker.rules[PRODUCE.key] = note

    def batches(self, broker: int = 0) -> list[RecordBatch]:
        """Every batch that came in a produce request, in order; reading them checks their checksums."""
        return [batch for request in self.seen(PRODUCE, broker) for batch in batches_of(request)]

    def _versions(self, request: Received) -> dict[str, Any]:
        body = api_versions_body(**self.versions)
        if self.protocol is not None:
            level = {
                "name": "transaction.version",
                "max_version_level": self.protocol,
                "min_version_level": 0,
            }
            body |= {"finalized_features": [level], "finalized_features_epoch": self.features_epoch}
        return body

    def _rule(self, broker: FakeBroker, api: ApiSchema) -> Any:
        def rule(request: Received) -> dict[str, Any] | None:
            self.log.append(request)
            if api.key in self._held:
                broker.waiting.append(request)
                return None
            return self._body(broker, request)

        return rule

    def _respond(self, broker: FakeBroker, request: Received) -> None:
        body = self._body(broker, request)
        if body is not None:
            broker.answer(request, body)

    def _body(self, broker: FakeBroker, request: Received) -> dict[str, Any] | None:
        script = self._scripts[request.api.key]
        code = script.popleft() if script else 0
        if code == CUT:
            request.peer.reset()
            return None
        return _ANSWERS[request.api.key](self, request, code)

    # ---- answers

    def _find(self, request: Received, code: int) -> dict[str, Any]:
        body = request.body
        node = self.nodes[self.coordinator if body["key_type"] == 1 else self.group_coordinator]
        who = {"node_id": node.id, "host": node.host, "port": node.port} if code == 0 else {}
        row = {"node_id": -1, "host": "", "port": -1, "error_code": code} | who
        if request.version < 4:
            return row
        return {"coordinators": [row | {"key": body["coordinator_keys"][0]}]}

    def _init(self, request: Received, code: int) -> dict[str, Any]:
        if code:
            return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
        given = self.identity
        self.identity = ProducerIdentity(given.producer_id, given.epoch + 1)
        return {"error_code": 0, "producer_id": given.producer_id, "producer_epoch": given.epoch}

    def _add_partitions(self, request: Received, code: int) -> dict[str, Any]:
        rows = [
            {
                "name": topic["name"],
                "results_by_partition": [
                    {"partition_index": index, "partition_error_code": code} for index in topic["partitions"]
                ],
            }
            for topic in request.body["v3_and_below_topics"]
        ]
        return {"results_by_topic_v3_and_below": rows}

    def _commit_offsets(self, request: Received, code: int) -> dict[str, Any]:
        return offset_commit_body(request, default=code)

    def _end(self, request: Received, code: int) -> dict[str, Any]:
        if code or request.version < 5:
            return {"error_code": code}
        given, self.identity = (
            self.identity,
            ProducerIdentity(self.identity.producer_id, self.identity.epoch + 1),
        )
        return {"error_code": 0, "producer_id": given.producer_id, "producer_epoch": given.epoch}


_ANSWERS = {
    FIND_COORDINATOR.key: GateRig._find,
    INIT_PRODUCER_ID.key: GateRig._init,
    ADD_PARTITIONS_TO_TXN.key: GateRig._add_partitions,
    ADD_OFFSETS_TO_TXN.key: lambda rig, request, code: {"error_code": code},
    TXN_OFFSET_COMMIT.key: GateRig._commit_offsets,
    END_TXN.key: GateRig._end,
}


def offset_commit_body(
    request: Received, codes: Mapping[int, int] | None = None, default: int = 0
) -> dict[str, Any]:
    """An answer to TxnOffsetCommit with a code for each partition number."""
    return {
        "topics": [
            {
                "name": topic["name"],
                "topic_id": topic["topic_id"],
                "partitions": [
                    {
                        "partition_index": row["partition_index"],
                        "error_code": (codes or {}).get(row["partition_index"], default),
                    }
                    for row in topic["partitions"]
                ],
            }
            for topic in request.body["topics"]
        ]
    }


def batches_of(request: Received) -> list[RecordBatch]:
    """The batches of a produce request, checked."""
    return [
        batch
        for topic in request.body["topic_data"]
        for row in topic["partition_data"]
        for batch in read_batches(row["records"])
    ]


def numbers(batch: RecordBatch) -> tuple[int, int, int]:
    """Producer id, epoch and first sequence number of a batch."""
    return batch.producer_id, batch.producer_epoch, batch.base_sequence


class ClusterRig(TransactionCalls):
    """The validating cluster on a network in memory.

    Args:
        topics: name and number of partitions.
        seed: of everything that is random.
        settings: of the cluster.
        release, features: which Kafka to be like.
        options: the producer's.
    """

    def __init__(
        self,
        brokers: int = 1,
        topics: Mapping[str, int] | None = None,
        *,
        seed: int = 0,
        settings: ClusterSettings | None = None,
        release: str = "4.3",
        features: Mapping[str, int] | None = None,
        **options: Any,
    ) -> None:
        self.network = FakeNetwork()
        self.clock = self.network.clock
        self.kafka = FakeCluster(
            brokers,
            release=release,
            features=features,
            settings=settings,
            clock=lambda: self.clock.wall_ms() / 1000,
            rng=random.Random(seed),
        )
        for name, partitions in (topics or {"t": 2}).items():
            self.kafka.create_topic(name, partitions)
        self.served = ServedCluster(self.network, self.kafka)
        options = {"bootstrap_servers": "broker-0:9092", "linger_ms": 0, "client_id": "rig"} | options
        self.config = ProducerConfig.from_user(None, options)
        self.parts = assemble(self.config, self.clock, self.network.backend(), random.Random(seed))

    def values(
        self, topic: str = "t", partition: int = 0, isolation: Any = "read_committed"
    ) -> list[bytes | None]:
        return [record.value for record in self.kafka.records(topic, partition, isolation)]

    def asked(self, api: ApiSchema) -> list[Any]:
        return [request for request in self.kafka.received if request.api is api]


def opened(protocol: int | None = V2, **options: object) -> GateRig:
    """A producer in a transaction."""
    rig = GateRig.transactional(protocol=protocol, **options)
    rig.begin()
    return rig


def in_flight(rig: GateRig, value: bytes = b"a", partition: int = 0) -> Received:
    """Send a record in a request of its own, which waits."""
    rig.send("t", value, partition=partition)
    return rig.await_request(count=len(rig.waiting()) + 1)


def first_numbers(request: Received) -> tuple[int, int, int]:
    """The numbers of the first batch of a produce request."""
    return numbers(batches_of(request)[0])


def a_transaction(rig: GateRig, value: bytes = b"next") -> tuple[int, int, int]:
    """A transaction of one record in partition 0, committed; the numbers of its batch."""
    rig.begin()
    delivery = rig.send("t", value, partition=0)
    ticket = rig.manager.commit()
    request = rig.await_request()
    rig.answer()
    rig.finish(ticket)
    delivery.result(0)
    return first_numbers(request)


def uninitialized() -> GateRig:
    """A producer before init_transactions()."""
    rig = GateRig(transactional_id="x")
    rig.know("t", 2)
    return rig


def some_fault(rng: random.Random, apis: list[ApiSchema], codes: list[int]) -> Fault:
    """Something that goes wrong with a request of one of these APIs, or an answer with one of these codes."""
    api, skip, kind = rng.choice(apis), rng.randrange(3), rng.random()
    if kind < 0.45:
        return Fault(api=api, cut="before" if kind < 0.2 else "after", skip=skip)
    if kind < 0.8:
        code = rng.choice(codes)
        return Fault(api=api, error=code, took_effect=code in (7, 20) and rng.random() < 0.5, skip=skip)
    if kind < 0.9:
        return Fault(api=api, delay=rng.random(), skip=skip)
    return Fault(api=api, throttle_ms=max(1, rng.randrange(300)), skip=skip)
