# SPDX-License-Identifier: Apache-2.0
"""A token in a file."""

from __future__ import annotations

import os

import pytest
from security.oauth.tokens import jwt

from penstock.errors import ConfigError
from penstock.security.oauth.settings import OAuthSettings
from penstock.security.oauth.source import token_source
from penstock.security.oauth.token import NoTokenError
from penstock.security.oauth.token_file import TokenFileSource, path_of


def source_of(path) -> TokenFileSource:
    return TokenFileSource(OAuthSettings(token_endpoint_url=f"file://{path}"))


def test_the_token_of_a_file_is_read_again_when_the_file_has_changed(tmp_path):
    file = tmp_path / "token"
    file.write_text(jwt(sub="one") + "\n")
    source = source_of(file)
    first = source.fetch()
    assert first.principal == "one"
    assert source.fetch() is first
    file.write_text(jwt(sub="another"))
    assert source.fetch().principal == "another"


def test_a_file_that_is_replaced_at_once_is_noticed(tmp_path):
    file, other = tmp_path / "token", tmp_path / "new"
    one, two = jwt(sub="one"), jwt(sub="two")
    file.write_text(one)
    source = source_of(file)
    other.write_text(two)
    stat = os.stat(file)
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    os.replace(other, file)
    assert source.fetch().principal == "two"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"\xff\xfe\x00", "characters other"),
        (b"two words", "characters other"),
        (b"opaque", "is it cut"),
        (jwt().encode()[:-40], "is it cut"),
        (jwt(exp=None).encode(), "no claim exp"),
        (b"a" * 600_000, "more than 500000 bytes"),
    ],
)
def test_a_file_without_a_token_is_told_when_the_client_is_made(tmp_path, content, why):
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=why) as caught:
        source_of(file)
    assert str(file) in str(caught.value)
    assert caught.value.option == "sasl.oauthbearer.token.endpoint.url"


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        source_of(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="is not a file"):
        source_of(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe is not a file"):
        source_of(tmp_path / "pipe")
    for option in ("assertion_file", "assertion_private_key_file"):
        given = {option: str(tmp_path / "pipe")}
        with pytest.raises(ConfigError, match="pipe is not a file"):
            token_source(OAuthSettings(token_endpoint_url="http://idp/t", grant="jwt_bearer", **given), None)


def test_a_file_that_went_wrong_later(tmp_path):
    file = tmp_path / "token"
    file.write_text(jwt())
    source = source_of(file)
    file.write_text("rubbish here")
    with pytest.raises(NoTokenError, match="characters other"):
        source.fetch()
    file.unlink()
    with pytest.raises(NoTokenError, match="cannot be read"):
        source.fetch()
    file.write_text(jwt(sub="again"))
    assert source.fetch().principal == "again"


@pytest.mark.parametrize(
    ("url", "path"),
    [("file:///a/b%20c", "/a/b c"), ("file:/a/b", "/a/b"), ("file://localhost/a", "/a"), ("FILE:///x", "/x")],
)
def test_urls_of_files(url, path):
    assert path_of(url) == path


@pytest.mark.parametrize("url", ["file://host/a", "file:", "file://"])
def test_urls_that_name_no_file_here(url):
    with pytest.raises(ConfigError):
        path_of(url)


def test_the_source_is_chosen_by_the_url(tmp_path):
    file = tmp_path / "token"
    file.write_text(jwt())
    assert isinstance(token_source(OAuthSettings(token_endpoint_url=f"file://{file}"), None), TokenFileSource)
