# SPDX-License-Identifier: Apache-2.0
"""What a handler gets, and what it may answer.

An API has two functions: `handle_x(request)` does what the request asks and gives the answer, `refuse_x(request,
code)` gives the answer that says no to all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.error_codes import ErrorCode
from penstock.protocol.schema import ApiSchema
from penstock.testing.refused import Refused
from penstock.testing.security.rights import Operation, Rights
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from penstock.testing.cluster import FakeCluster
    from penstock.testing.partition_log import Isolation
    from penstock.testing.releases import Release
    from penstock.testing.security.authentication import Authentication
    from penstock.testing.topics import Partition

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request as a broker read it.

    Attributes:
        now: monotonic seconds at which it is handled.
        authentication: what is known of who asks.
        forced_errors: what a fault wants these partitions to be told, whatever they would be told otherwise.
        forced_after_effect: whether these partitions do what the request asks nevertheless.
    """

    cluster: FakeCluster = field(repr=False, compare=False)
    broker_id: int
    api: ApiSchema
    version: int
    client_id: str | None
    body: Body = field(repr=False)
    now: float
    authentication: Authentication = field(repr=False, compare=False)
    forced_errors: Mapping[TopicPartition, int] = field(default_factory=dict)
    forced_after_effect: bool = False

    @property
    def rights(self) -> Rights:
        """What the client may do."""
        return Rights(self.cluster, self.authentication.acl)

    @property
    def release(self) -> Release:
        """That of the broker that was asked."""
        return self.cluster.release_of(self.broker_id)

    def coordinates_transaction(self, transactional_id: str) -> bool:
        """Whether the broker that was asked keeps this transactional id."""
        return self.cluster.transaction_slots.owner_of(transactional_id) == self.broker_id

    def coordinates_group(self, group_id: str) -> bool:
        """Whether the broker that was asked keeps this group."""
        return self.cluster.group_slots.owner_of(group_id) == self.broker_id

    def leader_partition(self, operation: Operation, topic: str, index: int, leader_epoch: int) -> Partition:
        """The partition to read, when the broker that was asked leads it in the epoch that the client knows.

        Args:
            operation: what is to be done with it.
            topic, index: which.
            leader_epoch: as the client knows it; negative where it does not.

        Raises:
            Refused: it does not, or there is none.
        """
        if not self.rights.topic(operation, topic):
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        partition = self.cluster.topics.partition(topic, index)
        if partition is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if 0 <= leader_epoch < partition.leader_epoch:
            raise Refused(ErrorCode.FENCED_LEADER_EPOCH)
        if leader_epoch > partition.leader_epoch:
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if partition.leader != self.broker_id:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    @property
    def isolation(self) -> Isolation:
        """The isolation level of a reader."""
        return "read_committed" if self.body["isolation_level"] == 1 else "read_uncommitted"

    def fenced_code(self, code: ErrorCode, first_version: int) -> ErrorCode:
        """PRODUCER_FENCED, or what clients older than the code understand."""
        if code is ErrorCode.PRODUCER_FENCED and self.version < first_version:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return code


@dataclass(slots=True)
class Pending:
    """An answer that must wait.

    Attributes:
        deadline: when it is given in any case.
        try_answer: called with `now`; the answer, or None while there is none. From the deadline on it has one.
    """

    deadline: float
    try_answer: Callable[[float], Body | None]


class NoAnswer(Enum):
    """Why a request gets no answer, and what becomes of the connection."""

    KEEP = "the request wants none"
    CLOSE = "the connection is closed"


Answer = Body | Pending | NoAnswer


class Handler(NamedTuple):
    """The functions of one API: the one that handles a request, and the one that answers with an error."""

    handle: Callable[[ApiRequest], Answer]
    refuse: Callable[[ApiRequest, int], Body]
