# SPDX-License-Identifier: Apache-2.0
"""The grants of an OIDC provider, against a small one."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time

import pytest
from fix_patience import closed_port, wait_until
from security.oauth.provider import running_provider
from security.oauth.tokens import claims_of, jwt
from security.tls.certificates import broker, other_ca, server_context, the_ca

from penstock.config.kinds import Password
from penstock.errors import ConfigError
from penstock.security.oauth import assertion
from penstock.security.oauth.oidc import OidcSource
from penstock.security.oauth.settings import OAuthSettings
from penstock.security.oauth.token import NoTokenError
from penstock.security.tls.settings import TlsSettings

SECRET = "hunter2/+ &"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def provider():
    with running_provider() as running:
        yield running


def settings(url: str, **more) -> OAuthSettings:
    values = {
        "client_id": "the client",
        "client_secret": Password(SECRET),
        "retry_backoff_ms": 5,
        "retry_backoff_max_ms": 500,
    } | more
    return OAuthSettings(token_endpoint_url=url, **values)


def test_the_client_credentials_grant(provider):
    token = jwt(sub="svc")
    provider.answers = [(200, {"access_token": token, "expires_in": 60})]
    found = OidcSource(settings(provider.url, scope="a b&c")).fetch()
    assert found.value == token
    assert found.principal == "svc"
    ((headers, form),) = provider.asked
    assert form == {"grant_type": "client_credentials", "scope": "a b&c"}
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert headers["Accept"] == "application/json"
    assert (
        base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode() == f"the client:{SECRET}"
    )


def test_id_and_secret_are_url_encoded_where_that_is_asked_for(provider):
    provider.answers = [(200, {"access_token": jwt()})]
    OidcSource(settings(provider.url, header_urlencode=True)).fetch()
    sent = provider.asked[0][0]["Authorization"].removeprefix("Basic ")
    assert base64.b64decode(sent) == b"the+client:hunter2%2F%2B+%26"


@pytest.mark.parametrize(
    ("answer", "expires"),
    [
        ({"access_token": "opaque", "expires_in": 60}, 1060.0),
        ({"access_token": "opaque", "expires_in": "60"}, 1060.0),
        ({"access_token": "opaque"}, None),
        ({"access_token": "opaque", "expires_in": -1}, None),
        ({"id_token": "opaque", "expires_in": 60}, 1060.0),
        ({"access_token": jwt(exp=2000), "expires_in": 60}, 2000.0),
    ],
)
def test_the_expiry_is_that_of_the_token_or_of_the_answer(provider, answer, expires):
    provider.answers = [(201, answer)]
    assert OidcSource(settings(provider.url), wall=lambda: 1000.0).fetch().expires_at == expires


@pytest.mark.parametrize("status", [408, 416, 429, 500, 502, 503])
def test_what_may_pass_is_tried_again(provider, status):
    provider.answers = [(status, b""), (status, b""), (200, {"access_token": "opaque"})]
    assert OidcSource(settings(provider.url, retry_backoff_max_ms=60_000)).fetch().value == "opaque"
    assert len(provider.asked) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 415, 501, 505])
def test_what_does_not_pass_is_not_tried_again(provider, status):
    provider.answers = [(status, {"error": "invalid_client", "error_description": f"bad {SECRET} given"})]
    with pytest.raises(NoTokenError, match=f"it answered {status}: invalid_client") as caught:
        OidcSource(settings(provider.url)).fetch()
    assert SECRET not in str(caught.value)
    assert provider.url.rpartition("/")[0] in str(caught.value)
    assert len(provider.asked) == 1


def test_a_refusal_says_what_to_check(provider):
    provider.answers = [(401, {"error": "invalid_client"}), (404, b"")]
    with pytest.raises(
        NoTokenError, match=r"check sasl\.oauthbearer\.client\.credentials\.client\.id and its client\.secret"
    ):
        OidcSource(settings(provider.url)).fetch()
    with pytest.raises(NoTokenError, match=r"404; check sasl\.oauthbearer\.token\.endpoint\.url"):
        OidcSource(settings(provider.url)).fetch()


def test_other_names_of_the_error(provider):
    provider.answers = [(401, {"errorCode": "E1", "errorSummary": "no such client"})]
    with pytest.raises(NoTokenError, match=r"E1 \(no such client\)"):
        OidcSource(settings(provider.url)).fetch()


def test_a_redirect_is_not_followed(provider):
    provider.answers = [(302, b""), (200, {"access_token": "stolen"})]
    with pytest.raises(NoTokenError, match="it answered 302"):
        OidcSource(settings(provider.url)).fetch()
    assert len(provider.asked) == 1


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not a JSON object"),
        (b"<html>", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "not a JSON object"),
        ({}, "neither access_token nor id_token"),
        ({"access_token": 7}, "not int"),
        ({"access_token": "two words"}, "characters other"),
        (b'{"a":"' + b"x" * 1_100_000, "more than 1000000 bytes"),
    ],
)
def test_answers_that_are_no_tokens(provider, body, why):
    provider.answers = [(200, body)]
    with pytest.raises(NoTokenError, match=why):
        OidcSource(settings(provider.url)).fetch()
    assert len(provider.asked) == 1


def test_a_provider_that_is_not_there():
    began = time.monotonic()
    with closed_port() as port:
        source = OidcSource(settings(f"http://127.0.0.1:{port}/token", retry_backoff_max_ms=50))
        with pytest.raises(NoTokenError, match=r"cannot be asked: .*refused"):
            source.fetch()
    assert time.monotonic() - began < 30
    assert "refused" in source.trouble


def test_a_provider_that_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/token"
        source = OidcSource(settings(url, read_timeout_ms=30, connect_timeout_ms=20, retry_backoff_max_ms=1))
        with pytest.raises(NoTokenError, match="timed out"):
            source.fetch()


def test_stop_ends_the_wait_between_attempts(provider):
    provider.answers = [(503, b"")]
    source = OidcSource(settings(provider.url, retry_backoff_ms=200_000, retry_backoff_max_ms=600_000))

    def stop_after_an_attempt() -> None:
        wait_until(lambda: provider.asked)
        source.stop()

    began = time.monotonic()
    threading.Thread(target=stop_after_an_attempt).start()
    with pytest.raises(NoTokenError, match="503"):
        source.fetch()
    assert time.monotonic() - began < 100


@pytest.mark.parametrize(
    ("more", "option"),
    [
        ({"client_id": None}, "sasl.oauthbearer.client.credentials.client.id"),
        ({"client_secret": None}, "sasl.oauthbearer.client.credentials.client.secret"),
        ({"grant": "jwt_bearer"}, "sasl.oauthbearer.assertion.private.key.file"),
    ],
)
def test_what_is_missing(more, option):
    with pytest.raises(ConfigError) as caught:
        OidcSource(settings("http://idp/token", **more))
    assert caught.value.option == option


@pytest.mark.parametrize("url", ["http:///token", "http://user:hunter2@idp/token"])
def test_urls_that_are_refused_are_not_shown(url):
    with pytest.raises(ConfigError) as caught:
        OidcSource(settings(url))
    assert "hunter2" not in str(caught.value)


def test_certificates_that_cannot_be_read(tmp_path):
    bad = tmp_path / "ca.pem"
    bad.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"ca\.pem"):
        OidcSource(settings("https://idp/token", tls=TlsSettings(trust_location=str(bad))))
    with pytest.raises(ConfigError):
        OidcSource(settings("https://idp/token", tls=TlsSettings(trust_pem=Password("rubbish"))))


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_of_the_environment_is_used_and_named(scheme, monkeypatch):
    source = OidcSource(settings(f"{scheme}://idp.invalid/token"))
    monkeypatch.setenv("no_proxy", "elsewhere.example")
    told = f"cannot be asked through the proxy of {scheme}_proxy: .*refused"
    with closed_port() as port:
        monkeypatch.setenv(f"{scheme}_proxy", f"http://me:hunter2@127.0.0.1:{port}")
        with pytest.raises(NoTokenError, match=told) as caught:
            source.fetch()
    assert "hunter2" not in str(caught.value)
    monkeypatch.setenv("no_proxy", "idp.invalid")
    with pytest.raises(NoTokenError, match="cannot be asked: "):
        source.fetch()


def test_the_providers_certificate_is_checked_as_those_of_brokers_are(tmp_path):
    place = tmp_path / "ca.pem"
    place.write_text(other_ca().pem)
    with running_provider(tls=server_context()) as running:
        running.answers = [(200, {"access_token": jwt(sub="svc")})]
        # In one line, as options have it: OpenSSL alone does not read that.
        text = the_ca().pem.replace("\n", " ")
        assert OidcSource(settings(running.url, tls=TlsSettings(trust_pem=Password(text)))).fetch()
        # A trusted certificate need not have signed itself. And the CA of these tests is none that Python 3.13 takes.
        assert OidcSource(settings(running.url, tls=TlsSettings(trust_pem=Password(broker().pem)))).fetch()
        source = OidcSource(settings(running.url, tls=TlsSettings(trust_location=str(place))))
        with pytest.raises(NoTokenError, match="certificate"):
            source.fetch()
        place.write_text(the_ca().pem)  # replaced while the client runs
        deadline = time.monotonic() + 60
        while True:
            try:
                assert source.fetch().principal == "svc"
                break
            except NoTokenError:
                assert time.monotonic() < deadline


# ---- assertions


@pytest.fixture(scope="module")
def keys():
    """A key of each kind, in PEM."""
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    made = {"RS256": rsa.generate_private_key(65537, 2048), "ES256": ec.generate_private_key(ec.SECP256R1())}

    def pem(key, secret=None):
        how = form.NoEncryption() if secret is None else form.BestAvailableEncryption(secret)
        return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, how)

    return made, pem


def verify(algorithm: str, key, token: str) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec, padding
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    signed, _, signature = token.rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
    if algorithm == "RS256":
        key.public_key().verify(raw, signed.encode(), padding.PKCS1v15(), SHA256())
    else:
        assert len(raw) == 64
        der = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
        key.public_key().verify(der, signed.encode(), ec.ECDSA(SHA256()))


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
@pytest.mark.parametrize("passphrase", [None, "s3cret"])
def test_the_jwt_bearer_grant(provider, keys, tmp_path, algorithm, passphrase):
    made, pem = keys
    file = tmp_path / "key.pem"
    file.write_bytes(pem(made[algorithm], passphrase.encode() if passphrase else None))
    template = tmp_path / "template.json"
    template.write_text(
        json.dumps({"header": {"kid": "k1", "alg": "none"}, "payload": {"aud": "old", "role": "r"}})
    )
    provider.answers = [(200, {"access_token": "opaque"})]
    source = OidcSource(
        settings(
            provider.url,
            grant="jwt_bearer",
            scope="s",
            client_id=None,
            client_secret=None,
            assertion_algorithm=algorithm,
            assertion_private_key_file=str(file),
            assertion_private_key_passphrase=Password(passphrase) if passphrase else None,
            assertion_template_file=str(template),
            assertion_claim_aud="the-idp",
            assertion_claim_iss="me",
            assertion_claim_sub="svc",
            assertion_claim_jti_include=True,
        ),
        wall=lambda: 1000.0,
    )
    source.fetch()
    source.fetch()
    (headers, form), (_, second) = provider.asked
    assert form.pop("grant_type") == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    assert form.pop("scope") == "s"
    shown = form.pop("assertion")
    assert form == {}
    assert "Authorization" not in headers
    verify(algorithm, made[algorithm], shown)
    claims = claims_of(shown)
    assert claims.pop("jti") != claims_of(second["assertion"])["jti"]
    assert claims == {
        "aud": "the-idp",
        "iss": "me",
        "sub": "svc",
        "role": "r",
        "iat": 1000,
        "exp": 1300,
        "nbf": 940,
    }
    header = shown.partition(".")[0]
    assert json.loads(base64.urlsafe_b64decode(header + "=" * (-len(header) % 4))) == {
        "typ": "JWT",
        "alg": algorithm,
        "kid": "k1",
    }


@pytest.mark.parametrize("between", ["\n", " ", "\\n", "\r\n"])
def test_a_key_that_was_pasted(provider, keys, between):
    made, pem = keys
    provider.answers = [(200, {"access_token": "opaque"})]
    text = Password(pem(made["ES256"]).decode().replace("\n", between))
    given = settings(provider.url, assertion_algorithm="ES256", assertion_private_key_pem=text)
    OidcSource(given).fetch()
    ((_, form),) = provider.asked
    verify("ES256", made["ES256"], form["client_assertion"])


def test_a_pasted_key_that_cannot_be_used_names_its_option():
    pytest.importorskip("cryptography")
    with pytest.raises(ConfigError, match="not a private key") as caught:
        OidcSource(settings("http://idp/t", assertion_private_key_pem=Password("no key at all")))
    assert caught.value.option == "sasl.oauthbearer.assertion.private.key.pem"


def test_a_key_that_is_replaced_signs_the_next_assertion(provider, keys, tmp_path):
    from cryptography.hazmat.primitives.asymmetric import ec

    made, pem = keys
    file = tmp_path / "key.pem"
    file.write_bytes(pem(made["ES256"]))
    provider.answers = [(200, {"access_token": "opaque"})]
    source = OidcSource(
        settings(provider.url, assertion_algorithm="ES256", assertion_private_key_file=str(file))
    )
    source.fetch()
    file.write_bytes(b"")
    with pytest.raises(NoTokenError, match=r"private\.key\.file: .*key\.pem"):
        source.fetch()
    second = ec.generate_private_key(ec.SECP256R1())
    file.write_bytes(pem(second))
    source.fetch()
    assert len(provider.asked) == 2
    verify("ES256", second, provider.asked[1][1]["client_assertion"])


def test_client_credentials_with_an_assertion_from_a_file(provider, tmp_path):
    file = tmp_path / "assertion"
    file.write_text(jwt(sub="ready") + "\n")
    provider.answers = [(200, {"access_token": "opaque"})]
    OidcSource(settings(provider.url, assertion_file=str(file), client_secret=None)).fetch()
    ((headers, form),) = provider.asked
    assert "Authorization" not in headers
    assert form["grant_type"] == "client_credentials"
    assert form["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
    assert form["client_id"] == "the client"
    assert claims_of(form["client_assertion"])["sub"] == "ready"


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"rubbish", "not a private key"), (b"", "not a private key"), (b"x" * 1_100_000, "more than")],
)
def test_keys_that_cannot_be_used(tmp_path, content, why):
    pytest.importorskip("cryptography")
    file = tmp_path / "key.pem"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=why) as caught:
        OidcSource(settings("http://idp/t", grant="jwt_bearer", assertion_private_key_file=str(file)))
    assert str(file) in str(caught.value)


def test_a_key_that_does_not_fit_or_does_not_open(keys, tmp_path):
    made, pem = keys
    file = tmp_path / "key.pem"
    file.write_bytes(pem(made["ES256"]))
    with pytest.raises(ConfigError, match="RS256 needs an RSA key"):
        OidcSource(settings("http://idp/t", assertion_private_key_file=str(file)))
    file.write_bytes(pem(made["RS256"], b"s3cret"))
    with pytest.raises(ConfigError, match="no passphrase is given"):
        OidcSource(settings("http://idp/t", assertion_private_key_file=str(file)))
    with pytest.raises(ConfigError, match="passphrase is wrong"):
        OidcSource(
            settings(
                "http://idp/t",
                assertion_private_key_file=str(file),
                assertion_private_key_passphrase=Password("wrong"),
            )
        )
    with pytest.raises(ConfigError, match="one of RS256, ES256"):
        OidcSource(settings("http://idp/t", assertion_private_key_file=str(file), assertion_algorithm="none"))


@pytest.mark.parametrize(
    ("content", "why"),
    [("{", "line 1, column 2"), ("[]", "must be an object"), ('{"header": 7}', "must be an object")],
)
def test_templates_that_cannot_be_used(tmp_path, content, why):
    file, ready = tmp_path / "template.json", tmp_path / "assertion"
    file.write_text(content)
    ready.write_text("a.b.c")
    with pytest.raises(ConfigError, match=why) as caught:
        OidcSource(settings("http://idp/t", assertion_file=str(ready), assertion_template_file=str(file)))
    assert str(file) in str(caught.value)


def test_an_assertion_file_that_is_missing(tmp_path):
    with pytest.raises(ConfigError, match=r"assertion file .* cannot be read"):
        OidcSource(settings("http://idp/t", assertion_file=str(tmp_path / "none")))


def test_without_cryptography_the_extra_is_named(tmp_path, monkeypatch):
    import sys

    file = tmp_path / "key.pem"
    file.write_text("any")
    monkeypatch.delitem(sys.modules, "penstock.security.oauth.signing", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(ConfigError, match=r"'\.\[oauth\]"):
        assertion.AssertionMaker.from_settings(OAuthSettings(assertion_private_key_file=str(file)))


def test_a_key_that_asks_for_endless_work(tmp_path):
    """PBKDF2 with two thousand million rounds: an hour of work for a client that uses it unchecked."""
    salted = b"\x04\x08saltsalt\x02\x04\x7f\xff\xff\xff"
    for _ in range(5):
        salted = b"\x30" + bytes([len(salted)]) + salted
    text = base64.b64encode(salted).decode()
    file = tmp_path / "key.pem"
    file.write_text(f"-----BEGIN ENCRYPTED PRIVATE KEY-----\n{text}\n-----END ENCRYPTED PRIVATE KEY-----\n")
    given = settings(
        "http://127.0.0.1:1/",
        assertion_private_key_file=str(file),
        assertion_private_key_passphrase=Password("hush-hush"),
    )
    with pytest.raises(ConfigError, match="hashed 2147483647 times") as caught:
        OidcSource(given)
    assert str(file) in str(caught.value)
