# SPDX-License-Identifier: Apache-2.0
"""What is checked before a token is accepted."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from security.oauth.tokens import jwt, part

from penstock.security.oauth.token import (
    BadTokenError,
    check_is_jwt,
    checked_expiry,
    checked_extensions,
    checked_value,
    read_claims,
    token_from,
)


@pytest.mark.parametrize("value", ["abc", "a.b.c", "A-_~+/.9==", b"abc", "  abc\n", jwt()])
def test_tokens_that_can_be_sent(value):
    text = value.decode() if isinstance(value, bytes) else value
    assert checked_value(value) == text.strip()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        (None, "not NoneType"),
        (7, "not int"),
        ({}, "not dict"),
        ("s3cret token", "characters other than"),
        ("s3cret\x01auth=x", "characters other than"),
        ("s3cret=x", "characters other than"),
        ("s3crét", "characters other than"),
        (b"s3cret\xff", "characters other than"),
        ("Bearer s3cret", "begins with 'Bearer '"),
        ("s3cret" * 100_000, "more than"),
    ],
)
def test_what_is_not_a_token(value, why):
    with pytest.raises(BadTokenError, match=why) as caught:
        checked_value(value)
    assert "s3cr" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (1_700_000_000, 1_700_000_000.0),
        (1_700_000_000.5, 1_700_000_000.5),
        (1_700_000_000_500, 1_700_000_000.5),
        (datetime(2024, 1, 1, tzinfo=UTC), 1_704_067_200.0),
    ],
)
def test_expiries_in_all_units(value, seconds):
    assert checked_expiry(value) == seconds


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "1700000000", [], 1e16])
def test_what_is_not_an_expiry(value):
    with pytest.raises(BadTokenError):
        checked_expiry(value)


def test_extensions():
    assert checked_extensions(None) == {}
    assert checked_extensions({"logicalCluster": "lkc-1", "identityPoolId": "a b\t!"}) == {
        "logicalCluster": "lkc-1",
        "identityPoolId": "a b\t!",
    }


@pytest.mark.parametrize(
    "value",
    [
        {"auth": "x"},
        {"": "x"},
        {"a1": "x"},
        {"a-b": "x"},
        {"a": ""},
        {"a": "\x01"},
        {"a": "é"},
        {"a": 1},
        {1: "a"},
        [1],
        "a",
    ],
)
def test_extensions_that_cannot_be_sent(value):
    with pytest.raises(BadTokenError):
        checked_extensions(value)


def test_expiry_and_subject_are_read_out_of_a_jwt():
    token = token_from(jwt(sub="svc-1", iat=1000, exp=2000))
    assert (token.principal, token.issued_at, token.expires_at) == ("svc-1", 1000, 2000)
    assert token_from(jwt(sub="a", client="b"), sub_claim="client").principal == "b"
    assert token.has_expired(2000)
    assert not token.has_expired(1999.9)


def test_what_the_source_says_wins():
    token = token_from(jwt(sub="a", exp=2000), expires_at=3000.0, principal="p")
    assert (token.principal, token.expires_at) == ("p", 3000.0)


def test_an_opaque_token_says_nothing():
    token = token_from("opaque")
    assert (token.principal, token.expires_at, token.has_expired(1e12)) == ("", None, False)


def test_a_token_does_not_show_itself():
    assert "opaque" not in repr(token_from("opaque"))


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("opaque", "is it cut"),
        (jwt().rpartition(".")[0], "is it cut"),
        (jwt()[:-30], "is it cut"),
        (f"{part({})}.{part([1])}.x", "is it cut"),
        (f"{part([])}.{part({})}.x", "is it cut"),
        (f"{part({})}.!!!.x", "is it cut"),
        (jwt(exp=None), "no claim exp"),
        (jwt(exp="soon"), "no claim exp"),
        (jwt(exp=True), "no claim exp"),
        (jwt(sub=None), "no claim sub"),
        (jwt(sub="  "), "no claim sub"),
        (jwt(sub=7), "no claim sub"),
        (jwt(scope=7), "claim scope"),
    ],
)
def test_what_java_would_not_take_from_a_file(token, why):
    with pytest.raises(BadTokenError, match=why):
        check_is_jwt(token)


@pytest.mark.parametrize("scope", [None, "a b", ["a", "b"]])
def test_what_java_takes(scope):
    check_is_jwt(jwt(scope=scope))


def test_a_deeply_nested_payload_is_no_jwt():
    nested = "[" * 100_000
    import base64

    bad = base64.urlsafe_b64encode(nested.encode()).rstrip(b"=").decode()
    assert read_claims(f"{part({})}.{bad}.x") is None


@given(st.text(max_size=80))
@settings(deadline=None)
def test_any_text_is_read_without_an_error_of_another_kind(text):
    read_claims(text)
    try:
        token_from(text)
    except BadTokenError:
        pass
