# SPDX-License-Identifier: Apache-2.0
"""Which options are secret, and which are given in the clear."""

from __future__ import annotations

import time

import pytest

from penstock.config.secrets import given_in_the_clear, is_secret_option, secret_names

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required username=me"


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password", "sasl_plain_password", "ssl_password", "ssl.keystore.key", "ssl.key.pem", "proxy_url",
        "sasl.jaas.config", "socks5_proxy", "sasl.oauthbearer.config",
        "sasl.oauthbearer.client.secret", "ssl.truststore.password", "some.other.password",
    ],
)  # fmt: skip
def test_secrets_in_any_spelling(name):
    assert is_secret_option(name)
    assert given_in_the_clear({name: "http://u:x@h password=x"}) == [name]
    assert given_in_the_clear({name: "${env:X}"}) == []


@pytest.mark.parametrize(
    "name",
    [
        "ssl.ca.pem",
        "ssl_cafile",
        "ssl.keystore.location",
        "sasl.username",
        "linger.ms",
        "acks",
        "key.serializer",
    ],
)
def test_what_everybody_may_see(name):
    assert not is_secret_option(name)
    assert given_in_the_clear({name: "x"}) == []


@pytest.mark.parametrize(
    ("name", "value", "clear"),
    [
        ("sasl.jaas.config", f'{MODULE} password="x";', True),
        ("sasl.jaas.config", f"{MODULE} password = x;", True),
        ("sasl.jaas.config", f'{MODULE} password="${{env:X}}";', False),
        ("sasl.jaas.config", f'{MODULE} clientSecret="x" password="${{env:X}}";', True),
        ("sasl.jaas.config", "a.IAMLoginModule required;", False),
        ("sasl.jaas.config", "${file:/jaas}", False),
        ("proxy.url", "socks5://h:1", False),
        ("proxy.url", "socks5://u:p@h:1", True),
        ("proxy.url", "socks5://${env:U}:p@h:1", True),
        ("proxy.url", "socks5://u:pre${env:P}@h:1", True),
        ("proxy.url", "socks5://${env:U}:${env:P}@h:1", False),
        ("proxy.url", "socks5://${env:U}:${file:/a@b:c}@h:1", False),
        ("socks5_proxy", "socks5://u:${env:P}@${env:H}:1", False),
        ("proxy.url", "u:p@h:1", True),
        ("proxy.url", "${env:URL}", False),
        ("sasl.jaas.config", f'{MODULE} password="${{env:X}}more";', True),
        ("sasl.jaas.config", f"{MODULE} password='more${{env:X}}';", True),
        ("sasl.jaas.config", f"{MODULE} password=${{env:X}} username=me;", False),
        ("sasl.jaas.config", f'{MODULE} password="$${{env:X}}";', True),
        ("sasl.jaas.config", f'{MODULE} password=" x";', True),
        ("sasl.jaas.config", f'{MODULE} ssl.keystore.key="x";', True),
        ("sasl.jaas.config", f'{MODULE} password="" username="x";', False),
        ("sasl.jaas.config", f'{MODULE} "password"="x";', True),
        ("sasl.jaas.config", f"{MODULE} 'password' = 'x';", True),
        ("sasl.jaas.config", f'{MODULE} password /* of = me */ ="x";', True),
        ("sasl.jaas.config", f'{MODULE} "password"= // of me\n /**/ "x";', True),
        ("sasl.jaas.config", f'{MODULE} x="/* " password="x" y=" */";', True),
        ("sasl.jaas.config", f'{MODULE} password="${{env:X}}"; /* password="x" */', True),
        ("sasl.jaas.config", f'{MODULE} "password" /* my */ = /* "x" */ "${{env:X}}";', False),
        ("sasl.jaas.config", f'{MODULE} password="${{env:X}}" /* = "x" */ username="x";', False),
        ("sasl.password", "$${env:X}", True),
        ("sasl.password", "pre${env:X}fix", True),
        ("sasl.password", "${env:X}${env:Y}", False),
        ("sasl.oauthbearer.config", "a=1 b=${env:X}", True),
        ("sasl.password", "", False),
    ],
)
def test_in_the_clear(name, value, clear):
    assert given_in_the_clear({name: value}) == ([name] if clear else [])


def test_the_names_of_all_secrets():
    names = secret_names()
    assert {"sasl.password", "proxy.url", "socks5.proxy", "sasl.oauthbearer.config", "ssl.key.pem"} <= set(
        names
    )
    assert not {"https.ca.pem", "ssl.ca.pem", "linger.ms", "key.serializer"} & set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("piece", ["/* = */", "/", '"', "password ", "\\", "'"])
def test_a_long_text_takes_no_time(piece):
    began = time.thread_time()
    given_in_the_clear({"sasl.jaas.config": f"{MODULE} password {piece * 20_000}"})
    assert time.thread_time() - began < 1
