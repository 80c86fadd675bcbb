# SPDX-License-Identifier: Apache-2.0
"""PLAIN (RFC 4616): user and password in the clear, so only over TLS."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import AuthenticationError, ConfigError
from penstock.security.sasl.settings import SaslSettings

_NAME = "PLAIN"


def user_and_password(settings: SaslSettings) -> tuple[str, str]:
    """The two, both not empty and such that they can be sent.

    Raises:
        ConfigError: one is missing or cannot be sent.
    """
    user = settings.username
    password = None if settings.password is None else settings.password.value
    for what, option, value in (
        ("user name", "sasl.username", user),
        ("password", "sasl.password", password),
    ):
        if not value:
            raise ConfigError(
                f"the SASL mechanism {settings.mechanism} needs a {what}: set username and password in "
                "sasl.jaas.config, or sasl.username and sasl.password",
                option,
            )
        if "\0" in value or not _is_text(value):
            # The value is not shown: it may be the password.
            raise ConfigError(
                f"the {what} of the SASL mechanism {settings.mechanism} cannot be sent: it holds a "
                "NUL character or half of a surrogate pair",
                option,
            )
    assert user is not None
    assert password is not None
    return user, password


def _is_text(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)


class PlainCredentials:
    """User and password. The authorization id is left empty, as Java does.

    The password is asked for anew for each authentication: it may have been replaced where it is kept.
    """

    def __init__(self, settings: SaslSettings) -> None:
        self._settings = settings
        self._user, _ = user_and_password(settings)

    def mechanism(self, host: str) -> PlainMechanism:  # the same for every broker
        """A new authentication."""
        password = self._settings.password
        return PlainMechanism(self._user, self._token, blocks=password is not None and password.is_read_anew)

    def _token(self) -> bytes:
        user, password = user_and_password(self._settings)
        return f"\0{user}\0{password}".encode()

    def close(self) -> None:
        """Nothing to stop."""

    def __repr__(self) -> str:
        return f"<PlainCredentials of {self._user!r}>"


class PlainMechanism:
    """One token, and an empty answer.

    Args:
        user: the name.
        give_token: gives the token.
        blocks: whether that may take a while: a password may stand in a file, and the file on a machine that is down.
    """

    __slots__ = ("_give_token", "blocks", "user")

    name = _NAME
    advice = "check the user name and the password (sasl.jaas.config, or sasl.username and sasl.password)"

    def __init__(self, user: str, give_token: Callable[[], bytes], *, blocks: bool) -> None:
        self.user = user
        self.blocks = blocks
        self._give_token = give_token

    def first(self) -> bytes:
        """User and password.

        Raises:
            AuthenticationError: the password was replaced by one that cannot be sent.
        """
        try:
            return self._give_token()
        except ConfigError as error:
            raise AuthenticationError(str(error), mechanism=_NAME, user=self.user) from None

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
