# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.support import FakeProducer

from penstock.cli import perf
from penstock.cli.options import CommandError
from penstock.errors import DeliveryTimeoutError, KafkaTimeoutError

Parse = Callable[..., argparse.Namespace]


class VirtualPacer:
    def __init__(self) -> None:
        self.time = 100.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


@pytest.fixture
def pacer() -> VirtualPacer:
    return VirtualPacer()


@pytest.fixture
def run(parse: Parse, fake: FakeProducer, pacer: VirtualPacer) -> Callable[..., int]:
    def run_perf(*options: str) -> int:
        return perf.run(parse("perf", "--topic", "t", *options), open_producer=fake.open, pacer=pacer)

    return run_perf


def result(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_sends_the_number_and_size_asked_for(run: Callable[..., int], fake: FakeProducer) -> None:
    assert run("--num-records", "2500", "--record-size", "33") == 0
    assert len(fake.sent) == 2500
    assert {len(record.value or b"") for record in fake.sent} == {33}
    assert fake.closed_with == [None]


def test_final_line_is_worded_like_kafkas(
    run: Callable[..., int], fake: FakeProducer, pacer: VirtualPacer, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.hold = True
    fake.on_flush = lambda: pacer.sleep(0.5)
    assert run("--num-records", "200", "--record-size", "10485", "--latency", "all") == 0
    assert capsys.readouterr().out == (
        "200 records sent, 400.0 records/sec (4.00 MB/sec), 500.00 ms avg latency, 500.00 ms max latency, "
        "500.00 ms 50th, 500.00 ms 95th, 500.00 ms 99th, 500.00 ms 99.9th.\n"
    )


def test_rate_is_kept(
    run: Callable[..., int], pacer: VirtualPacer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--num-records", "1001", "--record-size", "1", "--throughput", "500", "--json") == 0
    assert pacer.time == pytest.approx(102.0, abs=0.01)
    assert min(pacer.slept) >= 0.0005


def test_sender_that_fell_behind_catches_up(
    run: Callable[..., int], fake: FakeProducer, pacer: VirtualPacer
) -> None:
    def stall(index: int) -> None:
        if index == 100:
            pacer.time += 1.0

    fake.before_send = stall
    assert run("--num-records", "1001", "--record-size", "1", "--throughput", "500") == 0
    assert pacer.time == pytest.approx(102.0, abs=0.01)


@pytest.mark.parametrize(
    ("options", "samples"),
    [
        (("--latency", "all"), 250),
        (("--latency", "sample"), 3),
        (("--latency", "none"), 0),
        ((), 3),
        (("--throughput", "1e9"), 250),
    ],
)
def test_how_many_latencies_are_measured(
    options: tuple[str, ...], samples: int, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--num-records", "250", "--record-size", "1", "--json", *options) == 0
    latency = result(capsys)["latency_ms"]
    assert isinstance(latency, dict)
    assert latency["samples"] == samples


def test_warmup_is_sent_but_not_counted(
    run: Callable[..., int], fake: FakeProducer, pacer: VirtualPacer, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.before_send = lambda index: pacer.sleep(1.0 if index < 10 else 0.01)
    assert run("--num-records", "100", "--record-size", "1", "--warmup", "10", "--json") == 0
    assert len(fake.sent) == 110
    found = result(capsys)
    assert found["acknowledged"] == 100
    assert found["seconds"] == pytest.approx(1.0)


def test_failures_are_counted_and_told(
    run: Callable[..., int], fake: FakeProducer, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.hold = True
    fake.outcome = lambda index: DeliveryTimeoutError("too late") if index % 10 == 0 else None
    assert run("--num-records", "100", "--record-size", "1", "--latency", "all", "--json") == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["acknowledged"] == 90
    assert found["failed"] == {"DeliveryTimeoutError": 10}
    assert found["latency_ms"]["samples"] == 90
    assert err == "10 records failed: DeliveryTimeoutError: too late\n"


def test_refused_record_ends_it_with_the_result_so_far(
    run: Callable[..., int], fake: FakeProducer, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(index: int) -> None:
        if index == 30:
            raise KafkaTimeoutError("no answer")

    fake.before_send = refuse
    with pytest.raises(KafkaTimeoutError):
        run("--num-records", "100", "--record-size", "1")
    assert capsys.readouterr().out.startswith("30 records sent")
    assert fake.closed_with == [None]


def test_interrupt_closes_soon_and_reports(
    run: Callable[..., int], fake: FakeProducer, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(index: int) -> None:
        if index == 40:
            raise KeyboardInterrupt

    fake.before_send = interrupt
    assert run("--num-records", "100", "--record-size", "1") == 130
    assert capsys.readouterr().out.startswith("40 records sent")
    assert fake.closed_with == [5.0]


def test_progress_where_no_terminal_is(
    run: Callable[..., int], fake: FakeProducer, pacer: VirtualPacer, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.before_send = lambda index: pacer.sleep(0.006)
    fake.before_outcome = lambda: pacer.sleep(0.25 if len(fake.sent) == 1500 else 0.004)
    assert run("--num-records", "2000", "--record-size", "1048", "--latency", "all") == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first == (
        "1,000 records sent, 100.0 records/sec (0.10 MB/sec), 10.00 ms avg latency, 10.00 ms max latency, "
        "10.00 ms 50th, 10.00 ms 95th, 10.00 ms 99th, 10.00 ms 99.9th."
    )
    assert "256.00 ms max latency, 10.0" in second  # each line is about its own interval


def test_quiet_shows_only_the_result(
    run: Callable[..., int], fake: FakeProducer, pacer: VirtualPacer, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.before_send = lambda index: pacer.sleep(1.0)
    assert run("--num-records", "2000", "--record-size", "1", "-q") == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert err == ""


def test_payload_file_goes_round(run: Callable[..., int], fake: FakeProducer, tmp_path: Path) -> None:
    file = tmp_path / "payloads"
    file.write_bytes(b"one\n\ntwo\n")
    assert run("--num-records", "5", "--payload-file", str(file)) == 0
    assert [record.value for record in fake.sent] == [b"one", b"two", b"one", b"two", b"one"]


def test_a_payload_file_that_cannot_be_read(run: Callable[..., int], tmp_path: Path) -> None:
    for file, why in ((tmp_path / "nope", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(CommandError) as caught:
            run("--num-records", "5", "--payload-file", str(file))
        assert str(caught.value) == (
            f"cannot read the payload file {str(file)!r}: {why}. Check its name; --record-size sends random values"
        )


def test_payload_file_without_lines(run: Callable[..., int], tmp_path: Path) -> None:
    file = tmp_path / "payloads"
    file.write_bytes(b"\n")
    with pytest.raises(CommandError, match="no lines"):
        run("--num-records", "5", "--payload-file", str(file))


def test_metrics_on_request(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--num-records", "5", "--record-size", "1", "--print-metrics") == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines == ["producer-metrics:rate = 1.500", "producer-metrics:record-send-total = 5"]


def test_result_shows_the_settings_but_no_secret(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(
            "--num-records",
            "5",
            "--record-size",
            "1",
            "--json",
            "-X",
            "acks=1",
            "-X",
            "sasl.jaas.config=secret",
        )
        == 0
    )
    assert result(capsys)["config"] == {"bootstrap.servers": "localhost:9092", "acks": "1"}


@pytest.mark.parametrize(
    "options", [("--num-records", "0", "--record-size", "1"), ("--num-records", "1"), ("--num-records", "x")]
)
def test_wrong_command_line(options: tuple[str, ...], parse: Parse) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("perf", "--topic", "t", *options)
    assert caught.value.code == 2
