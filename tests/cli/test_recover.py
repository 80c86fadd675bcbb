# SPDX-License-Identifier: Apache-2.0
"""`penstock recover`: what it says of sinks, what it changes, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.cli import recover
from penstock.cli.main import main
from penstock.errors import DecidedDataLostError, DecisionInDoubtError, KafkaError, TransactionUnknownError
from penstock.sink import (
    CommitReport,
    DecisionState,
    Execution,
    HandleState,
    LogState,
    OpenTransaction,
    SinkState,
    StrayRecord,
    TaskHandle,
)
from penstock.sink import sink_key as key_of
from penstock.sink.identity import Jvm
from penstock.transaction_handle import TransactionHandle

KEY = key_of("orders")


def task(slot: int, rows: int = 10) -> TaskHandle:
    transaction = TransactionHandle(
        transactional_id=f"ps.{KEY}.3.abc.{slot}",
        producer_id=7 + slot,
        producer_epoch=0,
        end_txn_version=5,
        timeout_ms=60_000,
    )
    return TaskHandle(transaction=transaction, rows=rows)


UNFINISHED = SinkState(
    sink_key=KEY,
    sink_id="orders",
    run_id=None,
    owner=Jvm("host-1", 4711, "99"),
    planner_pid=4712,
    generation=3,
    last_decided={"q-new": 41, "q-old": 7},
    decision=DecisionState(
        execution=Execution(3, 8),
        query_id="q-new",
        batch_id=41,
        topic="orders",
        rows=20,
        done=False,
        handles=(HandleState(task(0), "open", True), HandleState(task(1), "committed", False)),
    ),
    left_over=(OpenTransaction(f"ps.{KEY}.3.abc.9", 3, 44, "Ongoing"),),
)
assert UNFINISHED.decision is not None
FINISHED = UNFINISHED._replace(decision=UNFINISHED.decision._replace(done=True, handles=()), left_over=())


class FakeSinks:
    """Stands for the log and the brokers."""

    def __init__(self) -> None:
        self.states = {KEY: UNFINISHED}
        self.strays: tuple[StrayRecord, ...] = ()
        self.rolled: list[tuple[str, bool]] = []
        self.error: KafkaError | None = None

    def inspect(self, client: Any, key: str | None, *, log_topic: str) -> LogState:
        sinks = [state for state in self.states.values() if key in (None, state.sink_key)]
        return LogState(sinks, self.strays, len(self.strays))

    def roll(self, client: Any, key: str, *, log_topic: str, accept_loss: bool) -> CommitReport:
        self.rolled.append((key, accept_loss))
        if self.error is not None:
            raise self.error
        self.states[key] = FINISHED
        return CommitReport(decided=False, handles=1, rows=10)


@pytest.fixture
def sinks(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSinks]:
    fake = FakeSinks()
    monkeypatch.setattr(recover, "inspect_log", fake.inspect)
    monkeypatch.setattr(recover, "roll_forward", fake.roll)
    monkeypatch.setattr(recover, "check_topics", lambda *_: None)
    return fake


def test_without_a_sink_all_are_shown_and_nothing_is_changed(
    sinks: FakeSinks, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recover"]) == 1
    shown = capsys.readouterr().out
    assert sinks.rolled == []
    assert "sink 'orders'" in shown
    assert "batch 41 of query q-new, 20 rows to orders: DECIDED, NOT FINISHED" in shown
    assert "1 of 2 transactions still open" in shown
    assert "batch 7 of query q-old" in shown
    assert "1 open transaction in no decision" in shown
    assert "process 4711 on host-1, generation 3" in shown


@pytest.mark.parametrize(
    "which", [["--sink-id", "orders"], ["--sink-id", "orders/"], ["--sink-key", KEY.upper()], ["--all"]]
)
def test_a_named_sink_is_rolled_forward(
    sinks: FakeSinks, capsys: pytest.CaptureFixture[str], which: list[str]
) -> None:
    assert main(["recover", *which]) == 0
    assert sinks.rolled == [(KEY, False)]
    said = capsys.readouterr()
    assert ": done" in said.out
    assert "1 transaction with 10 rows committed" in said.err


def test_a_sink_whose_log_cannot_be_read_is_shown_with_the_reason(
    sinks: FakeSinks, capsys: pytest.CaptureFixture[str]
) -> None:
    other = "0" * 16
    broken = SinkState(other, None, None, None, -1, 0, unreadable="part 1 of 2 is missing")
    sinks.states = {KEY: FINISHED, other: broken}
    assert main(["recover", "--all"]) == 1
    shown = capsys.readouterr().out
    assert "UNREADABLE   part 1 of 2 is missing" in shown
    assert "sink 'orders'" in shown
    assert sinks.rolled == []


def test_a_finished_sink_is_left_alone(sinks: FakeSinks) -> None:
    sinks.states = {KEY: FINISHED}
    assert main(["recover", "--all"]) == 0
    assert sinks.rolled == []


def test_show_changes_nothing(sinks: FakeSinks) -> None:
    assert main(["recover", "--sink-id", "orders", "--show"]) == 1
    assert sinks.rolled == []


def test_what_cannot_be_finished_is_said_and_does_not_hold_up_the_others(
    sinks: FakeSinks, capsys: pytest.CaptureFixture[str]
) -> None:
    sinks.error = KafkaError("orders-3: 10 records were aborted")
    other = UNFINISHED._replace(sink_key="0" * 16, sink_id="other")
    sinks.states["0" * 16] = other
    assert main(["recover", "--all"]) == 1
    assert len(sinks.rolled) == 2
    assert "orders-3: 10 records were aborted" in capsys.readouterr().err


def unknown_outcome() -> KafkaError:
    error = DecisionInDoubtError("nobody can tell any more how 1 of its 2 transactions ended")
    error.__cause__ = TransactionUnknownError("not known any more")
    return error


@pytest.mark.parametrize(
    ("error", "first", "repair"),
    [
        (DecidedDataLostError("lost are orders-0: 10"), "write the lost records again", True),
        (unknown_outcome(), "look into the topics", False),
    ],
    ids=["lost", "unknown"],
)
def test_what_fails_for_good_gets_other_advice_than_to_do_it_again(
    sinks: FakeSinks, capsys: pytest.CaptureFixture[str], error: KafkaError, first: str, repair: bool
) -> None:
    sinks.error = error
    assert main(["recover", "--sink-id", "orders"]) == 1
    shown = capsys.readouterr().out
    advice = shown[shown.index("to do") :]
    assert advice.split("to do", 1)[1].strip().startswith(first)
    assert f"then: penstock recover --sink-key {KEY} --accept-loss" in advice
    assert ("onLost=repair" in advice) == repair
    assert "roll forward" not in advice
    assert "does it as well" not in advice


def test_what_may_pass_is_to_be_tried_again(sinks: FakeSinks, capsys: pytest.CaptureFixture[str]) -> None:
    sinks.error = DecisionInDoubtError("how 1 of its 2 transactions ended is not known")
    assert main(["recover", "--sink-id", "orders"]) == 1
    shown = capsys.readouterr().out
    assert "roll forward, soon: " in shown
    assert "--accept-loss" not in shown


def test_loss_is_accepted_for_one_sink_only(sinks: FakeSinks, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recover", "--sink-id", "orders", "--accept-loss"]) == 0
    assert sinks.rolled == [(KEY, True)]
    assert main(["recover", "--all", "--accept-loss"]) == 2
    assert "one sink at a time" in capsys.readouterr().err


def test_json_is_a_line_for_each_sink(sinks: FakeSinks, capsys: pytest.CaptureFixture[str]) -> None:
    main(["recover", "--json"])
    (line,) = capsys.readouterr().out.splitlines()
    state = json.loads(line)
    assert state["sinkId"] == "orders"
    assert state["needsRollForward"] is True
    assert [row["open"] for row in state["decision"]["transactions"]] == [True, False]
    assert state["leftOver"] == [f"ps.{KEY}.3.abc.9"]


@pytest.mark.parametrize(
    ("words", "said", "exit_code"),
    [
        (["--sink-id", "nothing"], "no sink called 'nothing' has written to penstock-sink-log", 1),
        (["--sink-id", "batch", "--run-id", "r1"], "with the run 'r1'", 1),
        (["--run-id", "r1"], "give --sink-id as well", 2),
    ],
)
def test_a_sink_that_is_not_there_is_an_error_with_a_way_out(
    sinks: FakeSinks, capsys: pytest.CaptureFixture[str], words: list[str], said: str, exit_code: int
) -> None:
    assert main(["recover", *words]) == exit_code
    assert said in capsys.readouterr().err
    assert sinks.rolled == []


def test_a_key_must_be_one(sinks: FakeSinks, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["recover", "--sink-key", "orders"])
    assert caught.value.code == 2
    assert "--sink-id" in capsys.readouterr().err


def test_a_cluster_without_sinks_says_so(sinks: FakeSinks, capsys: pytest.CaptureFixture[str]) -> None:
    sinks.states = {}
    assert main(["recover"]) == 0
    assert "No sink has written to penstock-sink-log yet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        (FINISHED, "nothing"),
        (UNFINISHED, f"roll forward, soon: penstock recover -b 127.0.0.1:1 --sink-key {KEY}"),
        (FINISHED._replace(left_over=UNFINISHED.left_over), "nothing: they are aborted by themselves"),
        (FINISHED._replace(deciding=True), "nothing now; look again in a minute"),
        (SinkState(KEY, None, None, None, -1, 0, unreadable="gone"), "restore the decision topic"),
        (SinkState(KEY, None, None, None, -1, 0), "nothing"),
    ],
    ids=["finished", "unfinished", "left over", "deciding", "unreadable", "new"],
)
def test_each_sink_is_shown_with_what_is_to_be_done(
    sinks: FakeSinks, capsys: pytest.CaptureFixture[str], state: SinkState, advice: str
) -> None:
    sinks.states = {KEY: state._replace(sink_id=None)}
    main(["recover", "-b", "127.0.0.1:1"])
    shown = capsys.readouterr().out
    assert "a sink without a name" in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("  to do")]
    assert line.split("to do", 1)[1].strip().startswith(advice)
    assert (advice == "nothing") == line.endswith(" nothing")


def test_the_advice_is_a_command_for_the_same_cluster(
    sinks: FakeSinks, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "-b",
        "127.0.0.1:2",
        "--decision-topic",
        "my decisions",
        "-X",
        "client.id=me",
        "-X",
        "client.rack=${env:RACK}",
    ]
    main(["recover", *words])
    assert (
        "penstock recover -X client.id=me -X 'client.rack=${env:RACK}' -b 127.0.0.1:2 "
        "--decision-topic 'my decisions' --sink-key " in capsys.readouterr().out
    )


def test_an_address_where_nobody_listens_is_said_soon_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    for seconds in (0.2, 2, 20):  # the first, unless the machine is busy with other things
        assert main(["recover", "-b", "127.0.0.1:1", "-X", f"max.block.ms={seconds * 1000:.0f}"]) == 1
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith(f"penstock: no broker can be reached at 127.0.0.1:1 within {seconds:g} s: ")
        if "connection refused" in said:
            break
    assert "connection refused" in said
    assert "--bootstrap-servers" in said


def test_what_others_wrote_cannot_repaint_the_terminal(
    sinks: FakeSinks, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "x\x1b[2J\n  to do        nothing\u202e\ud800\x9b"
    assert UNFINISHED.decision is not None
    state = UNFINISHED._replace(
        sink_id=evil,
        owner=Jvm(evil, 1, "s"),
        last_decided={evil: 1},
        decision=UNFINISHED.decision._replace(query_id=evil, topic=evil),
    )
    sinks.states = {KEY: state, "0" * 16: SinkState("0" * 16, None, None, None, -1, 0, unreadable=evil)}
    sinks.strays = (StrayRecord(0, 17, None, evil),)
    sinks.error = DecisionInDoubtError(evil)
    assert main(["recover", "--all"]) == 1
    said = capsys.readouterr()
    shown = said.out + said.err
    assert [each for each in shown if not each.isprintable() and each != "\n"] == []
    assert shown.splitlines().count("  to do        nothing") == 0
    assert "x\\x1b[2J\\n" in said.out
    shown.encode()
    main(["recover", "--json"])
    assert json.loads(capsys.readouterr().out.splitlines()[0])["sinkId"] == evil


def test_records_that_do_not_count_are_named(sinks: FakeSinks, capsys: pytest.CaptureFixture[str]) -> None:
    sinks.states = {KEY: FINISHED}
    sinks.strays = (
        StrayRecord(0, 17, None, "its key is not one of a sink"),
        *(StrayRecord(1, n, KEY, "it was not written in a transaction") for n in range(30)),
    )
    assert main(["recover", "--decision-topic", "team-a"]) == 0
    said = capsys.readouterr().err
    assert "team-a-0, offset 17: its key is not one of a sink" in said
    assert f"team-a-1, offset 0 (sink key {KEY}): it was not written in a transaction" in said
    assert "11 more of them, do not count" in said


def test_the_command_that_is_advised_shows_no_secret_of_an_option(
    sinks: FakeSinks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KAFKA_SECRET", "hunter2")
    options = {
        "sasl.oauthbearer.token.endpoint.url": "https://a/?client_secret=hunter2",
        "client.rack": "https://user:hunter2@a/?api_key=hunter2",
        "sasl.oauthbearer.client.credentials.client.secret": "${env:KAFKA_SECRET}",
        "sasl.oauthbearer.client.credentials.client.id": "shop",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
    }
    assert main(["recover", *(word for option in options.items() for word in ("-X", "=".join(option)))]) == 1
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err
    assert "-X 'sasl.oauthbearer.token.endpoint.url=(hidden)'" in said.out
    assert "-X 'sasl.oauthbearer.client.credentials.client.secret=${env:KAFKA_SECRET}'" in said.out
    assert "-X security.protocol=SASL_SSL -X sasl.mechanism=OAUTHBEARER" in said.out
