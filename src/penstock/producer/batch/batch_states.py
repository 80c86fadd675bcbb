# SPDX-License-Identifier: Apache-2.0
"""The states of a batch, from the queue to its outcome.

The states and what may follow each (`TRANSITIONS` is the same as data):

    QUEUED -----> IN_FLIGHT -----> SUCCEEDED
      ^  |            | | |
      |  |   retry    | | `------> SPLIT       its pieces are batches of their own
      |  +------------' |
      |  `--------------+--------> FAILED      expired, refused, retries used up
      `-----------------+--------> ABORTED     the producer was closed by force
"""

from __future__ import annotations

import enum


class BatchState(enum.Enum):
    """Where a batch is."""

    # Each member is one object. Enum's own hash is a Python function, and states are looked up for every batch.
    __hash__ = object.__hash__

    QUEUED = "queued"
    IN_FLIGHT = "in flight"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABORTED = "aborted"
    SPLIT = "split"


TRANSITIONS: dict[BatchState, frozenset[BatchState]] = {
    BatchState.QUEUED: frozenset({BatchState.IN_FLIGHT, BatchState.FAILED, BatchState.ABORTED}),
    BatchState.IN_FLIGHT: frozenset(
        {BatchState.QUEUED, BatchState.SUCCEEDED, BatchState.FAILED, BatchState.ABORTED, BatchState.SPLIT}
    ),
    BatchState.SUCCEEDED: frozenset(),
    BatchState.FAILED: frozenset(),
    BatchState.ABORTED: frozenset(),
    BatchState.SPLIT: frozenset(),
}
