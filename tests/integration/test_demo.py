# SPDX-License-Identifier: Apache-2.0
"""`penstock demo`: right when all arrived, wrong when not, gone when interrupted."""

from __future__ import annotations

import dataclasses
import itertools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from penstock.cli import demo
from penstock.cli._demo_data import (
    DemoRecord,
    Digester,
    PartitionDigest,
    demo_records,
    differences,
    digest_acknowledged,
)
from penstock.cli.demo import CodecRun, run_on, table, verdict
from penstock.cli.main import EXIT_INTERRUPTED
from penstock.devbroker import DevCluster

# ---- without a broker


def test_records_are_the_same_on_every_run_and_safe_to_print() -> None:
    records = list(demo_records("zstd", 500))
    assert records == list(demo_records("zstd", 500))
    assert records[:100] == list(demo_records("zstd", 100))
    assert records != list(demo_records("lz4", 500))
    for record in records:
        text = record.key + record.value + b"".join(value for _, value in record.headers)
        assert text.isascii()
        assert not set(text) & set(b"\t\r\n")


def test_digests_follow_offsets_and_not_the_order_of_sending() -> None:
    first, second = DemoRecord(b"k", b"v1", ()), DemoRecord(b"k", b"v2", (("a", b"1"), ("b", b"2")))
    digester = Digester()
    digester.add(3, b"Offset:0\ta:1,b:2\tk\tv2")
    digester.add(3, b"Offset:1\t\tk\tv1")
    assert digest_acknowledged([(3, 1), (3, 0)], [first, second]) == digester.digests()


@pytest.mark.parametrize(
    ("read", "words"),
    [
        ({0: PartitionDigest(2, "aa")}, []),
        ({0: PartitionDigest(2, "bb")}, ["partition 0: 2 records, but SHA-256 aa sent and bb read"]),
        ({0: PartitionDigest(1, "cc")}, ["partition 0: 2 records sent, 1 read"]),
        ({}, ["partition 0: 2 records sent, 0 read"]),
        (
            {0: PartitionDigest(2, "aa"), -1: PartitionDigest(1, "dd")},
            ["partition -1: 0 records sent, 1 read"],
        ),
    ],
)
def test_differences_are_named(read: dict[int, PartitionDigest], words: list[str]) -> None:
    assert differences({0: PartitionDigest(2, "aa")}, read) == words


def test_the_table_says_what_differs() -> None:
    good = CodecRun("zstd", 10, 1.0, 2.0, 0.5, {0: PartitionDigest(10, "aa")})
    bad = dataclasses.replace(good, codec="lz4", problems=["partition 0: 10 records sent, 9 read"])
    text = table([good, bad])
    assert "identical" in text
    assert "DIFFERENT\n        partition 0: 10 records sent, 9 read" in text
    assert verdict([good], 3).startswith("\nOK: 10 records")
    assert verdict([good, bad], 3).startswith("\nFAILED: what was read is not what was sent, with codec lz4")


# ---- with one


@pytest.fixture
def fresh_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics that no other test has filled."""
    number = itertools.count()
    prefix = f"demo-{os.getpid()}-{next(number)}"
    monkeypatch.setattr(CodecRun, "topic", property(lambda run: f"{prefix}-{run.codec}"))


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.core
@pytest.mark.usefixtures("fresh_names")
def test_the_demo_finds_what_it_sent_and_notices_what_it_did_not(
    dev_cluster: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    (good,) = run_on(dev_cluster, 5000, said.append, codecs=["zstd"])
    assert good.arrived, good.problems
    assert sum(digest.records for digest in good.sent.values()) == 5000
    assert 0 < good.disk_megabytes < good.megabytes
    assert any("5,000 records with codec zstd" in line for line in said)

    # The same topic again: now it holds more than was sent this time, and the first half of it is something else.
    monkeypatch.setattr(DevCluster, "create_topic", lambda *_: None)
    (bad,) = run_on(dev_cluster, 1000, said.append, codecs=["zstd"])
    assert not bad.arrived
    assert any("in the log" in problem for problem in bad.problems)
    assert any("SHA-256" in problem or "read" in problem for problem in bad.problems)


@pytest.mark.broker
@pytest.mark.slow
def test_ctrl_c_leaves_no_process_behind(pids_of_session: Callable[[int], set[int]]) -> None:
    command = [sys.executable, "-m", "penstock", "demo", "--records", "50000000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if line.startswith("creating"):
                    break
            assert len(pids_of_session(process.pid)) > 1
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of the foreground
            rest = process.stderr.read()
            assert process.wait(30) == EXIT_INTERRUPTED, rest
        finally:
            process.kill()
    assert "Traceback" not in rest
    deadline = time.monotonic() + 10  # Java takes a moment to follow a signal
    while (left := pids_of_session(process.pid)) and time.monotonic() < deadline:
        select.select([], [], [], 0.05)
    assert left == set()


@pytest.fixture
def pids_of_session() -> Callable[[int], set[int]]:
    """Give a function that finds the living processes of a session: those that a command started, and theirs."""

    def find(session: int) -> set[int]:
        found = set()
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.getsid(int(name)) == session and _state(int(name)) != "Z":
                    found.add(int(name))
            except (ProcessLookupError, FileNotFoundError):
                pass  # it ended meanwhile
        return found

    return find


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        return stat.read().rpartition(") ")[2][0]


def test_the_number_of_records_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    from penstock.cli.main import build_parser

    assert build_parser().parse_args(["demo", "--records", "1_000"]).records == 1000
    assert build_parser().parse_args(["demo"]).records == 1_000_000
    assert build_parser().parse_args(["demo"]).func is demo.run
    with pytest.raises(SystemExit):
        build_parser().parse_args(["demo", "--records", "0"])
    assert "less than 1" in capsys.readouterr().err
