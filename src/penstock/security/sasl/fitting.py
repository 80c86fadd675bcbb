# SPDX-License-Identifier: Apache-2.0
"""Which option serves which mechanism, and which source of tokens: what would have no effect is refused.

Of the options of a login module those that only a JVM needs are accepted: they are in every file for Java.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

from penstock.config.keys import KEYS
from penstock.errors import ConfigError

_T = TypeVar("_T")

_MECHANISM: Final = "sasl.mechanism"
_JAAS: Final = "sasl.jaas.config"

USER_AND_PASSWORD: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
BUILT_IN: Final = (*USER_AND_PASSWORD, "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM")

# Where tokens come from, in the words of errors.
PROVIDER: Final = "sasl_oauth_token_provider"
TOKEN_FILE: Final = "a token file"  # noqa: S105  # a name
OIDC: Final = "an OIDC provider"
UNSECURED: Final = "unsecured tokens"
_ENDPOINTS: Final = (TOKEN_FILE, OIDC)
_ANY_SOURCE: Final = (PROVIDER, *_ENDPOINTS, UNSECURED)


class _Use(NamedTuple):
    """What an option serves: mechanisms, and, where they are about OAUTHBEARER, sources of tokens."""

    mechanisms: tuple[str, ...]
    sources: tuple[str, ...] = _ANY_SOURCE


def _oauth(*sources: str) -> _Use:
    return _Use(("OAUTHBEARER",), sources or _ANY_SOURCE)


# The longest name, or beginning of names, that fits counts. Options that are for all are not here.
_OPTIONS: Final[Mapping[str, _Use]] = {
    "sasl.username": _Use(USER_AND_PASSWORD),
    "sasl.password": _Use(USER_AND_PASSWORD),
    "sasl.oauth.token.provider": _Use(("OAUTHBEARER", "AWS_MSK_IAM"), (PROVIDER,)),
    "sasl.login.callback.handler.class": _oauth(),
    "sasl.client.callback.handler.class": _Use(("AWS_MSK_IAM",)),
    "sasl.kerberos.": _Use(("GSSAPI",)),
    "sasl.login.connect.": _oauth(OIDC),
    "sasl.login.read.": _oauth(OIDC),
    "sasl.login.retry.": _oauth(OIDC),
    "sasl.login.refresh.": _oauth(),
    "sasl.oauthbearer.": _oauth(OIDC),
    "sasl.oauthbearer.token.endpoint.url": _oauth(*_ENDPOINTS),
    "sasl.oauthbearer.jwt.retriever.class": _oauth(*_ENDPOINTS),
    "sasl.oauthbearer.method": _oauth(),
    "sasl.oauthbearer.extensions": _oauth(),
    "sasl.oauthbearer.sub.claim.name": _oauth(),
    "sasl.oauthbearer.scope.claim.name": _oauth(*_ENDPOINTS, UNSECURED),
    "sasl.oauthbearer.scope": _oauth(OIDC, UNSECURED),
    "sasl.oauthbearer.config": _oauth(PROVIDER),
    "https.": _oauth(OIDC),
}

# Which mechanisms a login module is for.
MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
    "Krb5LoginModule": ("GSSAPI",),
    "IAMLoginModule": ("AWS_MSK_IAM",),
}

# The options of each login module. One that ends with _ or . stands for all that begin so.
_ANY_MODULE: Final = ("serviceName", "debug")
_IN_LOGIN: Final[Mapping[str, tuple[str, ...]]] = {
    "PlainLoginModule": ("username", "password"),
    "ScramLoginModule": ("username", "password", "tokenauth"),
    "Krb5LoginModule": (
        *("useKeyTab", "keyTab", "principal", "useTicketCache", "ticketCache"),
        *("storeKey", "renewTGT", "doNotPrompt", "refreshKrb5Config", "isInitiator", "useFirstPass"),
        *("tryFirstPass", "storePass", "clearPass"),
    ),
    "IAMLoginModule": (
        *("awsProfileName", "awsRoleArn", "awsRoleSessionName", "awsStsRegion"),
        *("awsDebugCreds", "awsMaxRetries", "awsMaxBackOffTimeMs"),
    ),
}
_IN_OAUTH_LOGIN: Final[Mapping[str, tuple[str, ...]]] = {
    "clientId": (OIDC,),
    "clientSecret": (OIDC,),
    "scope": (OIDC, UNSECURED),
    "ssl.": (OIDC,),
    "oauth.client.id": (OIDC,),
    "oauth.client.secret": (OIDC,),
    "oauth.scope": (OIDC, UNSECURED),
    "oauth.ssl.": (OIDC,),
    "oauth.token.endpoint.uri": _ENDPOINTS,
    "extension_": _ANY_SOURCE,
    "unsecuredLoginExtension_": (UNSECURED,),
    "unsecuredLoginStringClaim_": (UNSECURED,),
    "unsecuredLoginNumberClaim_": (UNSECURED,),
    "unsecuredLoginListClaim_": (UNSECURED,),
    "unsecuredLoginLifetimeSeconds": (UNSECURED,),
}


def check_mechanism(mechanism: str, given: Iterable[str]) -> None:
    """Refuse options that another mechanism uses. A mechanism of the user's own may use them all.

    Raises:
        ConfigError: there is such an option.
    """
    for name in _checked(mechanism, given):
        use = _use_of(name)
        if use is not None and mechanism not in use.mechanisms:
            raise ConfigError(
                f"{name} is given, but {_MECHANISM} is {mechanism}, which does not use it; it is for "
                f"{', '.join(use.mechanisms)}",
                options=(name, _MECHANISM),
            )


def check_source(source: str, given: Iterable[str]) -> None:
    """Refuse options of OAUTHBEARER that another source of tokens uses.

    Raises:
        ConfigError: there is such an option.
    """
    for name in _checked("OAUTHBEARER", given):
        use = _use_of(name)
        if use is not None and source not in use.sources:
            raise ConfigError(
                f"{name} is given, but tokens come from {source}, which does not use it; it is for "
                f"{' and '.join(use.sources)}",
                name,
            )


def fitting_mechanisms(name: str) -> tuple[str, ...]:
    """The mechanisms that an option is for; empty where it is for all."""
    use = _use_of(name)
    return () if use is None else use.mechanisms


def check_login(mechanism: str, source: str | None, module: str | None, options: Mapping[str, Any]) -> None:
    """Refuse a login module of another mechanism, and options of it that would have no effect.

    Args:
        mechanism: a built-in one, or there is nothing to refuse.
        source: of tokens, with OAUTHBEARER.
        module: None where there is no sasl.jaas.config.
        options: of the module.

    Raises:
        ConfigError: there is something to refuse.
    """
    if module is None or mechanism not in BUILT_IN:
        return
    if module not in MODULES:
        raise ConfigError(
            f"{_JAAS} names a login module that is not known here; there are {', '.join(MODULES)}",
            _JAAS,
        )
    if mechanism not in MODULES[module]:
        raise ConfigError(
            f"{_JAAS} has the login module {module}, which is for {' and '.join(MODULES[module])}, but "
            f"{_MECHANISM} is {mechanism}",
            options=(_JAAS, _MECHANISM),
        )
    known: Mapping[str, tuple[str, ...]] = (
        _IN_OAUTH_LOGIN if module not in _IN_LOGIN else dict.fromkeys(_IN_LOGIN[module], _ANY_SOURCE)
    )
    for position, name in enumerate(options, 1):
        sources = _ANY_SOURCE if name in _ANY_MODULE else _longest(name, known)
        if sources is None:
            raise ConfigError(
                f"{_JAAS}: {_shown(name, position)} is not known for {module}; there are {', '.join(known)}",
                _JAAS,
            )
        if source is not None and source not in sources:
            raise ConfigError(
                f"{_JAAS}: {_shown(name, position)} has no effect, as tokens come from {source}; it is for "
                f"{' and '.join(sources)}",
                _JAAS,
            )


def _checked(mechanism: str, given: Iterable[str]) -> Iterable[str]:
    if mechanism not in BUILT_IN:
        return ()
    given = frozenset(given)
    return [name for name in KEYS if name in given and KEYS[name].ignored is None]


def _use_of(name: str) -> _Use | None:
    return _longest(name, _OPTIONS)


def _longest(name: str, table: Mapping[str, _T]) -> _T | None:
    fitting = [known for known in table if name == known or (known[-1] in "._" and name.startswith(known))]
    return table[max(fitting, key=len)] if fitting else None


def _shown(name: str, position: int) -> str:
    # Where words are in the wrong order, a name may be the password: only one that some module has is shown.
    known = {*_ANY_MODULE, *_IN_OAUTH_LOGIN, *chain.from_iterable(_IN_LOGIN.values())}
    return name if _longest(name, dict.fromkeys(known, True)) else f"option {position}"
