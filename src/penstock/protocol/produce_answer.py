# SPDX-License-Identifier: Apache-2.0
"""What a broker answers to a Produce request."""

from __future__ import annotations

from typing import NamedTuple

from penstock.types import Node


class PartitionResponse(NamedTuple):
    """What the broker said of one partition.

    Attributes:
        record_errors: (index in the batch, message) of the records that made it refuse the batch.
        leader_id: the leader that the broker knows of, -1 when it does not say; `leader_epoch` likewise.
    """

    topic: str
    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    record_errors: list[tuple[int, str | None]]
    error_message: str | None
    leader_id: int
    leader_epoch: int


class ProduceResponse(NamedTuple):
    """The answer to a ProduceRequest; `node_endpoints` are the addresses of leaders named in it."""

    throttle_ms: int
    partitions: list[PartitionResponse]
    node_endpoints: list[Node]
