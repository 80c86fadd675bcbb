# SPDX-License-Identifier: Apache-2.0
"""Who the client is, as the options say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.config.kinds import Password
from penstock.security.oauth.settings import OAuthSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class KerberosSettings:
    """The options of GSSAPI.

    Attributes:
        service_name: sasl.kerberos.service.name, else serviceName of the JAAS text: the first part of the broker's
            principal.
        principal: principal of the JAAS text, or librdkafka's sasl.kerberos.principal: who the client is; None means
            the one of the ticket cache.
        keytab: keyTab of the JAAS text with useKeyTab=true, or librdkafka's sasl.kerberos.keytab: the file with the
            key; None means the ticket cache.
        ticket_cache: ticketCache of the JAAS text with useTicketCache=true; None means the default one.
        host: kafka-python's sasl_kerberos_domain_name: stands for the broker's host in its principal; None means the
            name that the connection is made with.
    """

    service_name: str = "kafka"
    principal: str | None = None
    keytab: str | None = None
    ticket_cache: str | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsSettings:
    """The options of AWS_MSK_IAM, from IAMLoginModule in the JAAS text.

    Attributes:
        profile: awsProfileName; None means AWS_PROFILE, else "default".
        role_arn: awsRoleArn: a role to be assumed, which needs botocore.
        role_session_name: awsRoleSessionName.
        sts_region: awsStsRegion.
        region: the region of the cluster; None means the one in the broker's name.
    """

    profile: str | None = None
    role_arn: str | None = None
    role_session_name: str | None = None
    sts_region: str | None = None
    region: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """All that a mechanism is made from.

    Attributes:
        mechanism: sasl.mechanism, in capitals.
        username: of PLAIN and SCRAM.
        password: of PLAIN and SCRAM.
        read_login: gives user and password by one reading of sasl.jaas.config, where both are in it: they are replaced
            together. None: username and password are used.
        token_auth: user and password are the id and the HMAC of a delegation token (SCRAM).
        extensions: what OAUTHBEARER tells the broker besides the token.
        token_provider: an object or a callable that gives tokens for OAUTHBEARER, or credentials for AWS_MSK_IAM.
        oauth: where the token comes from otherwise.
        kerberos: of GSSAPI.
        aws: of AWS_MSK_IAM.
        token_timeout_ms: how long an authentication waits for a token, credentials or a ticket. Less than the time that
            a connection may take to be set up, so that the error can say what it was that took so long.
        properties: every other option below `sasl.`, by its dotted name, for a mechanism of the user's own.
    """

    mechanism: str
    username: str | None = None
    password: Password | None = None
    read_login: Callable[[], tuple[str, str]] | None = field(default=None, repr=False, compare=False)
    token_auth: bool = False
    extensions: Mapping[str, str] = field(default_factory=dict)
    token_provider: object | None = field(default=None, repr=False)
    oauth: OAuthSettings | None = None
    kerberos: KerberosSettings | None = None
    aws: AwsSettings | None = None
    token_timeout_ms: int = 8_000
    properties: Mapping[str, object] = field(default_factory=dict, repr=False)
