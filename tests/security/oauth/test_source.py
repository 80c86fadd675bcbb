# SPDX-License-Identifier: Apache-2.0
"""Providers in all shapes that other clients know."""

from __future__ import annotations

import asyncio
import functools
import time
import warnings
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from aiokafka.abc import AbstractTokenProvider as AioProvider
from security.oauth.tokens import claims_of, jwt

from penstock.config.kinds import Password
from penstock.errors import ConfigError
from penstock.security.oauth.settings import OAuthSettings
from penstock.security.oauth.source import ProviderSource, UnsecuredSource, token_source
from penstock.security.oauth.token import BadTokenError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of the other client, when it is imported
    from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonProvider

SOON = time.time() + 600


class AccessToken(NamedTuple):
    token: str
    expires_on: int


class OfKafkaPython(KafkaPythonProvider):
    def __init__(self):
        pass

    def token(self):
        return "opaque"

    def extensions(self):
        return {"logicalCluster": "lkc"}


class OfAiokafka(AioProvider):
    def __init__(self):
        pass

    async def token(self):
        await asyncio.sleep(0)
        return "opaque"


class DuckTyped:
    def token(self):
        return "opaque", SOON


class Called:
    def __call__(self):
        return "opaque", SOON


class CalledAsync:
    async def __call__(self):
        return "opaque", SOON


async def plain_async():
    return "opaque", SOON


def msk_signer(region):
    assert region == "eu-west-1"
    return "opaque", int(SOON * 1000)


@pytest.mark.parametrize(
    ("provider", "expiry"),
    [
        (lambda: "opaque", None),
        (lambda: ("opaque", SOON), SOON),
        (lambda config: ("opaque", SOON), SOON),
        (lambda config=None: ("opaque", SOON), SOON),
        (lambda *args: ("opaque", SOON), SOON),
        (lambda: ("opaque", SOON, "p", {"a": "b"}), SOON),
        (functools.partial(msk_signer, "eu-west-1"), SOON),
        (lambda: AccessToken("opaque", int(SOON)), int(SOON)),
        (lambda: ["opaque", SOON], SOON),
        (lambda: b"opaque", None),
        (lambda: ("opaque", datetime.fromtimestamp(SOON, UTC)), SOON),
        (lambda: {"access_token": "opaque", "expires_at": SOON}, SOON),
        (plain_async, SOON),
        (Called(), SOON),
        (CalledAsync(), SOON),
        (DuckTyped(), SOON),
        (OfKafkaPython(), None),
        (OfAiokafka(), None),
    ],
)
def test_shapes(provider, expiry):
    source = ProviderSource(provider, OAuthSettings())
    token = source.fetch()
    source.leave()
    assert token.value == "opaque"
    assert token.expires_at == pytest.approx(expiry, abs=0.01)


def test_the_expiry_of_a_jwt_is_read_where_none_is_given():
    assert ProviderSource(lambda: jwt(exp=SOON), OAuthSettings()).fetch().expires_at == SOON


def test_the_answer_of_an_oauth_provider():
    source = ProviderSource(
        lambda: {"access_token": "opaque", "expires_in": 60}, OAuthSettings(), wall=lambda: 1000.0
    )
    assert source.fetch().expires_at == 1060.0


def test_confluents_callback_gets_its_configuration_and_gives_four_things():
    seen = []

    def oauth_cb(config):
        seen.append(config)
        return "opaque", SOON, "principal", {"traceId": "1"}

    token = ProviderSource(oauth_cb, OAuthSettings(callback_config=Password("key=value"))).fetch()
    assert seen == ["key=value"]
    assert (token.principal, token.extensions) == ("principal", {"traceId": "1"})


def test_extensions_of_an_object_are_asked_for():
    assert ProviderSource(OfKafkaPython(), OAuthSettings()).fetch().extensions == {"logicalCluster": "lkc"}


def test_an_async_provider_keeps_its_event_loop():
    loops = []

    async def provider():
        loops.append(asyncio.get_running_loop())
        return "opaque"

    source = ProviderSource(provider, OAuthSettings())
    source.fetch()
    source.fetch()
    assert loops[0] is loops[1]
    source.leave()
    assert loops[0].is_closed()


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        7,
        (),
        ("a", 1, 2, 3, 4),
        ("a", "soon"),
        ("a", -1),
        ("a", True),
        ("a", SOON, 7),
        ("a", SOON, "p", {"auth": "x"}),
        ("a", SOON, "p", "x=y"),
        {"token": "a"},
        {"access_token": "a", "expires_in": "soon"},
        {"access_token": None},
        ("not a token", SOON),
        object(),
    ],
)
def test_rubbish_is_refused(given):
    with pytest.raises(BadTokenError) as caught:
        ProviderSource(lambda: given, OAuthSettings()).fetch()
    assert "not a token" not in str(caught.value)


@pytest.mark.parametrize(
    ("provider", "why"),
    [
        (7, "is not callable, and has no method token"),
        ("eyJ0", "is not callable, and has no method token"),
        (OfAiokafka, "give an object of it"),
        (lambda a, b: None, "more than one argument"),
        (lambda *, key: None, "more than one argument"),
    ],
)
def test_what_cannot_be_a_provider(provider, why):
    with pytest.raises(ConfigError, match=why):
        ProviderSource(provider, OAuthSettings())


def test_unsecured_tokens():
    settings = OAuthSettings(
        unsecured_subject="admin", unsecured_lifetime_seconds=30, scope="a b", unsecured_claims={"x": 1}
    )
    token = UnsecuredSource(settings, wall=lambda: 1000.9996).fetch()
    assert claims_of(token.value) == {
        "sub": "admin",
        "iat": 1000,
        "exp": 1030,
        "scope": ["a", "b"],
        "x": 1,
    }
    assert token.value.endswith(".")
    assert (token.principal, token.expires_at) == ("admin", 1030.0)


def test_the_provider_wins_over_the_other_sources():
    settings = OAuthSettings(token_endpoint_url="https://idp/token", unsecured_subject="x")
    assert isinstance(token_source(settings, lambda: "a"), ProviderSource)
    assert isinstance(token_source(OAuthSettings(unsecured_subject="x"), None), UnsecuredSource)


@pytest.mark.parametrize(
    "settings",
    [OAuthSettings(), OAuthSettings(token_endpoint_url="ftp://x/y"), OAuthSettings(unsecured_subject="")],
)
def test_without_a_source_the_client_is_not_made(settings):
    with pytest.raises(ConfigError):
        token_source(settings, None)
