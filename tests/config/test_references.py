# SPDX-License-Identifier: Apache-2.0
"""Values that stand in the environment or in a file."""

from __future__ import annotations

import os
import pickle

import pytest

from penstock.config.config import ProducerConfig
from penstock.config.kinds import Password
from penstock.config.references import MAX_FILE_BYTES, look_up
from penstock.control.client import ControlSettings
from penstock.errors import ConfigError
from penstock.security.sasl.jaas import parse_jaas

SERVERS = {"bootstrap.servers": "localhost:9092"}
PLAIN = SERVERS | {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "me"}


@pytest.fixture
def secrets(tmp_path):
    (tmp_path / "word").write_bytes(b"\xef\xbb\xbfhunter2\r\n")
    (tmp_path / "app.properties").write_text("a.b=hunter\\u0032\nother = x\n")
    return tmp_path


def test_the_forms(secrets, monkeypatch):
    monkeypatch.setenv("WORD", "hunter2")
    for text in (
        "${env:WORD}",
        f"${{file:{secrets}/word}}",
        f"${{file:{secrets}/app.properties:a.b}}",
        f"${{directory:{secrets}:word}}",
    ):
        assert look_up(text, "x") == "hunter2"
        assert look_up(f"<{text}$${{y}}>", "x") == "<hunter2${y}>"


def test_only_one_line_end_is_dropped_and_nothing_is_searched_again(secrets, monkeypatch):
    (secrets / "lines").write_text("a\nb\n\n")
    assert look_up(f"${{file:{secrets}/lines}}", "x") == "a\nb\n"
    monkeypatch.setenv("OUTER", "${env:INNER}")
    assert look_up("${env:OUTER}", "x") == "${env:INNER}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("${env:NOT_SET_AT_ALL}", "the environment variable NOT_SET_AT_ALL is not set in this process"),
        ("${file:/no/such/file}", "the file '/no/such/file' cannot be read: No such file"),
        ("${file:{dir}/app.properties:none}", "has no 'none'"),
        ("${file:{dir}}", "is not a file"),
        ("${file:{dir}/pipe}", "is not a file"),
        ("${directory:{dir}:pipe}", "is not a file"),
        ("${file:/dev/zero}", "is not a file"),
        ("${file:{dir}/large}", f"more than {MAX_FILE_BYTES} bytes"),
        ("${file:{dir}/binary}", "not text in UTF-8"),
        ("${file:a\0b}", "no such path can be"),
        ("${directory:{dir}:../word}", "the name of one file"),
        ("hunter2${", "begins no reference"),
        ("${hunter2}", "begins no reference"),
        ("${vault:hunter2}", "there are ${env:NAME}, ${file:PATH}"),
    ],
)
def test_what_cannot_be_looked_up(secrets, text, words):
    (secrets / "large").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    (secrets / "binary").write_bytes(b"\xff\xfe\xfa")
    os.mkfifo(secrets / "pipe")
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_user(PLAIN | {"sasl.password": text.replace("{dir}", str(secrets))})
    assert words in str(caught.value)
    assert str(caught.value).startswith("sasl.password")
    assert "hunter2" not in str(caught.value)
    assert caught.value.option == "sasl.password"


def test_in_every_option_of_every_client(monkeypatch):
    monkeypatch.setenv("HOST", "kafka-1")
    monkeypatch.setenv("WAIT", "1500")
    given = {"bootstrap.servers": "${env:HOST}:9092", "request.timeout.ms": "${env:WAIT}"}
    assert ProducerConfig.from_user(given).bootstrap_servers == ("kafka-1:9092",)
    assert ProducerConfig.from_user(None, {"bootstrap_servers": ["${env:HOST}:1"]}).bootstrap_servers == (
        "kafka-1:1",
    )
    settings = ControlSettings.from_config(given)
    assert settings.bootstrap[0].host == "kafka-1"
    assert settings.network.request_timeout_ms == 1500


def test_a_wrong_value_is_not_shown(monkeypatch):
    monkeypatch.setenv("WAIT", "hunter2")
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_user(SERVERS | {"linger.ms": "${env:WAIT}"})
    assert str(caught.value) == "linger.ms must be a whole number, not '${env:WAIT}' (str)"


@pytest.mark.parametrize("secret", ["hunter2", "hunter2\\hun'ter", 'hun"ter2'])
@pytest.mark.parametrize(
    ("name", "items"),
    [
        ("bootstrap.servers", ["${env:WORD}"]),
        ("bootstrap.servers", ["h:1", "x${env:WORD}:none"]),
        ("bootstrap.servers", ("${env:WORD}", 7)),
        ("ssl.cipher.suites", ["${env:WORD}", "${env:WORD}"]),
    ],
)
def test_a_wrong_value_in_a_list_is_not_shown(monkeypatch, name, items, secret):
    monkeypatch.setenv("WORD", secret)
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_user(SERVERS | {name: items})
    assert "hunter2" not in str(caught.value)
    assert "ter2" not in str(caught.value)
    assert "${env:WORD}" in str(caught.value)


def test_a_secret_is_read_again_and_kept_when_it_cannot_be(secrets, caplog):
    file = secrets / "word"
    config = ProducerConfig.from_user(PLAIN | {"sasl.password": f"${{file:{file}}}"})
    password = config.security.sasl.password
    assert password.value == "hunter2"
    file.write_text("hunter3")
    assert password.value == "hunter3"
    file.unlink()
    assert [password.value, password.value] == ["hunter3", "hunter3"]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "cannot be read again" in told[0]
    assert "hunter" not in told[0]
    file.write_text("hunter4")
    assert password.value == "hunter4"


def test_a_secret_cannot_be_pickled():
    with pytest.raises(TypeError, match="reference"):
        pickle.dumps(Password("hunter2"))
    assert repr(Password("hunter2")) == str(Password("hunter2")) == "[hidden]"


@pytest.mark.parametrize("value", ["plain", 'a"b', "a'b", "c\\d", "x;y=z", "l1\nl2", "\\", '"', "${env:X}"])
@pytest.mark.parametrize("quoted", ['"{}"', "'{}'", "{}"])
def test_in_jaas_a_value_is_read_back_as_it_was(value, quoted, monkeypatch):
    monkeypatch.setenv("WORD", value)
    text = f'a.B required other="it\'s" password={quoted.format("${env:WORD}")};'
    entry = parse_jaas(look_up(text, "sasl.jaas.config"))
    assert entry.options == {"other": "it's", "password": value}


def test_the_whole_of_a_jaas_text(secrets):
    (secrets / "jaas").write_text('a.B required password="x";\n')
    text = look_up(f"${{file:{secrets}/jaas}}", "sasl.jaas.config")
    assert parse_jaas(text).options == {"password": "x"}


def test_in_the_url_of_a_proxy_a_value_is_escaped(secrets, monkeypatch):
    monkeypatch.setenv("WORD", "p@s:s/w%2F")
    given = {"proxy.url": "socks5://me:${env:WORD}@proxy:1080"}
    proxy = ProducerConfig.from_user(SERVERS | given).security.proxy
    assert (proxy.host, proxy.password.value) == ("proxy", "p@s:s/w%2F")
    monkeypatch.setenv("PROXY", "http://me:x@other:8080")
    assert ProducerConfig.from_user(SERVERS | {"proxy.url": "${env:PROXY}"}).security.proxy.host == "other"
