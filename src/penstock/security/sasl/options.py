# SPDX-License-Identifier: Apache-2.0
"""From the options of SASL, sasl.jaas.config among them, to the settings that a mechanism is made from.

A login module counts by the last part of its class name: other builds of Kafka's client move it (`kafkashaded.org...`).
Where an option and the JAAS text say the same thing differently, one of them is a mistake, and that is refused; for
OAuth the option wins, as Java has it.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from penstock._escaping import told
from penstock._events import Event, tell
from penstock.config.keys import KEYS
from penstock.config.kinds import Kind, Password
from penstock.config.names import in_written_words
from penstock.errors import ConfigError
from penstock.security.oauth.settings import Grant, OAuthSettings, of_the_endpoint
from penstock.security.sasl.fitting import (
    BUILT_IN,
    MODULES,
    OIDC,
    PROVIDER,
    TOKEN_FILE,
    UNSECURED,
    USER_AND_PASSWORD,
    check_login,
    check_mechanism,
    check_source,
    fitting_mechanisms,
)
from penstock.security.sasl.plain import user_and_password
from penstock.security.sasl.settings import AwsSettings, KerberosSettings, SaslSettings
from penstock.security.tls.options import tls_settings
from penstock.security.tls.settings import TlsSettings

# As all that is said of options: a command that reads them more than once says it once.
_logger = logging.getLogger("penstock.config.security")

_MECHANISM: Final = "sasl.mechanism"
_JAAS: Final = "sasl.jaas.config"
_PROVIDER: Final = "sasl.oauth.token.provider"
_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
_CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
_CLIENT_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"  # noqa: S105  # a name
_LOGIN_HANDLER: Final = "sasl.login.callback.handler.class"
_CLIENT_HANDLER: Final = "sasl.client.callback.handler.class"
_RETRIEVER: Final = "sasl.oauthbearer.jwt.retriever.class"
_SETUP_TIMEOUT: Final = "socket.connection.setup.timeout.ms"
# Of the time that a connection may take: the least that chance makes of it is 0.8.
_SHARE_FOR_TOKENS: Final = 0.7
# The options of OAuth that are fields of the same kind.
_OAUTH_FIELDS: Final[Mapping[str, str]] = {
    "sasl.oauthbearer.header.urlencode": "header_urlencode",
    "sasl.oauthbearer.scope.claim.name": "scope_claim_name",
    "sasl.oauthbearer.sub.claim.name": "sub_claim_name",
    "sasl.oauthbearer.assertion.file": "assertion_file",
    "sasl.oauthbearer.assertion.algorithm": "assertion_algorithm",
    "sasl.oauthbearer.assertion.private.key.file": "assertion_private_key_file",
    "sasl.oauthbearer.assertion.private.key.pem": "assertion_private_key_pem",
    "sasl.oauthbearer.assertion.private.key.passphrase": "assertion_private_key_passphrase",
    "sasl.oauthbearer.assertion.template.file": "assertion_template_file",
    "sasl.oauthbearer.assertion.claim.aud": "assertion_claim_aud",
    "sasl.oauthbearer.assertion.claim.iss": "assertion_claim_iss",
    "sasl.oauthbearer.assertion.claim.sub": "assertion_claim_sub",
    "sasl.oauthbearer.assertion.claim.exp.seconds": "assertion_claim_exp_seconds",
    "sasl.oauthbearer.assertion.claim.nbf.seconds": "assertion_claim_nbf_seconds",
    "sasl.oauthbearer.assertion.claim.jti.include": "assertion_claim_jti_include",
    "sasl.login.connect.timeout.ms": "connect_timeout_ms",
    "sasl.login.read.timeout.ms": "read_timeout_ms",
    "sasl.login.retry.backoff.ms": "retry_backoff_ms",
    "sasl.login.retry.backoff.max.ms": "retry_backoff_max_ms",
    "sasl.login.refresh.window.factor": "refresh_window_factor",
    "sasl.login.refresh.window.jitter": "refresh_window_jitter",
    "sasl.login.refresh.min.period.seconds": "refresh_min_period_seconds",
    "sasl.login.refresh.buffer.seconds": "refresh_buffer_seconds",
}
# librdkafka's options of the token endpoint, and what they are among the options of TLS.
_ENDPOINT_TRUST: Final = (
    ("https.ca.location", "ssl.truststore.location"),
    ("https.ca.pem", "ssl.truststore.certificates"),
)
_OAUTH_HANDLERS: Final = (
    "OAuthBearerLoginCallbackHandler",
    "OAuthBearerUnsecuredLoginCallbackHandler",
    "JaasClientOauthLoginCallbackHandler",  # Strimzi's
)
_RETRIEVERS: Final[Mapping[str, Grant | None]] = {
    "DefaultJwtRetriever": None,
    "FileJwtRetriever": None,
    "ClientCredentialsJwtRetriever": "client_credentials",
    "JwtBearerJwtRetriever": "jwt_bearer",
}


def sasl_settings(given: Mapping[str, Any], setup_timeout_ms: float | None = None) -> SaslSettings:
    """Make the settings of SASL.

    Args:
        given: checked values of those that the user set, by dotted names.
        setup_timeout_ms: how long one attempt to connect may take; the default of the option, if it is not given.

    Raises:
        ConfigError: something is missing, malformed, or contradicts something else.
    """
    login = _Login(given.get(_JAAS))
    mechanism = _mechanism(given, login)
    check_mechanism(mechanism, given)
    if mechanism != "OAUTHBEARER":
        check_login(mechanism, None, login.module, login.options)
    provider = _load_provider(given.get(_PROVIDER))
    settings: dict[str, Any] = {"mechanism": mechanism, "token_provider": provider}
    if mechanism in USER_AND_PASSWORD:
        settings |= _user_and_password(mechanism, given, login)
    elif mechanism == "OAUTHBEARER":
        settings |= _oauth(given, login, has_provider=provider is not None)
    elif mechanism == "GSSAPI":
        settings |= {"kerberos": _kerberos(given, login)}
    elif mechanism == "AWS_MSK_IAM":
        settings |= {"aws": _aws(given, login)}
    else:  # the user's own, which knows best what it needs
        settings |= {
            "username": given.get("sasl.username", login.option("username")),
            "password": given.get("sasl.password") or login.secret("password"),
        }
    properties = {name: value for name, value in given.items() if name.startswith("sasl.")}
    setup_ms = KEYS[_SETUP_TIMEOUT].default if setup_timeout_ms is None else setup_timeout_ms
    patience_ms = int(setup_ms * _SHARE_FOR_TOKENS)
    made = SaslSettings(**settings, properties=properties, token_timeout_ms=patience_ms)
    if mechanism in USER_AND_PASSWORD:
        user_and_password(made)
    return made


class _Login:
    """The text of sasl.jaas.config, read once for its options, and again for each secret when that is asked for."""

    def __init__(self, text: Password | None) -> None:
        self._text = text
        self.module: str | None = None
        self.options: Mapping[str, str] = {}
        if text is not None:
            self.module, self.options = _read_jaas(text.value)

    def option(self, name: str) -> str | None:
        """An option of the module; None where it is not there."""
        return self.options.get(name)

    def flag(self, name: str) -> bool:
        """Whether an option is true.

        Raises:
            ConfigError: it is neither true nor false.
        """
        word = self.options.get(name, "false").lower()
        if word not in ("true", "false"):
            raise ConfigError(f"{name} in {_JAAS} must be true or false", _JAAS)
        return word == "true"

    def secret(self, name: str) -> Password | None:
        """An option that must not be shown; it follows the text, where that is read from elsewhere."""
        text = self._text
        if text is None or name not in self.options:
            return None

        def read() -> str:
            value = _read_jaas(text.value)[1].get(name)
            if value is None:
                raise ConfigError(f"{_JAAS} has no {name} any more", _JAAS)
            return value

        return Password(self.options[name], read)

    def both(self, one: str, other: str) -> Callable[[], tuple[str, str]] | None:
        """Read two options that belong together, always both from the same text; None where one is missing.

        A new text that lacks one of them is not used, like one that cannot be read.
        """
        text = self._text
        if text is None or one not in self.options or other not in self.options:
            return None

        def checked() -> str:
            value = text.value
            for name in (one, other):
                if name not in _read_jaas(value)[1]:
                    raise ConfigError(f"{_JAAS} has no {name} any more", _JAAS)
            return value

        kept = Password(checked(), checked)

        def read() -> tuple[str, str]:
            options = _read_jaas(kept.value)[1]
            return options[one], options[other]

        return read

    def beginning_with(self, prefix: str) -> Iterator[tuple[str, str]]:
        """The options whose name begins so, without that beginning."""
        for name, value in self.options.items():
            if name.startswith(prefix):
                yield name.removeprefix(prefix), value


def _read_jaas(text: str) -> tuple[str, Mapping[str, str]]:
    from penstock.security.sasl.jaas import parse_jaas

    entry = parse_jaas(text)
    return entry.module.rpartition(".")[2], entry.options


def _mechanism(given: Mapping[str, Any], login: _Login) -> str:
    mechanism: str = given.get(_MECHANISM) or KEYS[_MECHANISM].default
    if "," in mechanism:
        raise ConfigError(f"{_MECHANISM}={mechanism!r}: name one mechanism, not a list", _MECHANISM)
    if _MECHANISM not in given:
        fitting = MODULES.get(login.module or "", ())
        others = [
            name for name in given if fitting_mechanisms(name) and "GSSAPI" not in fitting_mechanisms(name)
        ]
        if others or (fitting and "GSSAPI" not in fitting):
            known = " or ".join(fitting or fitting_mechanisms(others[0]))
            raise ConfigError(
                f"{_MECHANISM} is missing; its default is GSSAPI (Kerberos), which {others[0] if others else _JAAS} is "
                f"not for: set it to {known}",
                options=(_MECHANISM, others[0] if others else _JAAS),
            )
    upper = mechanism.upper()
    return upper if upper in BUILT_IN else mechanism


def _load_provider(value: Any) -> object | None:
    """The provider itself, where it was named or given as a class."""
    if isinstance(value, str):
        module, colon, path = value.partition(":")
        if not (module and colon and path):
            raise ConfigError(f"{_PROVIDER}={value!r} must have the form 'module:attribute'", _PROVIDER)
        try:
            found: Any = importlib.import_module(module)
            for attribute in path.split("."):
                found = getattr(found, attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"{_PROVIDER}={value!r} cannot be loaded: {error}", _PROVIDER) from error
        value = found
    if isinstance(value, type):
        try:
            value = value()
        except Exception as error:  # noqa: BLE001  # of the user's class
            # Not as the cause: its text may hold a secret.
            raise ConfigError(
                f"{_PROVIDER}: {value.__qualname__}() failed: {told(error)}", _PROVIDER
            ) from None
    return value  # type: ignore[no-any-return]  # whatever it is: the part that asks it for tokens looks at it


# ---- user and password


def _user_and_password(mechanism: str, given: Mapping[str, Any], login: _Login) -> dict[str, Any]:
    username = _one_of(given.get("sasl.username"), login.option("username"), "sasl.username", "username")
    password = _one_of(given.get("sasl.password"), login.secret("password"), "sasl.password", "password")
    token_auth = mechanism.startswith("SCRAM") and login.flag("tokenauth")
    read_login = None
    if "sasl.username" not in given and "sasl.password" not in given:
        read_login = login.both("username", "password")
    return {"username": username, "password": password, "read_login": read_login, "token_auth": token_auth}


def _one_of(option: Any, in_jaas: Any, name: str, jaas_name: str) -> Any:
    if option is not None and in_jaas is not None and option != in_jaas:
        raise ConfigError(
            f"{name} and {jaas_name} in {_JAAS} are different; leave one of them out", options=(name, _JAAS)
        )
    return in_jaas if option is None else option


# ---- OAuth


def _oauth(given: Mapping[str, Any], login: _Login, *, has_provider: bool) -> dict[str, Any]:
    _check_handler(given, _LOGIN_HANDLER, _OAUTH_HANDLERS, "give tokens with sasl_oauth_token_provider")
    fields = {field: given[name] for name, field in _OAUTH_FIELDS.items() if name in given}
    endpoint = given.get(_ENDPOINT) or login.option("oauth.token.endpoint.uri")
    claims = dict(_unsecured_claims(login))
    subject = claims.pop("sub", None)
    if endpoint is None and subject is None and not has_provider:
        raise ConfigError(
            f"OAUTHBEARER needs tokens: set {_ENDPOINT} with {_CLIENT_ID} and its secret, or give "
            "sasl_oauth_token_provider",
            options=(_ENDPOINT, _PROVIDER, _MECHANISM),
        )
    if endpoint is not None and has_provider:
        raise ConfigError(
            f"{_ENDPOINT} and sasl_oauth_token_provider both say where tokens come from; leave one of them out",
            options=(_ENDPOINT, _PROVIDER),
        )
    endpoint = _checked_url(endpoint)
    source = _source(endpoint, has_provider=has_provider)
    check_source(source, given)
    check_login("OAUTHBEARER", source, login.module, login.options)
    oauth = OAuthSettings(
        token_endpoint_url=endpoint,
        grant=_grant(given, source),
        client_id=given.get(_CLIENT_ID) or login.option("clientId") or login.option("oauth.client.id"),
        client_secret=given.get(_CLIENT_SECRET)
        or login.secret("clientSecret")
        or login.secret("oauth.client.secret"),
        scope=given.get("sasl.oauthbearer.scope") or login.option("scope") or login.option("oauth.scope"),
        tls=_endpoint_tls(given, login),
        unsecured_subject=subject,
        unsecured_lifetime_seconds=_seconds(login, "unsecuredLoginLifetimeSeconds", 3600),
        unsecured_claims=claims,
        callback_config=given.get("sasl.oauthbearer.config"),
        **fields,
    )
    _check_endpoint(oauth)
    return {"oauth": oauth, "extensions": _extensions(given, login)}


def _source(endpoint: str | None, *, has_provider: bool) -> str:
    if has_provider:
        return PROVIDER
    if endpoint is None:
        return UNSECURED
    return TOKEN_FILE if endpoint.lower().startswith("file:") else OIDC


def _endpoint_tls(given: Mapping[str, Any], login: _Login) -> TlsSettings | None:
    """How to connect to the token endpoint: as ssl.* inside the JAAS text say it, or librdkafka's https.*."""
    written = {here: name for name, here in _ENDPOINT_TRUST if name in given}
    found = {here: given[name] for here, name in written.items()}
    for name in login.options:
        here = name.removeprefix("oauth.")
        if not here.startswith("ssl."):
            continue
        if here in found:
            raise ConfigError(
                f"{name} in {_JAAS} says again what {written.get(here, here)} says: leave one of them out",
                _JAAS,
            )
        if here != name:
            written[here] = name
        if here not in KEYS or KEYS[here].kind is Kind.OBJECT:
            raise ConfigError(f"{_JAAS}: {here} is not an option of TLS", _JAAS)
        if KEYS[here].ignored is None:
            found[here] = (
                login.secret(name)
                if KEYS[here].kind is Kind.PASSWORD
                else KEYS[here].parse(login.options[name])
            )
    if not found:
        return None
    try:
        with in_written_words(written):
            return tls_settings(found, "the token endpoint's certificate", written)
    except ConfigError as error:
        raise of_the_endpoint(error) from None


def _check_handler(given: Mapping[str, Any], option: str, known: tuple[str, ...], instead: str) -> None:
    name = given.get(option)
    if name is not None and name.rpartition(".")[2] not in known:
        raise ConfigError(f"{option}={name!r}: this Java class has no counterpart here; {instead}", option)


def _checked_url(url: str | None) -> str | None:
    if url is not None and not url.lower().startswith(("https://", "http://", "file:")):
        raise ConfigError(f"{_ENDPOINT} must begin with https://, http:// or file:", _ENDPOINT)
    return url


def _grant(given: Mapping[str, Any], source: str) -> Grant:
    _check_handler(given, _RETRIEVER, tuple(_RETRIEVERS), "give tokens with sasl_oauth_token_provider")
    retriever = given.get(_RETRIEVER, "DefaultJwtRetriever").rpartition(".")[2]
    by_class = _RETRIEVERS[retriever]
    if (retriever == "FileJwtRetriever" and source != TOKEN_FILE) or (by_class and source != OIDC):
        raise ConfigError(
            f"{_RETRIEVER} is {retriever}, but {_ENDPOINT} is {source}", options=(_RETRIEVER, _ENDPOINT)
        )
    if given.get("sasl.oauthbearer.method") == "oidc" and source != OIDC:
        raise ConfigError(
            f"sasl.oauthbearer.method is oidc, but tokens come from {source}",
            options=("sasl.oauthbearer.method", _ENDPOINT),
        )
    by_type: Grant | None = None
    if "sasl.oauthbearer.grant.type" in given:
        bearer = given["sasl.oauthbearer.grant.type"].endswith("jwt-bearer")
        by_type = "jwt_bearer" if bearer else "client_credentials"
    if by_class and by_type and by_class != by_type:
        raise ConfigError(
            f"{_RETRIEVER} and sasl.oauthbearer.grant.type contradict each other; leave one of them out",
            options=(_RETRIEVER, "sasl.oauthbearer.grant.type"),
        )
    return by_class or by_type or "client_credentials"


def _check_endpoint(oauth: OAuthSettings) -> None:
    url = oauth.token_endpoint_url
    if url is None or url.lower().startswith("file:"):
        return
    oauth.check_credentials()
    if oauth.tls is not None and not url.lower().startswith("https:"):
        raise ConfigError(
            f"certificates for the token endpoint are given, but {_ENDPOINT} does not begin with https://",
            _ENDPOINT,
        )
    _warn_of_clear_text(url)


def _warn_of_clear_text(url: str) -> None:
    """Say that the secret is sent for everybody to see, unless it does not leave this machine."""
    host = urlsplit(url).hostname or ""
    if url.lower().startswith("https:") or host == "localhost":
        return
    try:
        local = ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        tell(
            _logger, logging.WARNING, Event.SECURITY_WEAKENED,
            "the secret of this client and its tokens are not encrypted on the way to the token endpoint at %s "
            "(%s begins with http://): use https",
            host, _ENDPOINT,
            option=_ENDPOINT,
        )  # fmt: skip


def _extensions(given: Mapping[str, Any], login: _Login) -> dict[str, str]:
    option = "sasl.oauthbearer.extensions"
    found = {
        **dict(login.beginning_with("extension_")),
        **dict(login.beginning_with("unsecuredLoginExtension_")),
    }
    for pair in given.get(option, "").split(",") if option in given else ():
        name, equals, value = pair.strip().partition("=")
        if not (name and equals):
            raise ConfigError(
                f"{option} must be name=value, with commas between; one of its parts is not", option
            )
        found[name] = value
    return found


def _unsecured_claims(login: _Login) -> Iterator[tuple[str, Any]]:
    for kind, convert in _CLAIMS.items():
        for name, value in login.beginning_with(f"unsecuredLogin{kind}Claim_"):
            try:
                yield name, convert(value)
            except ValueError:
                raise ConfigError(
                    f"unsecuredLogin{kind}Claim_{name} in {_JAAS} is not a number", _JAAS
                ) from None


def _list_claim(text: str) -> list[str]:
    """Java's form of a list: its first character is what stands between the items."""
    return text[1:].split(text[0]) if text else []


_CLAIMS: Final[Mapping[str, Callable[[str], Any]]] = {"String": str, "Number": float, "List": _list_claim}


def _seconds(login: _Login, name: str, default: int) -> int:
    text = login.option(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ConfigError(f"{name} in {_JAAS} must be a number of seconds", _JAAS)
    return int(text)


# ---- Kerberos and AWS


def _kerberos(given: Mapping[str, Any], login: _Login) -> KerberosSettings:
    service = _one_of(
        given.get("sasl.kerberos.service.name"),
        login.option("serviceName"),
        "sasl.kerberos.service.name",
        "serviceName",
    )
    keytab = _one_of(
        given.get("sasl.kerberos.keytab"),
        login.option("keyTab") if login.flag("useKeyTab") else None,
        "sasl.kerberos.keytab",
        "keyTab",
    )
    if login.flag("useKeyTab") and keytab is None:
        raise ConfigError(f"useKeyTab=true in {_JAAS} needs keyTab, the path of the file", _JAAS)
    if login.module is not None and login.option("keyTab") and not login.flag("useKeyTab"):
        raise ConfigError(f"keyTab in {_JAAS} has no effect without useKeyTab=true", _JAAS)
    if login.option("ticketCache") and not login.flag("useTicketCache"):
        raise ConfigError(f"ticketCache in {_JAAS} has no effect without useTicketCache=true", _JAAS)
    principal = _one_of(
        given.get("sasl.kerberos.principal"),
        login.option("principal"),
        "sasl.kerberos.principal",
        "principal",
    )
    return KerberosSettings(
        service_name="kafka" if service is None else service,
        principal=principal,
        keytab=keytab,
        ticket_cache=login.option("ticketCache") if login.flag("useTicketCache") else None,
        host=given.get("sasl.kerberos.domain.name"),
    )


def _aws(given: Mapping[str, Any], login: _Login) -> AwsSettings:
    _check_handler(
        given,
        _CLIENT_HANDLER,
        ("IAMClientCallbackHandler",),
        "credentials come from the environment or a profile of AWS",
    )
    return AwsSettings(
        profile=login.option("awsProfileName"),
        role_arn=login.option("awsRoleArn"),
        role_session_name=login.option("awsRoleSessionName"),
        sts_region=login.option("awsStsRegion"),
    )
