# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from cli.support import FakeProducer

from penstock.cli import produce
from penstock.cli.options import CommandError
from penstock.errors import DeliveryTimeoutError, KafkaTimeoutError, RecordTooLargeError, SerializationError

Parse = Callable[..., argparse.Namespace]


@pytest.fixture
def run(parse: Parse, fake: FakeProducer, tmp_path: Path) -> Callable[..., int]:
    def run_produce(data: bytes, *options: str) -> int:
        file = tmp_path / "input"
        file.write_bytes(data)
        return produce.run(parse("produce", "orders", str(file), *options), open_producer=fake.open)

    return run_produce


def values(fake: FakeProducer) -> list[bytes | None]:
    return [record.value for record in fake.sent]


def test_each_line_is_a_record(
    run: Callable[..., int], fake: FakeProducer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(b"a\nb\n", "-b", "broker:1") == 0
    assert values(fake) == [b"a", b"b"]
    assert {record.topic for record in fake.sent} == {"orders"}
    assert fake.config == {"bootstrap.servers": "broker:1"}
    assert fake.closed_with == [None]
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("2 records acknowledged by orders in ")


def test_standard_input(parse: Parse, fake: FakeProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe\n")))
    assert produce.run(parse("produce", "orders", "-q"), open_producer=fake.open) == 0
    assert values(fake) == [b"from a pipe"]


def test_key_headers_and_partition(run: Callable[..., int], fake: FakeProducer) -> None:
    assert (
        run(
            b"a:1|k\tv\n",
            "--key-separator",
            r"\t",
            "--headers-separator",
            "|",
            "--header",
            "h=x=y",
            "--partition",
            "3",
        )
        == 0
    )
    record = fake.sent[0]
    assert (record.key, record.value, record.partition) == (b"k", b"v", 3)
    assert record.headers == (("h", b"x=y"), ("a", b"1"))


def test_json_lines(run: Callable[..., int], fake: FakeProducer) -> None:
    data = b'{"id": "k", "at": 5, "p": 1}\n\n{"id": null}\n'
    options = ("--format", "json", "--key-field", "id", "--timestamp-field", "at", "--partition-field", "p")
    assert run(data, *options, "--partition", "9") == 0
    first, second = fake.sent
    assert (first.key, first.timestamp_ms, first.partition) == (b"k", 5, 1)
    assert (second.key, second.timestamp_ms, second.partition) == (None, None, 9)


def test_bad_line_ends_it_after_what_came_before(run: Callable[..., int], fake: FakeProducer) -> None:
    with pytest.raises(CommandError, match=r"^line 2: no key separator .*--on-bad-line skip"):
        run(b"k=v\nbad\nk=w\n", "--key-separator", "=")
    assert values(fake) == [b"v"]
    assert fake.closed_with == [None]


def test_bad_lines_are_skipped_on_request(
    run: Callable[..., int], fake: FakeProducer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(b"k=v\nbad\nworse\nk=w\n", "--key-separator", "=", "--on-bad-line", "skip") == 0
    assert values(fake) == [b"v", b"w"]
    assert "2 malformed lines skipped; first: line 2: no key separator" in capsys.readouterr().err


def test_failed_records_are_counted_by_error(
    run: Callable[..., int], fake: FakeProducer, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = {
        1: DeliveryTimeoutError("too late"),
        3: DeliveryTimeoutError("again"),
        4: RecordTooLargeError("too big"),
    }
    fake.outcome = errors.get
    assert run(b"a\nb\nc\nd\ne\n", "-q") == 1
    report = capsys.readouterr().err.splitlines()
    assert report[0].startswith("2 records acknowledged")
    assert report[1] == "2 records failed: DeliveryTimeoutError: too late (first: line 2)"
    assert report[2] == "1 record failed: RecordTooLargeError: too big (first: line 5)"


@pytest.mark.parametrize("error", [RecordTooLargeError("2 MB"), SerializationError("no")])
def test_refused_record_does_not_stop_the_others(
    error: Exception, run: Callable[..., int], fake: FakeProducer, capsys: pytest.CaptureFixture[str]
) -> None:
    refusals = [None, error, None]

    def refuse(index: int) -> None:
        refusal = refusals.pop(0)
        if refusal is not None:
            raise refusal

    fake.before_send = refuse
    assert run(b"a\nb\nc\n") == 1
    assert values(fake) == [b"a", b"c"]
    assert f"1 record refused: {type(error).__name__}: {error} (first: line 2)" in capsys.readouterr().err


def test_error_of_the_cluster_ends_it_with_the_summary(
    run: Callable[..., int], fake: FakeProducer, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(index: int) -> None:
        if index == 1:
            raise KafkaTimeoutError("no answer")

    fake.before_send = refuse
    with pytest.raises(KafkaTimeoutError, match="no answer"):
        run(b"a\nb\nc\n")
    assert "1 record acknowledged" in capsys.readouterr().err
    assert fake.closed_with == [None]


def test_interrupt_closes_soon_and_reports(
    run: Callable[..., int], fake: FakeProducer, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(index: int) -> None:
        if index == 2:
            raise KeyboardInterrupt

    fake.before_send = interrupt
    assert run(b"a\nb\nc\nd\n") == 130
    assert fake.closed_with == [5.0]
    assert "2 records acknowledged" in capsys.readouterr().err


def test_interrupt_is_told_first(
    run: Callable[..., int], fake: FakeProducer, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.before_send = Mock(side_effect=[None, None, KeyboardInterrupt])
    run(b"a\nb\nc\nd\n")
    assert capsys.readouterr().err.startswith(
        "penstock produce: interrupted after 3 lines; 2 records sent, 2 of them acknowledged\n"
    )


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (None, "3 records sent, 3 of them acknowledged"),
        (DeliveryTimeoutError("late"), "3 records sent, 2 of them acknowledged"),
    ],
    ids=["acknowledged", "failed"],
)
def test_interrupt_just_after_a_record_was_accepted(
    run: Callable[..., int],
    fake: FakeProducer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException | None,
    told: str,
) -> None:
    send = fake.send

    def send_and_interrupt(*args: Any, **options: Any) -> Any:
        delivery = send(*args, **options)
        if len(fake.sent) == 3:
            raise KeyboardInterrupt
        return delivery

    fake.outcome = lambda index: error if index == 2 else None
    monkeypatch.setattr(fake, "send", send_and_interrupt)
    assert run(b"a\nb\nc\nd\n") == 130
    said = capsys.readouterr().err
    assert told in said
    assert ("1 record failed: DeliveryTimeoutError" in said) == (error is not None)


def test_records_without_outcome_are_told(
    run: Callable[..., int], fake: FakeProducer, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.hold = True
    fake.on_flush = fake._held.clear  # the producer gives them up without a word
    assert run(b"a\nb\n") == 1
    assert "2 records given up, outcome unknown" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--key-field", "k"), "--key-field needs --format json"),
        (("--format", "json", "--null-marker", "x"), "--null-marker needs --format lines"),
        (("--key-separator", ""), "must not be empty"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: tuple[str, ...],
    reason: str,
    run: Callable[..., int],
    fake: FakeProducer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(b"a\n", *options) == 2
    assert reason in capsys.readouterr().err
    assert fake.sent == []


@pytest.mark.parametrize(
    "option", [("--header", "x"), ("--header", "=x"), ("--partition", "-1"), ("-X", "linger")]
)
def test_wrong_command_line(option: tuple[str, str], parse: Parse) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("produce", "t", *option)
    assert caught.value.code == 2


def test_missing_file(parse: Parse, fake: FakeProducer, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        produce.run(parse("produce", "t", str(tmp_path / "nothing")), open_producer=fake.open)


def test_a_missing_file_is_named_with_the_way_out(parse: Parse, fake: FakeProducer, tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        produce.run(parse("produce", "t", str(tmp_path / "nothing")), open_producer=fake.open)
    said = str(caught.value)
    assert said.startswith(f"cannot read the file {str(tmp_path / 'nothing')!r}: No such file or directory. ")
    assert "- or no file name reads standard input" in said
