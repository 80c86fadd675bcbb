# SPDX-License-Identifier: Apache-2.0
"""A token that somebody else writes to a file, as Kubernetes does. It is read again when the file has changed."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock.config.files import UnreadableError, read_file
from penstock.errors import ConfigError
from penstock.security.oauth.settings import OAuthSettings
from penstock.security.oauth.token import (
    MOST_CHARACTERS,
    BadTokenError,
    NoTokenError,
    Token,
    check_is_jwt,
    token_from,
)

_OPTION: Final = "sasl.oauthbearer.token.endpoint.url"


def path_of(url: str) -> str:
    """The path of a `file:` URL.

    Raises:
        ConfigError: it names another machine, or no file.
    """
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise ConfigError(f"{_OPTION}: {url} names a file of another machine; write file:///path", _OPTION)
    path = unquote(parts.path)
    if not path:
        raise ConfigError(f"{_OPTION}: {url} names no file; write file:///path", _OPTION)
    return path


def read_bounded(path: str, what: str, limit: int) -> bytes:
    """A whole file that must not be large.

    Raises:
        NoTokenError: it cannot be read, or is too large.
    """
    try:
        return read_file(path, limit)
    except UnreadableError as error:
        raise NoTokenError(f"{what} {path} {error}") from None


class TokenFileSource:
    """The file that `sasl.oauthbearer.token.endpoint.url` names. Read at once, so that a wrong one is an error at once.

    Raises:
        ConfigError: there is no token in it.
    """

    def __init__(self, settings: OAuthSettings) -> None:
        assert settings.token_endpoint_url is not None
        self._settings = settings
        self._path = path_of(settings.token_endpoint_url)
        self.name = f"the token file {self._path!r}"
        self.trouble = ""
        self._seen: tuple[int, int, int] | None = None
        self._token: Token | None = None
        try:
            self.fetch()
        except NoTokenError as error:
            raise ConfigError(f"{_OPTION}: {error}", _OPTION) from None

    def fetch(self) -> Token:
        """The token in the file; that of the last time where the file has not changed.

        Raises:
            NoTokenError: the file cannot be read, or holds none.
        """
        stamp = self._stamp()
        if self._token is not None and stamp == self._seen:
            return self._token
        data = read_bounded(self._path, "the token file", MOST_CHARACTERS)
        try:
            token = token_from(data, sub_claim=self._settings.sub_claim_name)
            check_is_jwt(token.value, self._settings.sub_claim_name, self._settings.scope_claim_name)
        except BadTokenError as error:
            raise NoTokenError(
                f"the token file {self._path!r} has no token that can be used: {error}"
            ) from None
        self._token, self._seen = token, stamp
        return token

    def stop(self) -> None:
        """Do nothing: no request is under way."""

    def leave(self) -> None:
        """Do nothing: there is nothing to close."""

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self._path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no such path can be"
            raise NoTokenError(f"the token file {self._path!r} cannot be read: {reason}") from None
        return (found.st_mtime_ns, found.st_size, found.st_ino)
