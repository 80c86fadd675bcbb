# SPDX-License-Identifier: Apache-2.0
"""How a client talks to brokers: its options of TLS, SASL and proxies, checked against each other.

Rules:
1. What is given and would have no effect is refused: whoever sets it relies on it.
2. What contradicts is refused, as the Java client does, with the options concerned.
3. Files are not read here. What is in them is checked by the parts that use them, when the client is made.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from penstock.config.keys import KEYS
from penstock.config.kinds import Password
from penstock.errors import ConfigError
from penstock.security.proxy import ProxySettings
from penstock.security.sasl.options import sasl_settings
from penstock.security.sasl.settings import SaslSettings
from penstock.security.tls.settings import TlsSettings

# As all that is said of options: a command that reads them more than once says it once.
_logger = logging.getLogger("penstock.config.security")

_WITH_TLS: Final = ("SSL", "SASL_SSL")
_WITH_SASL: Final = ("SASL_PLAINTEXT", "SASL_SSL")
_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_PEM: Final = "PEM"

# Where the client's key may come from: the options of each way.
_STORE: Final = ("ssl.keystore.location", "ssl.keystore.password")
_TEXTS: Final = ("ssl.keystore.key", "ssl.keystore.certificate.chain")
_FILES: Final = ("ssl.certificate.location", "ssl.key.location")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """How to talk to brokers.

    Attributes:
        protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        tls: set with SSL and SASL_SSL.
        sasl: set with SASL_PLAINTEXT and SASL_SSL.
        proxy: where connections go through, if through anything.
    """

    protocol: str = "PLAINTEXT"
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
    proxy: ProxySettings | None = None

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.tls is not None

    @property
    def uses_sasl(self) -> bool:
        """Whether the client proves who it is by SASL."""
        return self.sasl is not None

    @property
    def is_plain(self) -> bool:
        """Whether connections are plain TCP to the broker."""
        return self.tls is None and self.sasl is None and self.proxy is None

    @classmethod
    def from_options(cls, values: Mapping[str, Any], explicit: AbstractSet[str]) -> SecuritySettings:
        """Make the settings, if the options fit together.

        Args:
            values: checked values by dotted names. Of the options of security those that were not set may be missing.
            explicit: the dotted names of the options that the user set.

        Raises:
            ConfigError: options contradict each other, would have no effect, or are not enough.
        """
        protocol: str = values["security.protocol"]
        # Also what is set to its default: whoever sets it relies on it.
        given = {name: values[name] for name in explicit if values.get(name) is not None}
        _refuse_without_effect(protocol, given)
        tls = sasl = proxy = None
        if protocol in _WITH_TLS:
            tls = _tls_settings(values, given)
        if protocol in _WITH_SASL:
            sasl = sasl_settings(values, given)
        if "proxy.url" in given:
            proxy = ProxySettings.parse(given["proxy.url"].value)
        return cls(protocol=protocol, tls=tls, sasl=sasl, proxy=proxy)


def _refuse_without_effect(protocol: str, given: Mapping[str, Any]) -> None:
    """Refuse options of a layer that the protocol does not have."""
    names = [name for name in KEYS if name in given and KEYS[name].ignored is None]
    of_sasl = [name for name in names if name.startswith(("sasl.", "https."))]
    of_tls = [name for name in names if name.startswith("ssl.")]
    if of_sasl and protocol not in _WITH_SASL:
        wanted = "SASL_SSL" if protocol == "SSL" or of_tls else "SASL_SSL (or SASL_PLAINTEXT)"
        raise _contradiction(
            f"{of_sasl[0]} is given, but security.protocol={protocol} does without SASL: set security.protocol to "
            f"{wanted}, or leave {of_sasl[0]} out",
            [*of_sasl, "security.protocol"],
        )
    if of_tls and protocol not in _WITH_TLS:
        wanted = "SASL_SSL" if protocol == "SASL_PLAINTEXT" else "SSL"
        raise _contradiction(
            f"{of_tls[0]} is given, but security.protocol={protocol} does without TLS: set security.protocol to "
            f"{wanted}, or leave {of_tls[0]} out",
            [*of_tls, "security.protocol"],
        )


def _contradiction(text: str, options: Iterable[str]) -> ConfigError:
    return ConfigError(text, options=tuple(options))


# ---- TLS


def _tls_settings(values: Mapping[str, Any], given: Mapping[str, Any]) -> TlsSettings:
    if "ssl.context" in given:
        return _ready_context(given)
    _check_trust(given)
    _check_identity(given)
    check_hostname = values.get("ssl.endpoint.identification.algorithm", "https") == "https"
    if not check_hostname:
        _logger.warning(
            "the host name in the brokers' certificates is not checked (ssl.endpoint.identification.algorithm): "
            "whoever has a certificate of the same CA can take a broker's place"
        )
    protocol = _newest_version(values)
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
        store_type=given.get("ssl.keystore.type"),
        key_password=given.get("ssl.key.password"),
        crl_location=given.get("ssl.crl.location"),
        protocol=protocol,
        enabled_protocols=_versions(values, protocol),
        cipher_suites=given.get("ssl.cipher.suites", ()),
        check_hostname=check_hostname,
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
    kind = given.get("ssl.keystore.type")
    _refuse_empty_text(given, _TEXTS)
    if not ways and "ssl.key.password" in given:
        raise _contradiction(
            "ssl.key.password is given without a key: add ssl.keystore.location, ssl.keystore.key or "
            "ssl.key.location",
            ["ssl.key.password"],
        )
    if ways == [_TEXTS]:
        _check_texts(given, kind)
    elif ways == [_STORE]:
        _check_store(given, kind)
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
            [_TEXTS[0], "ssl.keystore.type"],
        )


def _check_store(given: Mapping[str, Any], kind: str | None) -> None:
    location, password = _STORE
    if location not in given:
        raise _contradiction(f"{password} is given without {location}", [password, location])
    if kind == _PEM and password in given:
        raise _contradiction(
            f"{password} is given, but a PEM key store has no password: for an encrypted key use ssl.key.password",
            [password, "ssl.keystore.type"],
        )
    if kind in ("JKS", "PKCS12") and password not in given:
        raise _contradiction(f"a {kind} key store needs {password}", [location, password])


def _refuse_empty_text(given: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        text = given.get(name)
        if isinstance(text, Password) and not text.value.strip():
            raise ConfigError(f"{name} is empty; leave it out, or give PEM text", name)


def _newest_version(values: Mapping[str, Any]) -> str:
    version: str = values.get("ssl.protocol", KEYS["ssl.protocol"].default)
    return "TLSv1.3" if version == "TLS" else version


def _versions(values: Mapping[str, Any], newest: str) -> tuple[str, ...]:
    option = "ssl.enabled.protocols"
    named: tuple[str, ...] = values.get(option, KEYS[option].default)
    known = {version.lower(): version for version in _VERSIONS}
    for version in named:
        if version.lower() not in known:
            raise ConfigError(
                f"{option} has {version!r}; there are TLSv1.2 and TLSv1.3, older versions are broken and not used here",
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
