# SPDX-License-Identifier: Apache-2.0
"""When an update is due."""

from __future__ import annotations

import random

import pytest

from penstock._time import ExponentialBackoff
from penstock.producer.metadata.schedule import RefreshSchedule


def schedule(initial_ms: float = 100, max_ms: float = 1_000) -> RefreshSchedule:
    # Without jitter, so that the waits are exact.
    return RefreshSchedule(60_000, ExponentialBackoff(initial_ms, max_ms, jitter=0.0), random.Random(1))


def answered(*, progress: bool = True, now: float = 0.0) -> RefreshSchedule:
    fresh = schedule()
    fresh.on_asked()
    fresh.on_answer(now, partial=False, progress=progress)
    return fresh


def seconds(when: RefreshSchedule, now: float, *, new_topics: bool = False) -> float:
    return when.seconds_to_update(now, new_topics=new_topics)


def test_due_at_first_and_then_by_age() -> None:
    assert seconds(schedule(), 0.0) == 0.0
    after = answered()
    assert seconds(after, 10.0) == pytest.approx(50.0)
    assert not after.full_update_wanted(10.0)
    assert seconds(after, 60.0) == 0.0
    assert after.full_update_wanted(60.0)


def test_a_request_waits_for_one_backoff_after_the_answer() -> None:
    after = answered()
    after.request()
    assert after.full_update_wanted(0.0)
    assert seconds(after, 0.02) == pytest.approx(0.08)
    assert seconds(after, 0.2) == 0.0


def test_failures_double_the_wait_up_to_the_maximum() -> None:
    when = answered()
    when.request()
    waits = []
    for _ in range(6):
        when.on_asked()
        when.on_failure(1.0)
        waits.append(seconds(when, 1.0))
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert when.full_update_wanted(1.0)  # a request is not lost with the question that failed


def test_an_answer_ends_a_row_of_failures() -> None:
    when = answered()
    when.request()
    for _ in range(5):
        when.on_asked()
        when.on_failure(1.0)
    assert seconds(when, 1.0) == pytest.approx(1.0)
    when.on_asked()
    when.on_answer(2.0, partial=False, progress=True)
    when.request()
    assert seconds(when, 2.0) == pytest.approx(0.1), "the rest after any answer"
    waits = []
    for _ in range(2):
        when.on_asked()
        when.on_failure(3.0)
        waits.append(seconds(when, 3.0))
    assert waits == pytest.approx([0.1, 0.2]), "as if there had never been a failure"


def test_answers_without_progress_double_the_wait_until_there_is_some() -> None:
    when = answered()
    waits = []
    for _ in range(4):
        when.on_asked()
        when.on_answer(1.0, partial=False, progress=False)
        when.request()
        waits.append(seconds(when, 1.0))
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8])
    when.on_asked()
    when.on_answer(1.0, partial=False, progress=True)
    when.request()
    assert seconds(when, 1.0) == pytest.approx(0.1)


@pytest.mark.parametrize("means", ["hurry", "reset", "age"])
def test_what_ends_the_wait_for_progress(means: str) -> None:
    when = RefreshSchedule(500, ExponentialBackoff(100, 10_000, jitter=0.0), random.Random(1))
    for _ in range(5):
        when.on_asked()
        when.on_answer(1.0, partial=False, progress=False)
    when.request()
    assert seconds(when, 1.1) == pytest.approx(1.5)
    if means == "hurry":
        when.hurry()
        assert seconds(when, 1.0) == 0.0
    elif means == "reset":
        when.request(reset_backoff=True)
        assert seconds(when, 1.0) == pytest.approx(0.1)
    else:
        assert seconds(when, 1.5) == 0.0


def test_new_topics_are_a_reason_to_ask_but_not_for_a_full_update() -> None:
    when = answered()
    assert seconds(when, 1.0, new_topics=True) == 0.0
    assert not when.full_update_wanted(1.0)


def test_partial_answers_do_not_count_as_refresh() -> None:
    when = answered(now=5.0)
    when.on_asked()
    when.on_answer(30.0, partial=True, progress=True)
    assert when.last_full_update == 5.0
    assert seconds(when, 35.0) == pytest.approx(30.0)


@pytest.mark.parametrize("seed", range(200))
def test_what_is_said_to_be_quiet_is_quiet(seed: int) -> None:
    rng = random.Random(seed)
    when, now, new_topics = schedule(), 0.0, False
    for _ in range(300):
        now += rng.choice((0.0, 0.01, 0.3, 2.0, 30.0, 61.0))
        happens = rng.randrange(8)
        if happens == 0:
            when.request(reset_backoff=rng.random() < 0.5)
        elif happens == 1:
            new_topics = True
            when.hurry()
        elif happens == 2:
            when.on_asked()
            when.on_failure(now)
        elif happens == 3:
            when.on_asked()
            when.on_answer(now, partial=new_topics, progress=rng.random() < 0.5)
            new_topics = False
        quiet_until = when.quiet.until
        waits = seconds(when, now, new_topics=new_topics)
        if now < quiet_until:
            assert waits == quiet_until - now
        assert now + waits <= when.quiet.until or when.quiet.until <= now
