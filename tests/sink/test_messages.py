# SPDX-License-Identifier: Apache-2.0
"""What tasks tell the driver: it can be pickled, and what does not belong together is noticed."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from sink.log.support import handle

from penstock.errors import SinkError
from penstock.sink import Execution, ExecutionStamp, Nothing, ProducerIdentity, Skipped, TaskHandle, Written
from penstock.sink.messages import Message, sort_out

KEY = "0123456789abcdef"
STAMP = ExecutionStamp(KEY, Execution(1, 2), ProducerIdentity(f"ps.{KEY}.c", 7, 3, 5))
LATER = ExecutionStamp(KEY, Execution(1, 3), ProducerIdentity(f"ps.{KEY}.c", 7, 4, 5))


@pytest.mark.parametrize(
    "message", [Written(STAMP, "q", 1, handle(0)), Skipped(STAMP, "q", 1, 5), Nothing(STAMP, "q", 1)]
)
def test_messages_can_be_pickled(message: Message) -> None:
    assert pickle.loads(pickle.dumps(message)) == message
    assert len(pickle.dumps(message)) < 1000


def test_a_handle_survives_json() -> None:
    one = handle(3, partitions=2)
    assert TaskHandle.from_dict(json.loads(json.dumps(one.to_dict()))) == one


@pytest.mark.parametrize("wrong", [None, {}, {"transaction": {}}, {"transaction": 1, "task": 0}])
def test_what_is_no_handle_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"handle|Handle"):
        TaskHandle.from_dict(wrong)


def test_handles_are_sorted_out() -> None:
    one, two = handle(0), handle(1)
    messages = [Written(STAMP, "q", 1, one), None, Nothing(STAMP, "q", 1), Written(STAMP, "q", 1, two)]
    batch = sort_out(messages, KEY, 1)
    assert (batch.stamp, batch.query_id, batch.batch_id) == (STAMP, "q", 1)
    assert (batch.handles, batch.skipped) == ((one, two), 0)
    assert sort_out([Skipped(STAMP, "q", 1), Skipped(STAMP, "q", 1)], KEY, 1).skipped == 2
    assert sort_out([None, None], KEY, 1).stamp is None


@pytest.mark.parametrize(
    "stray", [Nothing(LATER, "q", 1), Nothing(STAMP, "other", 1), Written(LATER, "q", 1, handle(0))]
)
def test_messages_of_different_executions_or_queries_are_refused(stray: Message) -> None:
    with pytest.raises(SinkError, match="different executions"):
        sort_out([Nothing(STAMP, "q", 1), stray], KEY, 1)


def test_messages_of_another_batch_or_sink_are_refused() -> None:
    with pytest.raises(SinkError, match="batch 2"):
        sort_out([Nothing(STAMP, "q", 1)], KEY, 2)
    with pytest.raises(SinkError, match="sink key"):
        sort_out([Nothing(STAMP, "q", 1)], "f" * 16, 1)
    with pytest.raises(SinkError, match="different executions"):
        sort_out([Nothing(STAMP, "q", 1), Nothing(STAMP, "q", 2)], KEY, 1)


def test_what_is_no_message_is_refused_and_not_left_out() -> None:
    class Strange(tuple[object, ...]):
        stamp, query_id, batch_id = STAMP, "q", 1

    messages: list[object] = [Written(STAMP, "q", 1, handle(0)), Strange()]
    with pytest.raises(SinkError, match=r"Strange is no message of a task.*Nothing was decided"):
        sort_out(messages, KEY, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["payments-service-1", f"ps.{'f' * 16}.1.abc.0", f"ps.{KEY}.c"])
def test_a_handle_of_somebody_else_is_not_decided(name: str) -> None:
    """Nobody could read the decision: one that names the transactions of others is refused."""
    stolen = replace(handle(0), transaction=replace(handle(0).transaction, transactional_id=name))
    with pytest.raises(SinkError, match="not one of this sink's own"):
        sort_out([Written(STAMP, "q", 1, stolen)], KEY, 1)
