# SPDX-License-Identifier: Apache-2.0
"""The topic of the log: it is made if it is not there, refused if it could lose what was decided, and read.

A planner process prepares thousands of batches, so a reader keeps its position and what it has read up to there. They
are good only as long as the log is the one that was read: the last batch is fetched again each time, and must be the
same. If it is not (truncated, compacted, made anew), or the partition has another leader, everything is read from the
beginning.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from penstock._events import Event, tell
from penstock.control.client import DEFAULT_TIMEOUT, ControlClient
from penstock.control.partition_log import LogEnd, log_end, log_start, read_log
from penstock.control.steps import Backoff, LeaderOf, Steps
from penstock.control.topics import TopicDescription, TopicShape, create_topic, describe_topic, topic_shape
from penstock.error_codes import ErrorCode
from penstock.errors import BrokerError, KafkaError, KafkaTimeoutError, SinkError, SinkLogUnfitError
from penstock.records.reader import RecordBatch
from penstock.sink.identity import explain_refusal
from penstock.sink.log.view import LogContents, SinkView

log = logging.getLogger(__name__)

WANTED_REPLICATION = 3
WANTED_IN_SYNC = 2
# Compaction leaves the newest segment alone, and a new driver reads all of it: small ones are read in a second.
SEGMENT_BYTES = 16 * 1024 * 1024

_TRANSACTION_STATE = "__transaction_state"


def ensure_log_topic(
    client: ControlClient, name: str, target: str | None, timeout: float | None = DEFAULT_TIMEOUT
) -> TopicDescription:
    """Make the topic if need be, and look at it.

    Args:
        client: an open client.
        name: of the log's topic.
        target: the topic that is written to, or None where rows name theirs.
        timeout: seconds.

    Raises:
        SinkLogUnfitError: the topic is there, and not as it must be.
        SinkAuthorizationError: this client may not make it, or look at it.
    """
    left = client.deadline(timeout)
    try:
        found = describe_topic(client, name, left())
        copies = None if target is None else topic_shape(client, target, left())
        if found is None:
            _create(client, name, 1 if copies is None else copies.replication, left())
            found = _wait_for(client, name, left())
    except BrokerError as error:
        raise explain_refusal(error, f"make or describe the topic {name!r}") from error
    _check(found, copies)
    _warn_of_transaction_state(client, left())
    return found


def _create(client: ControlClient, name: str, least: int, timeout: float | None) -> None:
    # Brokers that are down now are not counted, and refuse a topic with more replicas than they are. With less than it
    # needs the log would be made for good, and refused at every start from then on.
    replication = max(min(WANTED_REPLICATION, len(client.brokers(timeout))), least)
    settings = {
        "cleanup.policy": "compact",
        "min.insync.replicas": min(WANTED_IN_SYNC, replication),
        "segment.bytes": SEGMENT_BYTES,
        # Brokers refuse records from an hour ahead of their own clock, and a driver's may be wrong.
        "message.timestamp.type": "LogAppendTime",
    }
    try:
        create_topic(name, 1, replication, settings, config=client, timeout=timeout)
    except BrokerError as error:
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


def _wait_for(client: ControlClient, name: str, timeout: float | None) -> TopicDescription:
    """The topic that was made a moment ago, as soon as the brokers know it."""
    left = client.deadline(timeout)
    attempts = 0
    while (found := describe_topic(client, name, left())) is None:
        if (seconds := left()) is not None and seconds <= 0:
            raise KafkaTimeoutError(f"the topic {name!r} was made, but brokers do not know it yet")
        client.run(_rest(attempts), left())
        attempts += 1
    return found


def _rest(attempts: int) -> Steps[None]:
    yield Backoff(attempts)


def _check(found: TopicDescription, target: TopicShape | None) -> None:
    policy = found.settings.get("cleanup.policy", "delete")
    if policy != "compact":
        raise SinkLogUnfitError(
            f"the topic {found.name!r} has cleanup.policy={policy}, so that decisions are deleted with time and "
            "batches would be written twice. Nothing was written: set cleanup.policy=compact, or name another topic "
            "with the option decisionTopic"
        )
    if target is not None and found.replication < target.replication:
        raise SinkLogUnfitError(
            f"the topic {found.name!r} has {found.replication} replicas and {target.name!r} has {target.replication}: "
            "decisions could be lost while their data is not. Nothing was written: give the log at least as many "
            "replicas, or name another topic with the option decisionTopic"
        )
    in_sync = int(found.settings.get("min.insync.replicas", 1))
    if in_sync < min(WANTED_IN_SYNC, found.replication):
        tell(
            log, logging.WARNING, Event.SINK_TOPIC_WEAK,
            "the topic %s has min.insync.replicas=%d: a decision may be on one broker only when it is acknowledged; "
            "set it to %d",
            found.name, in_sync, WANTED_IN_SYNC,
            topic=found.name,
        )  # fmt: skip


def _warn_of_transaction_state(client: ControlClient, timeout: float | None) -> None:
    try:
        found = topic_shape(client, _TRANSACTION_STATE, timeout)
    except KafkaError as error:
        text, topic = "%s could not be looked at: %s", _TRANSACTION_STATE
        tell(log, logging.DEBUG, Event.SINK_TOPIC_WEAK, text, topic, error, topic=topic, error=error)
        return
    if found is not None and found.replication < WANTED_REPLICATION:
        tell(
            log, logging.WARNING, Event.SINK_TOPIC_WEAK,
            "%s has %d replica(s): exactly-once delivery is only as durable as that topic",
            _TRANSACTION_STATE, found.replication,
            topic=_TRANSACTION_STATE,
        )  # fmt: skip


# A log that changes under every one of so many attempts is not read at all.
_MAX_ATTEMPTS = 5


class _Mark(NamedTuple):
    """The last batch that was read."""

    base_offset: int
    last_offset: int
    crc: int


class _LogChanged(Exception):
    """What was read before is not what the log has now; never leaves this module."""


class LogReader:
    """One partition of the log, with all sinks in it. Not for several threads at once.

    All sinks, because a process that writes one batch job after the other meets a new one each time.

    Args:
        topic: where the log is.
        partition: likewise.
    """

    def __init__(self, topic: str, partition: int) -> None:
        self._leader = LeaderOf(topic, partition)
        self._contents = LogContents()
        self._mark: _Mark | None = None
        self._expected: _Mark | None = None  # what the next batch must be, when reading goes on
        self._leader_epoch = -1

    def read(self, client: ControlClient, timeout: float | None = DEFAULT_TIMEOUT) -> LogContents:
        """Read up to the end that the log has now.

        Raises:
            KafkaError: it cannot be read.
        """
        left = client.deadline(timeout)
        out_of_range: BrokerError | None = None
        for _ in range(_MAX_ATTEMPTS):
            try:
                client.run(self._read(), left())
            except _LogChanged:
                self._forget()
            except BrokerError as error:
                self._forget()
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                out_of_range = error
            except BaseException:
                self._forget()  # half of a page may have been taken in
                raise
            else:
                return self._contents
        leader = self._leader
        raise SinkError(
            f"the log of the sink's decisions in {leader.topic}-{leader.partition} changed under every one of "
            f"{_MAX_ATTEMPTS} attempts to read it. See to it that nobody deletes its records, and run it again"
        ) from out_of_range

    def view(self, client: ControlClient, sink_key: str, timeout: float | None = DEFAULT_TIMEOUT) -> SinkView:
        """Read, and tell what is said of a sink."""
        return self.read(client, timeout).view(sink_key)

    def _forget(self) -> None:
        self._contents = LogContents()
        self._mark = self._expected = None

    def _read(self) -> Steps[None]:
        end: LogEnd = yield from log_end(self._leader)
        mark = self._expected = self._mark
        if mark is None:
            start = (yield from log_start(self._leader)).offset
        elif end.leader_epoch == self._leader_epoch and end.offset > mark.last_offset:
            start = mark.base_offset
        else:
            raise _LogChanged
        self._leader_epoch = end.leader_epoch
        yield from read_log(self._leader, start, end.offset, self._take)
        if self._expected is not None:
            raise _LogChanged

    def _take(self, batch: RecordBatch) -> None:
        this = _Mark(batch.base_offset, batch.last_offset, batch.crc)
        if self._expected is None:
            self._contents.on_batch(batch)
            self._mark = this
        elif this == self._expected:
            self._expected = None
        else:
            raise _LogChanged
