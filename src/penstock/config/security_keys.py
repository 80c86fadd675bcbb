# SPDX-License-Identifier: Apache-2.0
"""The options of TLS, SASL and proxies, which are a part of `keys.KEYS`, and how other clients write them.

Names and defaults are those of the Java client; where it has no such option, those of librdkafka or kafka-python.
People paste these options from one client into another, so the spellings of all three are understood. What cannot be
honoured is refused with what to do instead; what only a JVM knows is ignored, with a warning (see `ConfigKey.ignored`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from penstock.config.kinds import Between, ConfigKey, Distinct, HostNameCheck, Kind, NotEmpty, OneOf

_BOOL, _INT, _LONG, _DOUBLE, _STRING, _LIST, _PASSWORD, _OBJECT = (
    Kind.BOOL, Kind.INT, Kind.LONG, Kind.DOUBLE, Kind.STRING, Kind.LIST, Kind.PASSWORD, Kind.OBJECT,
)  # fmt: skip
_NOT_NEGATIVE = Between(0)
_STORE_TYPES = OneOf(("JKS", "PKCS12", "PEM"), any_case=True)
_JVM: Final = "it is for a JVM"
_BROKER: Final = "brokers check tokens, clients do not"
_TICKETS: Final = "tickets are renewed by the Kerberos library, or by the program that filled the cache"


def _text(name: str, doc: str) -> ConfigKey:
    """A text without a default that must not be empty."""
    return ConfigKey(name, _STRING, None, "low", doc, NotEmpty())


def _secret(name: str, doc: str) -> ConfigKey:
    return ConfigKey(name, _PASSWORD, None, "low", doc)


def _ignored(name: str, why: str) -> ConfigKey:
    return ConfigKey(name, _STRING, None, "low", f"Accepted without effect: {why}.", ignored=why)


_TLS: Final = (
    _text(
        "ssl.truststore.location",
        "File with the certificates that brokers are trusted by: PEM, JKS or PKCS#12, told apart by what is in it; or "
        "a directory of PEM files named by hash. Without it and ssl.truststore.certificates the system's roots are "
        "used.",
    ),
    _secret("ssl.truststore.certificates", "The same as PEM text."),
    _secret("ssl.truststore.password", "Password of a JKS or PKCS#12 trust store; without it a JKS is read unchecked."),
    ConfigKey(
        "ssl.truststore.type", _STRING, None, "low",
        "Type of the trust store. What the file holds decides; this only rules out what does not fit.",
        _STORE_TYPES,
    ),
    _text(
        "ssl.keystore.location",
        "File with this client's private key and certificate chain: PEM, JKS or PKCS#12, told apart by what is in it.",
    ),
    _secret("ssl.keystore.password", "Password of a JKS or PKCS#12 key store."),
    ConfigKey(
        "ssl.keystore.type", _STRING, None, "low",
        "Type of the key store. What the file holds decides; this only rules out what does not fit.",
        _STORE_TYPES,
    ),
    _secret("ssl.keystore.key", "This client's private key as PEM text; needs ssl.keystore.certificate.chain."),
    _secret("ssl.keystore.certificate.chain", "The certificate chain as PEM text, this client's certificate first."),
    _text("ssl.key.location", "PEM file with this client's private key; needs ssl.certificate.location."),
    _text(
        "ssl.certificate.location",
        "PEM file with this client's certificate and its chain; the key too, if there is no ssl.key.location.",
    ),
    _secret(
        "ssl.key.password",
        "Password of the private key. Without it the key of a JKS or PKCS#12 store has the store's password.",
    ),
    _text("ssl.crl.location", "PEM file with the lists of revoked certificates; then every broker's is looked up."),
    ConfigKey(
        "ssl.endpoint.identification.algorithm", _STRING, "https", "low",
        "Whether the broker's certificate must be for the host that was asked for. The empty string, or none, turns "
        "that off, and nothing else: the chain is verified all the same.",
        HostNameCheck(),
    ),
    ConfigKey(
        "ssl.protocol", _STRING, "TLSv1.3", "low",
        "The newest version of TLS that may be used.",
        OneOf(("TLSv1.3", "TLSv1.2", "TLS"), any_case=True),
    ),
    ConfigKey(
        "ssl.enabled.protocols", _LIST, ("TLSv1.2", "TLSv1.3"), "low",
        "The versions of TLS that may be used: TLSv1.2, TLSv1.3 or both.",
        Distinct(),
    ),
    ConfigKey(
        "ssl.cipher.suites", _LIST, (), "low",
        "The cipher suites of TLS 1.2 that may be used, by their IANA or OpenSSL names; empty leaves it to OpenSSL.",
        Distinct(),
    ),
    ConfigKey(
        "ssl.context", _OBJECT, None, "low",
        "A ready ssl.SSLContext, in place of all other options of TLS; from Python code only.",
    ),
    _ignored("ssl.provider", _JVM),
    _ignored("ssl.keymanager.algorithm", _JVM),
    _ignored("ssl.trustmanager.algorithm", _JVM),
    _ignored("ssl.secure.random.implementation", _JVM),
)  # fmt: skip

_SASL: Final = (
    ConfigKey(
        "sasl.mechanism", _STRING, "GSSAPI", "low",
        "How this client proves who it is: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, AWS_MSK_IAM, GSSAPI, or "
        "one that you have registered.",
        NotEmpty(),
    ),
    _secret(
        "sasl.jaas.config",
        "The credentials in Java's form: a login module and its options. The module counts by the last part of its "
        "name.",
    ),
    _text("sasl.username", "The user of PLAIN and SCRAM, where there is no sasl.jaas.config."),
    _secret("sasl.password", "The password of PLAIN and SCRAM, where there is no sasl.jaas.config."),
    ConfigKey(
        "sasl.oauth.token.provider", _OBJECT, None, "low",
        "Gives the tokens of OAUTHBEARER: an object with a method token(), a function, or the name of one as "
        "'module:attribute'. For AWS_MSK_IAM it gives the credentials.",
    ),
    _text(
        "sasl.login.callback.handler.class",
        "Java's class that gets the token. Those of Kafka for OAUTHBEARER are understood, as is Strimzi's.",
    ),
    _text(
        "sasl.client.callback.handler.class",
        "Java's class that gives the credentials. The one of Amazon for AWS_MSK_IAM is understood.",
    ),
    _ignored("sasl.login.class", _JVM),
    _text("sasl.kerberos.service.name", "First part of the brokers' Kerberos principal; without it kafka."),
    _text("sasl.kerberos.principal", "This client's Kerberos principal; without it the one of the ticket cache."),
    _text("sasl.kerberos.keytab", "File with the principal's key; without it the ticket cache is used."),
    _text("sasl.kerberos.domain.name", "Stands for the broker's host in its principal."),
    _ignored("sasl.kerberos.kinit.cmd", _TICKETS),
    _ignored("sasl.kerberos.min.time.before.relogin", _TICKETS),
    _ignored("sasl.kerberos.ticket.renew.jitter", _TICKETS),
    _ignored("sasl.kerberos.ticket.renew.window.factor", _TICKETS),
    ConfigKey(
        "sasl.login.connect.timeout.ms", _INT, None, "low",
        "How long a request for a token may take; the larger of this and sasl.login.read.timeout.ms counts, and 10 "
        "seconds where neither is set.",
        Between(1),
    ),
    ConfigKey(
        "sasl.login.read.timeout.ms", _INT, None, "low",
        "See sasl.login.connect.timeout.ms.",
        Between(1),
    ),
    ConfigKey(
        "sasl.login.retry.backoff.ms", _LONG, 100, "low",
        "Wait before a failed request for a token is repeated; doubles with each failure.",
        _NOT_NEGATIVE,
    ),
    ConfigKey(
        "sasl.login.retry.backoff.max.ms", _LONG, 10_000, "low",
        "Bounds the whole time of the attempts, counted from the first.",
        _NOT_NEGATIVE,
    ),
    ConfigKey(
        "sasl.login.refresh.window.factor", _DOUBLE, 0.8, "low",
        "The part of a token's lifetime after which it is replaced.",
        Between(0.5, 1.0),
    ),
    ConfigKey(
        "sasl.login.refresh.window.jitter", _DOUBLE, 0.05, "low",
        "The largest random part of the lifetime that is added to that.",
        Between(0.0, 0.25),
    ),
    ConfigKey(
        "sasl.login.refresh.min.period.seconds", _INT, 60, "low",
        "The least time between two requests for a token, as far as its lifetime allows.",
        Between(0, 900),
    ),
    ConfigKey(
        "sasl.login.refresh.buffer.seconds", _INT, 300, "low",
        "How long before its end a token is replaced at the latest, as far as its lifetime allows.",
        Between(0, 3600),
    ),
)  # fmt: skip

_OAUTH: Final = (
    _text(
        "sasl.oauthbearer.token.endpoint.url",
        "Where tokens come from: the http or https URL of an OIDC provider, or a file: URL with a token.",
    ),
    _text("sasl.oauthbearer.client.credentials.client.id", "This client's name at the provider."),
    _secret("sasl.oauthbearer.client.credentials.client.secret", "This client's secret at the provider."),
    _text("sasl.oauthbearer.scope", "The scope to ask for."),
    _text("sasl.oauthbearer.extensions", "What brokers are told besides the token: name=value, with commas between."),
    ConfigKey(
        "sasl.oauthbearer.method", _STRING, "default", "low",
        "librdkafka's: oidc asks the token endpoint; default takes sasl.oauth.token.provider. What is given decides.",
        OneOf(("default", "oidc"), any_case=True),
    ),
    ConfigKey(
        "sasl.oauthbearer.grant.type", _STRING, None, "low",
        "How the provider is asked: with the client's secret, or with a signed assertion.",
        OneOf(("client_credentials", "urn:ietf:params:oauth:grant-type:jwt-bearer"), any_case=True),
    ),
    ConfigKey(
        "sasl.oauthbearer.header.urlencode", _BOOL, False, "low",
        "Encode the client's name and secret as in a URL before they are sent, as RFC 6749 wants it.",
    ),
    ConfigKey(
        "sasl.oauthbearer.scope.claim.name", _STRING, "scope", "low",
        "The claim of a token that has its scope.",
        NotEmpty(),
    ),
    ConfigKey(
        "sasl.oauthbearer.sub.claim.name", _STRING, "sub", "low",
        "The claim of a token that has its subject.",
        NotEmpty(),
    ),
    _text("sasl.oauthbearer.assertion.file", "A ready assertion; wins over the options that make one."),
    ConfigKey(
        "sasl.oauthbearer.assertion.algorithm", _STRING, "RS256", "low",
        "How the assertion is signed.",
        OneOf(("RS256", "ES256"), any_case=True),
    ),
    _text("sasl.oauthbearer.assertion.private.key.file", "PEM file with the key that signs the assertion."),
    _secret("sasl.oauthbearer.assertion.private.key.pem", "The same as PEM text."),
    _secret("sasl.oauthbearer.assertion.private.key.passphrase", "Password of that key."),
    _text("sasl.oauthbearer.assertion.template.file", "JSON with header and claims of the assertion."),
    _text("sasl.oauthbearer.assertion.claim.aud", "Whom the assertion is for."),
    _text("sasl.oauthbearer.assertion.claim.iss", "Who makes the assertion."),
    _text("sasl.oauthbearer.assertion.claim.sub", "Whom the assertion is about."),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.exp.seconds", _INT, 300, "low",
        "Lifetime of the assertion.",
        Between(0, 86_400),
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.nbf.seconds", _INT, 60, "low",
        "How long before now the assertion begins to be valid.",
        Between(0, 3600),
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.jti.include", _BOOL, False, "low",
        "Give each assertion a name of its own.",
    ),
    _text(
        "sasl.oauthbearer.jwt.retriever.class",
        "Java's class that asks for the token; Kafka's own are understood.",
    ),
    _secret("sasl.oauthbearer.config", "librdkafka's text that a token provider (oauth_cb) is called with."),
    _text(
        "https.ca.location",
        "File with the certificates that the provider of tokens is trusted by (PEM, JKS or PKCS#12); without it, or "
        "with librdkafka's word `probe`, the system's.",
    ),
    _secret("https.ca.pem", "The same as PEM text."),
    _ignored("sasl.oauthbearer.jwt.validator.class", _JVM),
    *(
        _ignored(f"sasl.oauthbearer.{name}", _BROKER)
        for name in (
            "allow.unverified.audience", "allow.unverified.issuer", "clock.skew.seconds", "expected.audience",
            "expected.issuer", "jwks.endpoint.refresh.ms", "jwks.endpoint.retry.backoff.max.ms",
            "jwks.endpoint.retry.backoff.ms", "jwks.endpoint.url",
        )
    ),
)  # fmt: skip

_PROXY: Final = (
    _secret(
        "proxy.url",
        "Connect to brokers through a proxy: socks5://user:password@host:port, or http://... for CONNECT. The proxy "
        "resolves the brokers' names. A token endpoint is not asked through it.",
    ),
)

SECURITY_KEYS: Final = (*_TLS, *_SASL, *_OAUTH, *_PROXY)
SECURITY_NAMES: Final = tuple(key.name for key in SECURITY_KEYS)


# ---- other spellings


class Spelling(NamedTuple):
    """An option in another client's words.

    Attributes:
        whose: the client.
        here: the dotted name of the option.
        convert: turns the other client's value into one of ours; None as an answer means that nothing is set.
    """

    whose: str
    here: str
    convert: Callable[[Any], Any] | None = None


_CHECK_HOSTNAME: Final = ConfigKey("ssl.check.hostname", _BOOL, True, "low", "kafka-python's.")


def _algorithm(value: Any) -> str:
    return "https" if _CHECK_HOSTNAME.parse(value) else ""


def no_probe(value: Any) -> Any:
    """Understand librdkafka's word for "search the usual places", which is what happens without the option."""
    return None if value == "probe" else value


def _colons(value: Any) -> Any:
    return value.replace(":", ",") if isinstance(value, str) else value


_RDKAFKA: Final = "librdkafka"
_PYTHON: Final = "kafka-python"

SPELLINGS: Final = MappingProxyType(
    {
        "sasl.mechanisms": Spelling(_RDKAFKA, "sasl.mechanism"),
        "ssl.ca.location": Spelling(_RDKAFKA, "ssl.truststore.location", no_probe),
        "ssl.ca.pem": Spelling(_RDKAFKA, "ssl.truststore.certificates"),
        "ssl.certificate.pem": Spelling(_RDKAFKA, "ssl.keystore.certificate.chain"),
        "ssl.key.pem": Spelling(_RDKAFKA, "ssl.keystore.key"),
        "sasl.oauthbearer.client.id": Spelling(_RDKAFKA, "sasl.oauthbearer.client.credentials.client.id"),
        "sasl.oauthbearer.client.secret": Spelling(
            _RDKAFKA, "sasl.oauthbearer.client.credentials.client.secret"
        ),
        "sasl.oauthbearer.assertion.jwt.template.file": Spelling(
            _RDKAFKA, "sasl.oauthbearer.assertion.template.file"
        ),
        "oauth.cb": Spelling(_RDKAFKA, "sasl.oauth.token.provider"),
        "ssl.cafile": Spelling(_PYTHON, "ssl.truststore.location"),
        "ssl.certfile": Spelling(_PYTHON, "ssl.certificate.location"),
        "ssl.keyfile": Spelling(_PYTHON, "ssl.key.location"),
        "ssl.password": Spelling(_PYTHON, "ssl.key.password"),
        "ssl.crlfile": Spelling(_PYTHON, "ssl.crl.location"),
        "ssl.ciphers": Spelling(_PYTHON, "ssl.cipher.suites", _colons),
        "ssl.check.hostname": Spelling(_PYTHON, "ssl.endpoint.identification.algorithm", _algorithm),
        "sasl.plain.username": Spelling(_PYTHON, "sasl.username"),
        "sasl.plain.password": Spelling(_PYTHON, "sasl.password"),
        "socks5.proxy": Spelling(_PYTHON, "proxy.url"),
    }
)


class Refused(NamedTuple):
    """An option that cannot be honoured.

    Attributes:
        why: and what to do instead; follows the name and a colon.
        harmless: a value, as text in lower case, that asks for nothing.
    """

    why: str
    harmless: str | None = None


_CONTEXT: Final = "make an ssl.SSLContext that does it, and give it as ssl_context"
_FILES: Final = "give the certificates as PEM, with ssl.truststore.location and ssl.keystore.location"
_PROVIDER: Final = "give tokens with sasl_oauth_token_provider"

REFUSED: Final = MappingProxyType(
    {
        "ssl.engine.factory.class": Refused(f"a Java class cannot be used here; {_CONTEXT}"),
        "enable.ssl.certificate.verification": Refused(
            "the broker's certificate is always verified, or else anybody could take the broker's place. Give the "
            "cluster's CA with ssl.truststore.location; if only the host name is wrong, set "
            "ssl.endpoint.identification.algorithm to none; and if it must be, give an ssl_context that verifies "
            "nothing",
            "true",
        ),
        "ssl.certificate.verify.cb": Refused(f"there is no such callback here; {_CONTEXT}"),
        "ssl.curves.list": Refused(f"Python cannot choose it by an option; {_CONTEXT}"),
        "ssl.sigalgs.list": Refused(f"Python cannot choose it by an option; {_CONTEXT}"),
        "ssl.providers": Refused("Python's ssl cannot load providers of OpenSSL; leave it out"),
        "ssl.engine.location": Refused(f"Python's ssl cannot load engines of OpenSSL; {_FILES}"),
        "ssl.engine.id": Refused(f"Python's ssl cannot load engines of OpenSSL; {_FILES}"),
        "ssl.ca.certificate.stores": Refused("the system's roots are used where no others are given; leave it out"),
        "ssl.ca": Refused(f"librdkafka's handle cannot be used here; {_FILES}"),
        "ssl.key": Refused(f"librdkafka's handle cannot be used here; {_FILES}"),
        "ssl.certificate": Refused(f"librdkafka's handle cannot be used here; {_FILES}"),
        "sasl.kerberos.name": Refused(
            "say it in two parts, with sasl.kerberos.service.name and sasl.kerberos.domain.name"
        ),
        "oauthbearer.token.refresh.cb": Refused(f"its handle cannot be used here; {_PROVIDER}, which returns them"),
        "enable.sasl.oauthbearer.unsecure.jwt": Refused(
            f"a token that nobody has signed proves nothing; {_PROVIDER}, or, for a test, with "
            "unsecuredLoginStringClaim_sub in sasl.jaas.config",
            "false",
        ),
        "sasl.oauthbearer.metadata.authentication.type": Refused(
            f"the metadata service of a cloud is not asked; {_PROVIDER}", "none"
        ),
    }
)  # fmt: skip
