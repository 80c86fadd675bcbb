# SPDX-License-Identifier: Apache-2.0
"""How a client connects to brokers: its options of TLS, SASL and proxies, checked against each other.

Rules:
1. What is given and would have no effect is refused: the user relies on it.
2. What contradicts is refused, as the Java client does, with the options concerned.
3. Files are not read here. What is in them is checked by the parts that use them, when the client is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.config.frames import without_inner_frames
from penstock.config.keys import KEYS
from penstock.config.names import in_written_words
from penstock.config.security_keys import no_probe
from penstock.errors import ConfigError
from penstock.security.proxy import ProxySettings
from penstock.security.sasl.options import sasl_settings
from penstock.security.sasl.settings import SaslSettings
from penstock.security.tls.options import tls_settings
from penstock.security.tls.settings import TlsSettings

if TYPE_CHECKING:
    from penstock.network.backend import NetworkBackend
    from penstock.network.settings import NetworkSettings

_WITH_TLS: Final = ("SSL", "SASL_SSL")
_WITH_SASL: Final = ("SASL_PLAINTEXT", "SASL_SSL")
_ENDPOINT_CA: Final = "https.ca.location"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """How to connect to brokers.

    Attributes:
        protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        tls: set with SSL and SASL_SSL.
        sasl: set with SASL_PLAINTEXT and SASL_SSL.
        proxy: where connections go through, if through anything.
        written: the names that the user wrote for options that were given in another client's words.
    """

    protocol: str = "PLAINTEXT"
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
    proxy: ProxySettings | None = None
    written: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_plain(self) -> bool:
        """Whether connections are plain TCP to the broker."""
        return self.tls is None and self.sasl is None and self.proxy is None

    @without_inner_frames
    def backend(self, network: NetworkSettings) -> NetworkBackend:
        """The operating system as a client with these settings sees it.

        Raises:
            ConfigError: a file cannot be used, or a mechanism is not known.
        """
        from penstock.security.backend import secure_backend  # it knows these settings

        with in_written_words(_but_tls(self.written)):
            return secure_backend(network, self)

    @classmethod
    def from_options(
        cls, values: Mapping[str, Any], explicit: AbstractSet[str], written: Mapping[str, str]
    ) -> SecuritySettings:
        """Make the settings, if the options fit together.

        Args:
            values: checked values by dotted names. Of the options of security those that were not set may be missing.
            explicit: the dotted names of the options that the user set.
            written: the names that the user wrote for options that were given in another client's words.

        Raises:
            ConfigError: options contradict each other, would have no effect, or are not enough.
        """
        protocol: str = values["security.protocol"]
        # Also what is set to its default: the user relies on it.
        given = {name: values[name] for name in explicit if values.get(name) is not None}
        if no_probe(given.get(_ENDPOINT_CA)) is None:
            given.pop(_ENDPOINT_CA, None)
        tls = sasl = proxy = None
        with in_written_words(written):
            _refuse_without_effect(protocol, given)
            if protocol in _WITH_TLS:
                tls = tls_settings(given, written=written)
        with in_written_words(_but_tls(written)):
            if protocol in _WITH_SASL:
                sasl = sasl_settings(given, values.get("socket.connection.setup.timeout.ms"))
            if "proxy.url" in given:
                proxy = ProxySettings.parse(given["proxy.url"].value)
        return cls(protocol=protocol, tls=tls, sasl=sasl, proxy=proxy, written=written)


def _but_tls(written: Mapping[str, str]) -> Mapping[str, str]:
    """Without ssl.*: where SASL names such an option, it means one inside sasl.jaas.config."""
    return {here: name for here, name in written.items() if not here.startswith("ssl.")}


def _refuse_without_effect(protocol: str, given: Mapping[str, Any]) -> None:
    """Refuse options of a layer that the protocol does not have."""
    names = [name for name in KEYS if name in given and KEYS[name].ignored is None]
    of_sasl = [name for name in names if name.startswith(("sasl.", "https."))]
    of_tls = [name for name in names if name.startswith("ssl.")]
    if of_sasl and protocol not in _WITH_SASL:
        wanted = "SASL_SSL" if protocol == "SSL" or of_tls else "SASL_SSL (or SASL_PLAINTEXT)"
        raise ConfigError(
            f"{of_sasl[0]} is given, but security.protocol={protocol} does without SASL: set security.protocol to "
            f"{wanted}, or leave {of_sasl[0]} out",
            options=(*of_sasl, "security.protocol"),
        )
    if of_tls and protocol not in _WITH_TLS:
        wanted = "SASL_SSL" if protocol == "SASL_PLAINTEXT" else "SSL"
        raise ConfigError(
            f"{of_tls[0]} is given, but security.protocol={protocol} does without TLS: set security.protocol to "
            f"{wanted}, or leave {of_tls[0]} out",
            options=(*of_tls, "security.protocol"),
        )
