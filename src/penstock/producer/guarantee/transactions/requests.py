# SPDX-License-Identifier: Apache-2.0
"""One class per transaction request: what it sends, and what its answer changes.

`policy` says what an error means. Each request tells the `Coordinator`, which acts on it. I/O thread only, under the
transaction lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from penstock._identity import ProducerIdentity
from penstock.error_codes import ErrorCode
from penstock.errors import BrokerError, broker_error
from penstock.producer.guarantee.idempotent import NEEDED_FOR_PRODUCER_ID
from penstock.producer.guarantee.transactions.policy import Verdict, judge
from penstock.producer.metadata.cluster import NO_TOPIC_ID
from penstock.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
)
from penstock.protocol.requests import CoordinatorKind, FindCoordinator, Request, SchemaRequest
from penstock.protocol.schema import ApiSchema
from penstock.types import ConsumerGroupMetadata, Node, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from penstock.producer.guarantee.transactions.coordinator import Coordinator

FIRST_OFFSETS_BY_TOPIC_ID = 6  # version of TxnOffsetCommit
_NO_ANSWER = ErrorCode.UNKNOWN_SERVER_ERROR  # for what an answer leaves out

# An earlier transaction of the id is still being completed. That takes milliseconds, so the retry for the first
# partition of a new one comes sooner than retry.backoff.ms.
FIRST_PARTITION_BACKOFF_MS = 20


# If an answer has several errors, the first of these decides.
_WORST_FIRST = (
    Verdict.FATAL, Verdict.FENCED, Verdict.UNINITIALIZED, Verdict.ABORTABLE, Verdict.FIND_COORDINATOR, Verdict.RETRY,
)  # fmt: skip


class TxnRequest:
    """A request of the transaction protocol; the smaller its priority number, the earlier it is sent."""

    api: ClassVar[ApiSchema]
    priority: ClassVar[int]
    goes_to: ClassVar[CoordinatorKind | None] = CoordinatorKind.TRANSACTION  # None: to any broker
    finds: CoordinatorKind | None = None  # only of FindCoordinator: the kind that it looks for

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.retry_at = 0.0
        self.attempts = 0  # times it was queued again
        self.in_doubt = False  # it was sent, and whether the coordinator has seen it is not known

    def build(self) -> Request:
        """The request, made from the present state."""
        raise NotImplementedError

    def on_body(self, body: Mapping[str, Any], version: int, now: float) -> None:
        """The answer came."""
        raise NotImplementedError

    def on_error(self, code: int, now: float, message: str | None = None) -> None:
        """The answer was an error: do what the table says."""
        error = broker_error(code, self._what_is_missing(code) or message)
        self.coordinator.on_verdict(self, self._judge(code), error, now)

    def _what_is_missing(self, code: int) -> str | None:
        """The text for an error of authorization, with the right that is needed; None for other errors."""
        ours = f"transactional id {self.coordinator.transactional_id!r}"
        if code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return f"not authorized to use {ours}: the rights DESCRIBE and WRITE on it are needed"
        if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return f"not authorized to get a producer id for {ours}: {NEEDED_FOR_PRODUCER_ID}"
        if code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
            group = self.coordinator.queue.key(CoordinatorKind.GROUP)
            return f"not authorized to commit offsets of group {group!r}: the right READ on it is needed"
        return None

    def on_errors(self, codes: Iterable[int], now: float) -> None:
        """The answer has several errors: the worst one decides."""
        self.on_error(min(codes, key=lambda code: _WORST_FIRST.index(self._judge(code))), now)

    def _judge(self, code: int) -> Verdict:
        return judge(self.api.name, code, can_bump=self.coordinator.can_bump_epoch, committing=self.is_commit)

    @property
    def is_commit(self) -> bool:
        """Whether it ends a transaction by committing it."""
        return False

    @property
    def for_a_group(self) -> bool:
        """Whether it is only about a group's offsets: then it is of no use once the transaction is being aborted."""
        return CoordinatorKind.GROUP in (self.goes_to, self.finds)

    def backoff_ms(self, code: int) -> float | None:
        """A wait before the next attempt that differs from retry.backoff.ms."""
        del code
        return None


class FindCoordinatorRequest(TxnRequest):
    """Asks any broker for a coordinator."""

    api = FIND_COORDINATOR
    priority = 0
    goes_to = None

    def __init__(self, coordinator: Coordinator, kind: CoordinatorKind, key: str) -> None:
        super().__init__(coordinator)
        self.finds = self.kind = kind
        self.key = key

    def build(self) -> Request:
        return FindCoordinator(self.kind, [self.key])

    def on_body(self, body: Mapping[str, Any], version: int, now: float) -> None:
        """Take the coordinator's address."""
        answer = body["coordinators"][self.key]
        if answer["error_code"] != 0:
            self.on_error(answer["error_code"], now, answer["error_message"])
            return
        self.coordinator.queue.found(self.kind, Node(answer["node_id"], answer["host"], answer["port"]))


class InitProducerIdRequest(TxnRequest):
    """Takes over the transactional id: fences older producers, aborts what they left open.

    With `bump` it keeps the producer id and asks for the next epoch, to leave a broken transaction behind.
    """

    api = INIT_PRODUCER_ID

    def __init__(self, coordinator: Coordinator, bump: bool) -> None:
        super().__init__(coordinator)
        self.bump = bump

    @property
    def priority(self) -> int:  # type: ignore[override]
        """A bump comes after the EndTxn that it follows."""
        return 4 if self.bump else 1

    def build(self) -> SchemaRequest:
        """The request; it has the present identity only for a bump."""
        body: dict[str, Any] = {
            "transactional_id": self.coordinator.transactional_id,
            "transaction_timeout_ms": self.coordinator.timeout_ms,
        }
        if self.bump:
            identity = self.coordinator.identity
            body |= {"producer_id": identity.producer_id, "producer_epoch": identity.epoch}
            return SchemaRequest.of(INIT_PRODUCER_ID, body, min_version=3)
        return SchemaRequest.of(INIT_PRODUCER_ID, body)

    def on_body(self, body: Mapping[str, Any], version: int, now: float) -> None:
        """Take the identity."""
        if body["error_code"] != 0:
            self.on_error(body["error_code"], now)
            return
        identity = ProducerIdentity(body["producer_id"], body["producer_epoch"])
        self.coordinator.on_initialized(identity, version, in_doubt=self.in_doubt)


class AddPartitionsRequest(TxnRequest):
    """Tells the coordinator which partitions a transaction will write to (protocol v1)."""

    api = ADD_PARTITIONS_TO_TXN
    priority = 2

    def __init__(self, coordinator: Coordinator, partitions: frozenset[TopicPartition]) -> None:
        super().__init__(coordinator)
        self.partitions = partitions

    def build(self) -> SchemaRequest:
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(self.partitions):
            topics.setdefault(topic, []).append(partition)
        body = {
            "v3_and_below_transactional_id": self.coordinator.transactional_id,
            "v3_and_below_producer_id": self.coordinator.identity.producer_id,
            "v3_and_below_producer_epoch": self.coordinator.identity.epoch,
            "v3_and_below_topics": [
                {"name": name, "partitions": numbers} for name, numbers in topics.items()
            ],
        }
        return SchemaRequest.of(ADD_PARTITIONS_TO_TXN, body, max_version=3)

    def on_body(self, body: Mapping[str, Any], version: int, now: float) -> None:
        """Every partition has a code of its own; the worst one decides."""
        codes = {
            TopicPartition(topic["name"], entry["partition_index"]): entry["partition_error_code"]
            for topic in body["results_by_topic_v3_and_below"]
            for entry in topic["results_by_partition"]
        }
        # A partition that the answer leaves out was not added, for whatever reason.
        failed = {
            partition: code
            for partition in self.partitions
            if (code := codes.get(partition, _NO_ANSWER)) != 0
        }
        if not failed:
            self.coordinator.partitions.add(self.partitions)
            return
        # If one partition is refused, none is added. The others then have OPERATION_NOT_ATTEMPTED, which is no cause.
        reasons = {
            tp: code for tp, code in failed.items() if code != ErrorCode.OPERATION_NOT_ATTEMPTED
        } or failed
        forbidden = {tp for tp, code in reasons.items() if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        if forbidden and all(tp in forbidden or self._judge(reasons[tp]) is Verdict.RETRY for tp in reasons):
            self.coordinator.partitions.refuse(
                {tp: _not_authorized(tp) for tp in forbidden}, self.partitions - forbidden
            )
            return
        self.on_errors(reasons.values(), now)

    def backoff_ms(self, code: int) -> float | None:
        """A shorter wait for the first partitions of a transaction."""
        if code == ErrorCode.CONCURRENT_TRANSACTIONS and not self.coordinator.partitions.added:
            return FIRST_PARTITION_BACKOFF_MS
        return None


class AddOffsetsRequest(TxnRequest):
    """Tells the coordinator that a group's offsets will be part of the transaction (protocol v1)."""

    api = ADD_OFFSETS_TO_TXN
    priority = 2

    def __init__(
        self,
        coordinator: Coordinator,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: ConsumerGroupMetadata,
    ) -> None:
        super().__init__(coordinator)
        self.offsets = offsets
        self.group = group

    def build(self) -> SchemaRequest:
        body = {
            "transactional_id": self.coordinator.transactional_id,
            "producer_id": self.coordinator.identity.producer_id,
            "producer_epoch": self.coordinator.identity.epoch,
            "group_id": self.group.group_id,
        }
        return SchemaRequest.of(ADD_OFFSETS_TO_TXN, body)

    def on_body(self, body: Mapping[str, Any], version: int, now: float) -> None:
        """Now the offsets can be sent, to the group's coordinator."""
        if body["error_code"] != 0:
            self.on_error(body["error_code"], now)
            return
        self.coordinator.on_offsets_added(self.offsets, self.group)


class TxnOffsetCommitRequest(TxnRequest):
    """Writes a group's offsets as part of the transaction."""

    api = TXN_OFFSET_COMMIT
    priority = 2
    goes_to = CoordinatorKind.GROUP

    def __init__(
        self,
        coordinator: Coordinator,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: ConsumerGroupMetadata,
    ) -> None:
        super().__init__(coordinator)
        self.offsets = dict(offsets)  # those not acknowledged yet
        self.group = group
        self._names: dict[bytes, str] = {}  # of the topics, by the ids that they had when it was built

    def build(self) -> SchemaRequest:
        """The offsets, with the group's generation if there is one. Old brokers cannot check the generation."""
        # Version 5 makes the group's partition part of the transaction by itself; before, AddOffsetsToTxn did that.
        lowest, highest = (5, 5) if self.coordinator.uses_v2 else (0, 4)
        cluster = self.coordinator.hooks.cluster
        ids = cluster.topic_ids({topic for topic, _ in self.offsets}) if self.coordinator.uses_v2 else None
        if ids is not None:
            highest = FIRST_OFFSETS_BY_TOPIC_ID
            self._names = {topic_id: topic for topic, topic_id in ids.items()}
        body: dict[str, Any] = {
            "transactional_id": self.coordinator.transactional_id,
            "group_id": self.group.group_id,
            "producer_id": self.coordinator.identity.producer_id,
            "producer_epoch": self.coordinator.identity.epoch,
            "topics": self._topics(ids or {}),
        }
        if self.group.has_member:
            body |= {
                "generation_id": self.group.generation_id,
                "member_id": self.group.member_id,
                "group_instance_id": self.group.group_instance_id,
            }
            lowest = max(3, lowest)
        return SchemaRequest.of(TXN_OFFSET_COMMIT, body, min_version=lowest, max_version=highest)

    def _topics(self, ids: Mapping[str, bytes]) -> list[dict[str, Any]]:
        """Entries with the name and, if known, the id of the topic. The version decides which of the two is sent."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            entry = {
                "partition_index": partition,
                "committed_offset": offset.offset,
                "committed_leader_epoch": offset.leader_epoch,
                "committed_metadata": offset.metadata,
            }
            topics.setdefault(topic, []).append(entry)
        return [
            {"name": name, "topic_id": ids.get(name, NO_TOPIC_ID), "partitions": entries}
            for name, entries in topics.items()
        ]

    def on_body(self, body: Mapping[str, Any], version: int, now: float) -> None:
        """Partitions that were written are done; the rest is sent again, or fails."""
        codes: set[int] = set()
        for topic in body["topics"]:
            by_id = version >= FIRST_OFFSETS_BY_TOPIC_ID
            name = self._names.get(topic["topic_id"], "") if by_id else topic["name"]
            for entry in topic["partitions"]:
                if entry["error_code"] == 0:
                    self.offsets.pop(TopicPartition(name, entry["partition_index"]), None)
                else:
                    codes.add(entry["error_code"])
        if ErrorCode.UNKNOWN_TOPIC_ID in codes:
            self.coordinator.hooks.cluster.doubt_topics()  # the topic may have been made anew, with another id
        if codes:
            self.on_errors(codes, now)
        elif self.offsets:  # some were left out: ask for those again
            self.coordinator.on_verdict(self, Verdict.RETRY, broker_error(_NO_ANSWER), now)
        else:
            self.coordinator.on_offsets_committed()


class EndTxnRequest(TxnRequest):
    """Commits or aborts; sent only after the last batch of the transaction has its outcome."""

    api = END_TXN
    priority = 3

    def __init__(self, coordinator: Coordinator, commit: bool) -> None:
        super().__init__(coordinator)
        self._commit = commit
        self._v2 = coordinator.uses_v2  # a transaction ends with the protocol that it started with

    @property
    def is_commit(self) -> bool:
        return self._commit

    def build(self) -> SchemaRequest:
        """The request. Version 5 is used with protocol v2, and only with it."""
        body = {
            "transactional_id": self.coordinator.transactional_id,
            "producer_id": self.coordinator.identity.producer_id,
            "producer_epoch": self.coordinator.identity.epoch,
            "committed": self._commit,
        }
        if self._v2:
            return SchemaRequest.of(END_TXN, body, min_version=5)
        return SchemaRequest.of(END_TXN, body, max_version=4)

    def on_body(self, body: Mapping[str, Any], version: int, now: float) -> None:
        """The transaction is over; in v2 the answer has the next epoch."""
        if body["error_code"] != 0:
            self.on_error(body["error_code"], now)
            return
        following = None
        if version >= 5 and body.get("producer_id", -1) >= 0:
            following = ProducerIdentity(body["producer_id"], body["producer_epoch"])
        self.coordinator.on_ended(following)


def _not_authorized(partition: TopicPartition) -> BrokerError:
    error = broker_error(
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        f"{partition}: not authorized to write to topic {partition.topic!r}: the right WRITE on it is needed",
    )
    error.names_record = True
    return error
