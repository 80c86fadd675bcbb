# SPDX-License-Identifier: Apache-2.0
"""Each configuration on the page about security passes the checks of the options, and the page leaves nothing out."""

from __future__ import annotations

import re
import sys
import tomllib
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pytest

import penstock
from penstock.config import references
from penstock.config.config import ProducerConfig
from penstock.config.secrets import given_in_the_clear
from penstock.config.security_keys import REFUSED, SECURITY_NAMES, SPELLINGS
from penstock.control.client import ControlSettings
from penstock.spark.options import SinkOptions, parse_options

PAGE = Path(__file__).resolve().parent.parent / "docs" / "security.md"
TEXT = PAGE.read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SECRET = "the-secret"
FILES = {
    "/etc/user/sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="orders" password="{SECRET}";'
    )
}


def blocks(language: str) -> list[str]:
    return [text for found, text in _BLOCK.findall(TEXT) if found == language]


@pytest.fixture(autouse=True)
def kept_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every reference of the page lead somewhere."""
    for name in re.findall(r"\$\{env:(\w+)\}", TEXT):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setattr(references, "_text_of", lambda path: FILES.get(path, f"{SECRET}\n"))


def check(config: ProducerConfig) -> None:
    assert config.security is not None
    assert SECRET not in repr(config)
    assert SECRET not in repr(config.security)
    sasl = config.security.sasl
    if sasl is not None and sasl.password is not None:
        assert sasl.password.value == SECRET


@pytest.mark.parametrize("text", blocks("properties"))
def test_the_properties(text: str, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(text, encoding="utf-8")
    config = ProducerConfig.from_user(path)
    check(config)
    given = {name: value for name, value in config.as_dict().items() if name in config.explicit}
    assert ControlSettings.from_config(given).security is not None
    raw = dict(line.split("=", 1) for line in re.sub(r"\\\n\s*", "", text).splitlines())
    assert given_in_the_clear(raw) == []


class FakeProducer:
    """In the place of a producer: it only reads its options."""

    made: list[ProducerConfig]

    def __init__(self, config: Any = None, /, **options: Any) -> None:
        self.made.append(ProducerConfig.from_user(config, options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, *_: object) -> None:
        """Do nothing."""


class Writer:
    """In the place of a DataFrame's writer."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}

    @property
    def write(self) -> Writer:
        return self

    def option(self, name: str, value: str) -> Writer:
        self.options[name] = value
        return self

    def format(self, _: str) -> Writer:
        return self

    def mode(self, _: str) -> Writer:
        return self

    def save(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("text", blocks("python"))
def test_the_code(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penstock, "Producer", FakeProducer)
    signer = types.ModuleType("aws_msk_iam_sasl_signer")
    signer.MSKAuthTokenProvider = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", signer)
    FakeProducer.made = []
    frame = Writer()
    exec(compile(text, str(PAGE), "exec"), {"frame": frame})
    if frame.options:
        check_sink(parse_options(frame.options, streaming=False))
    else:
        (config,) = FakeProducer.made
        check(config)


@pytest.mark.parametrize("text", blocks("toml"))
def test_the_pipelines(text: str) -> None:
    options = dict(_flat(tomllib.loads(text)["sink"]["options"]))
    check_sink(parse_options({**options, "topic": "t"}, streaming=False))


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def check_sink(options: SinkOptions) -> None:
    check(ProducerConfig.from_user(options.producer))
    assert given_in_the_clear(options.producer) == []


def test_there_are_recipes_of_each_kind() -> None:
    assert [len(blocks(kind)) > 0 for kind in ("properties", "python", "toml", "console")] == [True] * 4
    mechanisms = set(re.findall(r"sasl.mechanism=(\S+)", "".join(blocks("properties"))))
    assert mechanisms >= {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI"}


def test_every_option_that_the_page_names_is_known() -> None:
    known = {*SECURITY_NAMES, *SPELLINGS, *REFUSED, "security.protocol", "ssl.SSLContext"}
    known |= {name.replace(".", "_") for name in known} | {"https_proxy"}  # a variable of the environment
    named = re.findall(r"`((?:ssl|sasl|https|proxy|enable|oauth|socks5)[._][\w.]+[a-z])`", TEXT)
    assert len(named) > 50
    assert sorted(set(named) - known) == []
