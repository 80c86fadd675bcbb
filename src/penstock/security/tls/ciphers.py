# SPDX-License-Identifier: Apache-2.0
"""Names of cipher suites: Java and the standards have one for each, OpenSSL has another.

Python cannot choose among the suites of TLS 1.3 before 3.15; they are all on, and all are good.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from typing import Any, Final

from penstock._events import Event, tell
from penstock.errors import ConfigError

_logger = logging.getLogger("penstock.security")

_OPTION: Final = "ssl.cipher.suites"

TLS_1_3: Final = (
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_128_CCM_SHA256",
    "TLS_AES_128_CCM_8_SHA256",
)

# The suites of TLS 1.2 that brokers have. What is missing is insecure, or used by no broker.
TLS_1_2: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384": "DHE-RSA-AES256-GCM-SHA384",
    "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256": "DHE-RSA-AES128-GCM-SHA256",
    "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "DHE-RSA-CHACHA20-POLY1305",
    "TLS_DHE_DSS_WITH_AES_256_GCM_SHA384": "DHE-DSS-AES256-GCM-SHA384",
    "TLS_DHE_DSS_WITH_AES_128_GCM_SHA256": "DHE-DSS-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384": "ECDHE-ECDSA-AES256-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384": "ECDHE-RSA-AES256-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256": "DHE-RSA-AES256-SHA256",
    "TLS_DHE_RSA_WITH_AES_128_CBC_SHA256": "DHE-RSA-AES128-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_DHE_RSA_WITH_AES_256_CBC_SHA": "DHE-RSA-AES256-SHA",
    "TLS_DHE_RSA_WITH_AES_128_CBC_SHA": "DHE-RSA-AES128-SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA256": "AES256-SHA256",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
}
# Not a suite, but a word in its place: Java puts it into the list of suites to say that it knows RFC 5746.
_SIGNAL: Final = "TLS_EMPTY_RENEGOTIATION_INFO_SCSV"


def use_ciphers(context: ssl.SSLContext, wanted: Sequence[str]) -> None:
    """Allow these suites and no others; the versions of TLS that have none of them are turned off, as in Java.

    Raises:
        ConfigError: a name is not known, or cannot be had here, or no allowed version of TLS has one of them.
    """
    names = [name for entry in wanted for name in entry.replace(":", " ").split() if name != _SIGNAL]
    if not names:
        return
    openssl = {each: each for each in TLS_1_2.values()}
    newest = [name for name in names if name in TLS_1_3]
    older = [TLS_1_2.get(name) or openssl.get(name) for name in names if name not in TLS_1_3]
    unknown = [name for name in names if name not in TLS_1_3 and name not in TLS_1_2 and name not in openssl]
    if unknown:
        raise ConfigError(
            f"{_OPTION}: {', '.join(map(repr, unknown))} is not known. Suites are given by their names, of the "
            "standard (TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384) or of OpenSSL (ECDHE-RSA-AES256-GCM-SHA384). For "
            "anything else give an ssl_context.",
            _OPTION,
        )
    _set_older(context, [name for name in older if name])
    _set_newest(context, newest)
    _narrow_versions(context, has_newest=bool(newest), has_older=bool(older))


def _set_older(context: ssl.SSLContext, names: Sequence[str]) -> None:
    if not names:
        return
    try:
        context.set_ciphers(":".join(names))
        there = {each["name"] for each in context.get_ciphers()}
    except ssl.SSLError:
        there = set()
    missing = [name for name in names if name not in there]
    if missing:
        raise ConfigError(
            f"{_OPTION}: {', '.join(missing)} cannot be had with {ssl.OPENSSL_VERSION} as it is configured here",
            _OPTION,
        )


def _set_newest(context: ssl.SSLContext, names: Sequence[str]) -> None:
    if not names:
        return
    choose: Any = getattr(context, "set_ciphersuites", None)
    if choose is not None:  # Python 3.15
        choose(":".join(names))
        return
    if not set(TLS_1_3[:3]) <= set(names):
        tell(
            _logger, logging.WARNING, Event.OPTION_WITHOUT_EFFECT,
            "%s: this Python cannot choose among the suites of TLS 1.3, so all three that OpenSSL has are allowed: %s",
            _OPTION, ", ".join(TLS_1_3[:3]),
            option=_OPTION,
        )  # fmt: skip


def _narrow_versions(context: ssl.SSLContext, *, has_newest: bool, has_older: bool) -> None:
    newest = ssl.TLSVersion.TLSv1_3
    if has_newest and not has_older:
        if context.maximum_version < newest:
            raise ConfigError(f"{_OPTION} has suites of TLSv1.3 only, which is not allowed", _OPTION)
        context.minimum_version = newest
    elif has_older and not has_newest:
        if context.minimum_version >= newest:
            raise ConfigError(f"{_OPTION} has no suite of TLSv1.3, and no other version is allowed", _OPTION)
        context.maximum_version = min(context.maximum_version, ssl.TLSVersion.TLSv1_2)
