# SPDX-License-Identifier: Apache-2.0
"""PLAIN (RFC 4616): user and password in the clear, so only over TLS."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import AuthenticationError, ConfigError
from penstock.security.sasl.settings import SaslSettings

_NAME = "PLAIN"


def user_and_password(settings: SaslSettings) -> tuple[str, str]:
    """The two as they are now, both not empty and such that they can be sent.

    Raises:
        ConfigError: one is missing or cannot be sent.
    """
    if settings.read_login is not None:
        user, password = settings.read_login()
    else:
        user = settings.username or ""
        password = "" if settings.password is None else settings.password.value
    for what, option, value in (("username", "sasl.username", user), ("password", "sasl.password", password)):
        options = (option, "sasl.jaas.config", "sasl.mechanism")
        if not value:
            raise ConfigError(
                f"{settings.mechanism} needs a {what}: set {option}, or {what} in sasl.jaas.config",
                option,
                options,
            )
        if "\0" in value or not _is_text(value):
            # The value is not shown: it may be the password.
            raise ConfigError(
                f"the {what} of {settings.mechanism} cannot be sent: it holds a NUL character or half of a "
                "surrogate pair",
                option,
                options,
            )
    return user, password


def _is_text(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)


class PlainCredentials:
    """User and password. The authorization id is left empty, as Java does.

    They are read again for each authentication: they may have been replaced where they are kept.
    """

    def __init__(self, settings: SaslSettings) -> None:
        self._settings = settings
        self._user, _ = user_and_password(settings)

    def mechanism(self, host: str) -> PlainMechanism:  # the same for every broker
        password = self._settings.password
        reads_anew = self._settings.read_login is not None or (password is not None and password.is_read_anew)
        return PlainMechanism(self._user, self._login, blocks=reads_anew)

    def _login(self) -> tuple[str, str]:
        return user_and_password(self._settings)

    def close(self) -> None:
        """Do nothing: no thread and no file is open."""

    def __repr__(self) -> str:
        return f"<PlainCredentials of {self._user!r}>"


class PlainMechanism:
    """One token, and an empty answer.

    Args:
        user: the name.
        login: gives user and password.
        blocks: whether that may take a while: a password may stand in a file, and the file on a machine that is down.
    """

    __slots__ = ("_login", "blocks", "secrets", "user")

    name = _NAME
    advice = "check the user name and the password (sasl.jaas.config, or sasl.username and sasl.password)"

    def __init__(self, user: str, login: Callable[[], tuple[str, str]], *, blocks: bool) -> None:
        self.user = user
        self.blocks = blocks
        self.secrets: tuple[str, ...] = ()  # the password, once it was sent
        self._login = login

    def first(self) -> bytes:
        """User and password.

        Raises:
            AuthenticationError: the password was replaced by one that cannot be sent.
        """
        try:
            self.user, password = self._login()
        except ConfigError as error:
            raise AuthenticationError(str(error), mechanism=_NAME, user=self.user) from None
        self.secrets = (password,)
        return f"\0{self.user}\0{password}".encode()

    def next(self, challenge: bytes) -> None:
        """The broker is satisfied.

        Raises:
            AuthenticationError: it asks for more, which PLAIN does not have.
        """
        if challenge:
            raise AuthenticationError(
                f"the broker answered PLAIN with {len(challenge)} bytes, where it has nothing to ask",
                mechanism=_NAME,
                user=self.user,
            )

    def __repr__(self) -> str:
        return f"<PlainMechanism of {self.user!r}>"
