# SPDX-License-Identifier: Apache-2.0
"""The requests by which a client says who it is; the rules are in `penstock.testing.security.authentication`."""

from __future__ import annotations

from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest, Body


def handle_sasl_handshake(request: ApiRequest) -> Body:
    """SaslHandshake (17): agree upon a mechanism.

    Behaviour:
    - A mechanism that is not enabled is UNSUPPORTED_SASL_MECHANISM, with those that are; the connection ends.
    - On a listener without SASL, and where no new authentication is due, it is ILLEGAL_SASL_STATE; the connection
      stays.

    Version notes:
    - 0: tokens follow without a header. 1: each is a SaslAuthenticate.
    """
    code = request.authentication.begin(request.body["mechanism"], request.version, request.now)
    return {"error_code": code, "mechanisms": _mechanisms(request)}


def refuse_sasl_handshake(request: ApiRequest, code: int) -> Body:
    return {"error_code": code, "mechanisms": _mechanisms(request)}


def handle_sasl_authenticate(request: ApiRequest) -> Body:
    """SaslAuthenticate (36): take a token.

    Behaviour:
    - A token that is refused is SASL_AUTHENTICATION_FAILED with a text, and the connection ends; OAUTHBEARER says
      first, without an error, why a token is not good.
    - Without a mechanism that was agreed upon it is ILLEGAL_SASL_STATE.

    Version notes:
    - 1: how long the authentication is good for. 2: flexible.
    """
    answer = request.authentication.token(bytes(request.body["auth_bytes"]), request.now)
    if answer.error:
        return refuse_sasl_authenticate(request, answer.code) | {"error_message": answer.error}
    return {
        "error_code": ErrorCode.NONE,
        "error_message": "",
        "auth_bytes": answer.token,
        "session_lifetime_ms": request.authentication.session_lifetime_ms(request.now),
    }


def refuse_sasl_authenticate(request: ApiRequest, code: int) -> Body:
    return {"error_code": code, "error_message": None, "auth_bytes": b"", "session_lifetime_ms": 0}


def _mechanisms(request: ApiRequest) -> list[str]:
    security = request.cluster.security
    return list(security.mechanisms) if security.uses_sasl else []
