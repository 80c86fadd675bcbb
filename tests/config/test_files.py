# SPDX-License-Identifier: Apache-2.0
"""Files that options name: what is no file is refused, at once; what is too large is not read to its end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.config.files import read_regular
from penstock.config.kinds import Password
from penstock.config.references import look_up
from penstock.errors import AuthenticationError, ConfigError
from penstock.security.oauth.settings import OAuthSettings
from penstock.security.oauth.source import token_source
from penstock.security.sasl.aws_identity import AwsIdentities
from penstock.security.sasl.settings import AwsSettings
from penstock.security.tls.context import TlsContext
from penstock.security.tls.settings import TlsSettings


def test_no_more_than_one_byte_too_many(tmp_path: Path):
    place = tmp_path / "file"
    place.write_bytes(b"0123456789")
    assert read_regular(str(place), 20) == b"0123456789"
    assert read_regular(str(place), 3) == b"0123"


def test_what_has_no_end_is_no_file(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for name in (str(tmp_path / "pipe"), "/dev/zero"):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(name, 10)
    with pytest.raises(IsADirectoryError):
        read_regular(str(tmp_path), 10)
    with pytest.raises(FileNotFoundError):
        read_regular(str(tmp_path / "none"), 10)


def assertion(path: str) -> Any:
    return OAuthSettings(
        token_endpoint_url="http://127.0.0.1:1/", grant="jwt_bearer", assertion_private_key_file=path
    )


def authority(path: str) -> Any:
    return OAuthSettings(
        token_endpoint_url="https://127.0.0.1:1/",
        client_id="a",
        client_secret=Password("hush-hush"),
        ca_location=path,
    )


def aws(path: str) -> None:
    environment = {"AWS_SHARED_CREDENTIALS_FILE": path, "AWS_EC2_METADATA_DISABLED": "true"}
    identities = AwsIdentities(AwsSettings(), environment=environment)
    identities._session = None
    identities.find()


READERS: dict[str, Callable[[str], object]] = {
    "a reference": lambda path: look_up(f"${{file:{path}}}", "sasl.password"),
    "a property of a file": lambda path: look_up(f"${{file:{path}:key}}", "sasl.password"),
    "a token": lambda path: token_source(OAuthSettings(token_endpoint_url=f"file://{path}"), None),
    "a key for assertions": lambda path: token_source(assertion(path), None),
    "a ready assertion": lambda path: token_source(
        OAuthSettings(token_endpoint_url="http://127.0.0.1:1/", grant="jwt_bearer", assertion_file=path), None
    ),
    "the authority of an endpoint": lambda path: token_source(authority(path), None),
    "a trust store": lambda path: TlsContext(TlsSettings(trust_location=path)),
    "a key store": lambda path: TlsContext(TlsSettings(store_location=path)),
    "a list of revocations": lambda path: TlsContext(TlsSettings(crl_location=path)),
    "keys of AWS": aws,
}


KINDS = ("a pipe", "a device", "a directory", "a huge file", "a cut text")
# A trust store may be a directory, and any text has properties.
FINE = (("a directory", "a trust store"), ("a cut text", "a property of a file"))


@pytest.mark.parametrize(
    ("kind", "reader"), [(kind, reader) for kind in KINDS for reader in READERS if (kind, reader) not in FINE]
)
def test_every_reader_of_files_names_what_it_cannot_use(kind: str, reader: str, tmp_path: Path):
    place = tmp_path / "it"
    if kind == "a pipe":
        os.mkfifo(place)
    elif kind == "a device":
        place.symlink_to("/dev/zero")
    elif kind == "a directory":
        place.mkdir()
    elif kind == "a huge file":
        with place.open("wb") as file:
            file.truncate(1 << 40)
    else:
        place.write_bytes(b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIF\xff")
    with pytest.raises((ConfigError, AuthenticationError)) as refused:
        READERS[reader](str(place))
    assert str(place) in str(refused.value)
    assert len(str(refused.value)) < 1000
