# SPDX-License-Identifier: Apache-2.0
"""`penstock demo`: yes when every event is there once, no when it is not, gone when interrupted."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from spark.faults.scene import long_list

from penstock.cli.demo import command as demo
from penstock.cli.demo.check import TopicTally, mark_ends, read_topics
from penstock.cli.demo.orders import order, value_of
from penstock.cli.main import EXIT_INTERRUPTED
from penstock.cli.options import CommandError
from penstock.control import create_topic
from penstock.devbroker import DevCluster

PENSTOCK = [sys.executable, "-m", "penstock"]


def with_spark(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that runs the whole demo."""
    for mark in (pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)):
        test = mark(test)
    return test


# ---- reading, without Spark


@pytest.fixture
def filled(dev_cluster: DevCluster) -> str:
    """A topic with the first 300 events, the last one of which is there twice, the first ones in a lost transaction."""
    from penstock import Producer

    topic = f"demo-{os.getpid()}-{time.monotonic_ns()}"
    # The events are old: Kafka would forget them when it next looks.
    forever = {"retention.ms": -1}
    create_topic(topic, 3, settings=forever, config={"bootstrap.servers": dev_cluster.bootstrap_servers})
    config = {"bootstrap.servers": dev_cluster.bootstrap_servers, "transactional.id": topic}
    with Producer(config) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(10):
            _send(producer, topic, number)
        producer.abort_transaction()
        with producer.transaction():
            for number in [*range(300), 299]:
                _send(producer, topic, number)
    return topic


def _send(producer: object, topic: str, number: int) -> None:
    found = order(number)
    headers = [(name, value.encode()) for name, _, value in (part.partition(":") for part in _headers(found))]
    producer.send(  # type: ignore[attr-defined]
        topic,
        value_of(number, found).encode(),
        found.customer.encode(),
        headers=headers,
        timestamp_ms=found.timestamp_ms,
    )


def _headers(found: object) -> list[str]:
    return demo.headers_of(found).split(",")  # type: ignore[arg-type]


@pytest.mark.broker
@pytest.mark.slow
def test_the_reader_finds_all_that_is_committed_and_no_more(dev_cluster: DevCluster, filled: str) -> None:
    mark_ends(dev_cluster.bootstrap_servers, {filled: 3})
    tally = TopicTally(filled, 3, 300, lambda found: True, demo.headers_of)
    read_topics(dev_cluster, [(tally, 3)], lambda count: None)
    found = tally.figures()
    assert (found.read, found.missing, found.duplicates) == (301, 0, 1)
    assert (found.strangers, found.misplaced, found.changed) == (0, 0, 0)
    assert found.examples == (f"{filled}: event 299 is there 2 times",)


@pytest.mark.broker
@pytest.mark.slow
def test_a_transaction_that_was_left_open_is_told(
    dev_cluster: DevCluster, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock import Producer
    from penstock.control import complete_transaction

    config = {"bootstrap.servers": dev_cluster.bootstrap_servers, "transactional.id": f"{filled}-open"}
    with Producer(config, transaction_timeout_ms=600_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(filled, b"x", partition=0)
        handle = producer.detach_transaction()
    mark_ends(dev_cluster.bootstrap_servers, {filled: 3})
    tally = TopicTally(filled, 3, 300, lambda found: True, demo.headers_of)
    for patience in (3000, 60_000):  # a busy machine may need more than three seconds for what it does find
        monkeypatch.setattr("penstock.cli.demo.check._IDLE_MS", patience)
        with pytest.raises(CommandError) as caught:
            read_topics(dev_cluster, [(tally, 3)], lambda count: None)
        if "2 of 3" in str(caught.value):
            break
    assert re.search(r"met the ends of 2 of 3 partitions only.*still open", str(caught.value))
    complete_transaction(handle, commit=False, config={"bootstrap.servers": dev_cluster.bootstrap_servers})


# ---- all of it


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*PENSTOCK, "demo", "--records", "20000", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=580)


@with_spark
def test_through_both_kills_every_event_is_there_once(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = run_demo("--report", str(page))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-2].startswith("exactly once: yes (20,000 events, 2 kills")
    assert done.stdout.splitlines()[-1] == f"report: {page}"
    assert len(re.findall(r"micro-batch \d is done", done.stderr)) == 5
    assert re.search(r"kill -9 \d+: a Python worker, in the middle of micro-batch 1", done.stderr)
    assert re.search(r"kill -9 \d+ \d+ \d+: the driver", done.stderr)
    assert re.search(
        r"found in Kafka: micro-batch 3 is decided, 4,000 records; 4 of its 4 transactions are still open",
        done.stderr,
    )
    assert len((done.stdout + done.stderr).splitlines()) < 30, "it is meant to fit on a screen"
    assert "<title>exactly once: yes</title>" in page.read_text(encoding="utf-8")


@long_list
@with_spark
def test_at_least_once_the_same_kills_leave_duplicates(tmp_path: Path) -> None:
    done = run_demo("--unsafe", "--report", str(tmp_path / "report.html"))
    assert done.returncode == 1, done.stdout + done.stderr
    found = re.search(
        r"^exactly once: no \(([\d,]+) duplicates, 0 missing, 0 otherwise", done.stdout, re.MULTILINE
    )
    assert found is not None, done.stdout + done.stderr
    # Batch 3 is written twice as a whole, and a quarter of batch 1.
    assert int(found.group(1).replace(",", "")) >= 4000 + 1000


@with_spark
def test_ctrl_c_leaves_no_process_behind(pids_below: Callable[[int], set[int]]) -> None:
    command = [*PENSTOCK, "demo", "--records", "50000000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if "micro-batch 0 is done" in line:
                    break
            started = pids_below(process.pid)
            assert len(started) > 4, "Kafka, its watchdog, the driver, Java, and Python workers"
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of the foreground
            rest = process.stderr.read()
            assert process.wait(60) == EXIT_INTERRUPTED, rest
        finally:
            process.kill()
    assert "Traceback" not in rest
    deadline = time.monotonic() + 10  # Java takes a moment to follow a signal
    while (left := {pid for pid in started if _alive(pid)}) and time.monotonic() < deadline:
        select.select([], [], [], 0.05)
    assert left == set()


@pytest.fixture
def pids_below() -> Callable[[int], set[int]]:
    """Give a function that finds the living processes that a process started, and theirs, whatever their session."""

    def find(top: int) -> set[int]:
        parents = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
            except (ProcessLookupError, FileNotFoundError):
                continue  # it ended meanwhile
            parents[int(path.parent.name)] = int(fields[1])
        found = {top}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found - {top}

    return find


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


# ---- the command line


def test_the_number_of_records_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    from penstock.cli.main import build_parser

    assert build_parser().parse_args(["demo", "--records", "1_000"]).records == 1000
    assert build_parser().parse_args(["demo"]).records == 2_000_000
    assert build_parser().parse_args(["demo"]).func is demo.run
    with pytest.raises(SystemExit):
        build_parser().parse_args(["demo", "--records", "0"])
    assert "at least 1000" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock.cli.main import main

    assert main(["demo", "--report", str(tmp_path / "nowhere" / "page.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["demo", "--report", str(tmp_path)]) == 2
    assert f"--report: {str(tmp_path)!r} is a folder; name a file in it" in capsys.readouterr().err


def test_without_spark_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock.cli.main import main

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["demo"]) == 1
    assert "pip install '.[spark]'" in capsys.readouterr().err
