# SPDX-License-Identifier: Apache-2.0
"""Names a user may write for an option: dotted, as a keyword, of an older client, or of a feature still to come.

A name that is none of these is refused with the one to use, because a misspelt option that is ignored in silence is
found only in production.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from types import MappingProxyType
from typing import Final

from penstock.config.keys import KEYS
from penstock.config.kinds import LONG_MAX, ConfigKey, Kind
from penstock.config.other_clients import is_security, try_explain
from penstock.errors import ConfigError

# Options of the oldest Java clients, each with the option of today that says the same.
ALIASES: Final = MappingProxyType(
    {
        "block.on.buffer.full": "max.block.ms",
        "metadata.fetch.timeout.ms": "max.block.ms",
        "timeout.ms": "request.timeout.ms",
    }
)

BLOCK_ON_BUFFER_FULL: Final = ConfigKey(
    "block.on.buffer.full", Kind.BOOL, False, "low", "Wait for memory without end, or not at all."
)
BLOCK_FOR_EVER_MS: Final = LONG_MAX

_SSL_NAMES = """
    cipher.suites enabled.protocols endpoint.identification.algorithm engine.factory.class key.password
    keymanager.algorithm keystore.certificate.chain keystore.key keystore.location keystore.password keystore.type
    protocol provider secure.random.implementation trustmanager.algorithm truststore.certificates truststore.location
    truststore.password truststore.type
"""
_SASL_NAMES = """
    client.callback.handler.class jaas.config kerberos.kinit.cmd kerberos.min.time.before.relogin
    kerberos.service.name kerberos.ticket.renew.jitter kerberos.ticket.renew.window.factor
    login.callback.handler.class login.class login.connect.timeout.ms login.read.timeout.ms
    login.refresh.buffer.seconds login.refresh.min.period.seconds login.refresh.window.factor
    login.refresh.window.jitter login.retry.backoff.max.ms login.retry.backoff.ms mechanism
"""
_OAUTH_NAMES = """
    allow.unverified.audience allow.unverified.issuer assertion.algorithm assertion.claim.aud
    assertion.claim.exp.seconds assertion.claim.iss assertion.claim.jti.include assertion.claim.nbf.seconds
    assertion.claim.sub assertion.file assertion.private.key.file assertion.private.key.passphrase
    assertion.template.file client.credentials.client.id client.credentials.client.secret clock.skew.seconds
    expected.audience expected.issuer header.urlencode jwks.endpoint.refresh.ms jwks.endpoint.retry.backoff.max.ms
    jwks.endpoint.retry.backoff.ms jwks.endpoint.url jwt.retriever.class jwt.validator.class scope scope.claim.name
    sub.claim.name token.endpoint.url
"""

# Known, so that they are not taken for misspelt, but of no use before TLS and SASL are there. Their values are not
# even looked at: many are secrets.
SECURITY_NAMES: Final = (
    "ssl.context",
    *(f"ssl.{name}" for name in _SSL_NAMES.split()),
    *(f"sasl.{name}" for name in _SASL_NAMES.split()),
    *(f"sasl.oauthbearer.{name}" for name in _OAUTH_NAMES.split()),
)

_DOTTED_NAMES = (*KEYS, *ALIASES, *SECURITY_NAMES)
_CANONICAL = {
    **{name: name for name in _DOTTED_NAMES},
    **{name.replace(".", "_"): name for name in _DOTTED_NAMES},
    **{key.field_name: key.name for key in KEYS.values()},
}


def canonical_name(name: object, *, keyword: bool) -> str:
    """Give the dotted name of an option.

    Args:
        name: as the user wrote it.
        keyword: whether it was a keyword; a suggestion is then spelt as one.

    Raises:
        ConfigError: there is no such option; names the one to use.
    """
    if not isinstance(name, str):
        raise ConfigError(f"the name of an option must be a string, not {name!r}")
    canonical = _CANONICAL.get(name)
    if canonical is not None:
        return canonical
    raise unknown_option(name, _keyword if keyword else str)


def unknown_option(name: str, spell: Callable[[str], str], shown: str | None = None) -> ConfigError:
    """The error for a name that is none of ours, with the one to use.

    Args:
        name: as the user wrote it, without what stands before all names.
        spell: writes a dotted name as the user would.
        shown: the name as it is to be shown, when that differs.
    """
    shown = shown or name
    if is_security(name):
        return ConfigError(
            f"{shown} is not supported yet: TLS and SASL come with a later release; leave it out", shown
        )
    explained = try_explain(name, spell)
    if explained is not None:
        return ConfigError(f"unknown option {shown!r}, {explained}", shown)
    nearest = try_nearest_name(name)
    hint = f"; did you mean {spell(nearest)!r}?" if nearest is not None else ""
    return ConfigError(f"unknown option {shown!r}{hint}", shown)


def _keyword(name: str) -> str:
    return KEYS[name].field_name if name in KEYS else name.replace(".", "_")


def try_nearest_name(name: str) -> str | None:
    """The known name that looks most like this one, never a deprecated one; None when none does."""
    squeezed = _squeeze(name)
    names = {_squeeze(known): ALIASES.get(canonical, canonical) for known, canonical in _CANONICAL.items()}
    if squeezed in names:  # only case or separators differ
        return names[squeezed]
    matches = difflib.get_close_matches(squeezed, names, n=1, cutoff=0.7)
    return names[matches[0]] if matches else None


def _squeeze(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
