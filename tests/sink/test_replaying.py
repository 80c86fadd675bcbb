# SPDX-License-Identifier: Apache-2.0
"""A batch that was decided comes again: the same rows are skipped, others are never left out without an error."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from sink.support import BATCH_QUERY_ID, QUERY, TOPIC, Crash, World, abort_from_elsewhere

from penstock.errors import (
    DecidedDataLostError,
    RestoredCheckpointError,
    RunIdReusedError,
    SinkError,
    SinkSupersededError,
)
from penstock.sink import Skipped
from penstock.sink.effects import EndAll, EndTransaction
from penstock.sink.log import records as log_records

Rows = dict[int, list[str]]
ROWS: Rows = {0: ["a", "b"], 1: ["c"]}
ALL = ["a", "b", "c"]


@pytest.mark.parametrize(
    "again", [{0: ["a", "b"], 1: ["c"]}, {0: ["b"], 1: ["c", "a"]}, {0: ["c", "b", "a"]}, {0: [], 1: ALL}]
)
def test_the_same_rows_are_skipped_however_they_are_cut_and_ordered(world: World, again: Rows) -> None:
    world.driver().batch(7, ROWS)
    report = world.driver().batch(7, again)
    assert (report.decided, report.skipped) == (False, True)
    assert world.visible() == ALL
    assert world.ongoing() == []


@pytest.mark.parametrize(
    ("again", "now"),
    [
        ({0: ["a", "b"], 1: ["c", "d"]}, "4 rows"),
        ({0: ["a", "b"], 1: ["c"], 2: ["d"]}, "4 rows"),
        ({0: ["a"], 1: []}, "1 row"),
        ({0: [], 1: []}, "0 rows"),
    ],
)
def test_another_number_of_rows_is_refused(world: World, again: Rows, now: str) -> None:
    world.driver().batch(7, ROWS)
    driver = world.driver(on_changed_rows="skip")
    with pytest.raises(
        RestoredCheckpointError,
        match=f"batch 7 .* written before with 3 rows, and comes again with {now}: the checkpoint is older.*"
        "Nothing was written.*newest.*onRestoredCheckpoint=rewrite",
    ):
        driver.batch(7, again)
    assert world.visible() == ALL
    # With the newest checkpoint it goes on.
    driver.batch(8, {0: ["d"]})
    assert world.visible() == [*ALL, "d"]


def test_other_rows_in_the_same_number_are_refused(world: World) -> None:
    world.driver().batch(7, ROWS)
    with pytest.raises(
        RestoredCheckpointError, match=r"as many rows \(3\) but others.*rand\(\).*onChangedRows=skip"
    ):
        world.driver().batch(7, {0: ["a", "b"], 1: ["C"]})
    assert world.visible() == ALL


def test_other_rows_in_the_same_number_are_skipped_with_a_warning_where_the_user_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.driver().batch(7, ROWS)
    assert world.driver(on_changed_rows="skip").batch(7, {0: ["a", "b"], 1: ["C"]}).skipped
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "comes again with as many rows (3) but others: it is skipped" in record.message
    assert world.visible() == ALL


def test_what_is_compared_is_that_of_the_query_and_not_of_the_latest_decision(world: World) -> None:
    driver = world.driver()
    driver.batch(7, ROWS)
    driver.batch(2, {0: ["x"]}, "another query")
    assert driver.batch(7, ROWS).skipped
    with pytest.raises(RestoredCheckpointError, match="with 3 rows, and comes again with 1 row"):
        driver.batch(7, {0: ["a"]})
    with pytest.raises(RestoredCheckpointError, match="with 1 row, and comes again with 2 rows"):
        driver.batch(2, {0: ["x", "y"]}, "another query")


def test_a_decision_that_is_not_finished_is_finished_before_its_replay_is_refused(world: World) -> None:
    driver = world.driver()
    plan = driver.prepare()
    messages = [driver.task(plan, 7, number, values) for number, values in ROWS.items()]
    with pytest.raises(Crash):
        driver.commit(messages, 7, after=EndTransaction)
    with pytest.raises(RestoredCheckpointError):
        world.driver().batch(7, {0: ["a"]})
    assert world.visible() == ALL


# ---- onRestoredCheckpoint=rewrite


@pytest.mark.parametrize("again", [{0: ["a", "b"], 1: ["c", "d"]}, {0: ["a", "b"], 1: ["C"]}, {0: ["z"]}])
def test_rewrite_writes_the_batch_with_the_rows_that_it_has_now(
    world: World, again: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    world.driver().batch(7, ROWS)
    driver = world.driver(on_restored_checkpoint="rewrite")
    assert driver.batch(7, again).decided
    rows = [row for part in again.values() for row in part]
    assert world.visible() == sorted(ALL + rows)
    (record,) = caplog.records
    assert f"comes again with other rows ({len(rows)})" in record.message
    # From then on these are what a replay is compared with.
    assert driver.batch(7, again).skipped
    assert world.driver().batch(7, again).skipped
    assert world.visible() == sorted(ALL + rows)
    assert world.ongoing() == []


def test_rewrite_does_not_write_twice_what_is_the_same(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    driver = world.driver(on_restored_checkpoint="rewrite")
    driver.batch(7, ROWS)
    report = world.driver(on_restored_checkpoint="rewrite").batch(7, {0: ["c"], 1: ["a", "b"], 2: []})
    assert (report.decided, report.skipped) == (False, True)
    assert world.visible() == ALL
    assert world.ongoing() == []
    (record,) = caplog.records
    assert record.levelno == logging.WARNING


def test_rewrite_leaves_changed_rows_alone_where_the_user_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.driver().batch(7, ROWS)
    driver = world.driver(on_restored_checkpoint="rewrite", on_changed_rows="skip")
    assert driver.batch(7, {0: ["a", "b"], 1: ["C"]}).skipped
    assert "it is skipped, as onChangedRows=skip asks for" in caplog.text
    assert world.visible() == ALL
    assert world.ongoing() == []
    assert driver.batch(7, {0: ["a"]}).decided


def test_a_rewritten_batch_without_rows_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.driver().batch(7, ROWS)
    report = world.driver(on_restored_checkpoint="rewrite").batch(7, {0: [], 1: []})
    assert not report.decided
    assert "and comes again with no rows" in caplog.text
    assert world.visible() == ALL


@pytest.mark.parametrize("again", [ROWS, {0: ["z"]}])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", [EndAll, EndTransaction])
def test_a_driver_may_die_while_it_rewrites(world: World, again: Rows, when: str, kind: type) -> None:
    world.driver().batch(7, ROWS)
    driver = world.driver(on_restored_checkpoint="rewrite")
    plan = driver.prepare()
    messages = [driver.task(plan, 7, number, values) for number, values in again.items()]
    try:
        driver.commit(messages, 7, **{when: kind})
    except Crash:
        pass
    world.driver(on_restored_checkpoint="rewrite").batch(7, again)
    assert world.visible() == sorted(ALL if again == ROWS else [*ALL, "z"])
    assert world.ongoing() == []


# ---- another topic


COPIES = "copies"


def copied(world: World) -> None:
    """A copy of the query's checkpoint has written batch 7 to another topic under the same sink name."""
    world.kafka.create_topic(COPIES, 2)
    world.driver().batch(6, {0: ["z"]})
    world.driver(topic=COPIES).batch(7, ROWS)
    assert (world.visible(), world.visible(COPIES)) == (["z"], ALL)


def test_a_batch_that_went_to_another_topic_is_refused_until_it_is_rewritten(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    copied(world)
    with pytest.raises(RestoredCheckpointError):
        world.driver().batch(7, ROWS)
    assert world.visible() == ["z"]
    assert not caplog.records
    assert world.driver(on_restored_checkpoint="rewrite").batch(7, ROWS).decided
    assert world.visible() == [*ALL, "z"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert world.driver().batch(7, ROWS).skipped
    with pytest.raises(RestoredCheckpointError):  # now the copy's own batch is the one that is missing
        world.driver(topic=COPIES).batch(7, ROWS)


def test_the_driver_compares_topics_too(world: World) -> None:
    """Its tasks had a plan of before."""
    world.driver().batch(7, ROWS)
    driver = world.driver(topic=COPIES)
    plan = replace(driver.prepare(), topics={})
    messages = [driver.task(plan, 7, number, values) for number, values in ROWS.items()]
    with pytest.raises(RestoredCheckpointError):
        driver.commit(messages, 7)


def test_the_topic_that_is_compared_is_that_of_the_query(world: World) -> None:
    world.kafka.create_topic(COPIES, 2)
    world.driver().batch(7, ROWS)
    world.driver(topic=COPIES).batch(2, {0: ["x"]}, "another query")
    assert world.driver().batch(7, ROWS).skipped
    assert world.driver(topic=COPIES).batch(2, {0: ["x"]}, "another query").skipped


def test_a_skipped_batch_is_told_once_with_where_and_when_it_was_written(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.driver().batch(7, ROWS)
    assert not caplog.records
    assert world.driver().batch(7, ROWS).skipped
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    for fact in ("batch 7", QUERY, "3 rows", TOPIC, "execution 1.", " UTC"):
        assert fact in record.message
    # Another query has decided since, whose execution and time say nothing of this one.
    world.driver().batch(1, {0: ["x"]}, "another query")
    caplog.clear()
    assert world.driver().batch(7, ROWS).skipped
    (record,) = caplog.records
    assert TOPIC in record.message
    assert "UTC" not in record.message


# ---- runs


def test_the_second_run_of_a_run_id_is_compared(world: World, caplog: pytest.LogCaptureFixture) -> None:
    job = {"sink_id": "batch", "run_id": "monday"}
    world.driver(**job).batch(0, ROWS, BATCH_QUERY_ID)
    assert world.driver(**job).batch(0, {0: ALL}, BATCH_QUERY_ID).skipped
    for again, text in (
        ({0: [*ALL, "d"]}, "run 'monday' was written before with 3 rows, and comes again with 4 rows"),
        ({0: []}, "comes again with 0 rows"),
        ({0: ["a", "b", "C"]}, r"as many rows \(3\) but others.*onChangedRows=skip.*another runId"),
    ):
        with pytest.raises(RunIdReusedError, match=text):
            world.driver(**job).batch(0, again, BATCH_QUERY_ID)
    assert not caplog.records
    assert world.driver(**job, on_changed_rows="skip").batch(0, {0: ["a", "b", "C"]}, BATCH_QUERY_ID).skipped
    assert "others: it is skipped" in caplog.text
    assert world.visible() == ALL


# ---- repairs


def lose(world: World) -> None:
    """Decide batch 0, and lose the transaction of its first task."""
    driver = world.driver()
    plan = driver.prepare()
    messages = [driver.task(plan, 0, number, values) for number, values in ROWS.items()]
    with pytest.raises(Crash):
        driver.commit(messages, 0, after=EndTransaction)
    abort_from_elsewhere(world, messages[0])


@pytest.mark.parametrize(
    ("again", "text"),
    [
        ({0: ["a", "b"], 1: ["c", "d"]}, "with 3 rows, and comes again with 4 rows"),
        ({0: ["a", "b"], 1: []}, "comes again with 2 rows"),
        ({0: ["a", "b"], 1: ["C"]}, "but others"),
    ],
)
def test_the_tasks_that_lost_nothing_are_compared_too(world: World, again: Rows, text: str) -> None:
    lose(world)
    driver = world.driver(on_lost="repair")
    plan = driver.prepare()
    messages = [driver.task(plan, 0, number, values) for number, values in again.items()]
    with pytest.raises(RestoredCheckpointError, match=text):
        driver.commit(messages, 0)
    assert driver.abort(messages, 0)
    assert world.visible() == ["c"]
    assert world.driver(on_lost="repair").batch(0, ROWS).decided
    assert world.visible() == ALL


def test_tasks_that_lost_nothing_may_give_other_values_where_the_user_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    lose(world)
    driver = world.driver(on_lost="repair", on_changed_rows="skip")
    assert driver.batch(0, {0: ["a", "b"], 1: ["C"]}).decided
    assert world.visible() == ALL
    assert "that lost nothing come again with other rows" in caplog.text


def test_a_repaired_batch_is_compared_as_a_whole(world: World) -> None:
    lose(world)
    world.driver(on_lost="repair").batch(0, ROWS)
    assert world.driver().batch(0, ROWS).skipped
    with pytest.raises(RestoredCheckpointError, match="with 3 rows, and comes again with 2 rows"):
        world.driver().batch(0, {0: ["a", "b"]})


def test_a_repair_without_its_rows_is_still_a_loss(world: World) -> None:
    lose(world)
    with pytest.raises(DecidedDataLostError):
        world.driver(on_lost="repair").batch(0, {0: [], 1: ["c"]})


# ---- messages and queries that are not known


def test_a_task_without_a_message_is_not_left_out(world: World) -> None:
    driver = world.driver()
    plan = driver.prepare()
    message = driver.task(plan, 0, 0, ["a"])
    with pytest.raises(SinkError, match=r"1 of the 2 tasks of batch 0 have no message.*Nothing was decided"):
        driver.commit([message, None], 0)
    assert world.visible() == []
    assert driver.commit([message], 0).decided


def test_what_was_skipped_by_a_driver_that_others_have_overtaken_does_not_count(world: World) -> None:
    world.driver().batch(7, ROWS)
    driver = world.driver()
    plan = driver.prepare()
    skipped = driver.task(plan, 7, 0, [*ALL, "d"])
    assert isinstance(skipped, Skipped)
    world.driver().batch(8, {0: ["e"]})
    with pytest.raises(SinkSupersededError, match="another batch of the query has been"):
        driver.commit([skipped], 7)


def test_a_query_that_had_to_be_forgotten_is_named_and_refused_when_it_comes_back(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_records, "MAX_QUERIES", 3)
    driver = world.driver()
    driver.batch(0, {0: ["a"]})
    driver.batch(1, {0: ["b"]})
    for number in range(2):
        driver.batch(0, {0: ["x"]}, f"q{number}")
    assert not caplog.records
    driver.batch(0, {0: ["x"]}, "q2")
    (record,) = caplog.records
    assert f"forgets the oldest one: '{QUERY}', whose last batch was 1" in record.message
    with pytest.raises(
        RestoredCheckpointError, match="batch 1 of query query-1 was written is not known any more"
    ):
        driver.batch(1, {0: ["b"]})
    with pytest.raises(RestoredCheckpointError, match="onRestoredCheckpoint=rewrite for one start"):
        driver.batch(2, {0: ["c"]})
    driver.batch(0, {0: ["x"]}, "a new query")
    assert world.visible() == ["a", "b", "x", "x", "x", "x"]
    assert world.driver(on_restored_checkpoint="rewrite").batch(2, {0: ["c"]}).decided
