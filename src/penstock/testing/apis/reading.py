# SPDX-License-Identifier: Apache-2.0
"""What Fetch and ListOffsets have in common: finding a partition to read, and the leader epoch that a reader names."""

from __future__ import annotations

from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest
from penstock.testing.partition_log import Isolation
from penstock.testing.refused import Refused
from penstock.testing.topics import Partition


def leader_partition(request: ApiRequest, topic: str, index: int, leader_epoch: int) -> Partition:
    """The partition, when the broker that was asked leads it in the epoch that the client knows.

    Raises:
        Refused: it does not, or there is none.
    """
    if topic in request.cluster.denied_topics:
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    partition = request.cluster.topics.partition(topic, index)
    if partition is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if 0 <= leader_epoch < partition.leader_epoch:
        raise Refused(ErrorCode.FENCED_LEADER_EPOCH)
    if leader_epoch > partition.leader_epoch:
        raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH)
    if partition.leader != request.broker_id:
        raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return partition


def isolation_of(request: ApiRequest) -> Isolation:
    """The reader's isolation level."""
    return "read_committed" if request.body["isolation_level"] == 1 else "read_uncommitted"
