# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.support import FakeProducer

from penstock import Producer
from penstock.cli.main import describe_error
from penstock.cli.options import close_producer, parse_option, producer_config
from penstock.config.config import ProducerConfig
from penstock.control.client import ControlSettings
from penstock.errors import ConfigError

Parse = Callable[..., argparse.Namespace]


def test_default_address(parse: Parse) -> None:
    assert producer_config(parse("produce", "t")) == {"bootstrap.servers": "localhost:9092"}


def test_later_wins(parse: Parse, tmp_path: Path) -> None:
    file = tmp_path / "producer.properties"
    file.write_text("# dev\nbootstrap.servers = file:1\nlinger.ms=7\nacks: all\nclient.id=file\n")
    args = parse(
        "produce", "t", "--config", str(file), "-X", "linger_ms=9", "-X", "client.id=x=y", "-b", "given:2"
    )
    assert producer_config(args, {"acks": "1", "retries": "3"}) == {
        "bootstrap.servers": "given:2",
        "linger.ms": "9",
        "acks": "all",
        "client.id": "x=y",
        "retries": "3",
    }


@pytest.mark.parametrize("command", ["produce", "perf"])
def test_the_page_of_the_command_line_then_of_the_environment_then_of_the_file(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.delenv("PENSTOCK_GLASS_BOX", raising=False)
    file = tmp_path / "producer.properties"
    file.write_text("glass_box=127.0.0.1:1\nlinger.ms=7\n")
    words = ["produce", "t"] if command == "produce" else ["perf", "--topic", "t", "--num-records", "1"]
    words += ["--config", str(file)] + ([] if command == "produce" else ["--record-size", "1"])

    def page(*more: str) -> str | None:
        config = producer_config(parse(*words, *more))
        assert config["linger.ms"] == "7"
        assert len([name for name in config if "glass" in name]) < 2, "one would contradict the other"
        return config.get("glass.box")

    assert page() == "127.0.0.1:1"
    monkeypatch.setenv("PENSTOCK_GLASS_BOX", "")
    assert page() == "127.0.0.1:1"
    assert page("--watch") == "127.0.0.1:0"
    monkeypatch.setenv("PENSTOCK_GLASS_BOX", "127.0.0.1:2")
    assert page() is None, "the producer asks the environment"
    assert page("--watch") == "127.0.0.1:0"
    assert page("-X", "glass_box=127.0.0.1:3") == "127.0.0.1:3"
    assert page("--watch", "-X", "glass_box=127.0.0.1:3") == "127.0.0.1:3"


def test_one_spelling_overrides_another(parse: Parse, tmp_path: Path) -> None:
    file = tmp_path / "producer.properties"
    file.write_text("ssl.truststore.location=/file.pem\nsasl.password=hunter2\nsecurity.protocol=SSL\n")
    args = parse("produce", "t", "--config", str(file), "-X", "ssl_cafile=/given.pem")
    assert producer_config(args) == {
        "bootstrap.servers": "localhost:9092",
        "security.protocol": "SSL",
        "sasl.password": "hunter2",
        "ssl.cafile": "/given.pem",
    }


@pytest.mark.parametrize("name", ["sasl.password", "sasl_plain_password", "ssl.key.password", "proxy_url"])
def test_a_secret_on_the_command_line_is_refused(parse: Parse, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"-X {name}=\.\.\.: a secret on the command line") as caught:
        producer_config(parse("produce", "t", "-X", f"{name}=http://u:hunter2@h"))
    assert "hunter2" not in str(caught.value)
    assert "${env:NAME}" in str(caught.value)
    args = parse("produce", "t", "-X", f"{name}=${{env:SECRET}}")
    assert producer_config(args)[name.replace("_", ".")] == "${env:SECRET}"


def test_file_that_cannot_be_read(parse: Parse, tmp_path: Path) -> None:
    file = tmp_path / "missing.properties"
    with pytest.raises(ConfigError) as caught:
        producer_config(parse("produce", "t", "--config", str(file)))
    assert str(caught.value) == f"cannot read the properties file {str(file)!r}: No such file or directory"
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    file.write_bytes(b"sasl.password=hunter2\xff")
    with pytest.raises(ConfigError, match="can't decode byte 0xff") as caught:
        producer_config(parse("produce", "t", "--config", str(file)))
    assert caught.value.__cause__ is None  # it would hold the password


def test_a_file_of_json_is_told_with_what_is_needed(parse: Parse, tmp_path: Path) -> None:
    file = tmp_path / "producer.json"
    file.write_text('\n{\n  "linger.ms": 5\n}\n')
    told = f"cannot read the properties file {str(file)!r}: it is JSON; each line must be name=value, for example "
    for read in (
        lambda: producer_config(parse("produce", "t", "--config", str(file))),
        lambda: Producer(str(file)),
    ):
        with pytest.raises(ConfigError) as caught:
            read()
        assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    ("lines", "words", "told"),
    [
        (
            "# dev\nlinger_ms=soon",
            (),
            "linger.ms must be a whole number, not 'soon' (str) (line 2 of {file!r})",
        ),
        ("\n\nlingr.ms=5", (), "unknown option 'lingr.ms'; did you mean 'linger.ms'? (line 3 of {file!r})"),
        ("linger.ms=5", ("-X", "linger.ms=x"), "linger.ms must be a whole number, not 'x' (str)"),
        ("bootstrap.servers=a", ("-b", "b"), "bootstrap.servers='b' is not allowed; allowed: one or more"),
        ("bootstrap.servers=a", (), "(line 1 of {file!r})"),
    ],
)
def test_a_wrong_option_of_a_file_is_told_with_its_line(
    parse: Parse, tmp_path: Path, lines: str, words: tuple[str, ...], told: str
) -> None:
    file = tmp_path / "producer.properties"
    file.write_text(lines)
    config = producer_config(parse("produce", "t", "--config", str(file), *words))
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_user(config)
    assert told.format(file=str(file)) in str(caught.value)
    assert ("(line " in str(caught.value)) is ("{file" in told)


def test_a_wrong_option_of_a_file_is_told_with_its_line_where_no_producer_is(
    parse: Parse, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("linger.ms=x\nrequest.timeout.ms=soon\nsocket.timeout.ms=5\n")
    config = producer_config(parse("recover", "--config", str(file)))
    with pytest.raises(ConfigError) as caught:
        ControlSettings.from_config(config)
    assert str(caught.value).endswith(f"use 'request.timeout.ms' here (line 3 of {str(file)!r})")
    del config["socket.timeout.ms"]
    with pytest.raises(ConfigError) as caught:
        ControlSettings.from_config(config)
    assert str(caught.value).endswith(f"(line 2 of {str(file)!r})")


def test_several_unknown_options_are_told_apart_in_the_one_line_of_a_command() -> None:
    names = ["queue.buffering.max.ms", "foo"]
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_user(dict.fromkeys(names, "1"))
    assert describe_error(caught.value).startswith(
        "2 unknown options: 1. 'queue.buffering.max.ms', which is librdkafka's name; use 'linger.ms' here 2. 'foo' ("
    )


@pytest.mark.parametrize("text", ["linger.ms", "=5", " =5"])
def test_option_without_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="NAME=VALUE"):
        parse_option(text)


@pytest.mark.parametrize("text", ["sasl.password:hunter2", "sasl.password hunter2", "=hunter2"])
def test_a_password_behind_the_wrong_separator_is_not_shown(
    parse: Parse, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse("produce", "t", "-X", text)
    told = capsys.readouterr().err
    assert "argument -X: it must be NAME=VALUE" in told
    assert "hunter2" not in told


def test_close_waits_unless_interrupted(fake: FakeProducer) -> None:
    assert close_producer(fake, interrupted=False) is False
    assert close_producer(fake, interrupted=True) is True
    assert fake.closed_with == [None, 5.0]


def test_second_interrupt_closes_at_once(fake: FakeProducer) -> None:
    presses = iter([True])

    def press_once() -> None:
        if next(presses, False):
            raise KeyboardInterrupt

    fake.on_close = press_once
    assert close_producer(fake, interrupted=False) is True
    assert fake.closed_with == [None, 0]
