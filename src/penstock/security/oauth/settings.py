# SPDX-License-Identifier: Apache-2.0
"""Where a token of OAUTHBEARER comes from when no provider is given, and when it is replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from penstock.config.kinds import Password
from penstock.errors import ConfigError
from penstock.security.tls.settings import TlsSettings

_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
_JAAS: Final = "sasl.jaas.config"

Grant = Literal["client_credentials", "jwt_bearer"]

# Java has no time-out here. Without one a provider that does not answer would hold the refresh for ever.
DEFAULT_HTTP_TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthSettings:
    """The options of OAUTHBEARER. The defaults are Java's where nothing else is said.

    The source of the token is the first of these that is given: `SaslSettings.token_provider`, `token_endpoint_url`
    (a `file:` URL is a token file, http and https an OIDC provider), `unsecured_subject`.

    Attributes:
        token_endpoint_url: sasl.oauthbearer.token.endpoint.url: http, https or file.
        grant: how the provider is asked; jwt_bearer where sasl.oauthbearer.jwt.retriever.class is
            JwtBearerJwtRetriever, or librdkafka's grant.type says so.
        client_id: sasl.oauthbearer.client.credentials.client.id, else clientId of the JAAS text, else librdkafka's
            sasl.oauthbearer.client.id.
        client_secret: the same with secret.
        scope: sasl.oauthbearer.scope, else scope of the JAAS text.
        header_urlencode: sasl.oauthbearer.header.urlencode.
        scope_claim_name: sasl.oauthbearer.scope.claim.name.
        sub_claim_name: sasl.oauthbearer.sub.claim.name.
        assertion_file: sasl.oauthbearer.assertion.file: a ready assertion. It wins over what makes one.
        assertion_algorithm: sasl.oauthbearer.assertion.algorithm: RS256 or ES256.
        assertion_private_key_file: sasl.oauthbearer.assertion.private.key.file: PEM.
        assertion_private_key_pem: librdkafka's sasl.oauthbearer.assertion.private.key.pem.
        assertion_private_key_passphrase: sasl.oauthbearer.assertion.private.key.passphrase.
        assertion_template_file: sasl.oauthbearer.assertion.template.file: JSON with header and payload.
        assertion_claim_aud: sasl.oauthbearer.assertion.claim.aud.
        assertion_claim_iss: sasl.oauthbearer.assertion.claim.iss.
        assertion_claim_sub: sasl.oauthbearer.assertion.claim.sub.
        assertion_claim_exp_seconds: sasl.oauthbearer.assertion.claim.exp.seconds.
        assertion_claim_nbf_seconds: sasl.oauthbearer.assertion.claim.nbf.seconds.
        assertion_claim_jti_include: sasl.oauthbearer.assertion.claim.jti.include.
        connect_timeout_ms: sasl.login.connect.timeout.ms. Python has one time-out for a call: the larger of this one
            and the next.
        read_timeout_ms: sasl.login.read.timeout.ms.
        retry_backoff_ms: sasl.login.retry.backoff.ms.
        retry_backoff_max_ms: sasl.login.retry.backoff.max.ms, which bounds the whole time of the attempts.
        refresh_window_factor: sasl.login.refresh.window.factor.
        refresh_window_jitter: sasl.login.refresh.window.jitter.
        refresh_min_period_seconds: sasl.login.refresh.min.period.seconds.
        refresh_buffer_seconds: sasl.login.refresh.buffer.seconds.
        tls: how to connect to the provider: `ssl.*` inside the JAAS text, or librdkafka's https.ca.location and
            https.ca.pem; None means that the certificates of the system are trusted.
        unsecured_subject: unsecuredLoginStringClaim_sub of the JAAS text. The token is not signed: for tests only.
        unsecured_lifetime_seconds: unsecuredLoginLifetimeSeconds of the JAAS text.
        unsecured_claims: other claims of such a token, by name.
        callback_config: librdkafka's sasl.oauthbearer.config, which confluent's oauth_cb is called with.
    """

    token_endpoint_url: str | None = None
    grant: Grant = "client_credentials"
    client_id: str | None = None
    client_secret: Password | None = None
    scope: str | None = None
    header_urlencode: bool = False
    scope_claim_name: str = "scope"
    sub_claim_name: str = "sub"
    assertion_file: str | None = None
    assertion_algorithm: str = "RS256"
    assertion_private_key_file: str | None = None
    assertion_private_key_pem: Password | None = None
    assertion_private_key_passphrase: Password | None = None
    assertion_template_file: str | None = None
    assertion_claim_aud: str | None = None
    assertion_claim_iss: str | None = None
    assertion_claim_sub: str | None = None
    assertion_claim_exp_seconds: int = 300
    assertion_claim_nbf_seconds: int = 60
    assertion_claim_jti_include: bool = False
    connect_timeout_ms: int | None = None
    read_timeout_ms: int | None = None
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    refresh_window_factor: float = 0.8
    refresh_window_jitter: float = 0.05
    refresh_min_period_seconds: int = 60
    refresh_buffer_seconds: int = 300
    tls: TlsSettings | None = None
    unsecured_subject: str | None = None
    unsecured_lifetime_seconds: int = 3600
    unsecured_claims: Mapping[str, Any] = field(default_factory=dict)
    callback_config: Password | None = None

    @property
    def http_timeout(self) -> float:
        """Seconds that one call of the provider may take."""
        given = [ms for ms in (self.connect_timeout_ms, self.read_timeout_ms) if ms is not None]
        return (max(given) if given else DEFAULT_HTTP_TIMEOUT_MS) / 1000

    def check_credentials(self) -> None:
        """Look whether an OIDC provider can be asked.

        Raises:
            ConfigError: the grant lacks something.
        """
        if any((self.assertion_file, self.assertion_private_key_file, self.assertion_private_key_pem)):
            return
        if self.grant == "jwt_bearer":
            option = "sasl.oauthbearer.assertion.private.key.file"
            raise ConfigError(
                f"the jwt-bearer grant needs an assertion: set {option} or sasl.oauthbearer.assertion.file",
                option,
                (option, "sasl.oauthbearer.assertion.file"),
            )
        for value, name in ((self.client_id, "client.id"), (self.client_secret, "client.secret")):
            if not value:
                option = f"sasl.oauthbearer.client.credentials.{name}"
                raise ConfigError(
                    f"{_ENDPOINT} is given without {option} (or clientId and clientSecret in sasl.jaas.config)",
                    option,
                    (option, _ENDPOINT),
                )


def of_the_endpoint(error: ConfigError) -> ConfigError:
    """The error for a wrong option of TLS, where it is one for the token endpoint: https.*, or inside the JAAS text."""
    options = tuple(
        dict.fromkeys(name if name.startswith("https.") else _JAAS for name in error.options or (_JAAS,))
    )
    one = options[0] if len(options) == 1 else None
    return ConfigError(f"for the token endpoint: {error}", one, options)
