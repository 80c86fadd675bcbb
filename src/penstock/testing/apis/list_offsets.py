# SPDX-License-Identifier: Apache-2.0
"""ListOffsets (2).

Behaviour:
- The latest offset (timestamp -1): the high watermark, or with read_committed the last stable offset. The earliest
  (-2): the start of the log. Any other timestamp: the first record that is not older, or offset -1.
- The record with the largest timestamp (-3). The start of what is not in tiered storage (-4): that of the log, as there
  is none. The end of what is (-5): offset -1.

Version notes:
- 2: isolation level. 4: leader epochs. 6: flexible. 7: timestamp -3. 8: timestamp -4. 9: timestamp -5. 10: a
  time-out, which means nothing here.
"""

from __future__ import annotations

from typing import Final

from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest, Body
from penstock.testing.refused import Refused

_LATEST: Final = -1
_EARLIEST: Final = -2
_LARGEST_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_EPOCHS_SINCE: Final = 4
# The first version in which a timestamp with a meaning may be asked for; UNSUPPORTED_VERSION before.
_SINCE: Final = {_LATEST: 0, _EARLIEST: 0, _LARGEST_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9}
_NEVER: Final = 2**15


def handle(request: ApiRequest) -> Body:
    """Look the offsets up."""
    return _answer(request, None)


def refuse(request: ApiRequest, code: int) -> Body:
    """Say no for every partition."""
    return _answer(request, code)


def _answer(request: ApiRequest, forced: int | None) -> Body:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [_row(request, topic["name"], row, forced) for row in topic["partitions"]],
            }
            for topic in request.body["topics"]
        ]
    }


def _row(request: ApiRequest, topic: str, row: Body, forced: int | None) -> Body:
    index = row["partition_index"]
    if forced is not None:
        return {"partition_index": index, "error_code": forced}
    try:
        partition = request.leader_partition(topic, index, row["current_leader_epoch"])
    except Refused as error:
        return {"partition_index": index, "error_code": error.code}
    log, wanted = partition.log, row["timestamp"]
    if wanted < 0 and request.version < _SINCE.get(wanted, _NEVER):
        return {"partition_index": index, "error_code": ErrorCode.UNSUPPORTED_VERSION}
    timestamp, offset = -1, -1
    end = log.visible_end(request.isolation)
    if wanted == _LATEST:
        offset = end
    elif wanted in (_EARLIEST, _EARLIEST_LOCAL):
        offset = log.log_start_offset
    elif wanted == _LARGEST_TIMESTAMP:
        newest = max(log.records("read_uncommitted"), key=lambda record: record.timestamp, default=None)
        if newest is not None:
            timestamp, offset = newest.timestamp, newest.offset
    elif wanted == _LATEST_TIERED:
        pass  # nothing is
    elif (found := log.first_at_or_after(wanted, end)) is not None:
        timestamp, offset = found.timestamp, found.offset
    answer: Body = {
        "partition_index": index,
        "error_code": ErrorCode.NONE,
        "timestamp": timestamp,
        "offset": offset,
    }
    if request.version >= _EPOCHS_SINCE and offset >= 0:
        answer["leader_epoch"] = partition.leader_epoch
    return answer
