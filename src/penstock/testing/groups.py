# SPDX-License-Identifier: Apache-2.0
"""Consumer groups, as far as a producer meets them: offsets committed inside transactions.

Groups have no members here unless a test says so; there is no JoinGroup.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock._identity import ProducerIdentity
from penstock.error_codes import ErrorCode
from penstock.types import TopicPartition


class CommittedOffset(NamedTuple):
    """An offset as a group keeps it."""

    offset: int
    leader_epoch: int = -1
    metadata: str | None = None


class Member(NamedTuple):
    """Which member of a group a committer says that it is."""

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


class Groups:
    """All groups of a cluster."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[tuple[str, int], dict[TopicPartition, CommittedOffset]] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        self._members: dict[str, tuple[int, set[str]]] = {}

    def set_members(self, group: str, generation: int, member_ids: set[str]) -> None:
        """Let a group have members, whose ids and generation are then checked."""
        self._members[group] = (generation, set(member_ids))

    def offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """What a group has committed."""
        return dict(self._offsets.get(group, {}))

    def pending(self, group: str) -> set[TopicPartition]:
        """The partitions with an offset in an open transaction."""
        return {
            partition
            for (name, _), offsets in self._pending.items()
            if name == group
            for partition in offsets
        }

    def check_member(self, group: str, member: Member) -> ErrorCode:
        """Whether a committer is who it says."""
        if member == Member():
            # A simple group, or a producer that does not know its consumer's generation.
            return ErrorCode.NONE
        generation, member_ids = self._members.get(group, (-1, set()))
        if not member_ids and member.generation < 0:
            # Without a generation, every client may write to a group without members.
            return ErrorCode.NONE
        if member.member_id not in member_ids:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member.generation == generation else ErrorCode.ILLEGAL_GENERATION

    def check_producer(self, group: str, producer: ProducerIdentity) -> ErrorCode:
        """Whether a producer's epoch is not older than one the group has seen."""
        stale = producer.epoch < self._epochs.get((group, producer.producer_id), -1)
        return ErrorCode.INVALID_PRODUCER_EPOCH if stale else ErrorCode.NONE

    def add_pending(
        self, group: str, producer: ProducerIdentity, offsets: dict[TopicPartition, CommittedOffset]
    ) -> None:
        """Keep offsets until the transaction of the producer ends."""
        producer_id, epoch = producer
        self._epochs[group, producer_id] = epoch
        self._pending.setdefault((group, producer_id), {}).update(offsets)

    def on_marker(self, producer_id: int, epoch: int, *, commit: bool) -> None:
        """End the transaction of a producer in all groups."""
        for key in [key for key in self._pending if key[1] == producer_id]:
            offsets = self._pending.pop(key)
            self._epochs[key] = epoch
            if commit:
                self._offsets.setdefault(key[0], {}).update(offsets)
