# SPDX-License-Identifier: Apache-2.0
"""Damaged files that options of security name: a ConfigError that names the file, in bounded time and memory.

Stores of keys and trusted certificates are in `tests/security/tls/test_context.py`.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from fuzz.mutations import EFFORT, Mutation, corrupt, mutations
from hypothesis import HealthCheck, given, settings
from security.oauth.tokens import jwt
from security.tls.certificates import broker, client, revocation_list, the_ca

from penstock.config.kinds import Password
from penstock.errors import ConfigError
from penstock.security.oauth.assertion import AssertionMaker
from penstock.security.oauth.settings import OAuthSettings
from penstock.security.oauth.token_file import TokenFileSource
from penstock.security.tls.context import TlsContext
from penstock.security.tls.material import pem_of
from penstock.security.tls.settings import TlsSettings

PASSPHRASE = "passphrase-of-the-key"
# Of this thread's own work, so that a busy machine changes nothing.
MOST_SECONDS = 10.0
MOST_BYTES = 64 * 1024 * 1024


class Kind(NamedTuple):
    """A kind of file.

    Attributes:
        option: what names it.
        good: what is in it.
        use: reads it, as a client that is made does, and uses what it has read.
    """

    option: str
    good: Callable[[], bytes]
    use: Callable[[str], object]


def use_revocations(place: str) -> object:
    return TlsContext(TlsSettings(trust_pem=Password(the_ca().pem), crl_location=place))


def use_token(place: str) -> object:
    return TokenFileSource(OAuthSettings(token_endpoint_url=f"file://{place}")).fetch()


def use_assertion(**files: str) -> object:
    passphrase = Password(PASSPHRASE)
    oauth = OAuthSettings(grant="jwt_bearer", assertion_private_key_passphrase=passphrase, **files)
    maker = AssertionMaker.from_settings(oauth)
    assert maker is not None
    return maker.make()


def use_key(algorithm: str) -> Callable[[str], object]:
    return lambda place: use_assertion(assertion_private_key_file=place, assertion_algorithm=algorithm)


def use_template(place: str) -> object:
    key = Path(place).with_name("key.pem")
    key.write_text(client().key_pem())
    files = {"assertion_private_key_file": str(key), "assertion_template_file": place}
    return use_assertion(assertion_algorithm="ES256", **files)


@cache
def rsa_key() -> bytes:
    key = rsa.generate_private_key(65537, 2048)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


TEMPLATE = {"header": {"kid": "k1"}, "payload": {"aud": ["a", "b"], "more": {"n": 1.5e3, "x": None}}}
KINDS = {
    "revocation list": Kind(
        "ssl.crl.location",
        lambda: revocation_list(the_ca(), (broker(), client())).encode(),
        use_revocations,
    ),
    "token": Kind("sasl.oauthbearer.token.endpoint.url", lambda: jwt(scope=["a"]).encode(), use_token),
    "assertion": Kind(
        "sasl.oauthbearer.assertion.file",
        lambda: jwt().encode(),
        lambda place: use_assertion(assertion_file=place),
    ),
    "key": Kind(
        "sasl.oauthbearer.assertion.private.key.file", lambda: client().key_pem().encode(), use_key("ES256")
    ),
    "encrypted key": Kind(
        "sasl.oauthbearer.assertion.private.key.file",
        lambda: client().key_pem(PASSPHRASE).encode(),
        use_key("ES256"),
    ),
    "RSA key": Kind("sasl.oauthbearer.assertion.private.key.file", rsa_key, use_key("RS256")),
    "template": Kind(
        "sasl.oauthbearer.assertion.template.file", lambda: json.dumps(TEMPLATE).encode(), use_template
    ),
}
inside = [name for name in KINDS if name not in ("assertion", "template")]
some = settings(
    max_examples=50 * EFFORT,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@contextmanager
def bounded() -> Iterator[None]:
    began = time.thread_time()
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES
    assert time.thread_time() - began < MOST_SECONDS


def refusal(kind: Kind, place: Path, content: bytes) -> str | None:
    """What is said of such a file, if anything; whatever is neither fine nor a ConfigError fails the test."""
    place.write_bytes(content)
    told: ConfigError | None = None
    with bounded():
        try:
            kind.use(str(place))
        except ConfigError as error:
            told = error
    if told is None:
        return None
    assert told.option == kind.option
    assert str(place) in str(told)
    assert len(str(told)) < 1000
    return str(told)


def corrupted_inside(content: bytes, changes: list[Mutation]) -> bytes:
    """The same damage below the outer form: in the DER of PEM, or in the claims of a token."""
    text = content.decode("ascii")
    if text.startswith("-----BEGIN "):
        label = text[len("-----BEGIN ") : text.index("-----", 11)]
        der = corrupt(base64.b64decode("".join(text.split("-----")[2].split())), changes)
        return pem_of(label, binascii.b2a_base64(der, newline=False).decode()).encode()
    header, claims, signature = text.split(".")
    corrupted = corrupt(base64.urlsafe_b64decode(claims + "=="), changes)
    return ".".join((header, base64.urlsafe_b64encode(corrupted).decode().rstrip("="), signature)).encode()


@pytest.mark.parametrize("name", KINDS)
def test_what_is_whole_is_used(tmp_path: Path, name: str) -> None:
    assert refusal(KINDS[name], tmp_path / "file", KINDS[name].good()) is None


@pytest.mark.parametrize("name", KINDS)
@some
@given(changes=mutations)
def test_a_damaged_file_is_refused_with_its_name(tmp_path: Path, name: str, changes: list[Mutation]) -> None:
    refusal(KINDS[name], tmp_path / "file", corrupt(KINDS[name].good(), changes))


@pytest.mark.parametrize("name", inside)
@some
@given(changes=mutations)
def test_what_a_file_holds_may_be_damaged(tmp_path: Path, name: str, changes: list[Mutation]) -> None:
    refusal(KINDS[name], tmp_path / "file", corrupted_inside(KINDS[name].good(), changes))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n",
        b"-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n",
        b'{"header": 7}',
        b'{"header": {"kid": ' + b"9" * 5000 + b"}}",
        b"-----BEGIN " * 80_000,
        bytes(17 * 1024 * 1024),
    ],
    ids=["nothing", "no text", "no list", "no key", "no object", "a long number", "beginnings", "large"],
)
def test_rubbish_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    assert refusal(KINDS[name], tmp_path / "file", content) is not None


@pytest.mark.parametrize("depth", [100, 1_000, 100_000])
def test_a_template_that_is_deep_is_used_or_refused(tmp_path: Path, depth: int) -> None:
    deep = b'{"payload": {"a": ' + b"[" * depth + b"]" * depth + b"}}"
    refusal(KINDS["template"], tmp_path / "file", deep)
