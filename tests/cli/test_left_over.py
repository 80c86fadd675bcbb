# SPDX-License-Identifier: Apache-2.0
"""`penstock recover` on transactions that nobody has decided: who waits for them, what may be ended, and ending it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.cli import left_over, recover
from penstock.cli.left_over import left_over_advice, left_over_lines, may_be_ended
from penstock.cli.main import main
from penstock.errors import KafkaError
from penstock.sink import Life, LogState, OpenTransaction, SinkState
from penstock.sink import sink_key as key_of
from penstock.sink.identity import Jvm
from penstock.types import TopicPartition

KEY = key_of("orders")
NOON_MS = 1_794_916_800_000  # 2026-11-17 12:00:00 UTC


def open_one(slot: int, generation: int = 3, age_seconds: int = 200) -> OpenTransaction:
    return OpenTransaction(
        f"ps.{KEY}.{generation}.abc.{slot}",
        generation,
        40 + slot,
        "Ongoing",
        NOON_MS - age_seconds * 1000,
        900_000,
        (TopicPartition("orders", slot),),
    )


def sink(life: Life, *transactions: OpenTransaction) -> SinkState:
    return SinkState(
        KEY, "orders", None, Jvm("host-1", 4711, "99"), 4712, 3, left_over=transactions, life=life
    )


class FakeSinks:
    """Stands for the log and the brokers."""

    def __init__(self, state: SinkState) -> None:
        self.state = state
        self.ended: list[tuple[str, bool]] = []

    def inspect(self, client: Any, key: str | None, *, log_topic: str) -> LogState:
        return LogState([self.state] if key in (None, KEY) else [])

    def end(self, client: Any, key: str, *, log_topic: str, elsewhere: bool) -> list[str]:
        self.ended.append((key, elsewhere))
        found = [each.transactional_id for each in may_be_ended(self.state, named=elsewhere)]
        self.state = self.state._replace(left_over=())
        return found


def run(monkeypatch: pytest.MonkeyPatch, state: SinkState, *words: str) -> FakeSinks:
    sinks = FakeSinks(state)
    monkeypatch.setattr(recover, "inspect_log", sinks.inspect)
    monkeypatch.setattr(left_over, "end_left_over", sinks.end)
    monkeypatch.setattr(recover, "check_topics", lambda *_: None)
    assert main(["recover", "--abort-left-over", *words]) == 0
    return sinks


def test_the_listing_says_whose_readers_wait_and_until_when() -> None:
    lines = left_over_lines(sink(Life.ENDED, open_one(0), open_one(1, age_seconds=50)), NOON_MS)
    assert "2 open transactions in no decision" in lines[0]
    assert lines[1].strip() == "2 of process 4711 on host-1, which has ended, open for 3 min"
    assert (
        lines[2].strip() == "readers of orders-0, orders-1 wait until 2026-11-17 12:14:10 UTC at the latest"
    )


def test_those_of_a_driver_that_was_replaced_are_told_apart() -> None:
    lines = left_over_lines(
        sink(Life.RUNS, open_one(0, generation=2, age_seconds=7300), open_one(1)), NOON_MS
    )
    assert lines[1].strip() == "1 of a driver that was replaced, open for 2 h 1 min"
    assert lines[3].strip() == "1 of process 4711 on host-1, which runs, open for 3 min"


def test_long_lists_of_partitions_are_cut() -> None:
    lines = left_over_lines(sink(Life.UNKNOWN, *(open_one(slot) for slot in range(30))), NOON_MS)
    assert "and 22 more wait" in lines[2]
    assert "cannot be told from here" in lines[1]


@pytest.mark.parametrize(
    ("life", "named", "generations"),
    [
        (Life.ENDED, False, [2, 3]),
        (Life.UNKNOWN, False, [2]),
        (Life.UNKNOWN, True, [2, 3]),
        (Life.RUNS, False, [2]),
        (Life.RUNS, True, [2]),
    ],
)
def test_what_a_driver_that_runs_has_open_is_never_ended(
    life: Life, named: bool, generations: list[int]
) -> None:
    state = sink(life, open_one(0, generation=2), open_one(1), open_one(2, generation=4))
    assert [each.generation for each in may_be_ended(state, named=named)] == generations


def test_of_a_sink_that_the_log_does_not_know_nothing_is_ended() -> None:
    """It may be one with another decision topic, and run."""
    state = SinkState(KEY, None, None, None, -1, 0, left_over=(open_one(0),))
    assert may_be_ended(state, named=True) == ()


def test_without_yes_it_is_only_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sinks = run(monkeypatch, sink(Life.ENDED, open_one(0)), "-b", "127.0.0.1:9092")
    said = capsys.readouterr().err
    assert sinks.ended == []
    assert "would end 1 open transaction of sink 'orders'" in said
    assert "to end them: penstock recover -b 127.0.0.1:9092 --abort-left-over --yes" in said


@pytest.mark.parametrize(
    ("life", "why"), [(Life.RUNS, "runs; stop it first"), (Life.UNKNOWN, "name the sink")]
)
def test_what_is_left_alone_is_said_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], life: Life, why: str
) -> None:
    sinks = run(monkeypatch, sink(life, open_one(0)), "--yes")
    assert sinks.ended == []
    run(monkeypatch, sink(life, open_one(0)))
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("named", [True, False])
def test_with_yes_it_is_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], named: bool
) -> None:
    words = ["--sink-id", "orders", "--yes"] if named else ["--yes"]
    sinks = run(monkeypatch, sink(Life.ENDED, open_one(0), open_one(1)), *words)
    assert sinks.ended == [(KEY, named)]
    assert "2 transactions ended" in capsys.readouterr().err


def test_what_could_not_be_ended_is_told_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = sink(Life.ENDED, open_one(0))
    sinks = FakeSinks(state)

    def refuse(*_: Any, **__: Any) -> list[str]:
        raise KafkaError("no broker answers")

    monkeypatch.setattr(recover, "inspect_log", sinks.inspect)
    monkeypatch.setattr(left_over, "end_left_over", refuse)
    monkeypatch.setattr(recover, "check_topics", lambda *_: None)
    assert main(["recover", "--abort-left-over", "--yes"]) == 1
    assert "no broker answers" in capsys.readouterr().err


@pytest.mark.parametrize(("life", "told"), [(Life.ENDED, True), (Life.RUNS, False)])
def test_the_listing_says_how_to_end_them_where_that_may_be_done(life: Life, told: bool) -> None:
    said = "\n".join(left_over_advice(sink(life, open_one(0)), "penstock recover"))
    assert (f"penstock recover --sink-key {KEY} --abort-left-over" in said) is told


def test_scripts_are_told_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, sink(Life.ENDED, open_one(0)), "--json")
    (found,) = json.loads(capsys.readouterr().out)["openTransactions"]
    assert found == {
        "transactionalId": f"ps.{KEY}.3.abc.0",
        "replaced": False,
        "driver": "process 4711 on host-1",
        "driverRuns": False,
        "openSince": "2026-11-17 11:56:40 UTC",
        "until": "2026-11-17 12:11:40 UTC",
        "partitions": ["orders-0"],
    }


@pytest.mark.parametrize("words", [["--yes"], ["--abort-left-over", "--show"]])
def test_options_that_do_not_go_together_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recover", *words]) != 0
    assert "--abort-left-over" in capsys.readouterr().err
