# SPDX-License-Identifier: Apache-2.0
"""What TLS needs to know of the configuration.

Which options may stand together is checked where these settings are made; what the files hold is checked by the
context that is built from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.config.kinds import Password

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Settings of the TLS connections of one client.

    Attributes:
        trust_location: `ssl.truststore.location`: a file with trusted certificates (PEM, JKS or PKCS#12), or a
            directory of PEM files named by hash, as OpenSSL uses it. With neither this nor trust_pem the roots of the
            system are trusted.
        trust_pem: `ssl.truststore.certificates`: trusted certificates as PEM text.
        trust_password: `ssl.truststore.password`.
        trust_type: `ssl.truststore.type`, as it was given: JKS, PKCS12 or PEM. Files are distinguished by what they
            hold, and must fit it; as in Java JKS and PKCS12 mean either of the two.
        key_location: `ssl.key.location`: a PEM file with the private key.
        certificate_location: `ssl.certificate.location`: a PEM file with the client's certificate and its chain. It may
            hold the key as well, then key_location is None.
        key_pem: `ssl.keystore.key`: the private key as PEM text.
        certificate_pem: `ssl.keystore.certificate.chain`: the chain as PEM text, the client's own certificate first.
        store_location: `ssl.keystore.location`: a file with key and chain (PEM, JKS or PKCS#12).
        store_password: `ssl.keystore.password`.
        store_type: `ssl.keystore.type`, like trust_type.
        key_password: `ssl.key.password`; where it is None the key of a JKS or PKCS#12 store has the store's password.
        crl_location: `ssl.crl.location`: a PEM file with revocation lists.
        protocol: `ssl.protocol`: the newest version that may be used, TLSv1.2 or TLSv1.3.
        enabled_protocols: `ssl.enabled.protocols`: the versions that may be used; not empty, and not all newer than
            `protocol`.
        cipher_suites: `ssl.cipher.suites`: IANA or OpenSSL names; empty leaves OpenSSL's choice.
        check_hostname: whether the certificate must be for the host that the connection goes to.
        ready_context: `ssl_context`: a context that the user has made; everything else is ignored then.
        written: the names that the user wrote for options that were given in other words. Errors have these.
    """

    trust_location: str | None = None
    trust_pem: Password | None = None
    trust_password: Password | None = None
    trust_type: str | None = None
    key_location: str | None = None
    certificate_location: str | None = None
    key_pem: Password | None = None
    certificate_pem: Password | None = None
    store_location: str | None = None
    store_password: Password | None = None
    store_type: str | None = None
    key_password: Password | None = None
    crl_location: str | None = None
    protocol: str = "TLSv1.3"
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    check_hostname: bool = True
    ready_context: ssl.SSLContext | None = None
    written: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
