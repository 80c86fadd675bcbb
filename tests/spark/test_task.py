# SPDX-License-Identifier: Apache-2.0
"""One task after the other on the fake cluster: what is visible when, what is handed over, what is given up."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.taskcontext import TaskContext

from penstock.control import reach
from penstock.errors import (
    BadRowsError,
    DecisionRefusedError,
    KafkaError,
    RestoredCheckpointError,
    SinkError,
    SinkSupersededError,
)
from penstock.protocol.messages import METADATA, PRODUCE
from penstock.sink import BatchPlan, Nothing, Skipped, Written, abort, commit, prepare
from penstock.spark import cluster_check
from penstock.spark import task as task_module
from penstock.spark.options import SinkOptions, parse_options
from penstock.spark.partition_sender import PartitionSender, TaskMessage
from penstock.spark.task import SparkTask, write_at_least_once, write_exactly_once
from penstock.spark.writers import BatchWriter, Write
from penstock.testing import FakeKafka, Fault
from penstock.testing.transactions import TxnState

QUERY = "0b4d"


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def kafka(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKafka]:
    monkeypatch.setattr(task_module, "_producers", {})
    monkeypatch.setattr(cluster_check, "_seen", {})
    with FakeKafka(
        topics={"orders": 2, "stock": 1}, features={"transaction.version": request.param}
    ) as kafka:
        yield kafka
        for producer in list(task_module._producers.values()):
            producer.close(0)


def options(kafka: FakeKafka, *, streaming: bool = True, **more: str) -> SinkOptions:
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": "orders", **more}
    if streaming and "delivery" not in more:
        given["sinkId"] = "the sink"
    return parse_options(given, streaming=streaming)


def batch(*values: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(values)})


def visible(kafka: FakeKafka, topic: str = "orders", isolation: Any = "read_committed") -> list[bytes | None]:
    partitions = 2 if topic == "orders" else 1
    return sorted(
        record.value or b""
        for number in range(partitions)
        for record in kafka.records(topic, number, isolation)
    )


def plan(settings: SinkOptions) -> BatchPlan:
    return prepare(settings.sink_settings())


def end(settings: SinkOptions, *messages: TaskMessage, batch_id: int = 0) -> None:
    sent = pickle.loads(pickle.dumps(messages))  # as between two processes
    commit(settings.sink_settings(), [message.outcome for message in sent], batch_id)


def test_rows_are_visible_when_the_driver_commits_and_not_before(kafka: FakeKafka) -> None:
    settings = options(kafka)
    before = plan(settings)
    first = write_exactly_once(
        settings, before, SparkTask(0, QUERY, 0), [batch("a", "b"), batch(), batch("c")]
    )
    second = write_exactly_once(settings, before, SparkTask(1, QUERY, 0), [batch("d")])
    assert visible(kafka) == []
    end(settings, first, second)
    assert visible(kafka) == [b"a", b"b", b"c", b"d"]
    assert isinstance(first.outcome, Written)
    assert (first.outcome.handle.task, first.outcome.handle.rows, first.report.rows) == (0, 3, 3)
    assert sum(count.records for count in first.outcome.handle.counts) == 3


def test_one_producer_serves_task_after_task_and_batch_after_batch(kafka: FakeKafka) -> None:
    settings = options(kafka)
    for number in range(4):
        before = plan(settings)
        parts = [
            write_exactly_once(settings, before, SparkTask(part, QUERY, number), [batch(f"{number}-{part}")])
            for part in range(3)
        ]
        end(settings, *parts, batch_id=number)
    assert len(visible(kafka)) == 12
    assert len(task_module._producers) == 1


def test_a_task_without_rows_asks_nothing_of_kafka(kafka: FakeKafka) -> None:
    settings = options(kafka)
    message = write_exactly_once(settings, plan(settings), SparkTask(0, QUERY, 0), [batch(), batch()])
    assert isinstance(message.outcome, Nothing)
    assert task_module._producers == {}
    end(settings, message)
    assert write_at_least_once(options(kafka, delivery="at-least-once"), SparkTask(0), []).report.rows == 0
    assert task_module._producers == {}


def test_a_batch_that_was_decided_is_only_counted(kafka: FakeKafka) -> None:
    settings = options(kafka)
    end(settings, write_exactly_once(settings, plan(settings), SparkTask(0, QUERY, 0), [batch("a")]))
    again = write_exactly_once(settings, plan(settings), SparkTask(0, QUERY, 0), iter([batch("a")]))
    assert isinstance(again.outcome, Skipped)
    assert (again.skipped, again.report.rows) == (True, 1)
    end(settings, again)
    assert visible(kafka) == [b"a"]


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def full_batch(**changed: Any) -> pa.RecordBatch:
    """Rows with every column."""
    columns = {
        "key": pa.array(["k", None]),
        "value": pa.array(["v", "w"]),
        "headers": pa.array([[{"key": "h", "value": b"1"}], None], HEADERS),
        "timestamp": pa.array([1_700_000_000_000_000, None], pa.timestamp("us", "UTC")),
        "partition": pa.array([1, None], pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns | changed)


@pytest.mark.parametrize("restored", ["fail", "rewrite"])
def test_a_batch_planned_anew_with_more_rows_is_not_skipped(kafka: FakeKafka, restored: str) -> None:
    settings = options(kafka, onRestoredCheckpoint=restored)
    end(settings, write_exactly_once(settings, plan(settings), SparkTask(0, QUERY, 0), [batch("a")]))
    again = write_exactly_once(settings, plan(settings), SparkTask(0, QUERY, 0), [batch("a"), batch("b")])
    if restored == "rewrite":
        end(settings, again)
        assert visible(kafka) == [b"a", b"a", b"b"]
        return
    with pytest.raises(RestoredCheckpointError, match="with 1 row, and comes again with 2 rows"):
        end(settings, again)
    assert visible(kafka) == [b"a"]


def test_a_replay_cut_into_other_tasks_is_the_same(kafka: FakeKafka) -> None:
    settings = options(kafka)
    whole = full_batch()
    end(settings, write_exactly_once(settings, plan(settings), SparkTask(0, QUERY, 0), [whole]))
    before = plan(settings)
    parts = [
        write_exactly_once(settings, before, SparkTask(0, QUERY, 0), [whole.slice(1, 1)]),
        write_exactly_once(settings, before, SparkTask(1, QUERY, 0), []),
        write_exactly_once(settings, before, SparkTask(2, QUERY, 0), [whole.slice(0, 1)]),
    ]
    end(settings, *parts)
    assert len(visible(kafka)) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"key": pa.array(["k", "l"])},
        {"value": pa.array(["v", None])},
        {"headers": pa.array([[{"key": "h", "value": b"2"}], None], HEADERS)},
        {"timestamp": pa.array([1_700_000_000_000_000, 1_700_000_000_000_000], pa.timestamp("us", "UTC"))},
        {"partition": pa.array([1, 1], pa.int32())},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_everything_that_a_row_sends_is_compared(kafka: FakeKafka, changed: dict[str, Any]) -> None:
    settings = options(kafka)
    end(settings, write_exactly_once(settings, plan(settings), SparkTask(0, QUERY, 0), [full_batch()]))
    again = write_exactly_once(settings, plan(settings), SparkTask(0, QUERY, 0), [full_batch(**changed)])
    with pytest.raises(RestoredCheckpointError, match=r"as many rows \(2\) but others"):
        end(settings, again)


def test_a_dead_letter_counts_as_its_row(kafka: FakeKafka) -> None:
    dead_letters = {"onBadRow": "dead-letter", "deadLetterTopic": "stock"}
    settings = options(kafka, **dead_letters, **{"kafka.max.request.size": "2000"})
    rows = [batch("a", "x" * 5000), batch("b")]
    first = write_exactly_once(settings, plan(settings), SparkTask(0, QUERY, 0), rows)
    assert isinstance(first.outcome, Written)
    assert (first.outcome.handle.rows, first.report.dead_letters) == (3, 1)
    end(settings, first)
    # By then the row may be a good one.
    again = options(kafka, **dead_letters)
    end(again, write_exactly_once(again, plan(again), SparkTask(0, QUERY, 0), rows))
    assert visible(kafka) == [b"a", b"b"]


def test_a_transaction_with_another_number_of_records_is_not_handed_over(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = options(kafka)
    made = plan(settings)
    send = PartitionSender.send

    def send_one_more(self: PartitionSender, rows: pa.RecordBatch) -> None:
        send(self, rows)
        self._producer.send("orders", b"of another transaction")

    monkeypatch.setattr(PartitionSender, "send", send_one_more)
    with pytest.raises(SinkError, match="holds 2 records, but the task has sent 1 row: "):
        write_exactly_once(settings, made, SparkTask(0, QUERY, 0), [batch("a")])
    with kafka.locked() as cluster:
        assert [entry for entry in cluster.transactions if entry.state is TxnState.ONGOING] == []
    assert visible(kafka) == []
    assert task_module._producers == {}


@pytest.mark.parametrize("stray", [WriterCommitMessage(), None])
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_message_that_is_none_of_ours_is_refused(
    kafka: FakeKafka, stray: WriterCommitMessage | None, delivery: str
) -> None:
    settings = options(kafka, delivery=delivery) if delivery == "at-least-once" else options(kafka)
    write = Write(settings)
    if delivery == "exactly-once":
        message = write_exactly_once(settings, plan(settings), SparkTask(0, QUERY, 0), [batch("a")])
    else:
        message = write_at_least_once(settings, SparkTask(0), [batch("a")])
    with pytest.raises(SinkError, match=r"task 1 has handed over .*version of the driver.*not committed"):
        write.commit([message, stray], 0)
    assert visible(kafka) == ([] if delivery == "exactly-once" else [b"a"])
    write.abort([message, stray], 0)
    with kafka.locked() as cluster:
        assert [entry for entry in cluster.transactions if entry.state is TxnState.ONGOING] == []


def test_a_task_that_did_not_take_part_in_the_protocol_is_refused(kafka: FakeKafka) -> None:
    settings = options(kafka)
    message = write_exactly_once(settings, plan(settings), SparkTask(0, QUERY, 0), [batch("a")])
    with pytest.raises(SinkError, match="1 of the 2 tasks of batch 0 have no message"):
        Write(settings).commit([message, TaskMessage()], 0)


def test_a_rewritten_batch_that_is_the_same_is_told_as_skipped(kafka: FakeKafka, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    settings = options(kafka, onRestoredCheckpoint="rewrite", progressFile=str(progress))
    for _ in range(2):
        message = write_exactly_once(settings, plan(settings), SparkTask(0, QUERY, 0), [batch("a")])
        Write(settings).commit([message], 0)
    assert [json.loads(line)["skipped"] for line in progress.read_text().splitlines()] == [False, True]
    assert visible(kafka) == [b"a"]


def test_an_older_execution_may_not_write(kafka: FakeKafka) -> None:
    settings = options(kafka)
    old = plan(settings)
    new = plan(settings)
    write_exactly_once(settings, new, SparkTask(0, QUERY, 0), [batch("new")])
    with pytest.raises(SinkSupersededError):
        write_exactly_once(settings, old, SparkTask(0, QUERY, 0), [batch("old")])


def test_after_a_bad_row_the_transaction_is_aborted_at_once(kafka: FakeKafka) -> None:
    settings = options(kafka, **{"kafka.max.request.size": "2000"})
    with pytest.raises(BadRowsError):
        write_exactly_once(settings, plan(settings), SparkTask(0, QUERY, 0), [batch("a"), batch("x" * 5000)])
    assert visible(kafka) == []
    with kafka.locked() as cluster:
        open_ids = [
            entry.transactional_id for entry in cluster.transactions if entry.state is TxnState.ONGOING
        ]
    assert open_ids == []
    assert task_module._producers == {}


def test_after_a_record_was_refused_the_transaction_is_aborted_at_once(kafka: FakeKafka) -> None:
    settings = options(kafka)
    made = plan(settings)
    kafka.add_fault(Fault(api=PRODUCE, error=87, times=None))  # an invalid record, says the broker

    with pytest.raises(KafkaError):
        write_exactly_once(settings, made, SparkTask(0, QUERY, 0), [batch("a"), batch("b")])
    with kafka.locked() as cluster:
        assert [entry for entry in cluster.transactions if entry.state is TxnState.ONGOING] == []
    assert task_module._producers == {}


def test_a_source_that_fails_in_the_middle_leaves_nothing(kafka: FakeKafka) -> None:
    settings = options(kafka)

    def broken() -> Iterator[pa.RecordBatch]:
        yield batch("a")
        raise EOFError("the JVM is gone")

    with pytest.raises(EOFError):
        write_exactly_once(settings, plan(settings), SparkTask(0, QUERY, 0), broken())
    assert visible(kafka) == []


def test_an_aborted_batch_is_never_visible_and_can_be_written_again(kafka: FakeKafka) -> None:
    settings = options(kafka)
    lost = write_exactly_once(settings, plan(settings), SparkTask(0, QUERY, 0), [batch("a")])
    abort(settings.sink_settings(), [lost.outcome, None], 0)
    assert visible(kafka) == []
    end(settings, write_exactly_once(settings, plan(settings), SparkTask(0, QUERY, 0), [batch("a")]))
    assert visible(kafka) == [b"a"]


def test_at_least_once_rows_are_visible_when_the_task_returns(kafka: FakeKafka) -> None:
    settings = options(kafka, delivery="at-least-once")
    message = write_at_least_once(settings, SparkTask(0), [batch("a"), batch("b")])
    assert visible(kafka) == [b"a", b"b"]
    assert (message.outcome, message.report.rows) == (None, 2)


@pytest.mark.parametrize("release", ["0.9.0", "0.10.2"])
def test_at_least_once_old_brokers_will_do(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "_producers", {})
    monkeypatch.setattr(cluster_check, "_seen", {})
    with FakeKafka(topics={"orders": 2}, release=release) as kafka:
        more = {"kafka.broker.version.fallback": "0.9.0"}  # it would be found out, but that takes seconds
        settings = options(kafka, delivery="at-least-once", **more)
        pickle.dumps(Write(settings))  # the driver looks at the cluster first
        message = write_at_least_once(settings, SparkTask(0), [batch("a"), batch("b")])
        assert visible(kafka) == [b"a", b"b"]
        assert message.report.rows == 2
        for producer in list(task_module._producers.values()):
            producer.close(0)


def test_at_least_once_spark_need_not_tell_the_batch(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SilentContext:
        def partitionId(self) -> int:
            return 0

        def getLocalProperty(self, name: str) -> None:
            return None

    monkeypatch.setattr(TaskContext, "get", SilentContext)
    Write(options(kafka, delivery="at-least-once")).write(iter([batch("a")]))
    assert visible(kafka) == [b"a"]
    with pytest.raises(KafkaError, match="set the option delivery to at-least-once"):
        Write(options(kafka)).write(iter([batch("b")]))


@pytest.mark.parametrize(("values", "told"), [(["a", "b"], "2 rows were"), (["a"], "1 row was")])
def test_a_run_that_is_skipped_says_so_with_its_rows(
    kafka: FakeKafka, caplog: pytest.LogCaptureFixture, values: list[str], told: str
) -> None:
    settings = options(kafka, streaming=False, runId="monday")
    for rows in (batch(*values), batch(*reversed(values))):
        assert not caplog.records
        with caplog.at_level(logging.WARNING, "penstock.spark"):
            message = write_exactly_once(settings, plan(settings), SparkTask(0), [rows])
            Write(settings).commit([message], 0)
    (record,) = caplog.records
    assert f"sink 'batch', run 'monday' was written before: {told} read and none written" in record.message
    assert visible(kafka) == [value.encode() for value in values]


def test_runs_of_pipelines_are_told_apart_but_for_those_that_were_written_without_a_name(
    kafka: FakeKafka,
) -> None:
    def run(value: str, run_id: str, **more: str) -> str:
        settings = options(kafka, streaming=False, runId=run_id, **more)
        write = pickle.loads(pickle.dumps(Write(settings)))
        write.commit([write_exactly_once(settings, write._plan, SparkTask(0), [batch(value)])], 0)
        return write._settings.sink_id

    assert run("a", "monday") == "batch"  # by a release whose pipelines had no names
    assert run("a", "monday", pipelineName="one") == "batch"
    assert run("b", "monday", pipelineName="two", topic="stock") == "two"
    assert run("c", "tuesday", pipelineName="one") == "one"
    assert run("d", "tuesday", pipelineName="two") == "two"
    run("d", "tuesday")
    assert run("c", "tuesday", pipelineName="one") == "one"
    assert run("e", "tuesday", pipelineName="one", sinkId="mine") == "mine"
    # Of what came again only the job without a name was written: it never was.
    assert visible(kafka) == [b"a", b"c", b"d", b"d", b"e"]
    assert visible(kafka, "stock") == [b"b"]


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("/checkpoints/orders", "/checkpoints/orders"),
        ("/checkpoints/orders/", "/checkpoints/orders"),
        ("//checkpoints//./orders", "/checkpoints/orders"),
        ("file:/checkpoints/orders", "/checkpoints/orders"),
        ("file:///checkpoints/orders/", "/checkpoints/orders"),
        ("/", "/"),
        ("file:///", "/"),
        ("checkpoints/orders/", "checkpoints/orders"),
        ("s3://bucket/orders/", "s3://bucket/orders"),
        ("file://host/orders", "file://host/orders"),
    ],
)
def test_a_local_checkpoint_has_one_name_however_it_is_spelt(location: str, name: str) -> None:
    given = SinkOptions(
        streaming=True, topic="orders", checkpoint_location=location, producer={"bootstrap.servers": "a:1"}
    )
    assert given.sink_settings().sink_id == name


def test_a_writer_is_planned_once_however_often_it_is_pickled(kafka: FakeKafka) -> None:
    writer = BatchWriter(Write(options(kafka, streaming=False)))
    in_task, on_driver = (pickle.loads(pickle.dumps(writer)) for _ in range(2))
    assert in_task._write._plan == on_driver._write._plan is not None
    with kafka.locked() as cluster:
        (coordinator,) = (entry for entry in cluster.transactions if entry.transactional_id.endswith(".c"))
        assert in_task._write._plan.stamp.coordinator.epoch == coordinator.epoch


def test_the_same_name_on_another_cluster_is_another_sink(kafka: FakeKafka) -> None:
    settings = options(kafka)
    for number in range(3):
        before = plan(settings)
        end(
            settings,
            write_exactly_once(settings, before, SparkTask(0, QUERY, number), [batch("a")]),
            batch_id=number,
        )
    with FakeKafka(topics={"orders": 2}) as other:
        there = options(other)
        end(there, write_exactly_once(there, plan(there), SparkTask(0, QUERY, 0), [batch("b")]))
        assert visible(other) == [b"b"]
        task_module.forget_producer(list(task_module._producers.values())[-1])


DELIVERIES = ["exactly-once", "at-least-once"]


def write_batch(
    kafka: FakeKafka, delivery: str, *tasks: Iterable[pa.RecordBatch], batch_id: int = 0
) -> Callable[[], None]:
    """Run the tasks of a batch, and return its commit."""
    settings = options(kafka) if delivery == "exactly-once" else options(kafka, delivery=delivery)
    before = plan(settings) if delivery == "exactly-once" else None
    messages: list[WriterCommitMessage | None] = []
    for number, rows in enumerate(tasks):
        place = SparkTask(number, QUERY, batch_id)
        if before is not None:
            messages.append(write_exactly_once(settings, before, place, rows))
        else:
            messages.append(write_at_least_once(settings, place, rows))
    return lambda: Write(settings).commit(pickle.loads(pickle.dumps(messages)), batch_id)


def replace_topic(kafka: FakeKafka, *, again: bool = True) -> None:
    with kafka.locked() as cluster:
        cluster.topics.delete("orders")
    if again:
        kafka.create_topic("orders", 2)


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("when", ["between tasks", "before the commit", "for good"])
def test_a_topic_that_was_replaced_while_it_was_written_fails_the_batch(
    kafka: FakeKafka, delivery: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "PATIENCE_SECONDS", 0.1)

    def second() -> Iterator[pa.RecordBatch]:
        if when == "between tasks":
            replace_topic(kafka)
        yield batch("second")

    write_batch(kafka, delivery, [batch("of an earlier batch")])()  # from now on the producer knows the topic
    commit_it = write_batch(kafka, delivery, [batch("first")], second(), batch_id=1)
    if when != "between tasks":
        replace_topic(kafka, again=when != "for good")
    expected = DecisionRefusedError if delivery == "exactly-once" else KafkaError
    with pytest.raises(expected, match=r"topic 'orders' was deleted .* the batch again") as caught:
        commit_it()
    assert type(caught.value) is expected
    assert open_transactions(kafka) == []
    if when != "for good":
        write_batch(kafka, delivery, [batch("third")], batch_id=1)()
        assert b"third" in visible(kafka)
        assert b"first" not in visible(kafka)
        assert (b"second" in visible(kafka)) is (delivery == "at-least-once" and when == "between tasks")


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_topic_that_was_replaced_between_the_rows_of_a_task_fails_the_batch(
    kafka: FakeKafka, delivery: str
) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield batch("a")
        (producer,) = task_module._producers.values()
        producer.flush()
        replace_topic(kafka)
        yield batch("b")

    with pytest.raises(KafkaError):  # in the second protocol of transactions the broker itself sees the gap
        write_batch(kafka, delivery, rows())()
    assert delivery == "at-least-once" or visible(kafka) == []


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_topic_that_was_replaced_before_the_batch_is_as_good_as_any(
    kafka: FakeKafka, delivery: str
) -> None:
    write_batch(kafka, delivery, [batch("a")])()
    replace_topic(kafka)
    write_batch(kafka, delivery, [batch("b")], [batch("c")], batch_id=1)()
    assert visible(kafka) == [b"b", b"c"]


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_batch_whose_topics_cannot_be_asked_for_fails(kafka: FakeKafka, delivery: str) -> None:
    commit_it = write_batch(kafka, delivery, [batch("a")])
    with kafka.locked() as cluster:
        cluster.denied_topics.add("orders")
    with pytest.raises(KafkaError, match=r"'orders'.* the batch again"):
        commit_it()
    assert visible(kafka) == ([] if delivery == "exactly-once" else [b"a"])


def test_brokers_before_topic_ids_are_not_asked_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "_producers", {})
    with FakeKafka(topics={"orders": 2}, release="2.7") as kafka:
        commit_it = write_batch(kafka, "at-least-once", [batch("a")])
        kafka.add_fault(Fault(api=METADATA, error=87, times=None))
        commit_it()
        for producer in list(task_module._producers.values()):
            producer.close(0)


def open_transactions(kafka: FakeKafka) -> list[str]:
    with kafka.locked() as cluster:
        return [txn.transactional_id for txn in cluster.transactions if txn.state is TxnState.ONGOING]


def test_a_task_that_spark_has_given_up_aborts_its_own_transaction(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was slow, its query was stopped meanwhile, and its process goes on."""
    monkeypatch.setattr(task_module, "LONG_TASK_SECONDS", 0.0)
    settings = options(kafka)
    before = plan(settings)

    def slow_rows() -> Iterator[pa.RecordBatch]:
        assert abort(settings.sink_settings(), [None], 0)  # on the driver, by a writer that has no plan
        yield batch("a", "b")

    with pytest.raises(SinkSupersededError, match="it was stopped"):
        write_exactly_once(settings, before, SparkTask(0, QUERY, 0), slow_rows())
    assert open_transactions(kafka) == []
    end(settings, write_exactly_once(settings, plan(settings), SparkTask(0, QUERY, 0), [batch("a", "b")]))
    assert visible(kafka) == [b"a", b"b"]
    assert open_transactions(kafka) == []
