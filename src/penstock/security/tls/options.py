# SPDX-License-Identifier: Apache-2.0
"""From the options of TLS to settings: those of the brokers, and those of a token endpoint inside sasl.jaas.config.

Files are not read here: what they hold is checked when the context is built.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from penstock._events import Event, tell
from penstock.config.keys import KEYS
from penstock.config.kinds import Password
from penstock.errors import ConfigError
from penstock.security.tls.settings import TlsSettings

# As all that is said of options: a command that reads them more than once says it once.
_logger = logging.getLogger("penstock.config.security")

_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_PEM: Final = "PEM"

# Where the client's key may come from: the options of each way.
_STORE: Final = ("ssl.keystore.location", "ssl.keystore.password")
_TEXTS: Final = ("ssl.keystore.key", "ssl.keystore.certificate.chain")
_FILES: Final = ("ssl.certificate.location", "ssl.key.location")
_KEY_TYPE: Final = "ssl.keystore.type"

_BROKERS: Final = "the brokers' certificates"
_AS_HERE: Final[Mapping[str, str]] = MappingProxyType({})


def tls_settings(
    given: Mapping[str, Any], whose: str = _BROKERS, written: Mapping[str, str] = _AS_HERE
) -> TlsSettings:
    """Make the settings of TLS.

    Args:
        given: checked values of those that the user set, by dotted names.
        whose: certificates are checked with them, for a warning.
        written: the names that the user wrote for options that were given in other words, for later errors.

    Raises:
        ConfigError: options contradict each other, would have no effect, or are not enough.
    """
    if "ssl.context" in given:
        return _ready_context(given)
    _check_trust(given)
    _check_identity(given)
    check_hostname = given.get("ssl.endpoint.identification.algorithm", "https") == "https"
    if not check_hostname:
        tell(
            _logger, logging.WARNING, Event.SECURITY_WEAKENED,
            "the host name in %s is not checked (ssl.endpoint.identification.algorithm): anybody with a certificate of "
            "the same CA can take its place",
            whose,
            option="ssl.endpoint.identification.algorithm",
        )  # fmt: skip
    protocol = _newest_version(given)
    return TlsSettings(
        trust_location=given.get("ssl.truststore.location"),
        trust_pem=given.get("ssl.truststore.certificates"),
        trust_password=given.get("ssl.truststore.password"),
        trust_type=given.get("ssl.truststore.type"),
        key_location=given.get("ssl.key.location"),
        certificate_location=given.get("ssl.certificate.location"),
        key_pem=given.get("ssl.keystore.key"),
        certificate_pem=given.get("ssl.keystore.certificate.chain"),
        store_location=given.get("ssl.keystore.location"),
        store_password=given.get("ssl.keystore.password"),
        store_type=given.get(_KEY_TYPE),
        key_password=given.get("ssl.key.password"),
        crl_location=given.get("ssl.crl.location"),
        protocol=protocol,
        enabled_protocols=_versions(given, protocol),
        cipher_suites=given.get("ssl.cipher.suites", ()),
        check_hostname=check_hostname,
        written=written,
    )


def _ready_context(given: Mapping[str, Any]) -> TlsSettings:
    import ssl

    others = [name for name in KEYS if name in given and name.startswith("ssl.") and name != "ssl.context"]
    others = [name for name in others if KEYS[name].ignored is None]
    if others:
        raise _contradiction(
            f"ssl_context is given, so that {others[0]} would have no effect: set it in the context, or leave one of "
            "them out",
            ["ssl.context", *others],
        )
    context = given["ssl.context"]
    if isinstance(context, ssl.SSLContext) and context.protocol == ssl.PROTOCOL_TLS_SERVER:
        raise ConfigError("ssl_context is one for servers: make it with PROTOCOL_TLS_CLIENT", "ssl.context")
    if not isinstance(context, ssl.SSLContext):
        raise ConfigError(
            f"ssl_context must be an ssl.SSLContext, not {type(context).__name__}; it is made in Python code, files "
            "and Spark name certificates with ssl.truststore.location and ssl.keystore.location",
            "ssl.context",
        )
    return TlsSettings(ready_context=context)


def _check_trust(given: Mapping[str, Any]) -> None:
    location, text = "ssl.truststore.location", "ssl.truststore.certificates"
    kind, password = given.get("ssl.truststore.type"), "ssl.truststore.password"
    _refuse_empty_text(given, (text,))
    if kind is not None and location not in given and text not in given:
        raise _contradiction(
            f"ssl.truststore.type is given without {location}", ["ssl.truststore.type", location]
        )
    if text in given:
        if kind not in (None, _PEM):
            raise _contradiction(
                f"{text} is PEM text, but ssl.truststore.type is {kind}: set the type to PEM",
                [text, "ssl.truststore.type"],
            )
        if location in given:
            raise _contradiction(
                f"{text} and {location} are both given; leave one of them out", [text, location]
            )
    if password in given:
        if kind == _PEM:
            raise _contradiction(
                f"{password} is given, but a PEM trust store has no password: leave it out",
                [password, "ssl.truststore.type"],
            )
        if location not in given:
            raise _contradiction(f"{password} is given without {location}", [password, location])


def _check_identity(given: Mapping[str, Any]) -> None:
    ways = [way for way in (_STORE, _TEXTS, _FILES) if any(name in given for name in way)]
    if len(ways) > 1:
        first, second = ([name for name in way if name in given] for way in ways[:2])
        raise _contradiction(
            f"{first[0]} and {second[0]} both say what this client's key is: leave one of them out; key and "
            "certificate come the same way, both as text or both as files",
            [*first, *second],
        )
    kind = given.get(_KEY_TYPE)
    _refuse_empty_text(given, _TEXTS)
    if not ways and "ssl.key.password" in given:
        raise _contradiction(
            "ssl.key.password is given without a key: add ssl.keystore.location, ssl.keystore.key or "
            "ssl.key.location",
            ["ssl.key.password"],
        )
    if not ways and kind is not None:
        raise _contradiction(f"{_KEY_TYPE} is given without {_STORE[0]}", [_KEY_TYPE, _STORE[0]])
    if ways == [_TEXTS]:
        _check_texts(given, kind)
    elif ways == [_STORE]:
        _check_store(given, kind)
    elif ways == [_FILES] and kind not in (None, _PEM):
        raise _contradiction(
            f"{_FILES[0]} is a PEM file, but {_KEY_TYPE} is {kind}: set the type to PEM",
            [_FILES[0], _KEY_TYPE],
        )
    elif ways == [_FILES] and "ssl.certificate.location" not in given:
        raise _contradiction(
            "ssl.key.location is given without ssl.certificate.location: a key needs its certificate chain",
            ["ssl.key.location", "ssl.certificate.location"],
        )


def _check_texts(given: Mapping[str, Any], kind: str | None) -> None:
    for one, other, what in ((*_TEXTS, "a key needs its chain"), (*_TEXTS[::-1], "a chain needs its key")):
        if one in given and other not in given:
            raise _contradiction(f"{one} is given without {other}: {what}", [one, other])
    if kind not in (None, _PEM):
        raise _contradiction(
            f"{_TEXTS[0]} is PEM text, but ssl.keystore.type is {kind}: set the type to PEM",
            [_TEXTS[0], _KEY_TYPE],
        )


def _check_store(given: Mapping[str, Any], kind: str | None) -> None:
    location, password = _STORE
    if location not in given:
        raise _contradiction(f"{password} is given without {location}", [password, location])
    if kind == _PEM and password in given:
        raise _contradiction(
            f"{password} is given, but a PEM key store has no password: for an encrypted key use ssl.key.password",
            [password, _KEY_TYPE],
        )
    if kind in ("JKS", "PKCS12") and password not in given:
        raise _contradiction(f"a {kind} key store needs {password}", [location, password])


def _refuse_empty_text(given: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        text = given.get(name)
        if isinstance(text, Password) and not text.value.strip():
            raise ConfigError(f"{name} is empty; leave it out, or give PEM text", name)


def _newest_version(given: Mapping[str, Any]) -> str:
    version: str = given.get("ssl.protocol", KEYS["ssl.protocol"].default)
    return "TLSv1.3" if version == "TLS" else version


def _versions(given: Mapping[str, Any], newest: str) -> tuple[str, ...]:
    option = "ssl.enabled.protocols"
    named: tuple[str, ...] = given.get(option, KEYS[option].default)
    known = {version.lower(): version for version in _VERSIONS}
    for version in named:
        if version.lower() not in known:
            raise ConfigError(
                f"{option} has {version!r}; there are TLSv1.2 and TLSv1.3, older versions are broken. Who needs one "
                "nevertheless can give an ssl_context",
                option,
            )
    wanted = tuple(version for version in _VERSIONS if version in {known[name.lower()] for name in named})
    if not wanted:
        raise ConfigError(f"{option} is empty; it may have TLSv1.2 and TLSv1.3", option)
    if newest == "TLSv1.2" and "TLSv1.2" not in wanted:
        raise _contradiction(
            f"ssl.protocol=TLSv1.2 is the newest version allowed, and {option} has only TLSv1.3",
            ["ssl.protocol", option],
        )
    return wanted


def _contradiction(text: str, options: Iterable[str]) -> ConfigError:
    return ConfigError(text, options=tuple(options))
