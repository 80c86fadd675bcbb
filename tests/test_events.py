# SPDX-License-Identifier: Apache-2.0
"""What is written to the log: its fields, how often each event happened, and that nothing is repeated without end."""

from __future__ import annotations

import ast
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fix_patience import SOON
from fix_snippets import DOCS, ROOT
from producer.fakes_sender import Rig

from penstock import Producer
from penstock._events import (
    SECONDS_BETWEEN,
    ClientEvents,
    Event,
    current,
    tell,
    tell_error,
    work_for,
    working_for,
)
from penstock.errors import AuthenticationError, ProducerClosedError, broker_error
from penstock.testing import FakeCluster, FakeKafka, Fault
from penstock.types import Node, TopicPartition

log = logging.getLogger("penstock.test_events")
NOT_LEADER = 6
TELLING = {"tell", "tell_error", "_tell_later"}


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Callable[..., list[logging.LogRecord]]:
    """What was logged at INFO and above, or from another level on."""
    caplog.set_level(logging.DEBUG, "penstock")
    return lambda level=logging.INFO: [record for record in caplog.records if record.levelno >= level]


def fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name[6:]: value for name, value in vars(record).items() if name.startswith("kafka_")}


class VirtualTime:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


# ---- one event


def test_a_record_has_flat_fields_of_simple_types(records: Any) -> None:
    error = broker_error(NOT_LEADER)
    tell(
        log, logging.WARNING, Event.BATCH_RETRIED, "to %s", "b1",
        of=ClientEvents("orders"), place=TopicPartition("t", 3), node=Node(1, "b1", 9092), error=error, records=7,
        option=None,
    )  # fmt: skip
    (record,) = records()
    assert record.getMessage() == "to b1"
    assert record.funcName == "test_a_record_has_flat_fields_of_simple_types"
    assert fields(record) == {
        "event": "batch-retried", "client_id": "orders", "topic": "t", "partition": 3, "broker": 1,
        "address": "b1:9092", "error": "NOT_LEADER_OR_FOLLOWER", "records": 7,
    }  # fmt: skip


def test_an_error_has_its_traceback_and_the_name_of_its_class(records: Any) -> None:
    tell_error(log, Event.CALLBACK_FAILED, "it raised", error=AuthenticationError("the password is 1234"))
    (record,) = records(logging.ERROR)
    assert record.funcName == "test_an_error_has_its_traceback_and_the_name_of_its_class"
    assert fields(record) == {"event": "callback-failed", "error": "AuthenticationError"}
    assert record.exc_info


def test_a_bootstrap_server_has_an_address_and_no_id(records: Any) -> None:
    tell(log, logging.INFO, Event.CONNECTION_LOST, "gone", node=Node(-1, "b0", 9092))
    assert fields(records()[0]) == {"event": "connection-lost", "address": "b0:9092"}


# ---- again and again


def test_a_cause_is_told_once_a_minute_with_the_number_left_out(records: Any) -> None:
    time = VirtualTime()
    events = ClientEvents("c", time)

    def lose(topic: str) -> None:
        tell(log, logging.WARNING, Event.TOPIC_ERROR, "no %s", topic, of=events, each=topic)

    for _ in range(5):
        lose("t")
    lose("u")
    assert [record.getMessage() for record in records()] == ["no t", "no u"]
    assert len(records(logging.DEBUG)) == 6
    time.now += SECONDS_BETWEEN - 0.1
    lose("t")
    assert len(records()) == 2
    time.now += 0.1
    lose("t")
    last = records()[-1]
    assert last.getMessage() == "no t (5 more like it since the last such line)"
    assert fields(last)["left_out"] == 5
    time.now += SECONDS_BETWEEN
    lose("t")
    assert records()[-1].getMessage() == "no t"
    assert events.counts() == {Event.TOPIC_ERROR: 9}


def test_another_error_is_another_cause(records: Any) -> None:
    events = ClientEvents("c", VirtualTime())
    for error in (ValueError(), KeyError(), ValueError()):
        tell_error(log, Event.CALLBACK_FAILED, "it raised", error=error, of=events)
    assert [fields(record)["error"] for record in records()] == ["ValueError", "KeyError"]


def test_what_happens_once_is_never_left_out(records: Any) -> None:
    events = ClientEvents("c", VirtualTime())
    for _ in range(3):
        tell(log, logging.WARNING, Event.RECORDS_GIVEN_UP, "given up", of=events)
    assert len(records()) == 3


def test_the_causes_that_are_remembered_are_limited() -> None:
    events = ClientEvents("c", VirtualTime())
    for number in range(2000):
        assert events.left_out(Event.TOPIC_ERROR, number) == 0
    assert events.left_out(Event.TOPIC_ERROR, 1999) is None
    assert len(events._causes) <= 500


# ---- handlers and filters that raise


class Raising(logging.Handler):
    """A handler, or with `filters` a filter, that raises."""

    def __init__(self, error: BaseException, *, filters: bool) -> None:
        super().__init__()
        self.error = error
        self.heard = 0
        if filters:
            self.addFilter(self.refuse)

    def refuse(self, _record: logging.LogRecord) -> bool:
        self.heard += 1
        raise self.error

    def emit(self, record: logging.LogRecord) -> None:
        self.refuse(record)


@pytest.fixture(params=[False, True], ids=["handler", "filter"])
def raising(request: pytest.FixtureRequest) -> Iterator[Callable[..., Raising]]:
    """Adds what raises to the package's logger, which lets everything through."""
    logger = logging.getLogger("penstock")
    level, added = logger.level, []

    def add(error: BaseException) -> Raising:
        added.append(Raising(error, filters=request.param))
        logger.addHandler(added[-1])
        logger.setLevel(logging.DEBUG)
        return added[-1]

    yield add
    for handler in added:
        logger.removeHandler(handler)
    logger.setLevel(level)


def test_what_a_handler_raises_goes_to_stderr_and_not_to_the_caller(raising: Any, capsys: Any) -> None:
    handler = raising(LookupError("no room in the queue"))
    tell(log, logging.WARNING, Event.BATCH_RETRIED, "the text %s", "secret")
    tell_error(log, Event.CALLBACK_FAILED, "it raised", error=ValueError("x"))
    told = capsys.readouterr().err
    assert handler.heard == 2
    assert told.count("LookupError: no room in the queue") == 2
    assert "batch-retried could not be written to penstock.test_events" in told
    assert "in refuse" in told, "where it was raised"
    assert "secret" not in told


def test_a_handler_that_always_raises_is_told_once_a_minute_and_counted(raising: Any, capsys: Any) -> None:
    raising(LookupError("no room"))
    time = VirtualTime()
    events = ClientEvents("c", time)
    for _ in range(5):
        tell(log, logging.WARNING, Event.RECORDS_GIVEN_UP, "given up", of=events)
    assert capsys.readouterr().err.count("LookupError") == 1
    time.now += SECONDS_BETWEEN
    tell(log, logging.WARNING, Event.RECORDS_GIVEN_UP, "given up", of=events)
    assert "(4 more like it since the last such line)" in capsys.readouterr().err
    assert events.counts() == {Event.RECORDS_GIVEN_UP: 6, Event.LOG_FAILED: 6}


def test_who_wants_no_errors_of_logging_has_none_but_the_count(
    raising: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    raising(LookupError("no room"))
    events = ClientEvents("c")
    tell(log, logging.WARNING, Event.RECORDS_GIVEN_UP, "given up", of=events)
    assert capsys.readouterr().err == ""
    assert events.counts()[Event.LOG_FAILED] == 1


@pytest.mark.parametrize("broken", [None, "closed"])
def test_stderr_may_be_missing_or_broken(
    raising: Any, monkeypatch: pytest.MonkeyPatch, broken: str | None
) -> None:
    class Closed:
        def write(self, _text: str) -> int:
            raise ValueError("I/O operation on closed file")

    handler = raising(LookupError("no room"))
    monkeypatch.setattr(sys, "stderr", Closed() if broken else None)
    tell(log, logging.WARNING, Event.RECORDS_GIVEN_UP, "given up")
    assert handler.heard == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_handler_comes_through(raising: Any, error: type[BaseException]) -> None:
    raising(error())
    with pytest.raises(error):
        tell(log, logging.WARNING, Event.RECORDS_GIVEN_UP, "given up")


def test_an_exit_in_a_handler_ends_no_thread_of_the_package(raising: Any, capsys: Any) -> None:
    """It would leave records without an outcome: of the answer that the I/O thread works on when it logs."""
    raising(SystemExit())
    with FakeKafka(topics={"t": 3}) as kafka:
        producer = Producer(bootstrap_servers=kafka.bootstrap_servers)
        sent = [
            producer.send("t", b"v", partition=number, on_delivery=lambda *_: 1 / 0) for number in range(3)
        ]
        assert [delivery.exception(SOON) for delivery in sent] == [None] * 3
        assert producer._core.thread.is_alive()
        producer._core.parts.io_thread.initiate_close()  # close() itself may log on this thread
        assert producer._core.ended.wait(SOON)
        producer._core.end_close()
    assert "SystemExit" in capsys.readouterr().err


@pytest.mark.parametrize("old", [False, True], ids=["new broker", "old broker"])
def test_a_handler_that_raises_fails_no_record(raising: Any, capsys: Any, old: bool) -> None:
    """At every place of a record's way where something is told: connecting, converting, retrying, losing a broker."""
    handler = raising(LookupError("no room"))
    with FakeKafka(topics={"t": 1}, **({"release": "0.9"} if old else {})) as kafka:
        options: dict[str, Any] = {"enable_idempotence": False} if old else {}
        producer = Producer(
            bootstrap_servers=kafka.bootstrap_servers, linger_ms=0, retry_backoff_ms=1, reconnect_backoff_ms=1,
            client_id="shop", **options,
        )  # fmt: skip
        assert producer.send("t", b"1").result(SOON).offset == 0
        kafka.add_fault(Fault(api="Produce", error=NOT_LEADER))
        assert producer.send("t", b"2").result(SOON).offset == 1
        kafka.add_fault(Fault(api="Produce", cut="before"))
        delivery = producer.send("t", b"3", on_delivery=lambda _metadata, _error: 1 / 0)
        assert delivery.exception(SOON) is None
        assert producer.send("t", b"4").result(SOON).offset >= 3
        counted = producer.metrics()["producer-event-metrics"]
        producer.close(SOON)
        assert not producer._core.thread.is_alive()
    assert handler.heard > 5
    assert counted["log-failed"]["event-total"] > 5
    assert {"connecting", "connected", "connection-lost", "batch-retried", "callback-failed"} <= set(counted)
    assert "LookupError: no room" in capsys.readouterr().err


def test_a_handler_that_raises_leaves_nothing_behind_when_records_are_given_up(raising: Any) -> None:
    raising(LookupError("no room"))
    with FakeKafka(topics={"t": 1}) as kafka:
        producer = Producer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=0)
        producer.send("t", b"1").result(SOON)
    delivery = producer.send("t", b"2")
    producer.close(0)
    producer._core.thread.join(SOON)
    assert isinstance(delivery.exception(SOON), ProducerClosedError)
    assert producer._core.parts.client.metrics.connections_open == 0


# ---- whose it is


def test_a_thread_works_for_a_client_and_others_do_not(records: Any) -> None:
    mine, other = ClientEvents("mine"), ClientEvents("other")

    def work() -> None:
        work_for(mine)
        tell(log, logging.INFO, Event.CONNECTED, "there")
        with working_for(other):
            tell(log, logging.INFO, Event.CONNECTED, "there")
        assert current() is mine

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    tell(log, logging.INFO, Event.CONNECTED, "there")
    assert [fields(record).get("client_id") for record in records()] == ["mine", "other", None]
    assert mine.counts() == other.counts() == {Event.CONNECTED: 1}


def test_no_count_is_lost_between_threads() -> None:
    events = ClientEvents("c")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=lambda: [events.count(Event.BATCH_RETRIED) for _ in range(2000)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert sum(events.counts().values()) <= 8000
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert events.counts() == events.counts() == {Event.BATCH_RETRIED: 8000}


# ---- a producer


def test_retries_have_fields_are_counted_and_do_not_fill_the_log(records: Any) -> None:
    rig = Rig(
        batch_size=1, max_in_flight_requests_per_connection=1, retry_backoff_ms=1, retry_backoff_max_ms=1
    )
    rig.know("t")
    for _ in range(3):
        rig.send("t", b"x")
        rig.await_request()
        rig.answer(error_code=NOT_LEADER)
        rig.await_request()
        rig.answer()
    (record,) = [record for record in records() if record.kafka_event == "batch-retried"]
    assert fields(record) == {
        "event": "batch-retried", "client_id": "rig", "topic": "t", "partition": 0, "records": 1, "attempt": 1,
        "error": "NOT_LEADER_OR_FOLLOWER",
    }  # fmt: skip
    assert rig.metrics("producer-event-metrics")["batch-retried"] == {"event-total": 3}


def test_a_callback_that_raises_each_time_is_told_once_and_counted(kafka: FakeCluster, records: Any) -> None:
    kafka.create_topic("orders", 1)
    with Producer(bootstrap_servers=kafka.bootstrap_servers, client_id="shop") as producer:
        for _ in range(20):
            producer.send("orders", b"x", on_delivery=lambda _metadata, _error: 1 / 0)
        producer.flush()
        (record,) = records(logging.ERROR)
        assert fields(record) == {
            "event": "callback-failed", "client_id": "shop", "topic": "orders", "partition": 0,
            "error": "ZeroDivisionError",
        }  # fmt: skip
        assert producer.metrics()["producer-event-metrics"]["callback-failed"] == {"event-total": 20}


def test_a_handler_that_sends_while_the_transaction_lock_is_wanted_does_not_hang() -> None:
    """What the coordinator has to tell is told when the lock is free."""
    from penstock._locks import inside, new_nesting_lock
    from penstock.producer.guarantee.transactions.operation import Operation

    lock = new_nesting_lock()
    operation = Operation(lock)
    held: list[bool] = []
    with lock:
        operation.tell_later(lambda: held.append(inside()))
        assert (held, inside()) == ([], True)
    operation.complete_tickets()
    assert held == [False]


# ---- all of them


def test_every_line_of_the_log_is_an_event() -> None:
    """No module has a way to the log beside `tell`."""
    direct = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "src" / "penstock").rglob("*.py")
        if path.name != "_events.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"debug", "info", "warning", "error", "exception", "critical", "log"}
        and re.search("log", ast.unparse(node.func.value), re.IGNORECASE)
    ]
    assert direct == []


def test_every_event_is_told_somewhere() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert [event.name for event in Event if f"Event.{event.name}" not in code] == []


def given_fields() -> set[str]:
    """The names of all fields: those that `tell` adds itself, and those that the code gives it."""
    found = {"event", "client_id", "topic", "partition", "broker", "address", "error", "left_out"}
    for path in (ROOT / "src" / "penstock").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in TELLING:
                found |= {keyword.arg for keyword in node.keywords if keyword.arg}
    return found - {"of", "each", "exc_info", "place", "node", "depth"}


def test_the_page_has_the_events_and_the_fields_of_the_code() -> None:
    page = (DOCS / "logging.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", page.split("## Events")[1], re.MULTILINE)
    assert rows == [(event.label, event.value) for event in Event]
    named = set(re.findall("`kafka_([a-z_]+)`", page.split("## Fields")[1].split("## JSON lines")[0]))
    assert named == given_fields()


def test_the_formatter_of_the_page_makes_json(records: Any) -> None:
    page = (DOCS / "logging.md").read_text(encoding="utf-8")
    (code,) = [
        text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class JsonLines" in text
    ]
    space: dict[str, Any] = {}
    exec(code.split("handler =")[0], space)
    tell_error(
        log, Event.CALLBACK_FAILED, "it raised", error=ValueError("x"), topic="t", of=ClientEvents("c")
    )
    line = json.loads(space["JsonLines"]().format(records()[0]))
    assert (line["text"], line["kafka_event"], line["kafka_topic"]) == ("it raised", "callback-failed", "t")
    assert "ValueError" in line["traceback"]


@pytest.mark.parametrize(("options", "limit"), [({}, ""), ({"retries": 5}, " of 5")], ids=["default", "set"])
def test_the_line_of_the_page_is_what_is_logged(
    options: dict[str, Any], limit: str, records: Callable[..., list[logging.LogRecord]]
) -> None:
    page = (DOCS / "logging.md").read_text(encoding="utf-8")
    assert "`(attempt 1 of 5)`" in page
    shown = json.loads(re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0])
    with FakeKafka(topics={"orders": 4}) as kafka:
        producer = Producer(bootstrap_servers=kafka.bootstrap_servers, client_id="orders", **options)
        with producer:
            producer.send("orders", b"1", partition=3).result(SOON)
            kafka.add_fault(Fault(api="Produce", error=NOT_LEADER))
            producer.send("orders", b"2", partition=3).result(SOON)
    (record,) = (each for each in records() if getattr(each, "kafka_event", "") == "batch-retried")
    text = shown["text"].replace("12 records", "1 record").replace("(attempt 1)", f"(attempt 1{limit})")
    assert record.getMessage().startswith(text.removesuffix("..."))
    fixed = {"time", "text", "level", "logger", "kafka_records"}
    assert {name: value for name, value in vars(record).items() if name in shown.keys() - fixed} == {
        name: value for name, value in shown.items() if name not in fixed
    }
    assert (record.levelname, record.name) == (shown["level"], shown["logger"])
