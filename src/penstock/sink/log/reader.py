# SPDX-License-Identifier: Apache-2.0
"""Reads the log, and the second time only what is new.

A planner process prepares thousands of batches, so the position and what was read up to it are kept. They are good only
as long as the log is the one that was read: the last batch is fetched again each time, and must be the same. If it is
not (truncated, compacted, made anew), or another leader reigns, everything is read from the beginning.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.control.client import DEFAULT_TIMEOUT, ControlClient
from penstock.control.log_read import LogEnd, log_end, log_start, read_log
from penstock.control.steps import LeaderOf, Steps
from penstock.error_codes import ErrorCode
from penstock.errors import BrokerError, SinkError
from penstock.records.reader import RecordBatch
from penstock.sink.log.view import LogContents, SinkView

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
