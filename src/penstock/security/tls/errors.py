# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with TLS on a connection, in words: what happened, and what can be done about it.

A refusal (`TlsRefusedError`) will be repeated by the next attempt with the same settings: a certificate that does not
verify, no common version, a client certificate that the broker does not take. A loss (`TlsLostError`) may be gone with
the next attempt. Names that stand in the peer's certificate are the peer's, so they are escaped and cut.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from penstock._escaping import escaped
from penstock.network.transport import RefusedError
from penstock.security.tls.der import validity
from penstock.security.tls.material import Certificate, ClientContext


class TlsRefusedError(RefusedError):
    """One side does not accept the other; trying again with the same settings is of no use."""


class TlsLostError(ConnectionError):
    """TLS came to an end for a reason that another attempt may not meet.

    Attributes:
        advice: what can be done about it; "" where there is nothing to say.
    """

    def __init__(self, text: str, advice: str = "") -> None:
        super().__init__(text)
        self.advice = advice


# What OpenSSL's verification calls its findings.
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_WRONG_HOST: Final = 62
_WRONG_ADDRESS: Final = 64
_UNKNOWN_ISSUER: Final = frozenset({2, 18, 19, 20, 21})
_REVOKED: Final = 23
_REVOCATION_LISTS: Final = frozenset({3, 11, 12, 33, 36})
_TOO_WEAK: Final = frozenset({66, 67, 68})

_IS_IT_TLS: Final = "Does the listener at that port speak TLS? Check the port and security.protocol."
DELAYED: Final = f"the peer does not go on with the TLS handshake. {_IS_IT_TLS}"
_CLIENT_CERTIFICATE: Final = (
    "The broker probably wants a client certificate from a CA that it trusts. Give one as ssl.keystore.location (or "
    "ssl.keystore.key and ssl.keystore.certificate.chain), with its whole chain; if there is one, check that it has "
    "not expired and that the broker trusts its CA."
)
_COMMON_GROUND: Final = (
    "The broker allows other TLS versions or cipher suites. Compare ssl.enabled.protocols, ssl.protocol and "
    "ssl.cipher.suites of both sides."
)
_CLOCK: Final = "Check the clock of this machine; if it is right, the broker needs a new certificate."

# The end of OpenSSL's name of an alert, and what to do about it. Many of them: brokers differ in what they send.
_ALERTS: Final[Mapping[str, str]] = {
    "BAD_CERTIFICATE": _CLIENT_CERTIFICATE,
    "CERTIFICATE_REQUIRED": _CLIENT_CERTIFICATE,
    "CERTIFICATE_UNKNOWN": _CLIENT_CERTIFICATE,
    "CERTIFICATE_EXPIRED": _CLIENT_CERTIFICATE,
    "CERTIFICATE_REVOKED": _CLIENT_CERTIFICATE,
    "UNSUPPORTED_CERTIFICATE": _CLIENT_CERTIFICATE,
    "UNKNOWN_CA": _CLIENT_CERTIFICATE,
    "ACCESS_DENIED": _CLIENT_CERTIFICATE,
    "DECRYPT_ERROR": _CLIENT_CERTIFICATE,
    "HANDSHAKE_FAILURE": f"{_COMMON_GROUND} Or: {_CLIENT_CERTIFICATE}",
    "PROTOCOL_VERSION": _COMMON_GROUND,
    "INSUFFICIENT_SECURITY": _COMMON_GROUND,
    "UNRECOGNIZED_NAME": "The broker does not know the name that it was asked for (SNI). Check the host name.",
}
# Reasons that OpenSSL gives by itself, of a peer whose bytes are no TLS.
_NO_TLS: Final = frozenset(
    {
        "WRONG_VERSION_NUMBER",
        "UNKNOWN_PROTOCOL",
        "HTTP_REQUEST",
        "PACKET_LENGTH_TOO_LONG",
        "RECORD_LAYER_FAILURE",
    }
)
_NOTHING_IN_COMMON: Final = frozenset(
    {
        *("NO_PROTOCOLS_AVAILABLE", "UNSUPPORTED_PROTOCOL", "NO_CIPHERS_AVAILABLE", "WRONG_SSL_VERSION"),
        *("UNKNOWN_CIPHER_RETURNED", "WRONG_CIPHER_RETURNED", "DH_KEY_TOO_SMALL"),
    }
)
# An error names no more of a certificate's names than this, and no more of each.
_MOST_NAMES: Final = 10
_MOST_CHARACTERS: Final = 200


def is_alert(error: ssl.SSLError) -> bool:
    """Whether the peer has sent a fatal alert, as against something that was found here."""
    return "_ALERT_" in (error.reason or "")


def handshake_error(
    error: ssl.SSLError, chain: Sequence[Mapping[str, Any]], host: str, context: ssl.SSLContext
) -> OSError:
    """Why a handshake failed.

    Args:
        error: what OpenSSL says.
        chain: the certificates of the peer as `getpeercert` shows them, its own first; empty where they are not known.
        host: the name that the connection goes to.
        context: that of the client.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _not_verified(error, chain, host)
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return TlsLostError("the peer closed the connection during the TLS handshake", _IS_IT_TLS)
    reason = error.reason or ""
    if is_alert(error):
        return alert_error(error, context)
    if reason in _NO_TLS:
        return TlsRefusedError("what the peer sent is not TLS", _IS_IT_TLS)
    if reason in _NOTHING_IN_COMMON:
        return TlsRefusedError(f"the TLS handshake failed: {_words(reason)}", _COMMON_GROUND)
    return TlsRefusedError(
        f"the TLS handshake failed: {_words(reason) or _text(error)}", "Check both sides' TLS options."
    )


def alert_error(error: ssl.SSLError, context: ssl.SSLContext) -> TlsRefusedError:
    """The peer ended TLS with an alert, before anything else came from it."""
    name = (error.reason or "").partition("_ALERT_")[2]
    advice = _ALERTS.get(name, "The broker's log tells more (kafka.network, javax.net.ssl).")
    if _CLIENT_CERTIFICATE in advice and isinstance(context, ClientContext):
        advice = _own_outside_of_its_time(context.own) or advice
    return TlsRefusedError(f"the broker refused the TLS connection with the alert {_words(name)!r}", advice)


def lost_error(error: ConnectionError) -> TlsLostError:
    """The connection below broke during the handshake."""
    why = error.strerror or str(error) or type(error).__name__
    return TlsLostError(f"the connection broke during the TLS handshake: {why}", _IS_IT_TLS)


def hung_up_error(times: int) -> TlsRefusedError:
    """A peer that has never answered in TLS closed the connection in place of an answer, so many times."""
    return TlsRefusedError(
        f"the peer closed the connection during the TLS handshake, {times} times without a single byte",
        "A listener that does not speak TLS does that: check the port, or set security.protocol to PLAINTEXT, or to "
        "SASL_PLAINTEXT where it wants SASL. A load balancer that has no broker does that, too",
    )


def record_error(error: ssl.SSLError) -> TlsLostError:
    """A connection that was in use came to an end with something that is not in order."""
    return TlsLostError(f"TLS failed: {_words(error.reason or '') or _text(error)}")


# ------------------------------------------------------------------------------------------ certificates


def _not_verified(
    error: ssl.SSLCertVerificationError, chain: Sequence[Mapping[str, Any]], host: str
) -> TlsRefusedError:
    cause = error.verify_code
    own = chain[0] if chain else {}
    if cause in (_WRONG_HOST, _WRONG_ADDRESS):
        return TlsRefusedError(
            f"the broker's certificate is not for {escaped(host)!r}: {_names(own)}",
            "Use a name that is in the certificate: in bootstrap.servers, or in advertised.listeners of the broker; or "
            "have one made with this name as a subject alternative name. (ssl.endpoint.identification.algorithm= "
            "turns this check off.)",
        )
    if cause in (_EXPIRED, _NOT_YET_VALID):
        return TlsRefusedError(_outside_of_its_time(chain, cause), _CLOCK)
    who = f"the broker's certificate ({_subject(own)}) " if own else "the broker's certificate "
    if cause in _UNKNOWN_ISSUER:
        last = chain[-1] if chain else {}
        issuer = f" {_distinguished(last.get('issuer', ()))!r}" if last else ""
        return TlsRefusedError(
            f"{who}is not signed by a CA that is trusted here: {error.verify_message}{issuer}",
            "The certificate of that CA must be in ssl.truststore.location (a PEM, JKS or PKCS#12 file) or "
            "ssl.truststore.certificates. Without these options the roots of this system are trusted, and no others.",
        )
    advice = "Have a new certificate made for the broker."
    if cause in _REVOCATION_LISTS:
        advice = "ssl.crl.location needs a current list of each CA that signs a broker's certificate."
    elif cause == _REVOKED:
        advice = "The list in ssl.crl.location has it. The broker needs a new certificate."
    elif cause in _TOO_WEAK:
        advice = "Its key or its signature is too weak for this OpenSSL. The broker needs a new certificate."
    return TlsRefusedError(f"{who}cannot be accepted: {error.verify_message}", advice)


def _outside_of_its_time(chain: Sequence[Mapping[str, Any]], cause: int) -> str:
    now = datetime.now(UTC)
    verb = "has expired" if cause == _EXPIRED else "is not valid yet"
    for at, each in enumerate(chain):
        start, end = _moment(each.get("notBefore")), _moment(each.get("notAfter"))
        if start is None or end is None or start <= now <= end:
            continue
        whose = "the broker's certificate" if not at else "a certificate in the broker's chain"
        return f"{whose} ({_subject(each)}) {verb}: {_times(start, end, now)}"
    return (
        f"a certificate of the broker's chain {verb}; the clock of this machine says {now:%Y-%m-%d %H:%M} UTC"
    )


def _own_outside_of_its_time(chain: Sequence[Certificate]) -> str:
    """What is wrong with the times of the client's own certificates; "" where nothing is, or they cannot be read."""
    now = datetime.now(UTC)
    for at, each in enumerate(chain):
        try:
            start, end = validity(each.der)
        except ValueError:
            continue
        if not start <= now <= end:
            whose = "The client's certificate" if not at else "A certificate in the client's chain"
            verb = "has expired" if now > end else "is not valid yet"
            return f"{whose} {verb}: {_times(start, end, now)}"
    return ""


def _times(start: datetime, end: datetime, now: datetime) -> str:
    return (
        f"it is valid from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, and the clock of this machine says "
        f"{now:%Y-%m-%d %H:%M} UTC"
    )


def _moment(text: Any) -> datetime | None:
    try:
        return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None  # a year that no calendar has


def _names(certificate: Mapping[str, Any]) -> str:
    if not certificate:
        return "it is for other names"
    found = [str(value) for _, value in certificate.get("subjectAltName", ())]
    if not found:
        return f"it has no subject alternative names, only {_subject(certificate)}"
    shown = ", ".join(_cut(name) for name in found[:_MOST_NAMES])
    more = len(found) - _MOST_NAMES
    return f"it is for {shown}" + (f" and {more} more" if more > 0 else "")


def _subject(certificate: Mapping[str, Any]) -> str:
    return _distinguished(certificate.get("subject", ())) or "without a subject"


def _distinguished(name: Sequence[Sequence[tuple[str, str]]]) -> str:
    short = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C"}
    return _cut(", ".join(f"{short.get(key, key)}={value}" for part in name for key, value in part))


def _cut(text: str) -> str:
    shown = escaped(text[:_MOST_CHARACTERS])
    return shown if len(text) <= _MOST_CHARACTERS else f"{shown}..."


def _words(reason: str) -> str:
    """OpenSSL's name of a reason, as a text."""
    return reason.replace("_", " ").lower()


def _text(error: ssl.SSLError) -> str:
    return str(error.args[-1]) if error.args else type(error).__name__
