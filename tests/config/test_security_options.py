# SPDX-License-Identifier: Apache-2.0
"""Options of TLS, SASL and proxies: names, spellings of other clients, refusals, and what a plain client loads."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from penstock.config.config import ProducerConfig
from penstock.config.keys import KEYS
from penstock.config.kinds import Kind, Password
from penstock.config.security_keys import REFUSED, SECURITY_KEYS, SPELLINGS
from penstock.control.client import ControlClient, ControlSettings
from penstock.errors import ConfigError

SERVERS = {"bootstrap.servers": "localhost:9092"}
TLS = SERVERS | {"security.protocol": "SSL"}
PLAIN = SERVERS | {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}


def read(config, /, **options):
    return ProducerConfig.from_user(config, options)


def refusal(config, /, **options):
    with pytest.raises(ConfigError) as caught:
        read(config, **options)
    return str(caught.value)


def test_a_plain_client_loads_nothing_of_it():
    code = """
import sys
from penstock import Producer
from penstock.config.config import ProducerConfig
from penstock.control.client import ControlSettings
config = ProducerConfig.from_user({"bootstrap.servers": "localhost:9092", "security.protocol": "PLAINTEXT"})
assert config.security is None
assert ControlSettings.from_config({"bootstrap.servers": "localhost:9092"}).security is None
print([name for name in sys.modules if name.startswith("penstock.security") or name == "ssl"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout == "[]\n"


def test_secrets_are_of_a_kind_that_does_not_show_itself():
    secret = {key.name for key in SECURITY_KEYS if key.kind is Kind.PASSWORD}
    named = {
        key.name
        for key in SECURITY_KEYS
        if any(word in key.name for word in ("password", "secret", "passphrase", "jaas", ".pem"))
    }
    assert named <= secret
    assert {"ssl.keystore.key", "proxy.url", "ssl.keystore.certificate.chain"} <= secret


def test_a_secret_is_not_shown_by_the_configuration():
    config = read(PLAIN, sasl_username="me", sasl_password="hunter2", proxy_url="http://u:hunter2@h:1")
    for text in (repr(config), str(config.as_dict()), repr(config.security), repr(config.security_options)):
        assert "hunter2" not in text
    assert config.as_dict()["sasl.password"] == Password("hunter2")
    assert config.as_dict()["ssl.protocol"] == "TLSv1.3"


@pytest.mark.parametrize("name", sorted(SPELLINGS))
def test_each_spelling_leads_to_an_option(name):
    assert SPELLINGS[name].here in KEYS
    assert name not in KEYS


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"ssl.ca.location": "/ca.pem"}, "trust_location", "/ca.pem"),
        ({"ssl_cafile": "/ca.pem"}, "trust_location", "/ca.pem"),
        ({"ssl.ca.location": "probe"}, "trust_location", None),
        ({"ssl.ca.pem": "text"}, "trust_pem", Password("text")),
        ({"ssl_certfile": "/c", "ssl_keyfile": "/k"}, "key_location", "/k"),
        ({"ssl.certificate.location": "/c", "ssl.key.location": "/k"}, "certificate_location", "/c"),
        ({"ssl.certificate.pem": "c", "ssl.key.pem": "k"}, "key_pem", Password("k")),
        ({"ssl_certfile": "/c", "ssl_password": "x"}, "key_password", Password("x")),
        ({"ssl_crlfile": "/crl"}, "crl_location", "/crl"),
        ({"ssl_ciphers": "A:B"}, "cipher_suites", ("A", "B")),
        ({"ssl_check_hostname": False}, "check_hostname", False),
        ({"ssl_check_hostname": "true"}, "check_hostname", True),
        ({"ssl.endpoint.identification.algorithm": ""}, "check_hostname", False),
        ({"ssl.endpoint.identification.algorithm": "NONE"}, "check_hostname", False),
        ({"ssl.endpoint.identification.algorithm": "HTTPS"}, "check_hostname", True),
        ({"ssl.protocol": "tlsv1.2"}, "protocol", "TLSv1.2"),
        ({"ssl.protocol": "TLS"}, "protocol", "TLSv1.3"),
        ({"ssl.enabled.protocols": "tlsv1.3"}, "enabled_protocols", ("TLSv1.3",)),
        ({"ssl.truststore.type": "pkcs12", "ssl.truststore.location": "/t"}, "trust_type", "PKCS12"),
        ({"enable.ssl.certificate.verification": "True"}, "check_hostname", True),
    ],
)
def test_options_of_tls_in_every_clients_words(given, field, value):
    assert getattr(read(TLS | given).security.tls, field) == value
    assert getattr(ControlSettings.from_config(TLS | given).security.tls, field) == value


def test_the_same_option_in_two_spellings():
    assert read(TLS, ssl_cafile="/a", ssl_truststore_location="/a").security.tls.trust_location == "/a"
    text = refusal(TLS | {"ssl.ca.location": "/a"}, ssl_cafile="/b")
    assert "ssl.truststore.location is given twice with different values" in text
    assert "ssl.ca.location='/a'" in text
    text = refusal(PLAIN | {"sasl.username": "u", "sasl.password": "hunter2"}, sasl_plain_password="hunter3")
    assert "sasl.password is given twice" in text
    assert "hunter" not in text


@pytest.mark.parametrize(
    ("given", "text", "options"),
    [
        (
            SERVERS | {"ssl.ca.location": "/ca"},
            (
                "ssl.ca.location is given, but security.protocol=PLAINTEXT does without TLS: set security.protocol to "
                "SSL, or leave ssl.ca.location out"
            ),
            ("ssl.ca.location", "security.protocol"),
        ),
        (
            SERVERS | {"sasl.plain.username": "me"},
            (
                "sasl.plain.username is given, but security.protocol=PLAINTEXT does without SASL: set "
                "security.protocol to SASL_SSL (or SASL_PLAINTEXT), or leave sasl.plain.username out"
            ),
            ("sasl.plain.username", "security.protocol"),
        ),
        (
            TLS | {"ssl_cafile": "/ca", "ssl.ca.pem": "text"},
            "ssl.ca.pem and ssl_cafile are both given; leave one of them out",
            ("ssl.ca.pem", "ssl.cafile"),
        ),
        (
            TLS | {"ssl_keyfile": "/k"},
            "ssl_keyfile is given without ssl.certificate.location: a key needs its certificate chain",
            ("ssl.keyfile", "ssl.certificate.location"),
        ),
        (
            SERVERS | {"security.protocol": "SASL_SSL", "sasl.mechanisms": "PLAIN,GSSAPI"},
            "sasl.mechanisms='PLAIN,GSSAPI': name one mechanism, not a list",
            ("sasl.mechanisms",),
        ),
        (SERVERS | {"socks5_proxy": "ftp://u:hunter2@h"}, "socks5_proxy", ("socks5.proxy",)),
        (TLS | {"ssl_ca_location": ""}, "ssl_ca_location: ", ("ssl.ca.location",)),
    ],
)
def test_an_error_names_the_option_as_it_was_written(given, text, options):
    with pytest.raises(ConfigError) as caught:
        read(given)
    assert str(caught.value).startswith(text)
    assert caught.value.options == options


@pytest.mark.parametrize(
    ("given", "begin", "option"),
    [
        (TLS | {"ssl.ca.location": "/no/ca.pem"}, "ssl.ca.location: '/no/ca.pem'", "ssl.ca.location"),
        (TLS | {"ssl_crlfile": "/no/crl.pem"}, "ssl_crlfile: '/no/crl.pem'", "ssl.crlfile"),
        (TLS | {"ssl_ciphers": "NONE-SUCH"}, "ssl_ciphers", "ssl.ciphers"),
        (
            SERVERS | {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": 7},
            "oauth_cb: int is not callable",
            "oauth.cb",
        ),
    ],
)
def test_also_when_the_client_is_made(given, begin, option):
    with pytest.raises(ConfigError) as caught:
        ControlClient(given)
    assert str(caught.value).startswith(begin)
    assert caught.value.option == option


def test_the_name_of_a_file_is_not_reworded(tmp_path):
    place = tmp_path / "ssl.truststore.location"
    place.write_text("nothing")
    with pytest.raises(ConfigError) as caught:
        ControlClient(TLS | {"ssl.ca.location": str(place)})
    assert str(caught.value).startswith(f"ssl.ca.location: '{place}': ")


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_honoured_is_refused_with_a_way_out(name):
    text = refusal(TLS | {name: "hunter2"})
    assert text == f"{name} cannot be honoured here: {REFUSED[name].why}"
    if REFUSED[name].harmless is not None:
        assert read(TLS | {name: REFUSED[name].harmless}).security is not None


def test_no_verification_is_refused_also_without_tls():
    assert "anybody could take the broker's place" in refusal(
        SERVERS | {"enable.ssl.certificate.verification": False}
    )
    with pytest.raises(ConfigError, match="anybody could take"):
        ControlSettings.from_config(SERVERS | {"enable.ssl.certificate.verification": False})


def test_options_of_a_jvm_are_told_in_one_warning(caplog):
    given = {"ssl.provider": "X", "security.providers": "Y", "sasl.kerberos.kinit.cmd": "kinit"}
    assert read(SERVERS | given).security is None
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 1
    assert all(name in told[0] for name in given)


def test_no_check_of_the_host_name_is_told(caplog):
    read(TLS | {"ssl_check_hostname": False})
    assert ["host name" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("config", "texts"),
    [
        (
            SERVERS | {"sasl.username": "me"},
            ["sasl.username is given", "security.protocol=PLAINTEXT", "SASL_SSL"],
        ),
        (SERVERS | {"sasl.mechanism": "GSSAPI"}, ["sasl.mechanism is given", "SASL_SSL"]),
        (TLS | {"sasl.oauthbearer.method": "default"}, ["sasl.oauthbearer.method is given", "SASL_SSL"]),
        (
            SERVERS | {"ssl.endpoint.identification.algorithm": "https"},
            ["ssl.endpoint.identification.algorithm is given", "without TLS"],
        ),
        (TLS | {"sasl.mechanism": "PLAIN"}, ["sasl.mechanism is given", "security.protocol=SSL", "SASL_SSL"]),
        (SERVERS | {"ssl_cafile": "x"}, ["ssl_cafile is given", "without TLS", "leave ssl_cafile out"]),
        (
            SERVERS | {"security.protocol": "SASL_PLAINTEXT", "ssl.key.password": "hunter2"},
            ["ssl.key.password is given", "to SASL_SSL"],
        ),
        (
            TLS | {"ssl.keystore.key": "hunter2"},
            ["without ssl.keystore.certificate.chain", "needs its chain"],
        ),
        (TLS | {"ssl.keystore.certificate.chain": "x"}, ["without ssl.keystore.key", "needs its key"]),
        (
            TLS
            | {"ssl.keystore.key": "k", "ssl.keystore.certificate.chain": "c", "ssl.keystore.type": "JKS"},
            ["set the type to PEM"],
        ),
        (
            TLS
            | {"ssl.keystore.key": "k", "ssl.keystore.certificate.chain": "c", "ssl.keystore.location": "/x"},
            ["ssl.keystore.location and ssl.keystore.key both"],
        ),
        (TLS | {"ssl.keystore.location": "/x", "ssl.key.location": "/y"}, ["leave one of them out"]),
        (
            TLS | {"ssl.keystore.location": "/x", "ssl.keystore.type": "JKS"},
            ["JKS", "needs ssl.keystore.password"],
        ),
        (
            TLS
            | {"ssl.keystore.location": "/x", "ssl.keystore.type": "PEM", "ssl.keystore.password": "hunter2"},
            ["PEM key store has no password"],
        ),
        (TLS | {"ssl.keystore.password": "hunter2"}, ["without ssl.keystore.location"]),
        (TLS | {"ssl.key.password": "hunter2"}, ["without a key"]),
        (TLS | {"ssl.key.location": "/k"}, ["without ssl.certificate.location"]),
        (TLS | {"ssl.truststore.certificates": "t", "ssl.truststore.type": "JKS"}, ["set the type to PEM"]),
        (TLS | {"ssl.truststore.certificates": "t", "ssl.truststore.location": "/x"}, ["both given"]),
        (TLS | {"ssl.truststore.certificates": " "}, ["ssl.truststore.certificates is empty"]),
        (TLS | {"ssl.truststore.password": "hunter2"}, ["without ssl.truststore.location"]),
        (
            TLS
            | {
                "ssl.truststore.location": "/x",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.password": "hunter2",
            },
            ["PEM trust store has no password"],
        ),
        (TLS | {"ssl.truststore.type": "JKS"}, ["ssl.truststore.type is given without"]),
        (TLS | {"ssl.keystore.type": "JKS"}, ["ssl.keystore.type is given without"]),
        (TLS | {"ssl_certfile": "/c", "ssl.keystore.type": "JKS"}, ["set the type to PEM"]),
        (TLS | {"ssl.truststore.location": ""}, ["ssl.truststore.location=''", "not empty"]),
        (TLS | {"ssl.enabled.protocols": "TLSv1.1,TLSv1.3"}, ["'TLSv1.1'", "TLSv1.2 and TLSv1.3"]),
        (TLS | {"ssl.enabled.protocols": ""}, ["ssl.enabled.protocols is empty"]),
        (TLS | {"ssl.enabled.protocols": "TLSv1.3", "ssl.protocol": "TLSv1.2"}, ["has only TLSv1.3"]),
        (TLS | {"ssl.protocol": "SSLv3"}, ["ssl.protocol='SSLv3' is not allowed"]),
        (TLS | {"ssl.endpoint.identification.algorithm": "ldaps"}, ["https, or none"]),
        (TLS | {"ssl_check_hostname": "maybe"}, ["ssl_check_hostname", "true or false"]),
        (TLS | {"ssl_context": "/x"}, ["must be an ssl.SSLContext, not str"]),
        (TLS | {"ssl.keystore.type": "BKS"}, ["allowed: JKS, PKCS12, PEM"]),
        (SERVERS | {"proxy_url": "ftp://u:hunter2@h"}, ["proxy.url", "socks5 or http"]),
        (
            SERVERS | {"security.protocol": "SASL_SSL", "sasl.login.refresh.window.factor": "2"},
            ["0.5 to 1.0"],
        ),
        (
            SERVERS | {"security.protocol": "SASL_SSL", "sasl.login.refresh.window.factor": "nan"},
            ["a number"],
        ),
    ],
)
def test_contradictions_are_refused(config, texts):
    text = refusal(config)
    assert [each for each in texts if each not in text] == []
    assert "hunter2" not in text
    with pytest.raises(ConfigError) as caught:
        ControlSettings.from_config(config)
    assert str(caught.value) == text


def test_a_ready_context_stands_alone():
    import ssl

    context = ssl.create_default_context()
    assert read(TLS, ssl_context=context).security.tls.ready_context is context
    assert "so that ssl_cafile would have no effect" in refusal(TLS, ssl_context=context, ssl_cafile="/x")
    assert "one for servers" in refusal(TLS, ssl_context=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    context.check_hostname = False
    for name, default in (("ssl_endpoint_identification_algorithm", "https"), ("ssl_protocol", "TLSv1.3")):
        assert f"{name.replace('_', '.')} would have no effect" in refusal(
            TLS, ssl_context=context, **{name: default}
        )


def test_a_proxy_alone_is_not_plain():
    settings = read(SERVERS, proxy_url="socks5://me:hunter2@proxy:1080").security
    assert (settings.protocol, settings.tls, settings.sasl) == ("PLAINTEXT", None, None)
    assert (settings.proxy.host, settings.proxy.port) == ("proxy", 1080)
    assert not settings.is_plain
    assert read(SERVERS, socks5_proxy="socks5://proxy:1080").security.proxy.host == "proxy"


def test_what_a_command_reads_twice_is_said_once(caplog):
    from penstock.cli.reach import _quiet

    with _quiet("penstock.config"):
        read(TLS | {"ssl_check_hostname": False, "ssl.provider": "X"})
    assert caplog.records == []
