# SPDX-License-Identifier: Apache-2.0
"""Which batch a task is for, and that it is refused where Spark does not say."""

from __future__ import annotations

import pytest

from penstock.errors import KafkaError
from penstock.spark.task import SparkTask, current_task, task_of


class Context:
    """Stands for Spark's TaskContext."""

    def __init__(self, **properties: str) -> None:
        self._properties = {name.replace("__", "."): value for name, value in properties.items()}

    def partitionId(self) -> int:
        return 3

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name.replace("__is", "is"))


def test_a_batch_job_has_one_batch() -> None:
    assert task_of(Context(), streaming=False) == SparkTask(3, "batch", 0)
    # Inside of foreachBatch a batch write sees the properties of the streaming query; it is a batch job all the same.
    inside = Context(sql__streaming__queryId="q", streaming__sql__batchId="5")
    assert task_of(inside, streaming=False) == SparkTask(3, "batch", 0)


def test_a_streaming_query_says_which_batch() -> None:
    context = Context(
        sql__streaming__queryId="q", streaming__sql__batchId="17", is_continuous_processing="false"
    )
    assert task_of(context, streaming=True) == SparkTask(3, "q", 17)


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"sql__streaming__queryId": "q"},
        {"streaming__sql__batchId": "1"},
        {"sql__streaming__queryId": "q", "streaming__sql__batchId": "x"},
    ],
)
def test_without_that_nothing_is_written(properties: dict[str, str]) -> None:
    with pytest.raises(KafkaError, match="does not tell a task its query and batch"):
        task_of(Context(**properties), streaming=True)


@pytest.mark.parametrize("properties", [{}, {"sql__streaming__queryId": "q"}])
def test_at_least_once_it_need_not_be_known(properties: dict[str, str]) -> None:
    assert task_of(Context(**properties), streaming=True, exactly_once=False).partition_id == 3


def test_at_least_once_it_is_told_where_it_is_known() -> None:
    context = Context(sql__streaming__queryId="q", streaming__sql__batchId="17")
    assert task_of(context, streaming=True, exactly_once=False) == SparkTask(3, "q", 17)


def test_a_continuous_trigger_has_no_batches() -> None:
    context = Context(
        sql__streaming__queryId="q", streaming__sql__batchId="1", is_continuous_processing="true"
    )
    with pytest.raises(KafkaError, match="continuous trigger"):
        task_of(context, streaming=True)


def test_outside_of_a_task_there_is_none() -> None:
    with pytest.raises(KafkaError, match="outside of a Spark task"):
        current_task(streaming=False)
