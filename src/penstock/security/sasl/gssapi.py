# SPDX-License-Identifier: Apache-2.0
"""GSSAPI (RFC 4752): Kerberos. Needs the package `gssapi`, which the extra of that name brings.

The dialogue: tokens of Kerberos until both sides know each other; then the broker says which layers of protection it
offers, and the client chooses none, which is all that Kafka knows: TLS protects instead. Each step may send requests to
the key distribution centre, so none is done on the I/O thread.

After its last token a broker before 1.0 says nothing, so that one cannot be served.

The library keeps each ticket until it ends, also one that a broker does not take any more because its own key was
changed. So tickets of a keytab are forgotten when a broker refuses them; those of a ticket cache belong to others.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from typing import Any, Final, TypeVar

from penstock._extras import how_to_install
from penstock.errors import AuthenticationError, ConfigError
from penstock.security.quoting import quoted
from penstock.security.sasl.settings import KerberosSettings, SaslSettings

T = TypeVar("T")

_NAME: Final = "GSSAPI"
_NO_LAYER: Final = 1
_MOST_BYTES: Final = 524_288
# Seconds between two times that tickets are forgotten.
_FIRST_PAUSE: Final = 10.0
_LONGEST_PAUSE: Final = 3600.0

_CLOCKS: Final = (
    "set the clocks of this machine, the KDC and the broker: they may differ by five minutes at most"
)
_ASK: Final = "ask the administrator of the KDC about the principal: it is locked, or its time is over"
_OLD_KEY: Final = "check the keytab: the key of the principal may have been changed"
# What MIT's library says, in small letters, and what to do about it. The first that is found counts: the general words
# come last, because they stand beside the particular ones.
_ADVICE: Final = (
    ("cannot contact any kdc", "check the network to the KDC, and krb5.conf"),
    ("cannot find kdc", "check the realm, and krb5.conf"),
    ("cannot resolve", "check the KDC's name in krb5.conf, and that it is known here"),
    ("configuration file", "check krb5.conf"),
    ("clock skew", _CLOCKS),
    ("not yet valid", _CLOCKS),
    ("entry in database has expired", _ASK),
    ("password has expired", _ASK),
    ("revoked", _ASK),
    ("expired", "run kinit again, or use a keytab"),
    (
        "encryption type",
        "check the encryption types in krb5.conf, and those of the keytab (`klist -ke FILE`)",
    ),
    ("decrypt integrity", _OLD_KEY),
    ("preauthentication failed", _OLD_KEY),
    ("in cache collection", ""),
    ("does not match desired name", ""),
    ("server krbtgt/", "check the realm of the brokers: [domain_realm] in krb5.conf"),
    ("server ", "check sasl.kerberos.service.name, and address the brokers by the names in their principals"),
    ("client ", "check the principal"),
    ("no credentials", ""),
    ("no kerberos credentials", ""),
)
_KEYTAB_ADVICE: Final = "check principal and keyTab: `klist -k {}` shows what the keytab has keys for"
_CACHE_ADVICE: Final = "run kinit, or set useKeyTab=true, keyTab and principal in sasl.jaas.config"


class GssapiCredentials:
    """The Kerberos identity of a client.

    Raises:
        ConfigError: the package is missing, or the keytab cannot be read.
    """

    def __init__(self, settings: SaslSettings) -> None:
        self._library = _import_gssapi()
        self._kerberos = settings.kerberos or KerberosSettings()
        if not self._kerberos.service_name:
            raise ConfigError(
                "GSSAPI needs the first part of the brokers' principals: set sasl.kerberos.service.name, usually kafka",
                "sasl.kerberos.service.name",
            )
        keytab = self._kerberos.keytab
        if keytab is not None and not os.access(keytab, os.R_OK):
            raise ConfigError(f"the keytab {keytab} is not there, or cannot be read", "sasl.jaas.config")
        if keytab is not None and self._kerberos.principal is None:
            raise ConfigError(f"the keytab {keytab} needs a principal beside it", "sasl.jaas.config")
        self._tickets = KeptTickets()

    def mechanism(self, host: str) -> GssapiMechanism:
        return GssapiMechanism(self._library, self._kerberos, host, self._tickets)

    def close(self) -> None:
        """Do nothing: no thread and no file is open."""

    def __repr__(self) -> str:
        return f"<GssapiCredentials of {self._kerberos.principal or 'the ticket cache'}>"


class KeptTickets:
    """Where the tickets that a keytab gives are kept, in memory, and renewed by the library.

    They cannot be deleted: to forget them is to use another place. The old one stays, with a few kilobytes, so it is
    done ever less often where a broker goes on refusing.

    Args:
        now: monotonic seconds.

    Attributes:
        place: the name of the cache.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._pause = _FIRST_PAUSE
        self._next_at = now()
        self.place = _new_place()

    def forget(self, place: str) -> None:
        """A broker has refused the tickets of that place. Does not block."""
        now = self._now()
        if place == self.place and now >= self._next_at:
            self.place = _new_place()
            self._next_at = now + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def keep(self) -> None:
        """A broker has taken them."""
        self._pause = _FIRST_PAUSE


class GssapiMechanism:
    """One dialogue.

    Args:
        library: the package gssapi.
        kerberos: whose tickets, for which service.
        host: the broker's name.
        tickets: those that a keytab gives.
    """

    name = _NAME
    needs_sasl_authenticate = True

    def __init__(self, library: Any, kerberos: KerberosSettings, host: str, tickets: KeptTickets) -> None:
        self._library = library
        self._kerberos = kerberos
        self._service = f"{kerberos.service_name}/{(kerberos.host or host).rstrip('.')}"
        self._tickets = tickets
        self._place = tickets.place
        self._context: Any = None
        self._step: Callable[[bytes], bytes | None] = self._continue_context
        self.user = kerberos.principal or ""

    @property
    def advice(self) -> str:
        """What to check when the broker refuses."""
        again = "" if self._kerberos.keytab is not None else ", run kinit again where its key was changed"
        return (
            f"check that the broker's own principal is {self._service} and that its keytab is up to date{again}, and "
            "that the clocks of this machine and of the broker agree"
        )

    def first(self) -> bytes:
        """The first token of Kerberos.

        Raises:
            AuthenticationError: there is no ticket.
        """
        return self._guarded(self._begin)

    def next(self, challenge: bytes) -> bytes | None:
        """The next token, the choice of the layer, or the end.

        Raises:
            AuthenticationError: the broker's proof is wrong, or it offers nothing that Kafka knows.
        """
        if len(challenge) > _MOST_BYTES:
            raise self._error(f"the broker sent {len(challenge)} bytes")
        return self._guarded(lambda: self._step(challenge))

    def refused(self) -> None:
        """The broker does not take the ticket."""
        self._tickets.forget(self._place)

    def _begin(self) -> bytes:
        library = self._library
        service, _, host = self._service.partition("/")
        target = library.Name(f"{service}@{host}", name_type=library.NameType.hostbased_service)
        self._context = library.SecurityContext(
            name=target, usage="initiate", creds=self._acquire(), mech=library.MechType.kerberos
        )
        token: bytes | None = self._context.step()
        if self._context.complete:
            self._step = self._choose_layer
        return token or b""

    def _acquire(self) -> Any:
        library, kerberos = self._library, self._kerberos
        store = {}
        if kerberos.keytab is not None:
            store = {"client_keytab": kerberos.keytab, "ccache": self._place}
        elif kerberos.ticket_cache is not None:
            store = {"ccache": kerberos.ticket_cache}
        name = None
        if kerberos.principal is not None:
            name = library.Name(kerberos.principal, name_type=library.NameType.kerberos_principal)
        if not store and name is None:
            return None  # the default cache
        return library.Credentials(usage="initiate", name=name, store=store or None)

    def _continue_context(self, challenge: bytes) -> bytes:
        if not challenge:
            raise self._error("the broker said nothing, where a token of Kerberos is expected")
        token: bytes | None = self._context.step(challenge)
        if self._context.complete:
            self._step = self._choose_layer
        elif not token:
            raise self._error("the exchange of Kerberos has come to a stop")
        return token or b""

    def _choose_layer(self, challenge: bytes) -> bytes:
        offered: bytes = self._context.unwrap(challenge).message
        if len(offered) != 4:
            raise self._error(f"the broker's offer of layers has {len(offered)} bytes, not 4")
        if not offered[0] & _NO_LAYER:
            raise self._error(
                "the broker insists on a layer of protection by Kerberos, which Kafka does not know"
            )
        if not self.user:
            self.user = str(self._context.initiator_name)
        chosen = bytes((_NO_LAYER, 0, 0, 0)) + self.user.encode()
        self._step = self._end
        answer: bytes = self._context.wrap(chosen, False).message
        return answer

    def _end(self, challenge: bytes) -> None:
        if challenge:
            raise self._error(f"the broker sent {len(challenge)} bytes after the exchange had ended")
        self._tickets.keep()

    def _guarded(self, step: Callable[[], T]) -> T:
        try:
            return step()
        except self._library.exceptions.GSSError as error:
            said = quoted(str(error))
        advice = next((advice for words, advice in _ADVICE if words in said.lower()), self.advice)
        if not advice:
            keytab = self._kerberos.keytab
            advice = _CACHE_ADVICE if keytab is None else _KEYTAB_ADVICE.format(quoted(keytab))
        raise self._error(f"Kerberos, for the service {self._service}: {said}; {advice}")

    def _error(self, text: str) -> AuthenticationError:
        return AuthenticationError(text, mechanism=_NAME, user=self.user or None)

    def __repr__(self) -> str:
        return f"<GssapiMechanism for {self._service}>"


def _new_place() -> str:
    return f"MEMORY:penstock-{uuid.uuid4().hex}"


def _import_gssapi() -> Any:
    try:
        import gssapi
    except ImportError as error:
        raise ConfigError(
            "the SASL mechanism GSSAPI, which is meant where sasl.mechanism is not set, needs the package gssapi: "
            f"{how_to_install('gssapi', 'gssapi')}. It has no built packages: a C "
            "compiler and the headers of MIT Kerberos are needed (libkrb5-dev on Debian and Ubuntu, "
            f"krb5-devel on Fedora and RHEL). The import failed with: {quoted(str(error))}",
            "sasl.mechanism",
        ) from None
    return gssapi
