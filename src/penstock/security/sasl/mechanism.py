# SPDX-License-Identifier: Apache-2.0
"""What a mechanism of SASL is, and the register of those that are known.

A mechanism has two objects. `Credentials` is made once for a client and kept as long as that: derived keys and
tokens are kept there. For each authentication it makes a `Mechanism`, which is one dialogue and is then thrown away.

A user adds a mechanism with `register_mechanism`, before a client is made. A mechanism may have five attributes more
than the protocol asks for:

    blocks   False where `first` and `next` return at once; they are called on the I/O thread then. True by default.
    advice   what to check when the broker refuses, as an imperative sentence without a full stop.
    secrets  texts that were sent, and that must not be shown where the broker quotes them. Without it nothing that was
             sent is shown, but for the user.
    refused()   is called when the broker refuses, on the I/O thread: must not block.
    needs_sasl_authenticate   True where the last token has no answer unless it is a request: refused before 1.0.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Final, Protocol

from penstock.errors import ConfigError
from penstock.security.sasl.settings import SaslSettings


class Mechanism(Protocol):
    """One authentication on one connection.

    Attributes:
        name: as it is said to the broker.
        user: whom the client calls itself, for errors; never the secret. "" while it is not known.
    """

    name: str
    user: str

    def first(self) -> bytes:
        """The first token. May block.

        Raises:
            AuthenticationError: there is nothing to begin with, for example no token.
        """
        ...

    def next(self, challenge: bytes) -> bytes | None:
        """The answer to what the broker said; None when nothing is to be said, and the broker is accepted. May block.

        Raises:
            AuthenticationError: the broker says something wrong, or cannot prove who it is.
        """
        ...


class Credentials(Protocol):
    """What one client proves its identity with. Methods are called on any thread."""

    def mechanism(self, host: str) -> Mechanism:
        """A new authentication, with the broker of that name."""
        ...

    def close(self) -> None:
        """The client is closed: stop threads. Does not wait for them."""
        ...


# Raises ConfigError where the settings lack something. Does not block.
MechanismFactory = Callable[[SaslSettings], Credentials]

# Imported when they are asked for: some need a package that is not there.
_BUILT_IN: Final = {
    "PLAIN": "penstock.security.sasl.plain:PlainCredentials",
    "SCRAM-SHA-256": "penstock.security.sasl.scram:ScramCredentials",
    "SCRAM-SHA-512": "penstock.security.sasl.scram:ScramCredentials",
    "OAUTHBEARER": "penstock.security.sasl.oauthbearer:OAuthBearerCredentials",
    "AWS_MSK_IAM": "penstock.security.sasl.aws_msk_iam:AwsMskIamCredentials",
    "GSSAPI": "penstock.security.sasl.gssapi:GssapiCredentials",
}
_NAME: Final = re.compile(r"[A-Z0-9_-]{1,64}")

# Those of users. Process-wide, as classes are.
_registered: dict[str, MechanismFactory] = {}


def register_mechanism(name: str, factory: MechanismFactory) -> None:
    """Make a mechanism known under the name that `sasl.mechanism` gives. A built-in one may be replaced.

    Raises:
        ConfigError: that is not the name of a mechanism, or not a factory.
    """
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{name!r} is not the name of a SASL mechanism: it has capitals, digits, - and _, for example X-TICKET",
            "sasl.mechanism",
        )
    if not callable(factory):
        raise ConfigError(
            f"the factory of the SASL mechanism {name} must be callable, not {type(factory).__name__}",
            "sasl.mechanism",
        )
    _registered[name] = factory


def known_mechanisms() -> tuple[str, ...]:
    """The names of all mechanisms, in order."""
    return tuple(sorted({*_BUILT_IN, *_registered}))


def mechanism_factory(name: str) -> MechanismFactory:
    """The factory of a mechanism; the name in any case.

    Raises:
        ConfigError: nobody has registered it.
    """
    found = _registered.get(name) or _registered.get(name.upper())
    if found is not None:
        return found
    home = _BUILT_IN.get(name.upper())
    if home is None:
        raise ConfigError(
            f"sasl.mechanism: {name!r} is not known; known are {', '.join(known_mechanisms())}. "
            "Another one is added with penstock.security.sasl.mechanism.register_mechanism",
            "sasl.mechanism",
        )
    module, _, attribute = home.partition(":")
    factory: MechanismFactory = getattr(importlib.import_module(module), attribute)
    return factory
