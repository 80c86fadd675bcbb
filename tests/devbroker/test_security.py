# SPDX-License-Identifier: Apache-2.0
"""What a broker with secured listeners is told, and what its clients are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.properties import parse_properties
from penstock.devbroker import DevBrokerError, DevCluster, security, settings
from penstock.devbroker.certificates import Certificates
from penstock.devbroker.security import CHOICES, how_to_have
from penstock.devbroker.settings import NodeAddress

PORTS = {"TLS": 20011, "MTLS": 20012, "SASLTLS": 20013, "SASLPLAIN": 20014}
NODE = NodeAddress(1, 20001, 20002, PORTS)
CERTIFICATES = Certificates(Path("/data/security"))


def properties_of(choice: str) -> dict[str, str]:
    return security.listener_properties(NODE, CHOICES[choice], CERTIFICATES)


def test_secured_listeners_stand_beside_the_plain_one_on_the_loopback_only() -> None:
    properties = properties_of("all")
    assert properties["listeners"] == (
        "PLAINTEXT://127.0.0.1:20001,TLS://127.0.0.1:20011,MTLS://127.0.0.1:20012,SASLTLS://127.0.0.1:20013,"
        "SASLPLAIN://127.0.0.1:20014,CONTROLLER://127.0.0.1:20002"
    )
    # The name in the certificate is told to clients of TLS.
    assert properties["advertised.listeners"] == (
        "PLAINTEXT://127.0.0.1:20001,TLS://localhost:20011,MTLS://localhost:20012,SASLTLS://localhost:20013,"
        "SASLPLAIN://127.0.0.1:20014"
    )
    assert properties["listener.security.protocol.map"] == (
        "PLAINTEXT:PLAINTEXT,TLS:SSL,MTLS:SSL,SASLTLS:SASL_SSL,SASLPLAIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
    )


def test_properties_of_the_caller_win_over_those_of_the_listeners() -> None:
    merged = settings.server_properties(
        NODE, [NODE], Path("/logs"), {**properties_of("tls"), "ssl.keystore.type": "JKS"}
    )
    assert merged["ssl.keystore.type"] == "JKS"
    assert "TLS://" in merged["listeners"]


def test_only_the_listener_for_certificates_demands_one() -> None:
    properties = properties_of("all")
    assert properties["listener.name.mtls.ssl.client.auth"] == "required"
    assert not any(name.endswith("ssl.client.auth") for name in properties_of("tls"))


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("tls", ["ssl"]),
        ("mtls", ["mtls"]),
        ("sasl-plain", ["sasl_ssl-plain", "sasl_plaintext-plain"]),
        (
            "scram",
            [
                "sasl_ssl-scram-sha-256", "sasl_ssl-scram-sha-512",
                "sasl_plaintext-scram-sha-256", "sasl_plaintext-scram-sha-512",
            ],
        ),
        ("oauth", ["sasl_ssl-oauthbearer", "sasl_plaintext-oauthbearer"]),
    ],
)  # fmt: skip
def test_each_choice_has_its_ways_to_connect(choice: str, names: list[str]) -> None:
    assert [way.name for way in security.accesses(CHOICES[choice])] == names


def test_all_has_every_way_of_every_choice() -> None:
    together = {way.name for choice in CHOICES for way in security.accesses(CHOICES[choice])}
    assert {way.name for way in security.accesses(CHOICES["all"])} == together


def test_users_of_scram_are_made_with_every_storage() -> None:
    arguments = security.format_arguments()
    assert arguments[:2] == ["--add-scram", "SCRAM-SHA-256=[name=alice,password=alice-secret]"]
    assert len(arguments) == 2 * 2 * len(security.USERS)


def test_a_client_is_told_all_that_it_needs(tmp_path: Path) -> None:
    files = security.write_client_files(tmp_path / "security", CHOICES["all"], [NODE], CERTIFICATES)
    assert list(files) == [way.name for way in security.accesses(CHOICES["all"])]
    path = files["sasl_ssl-scram-sha-512"]
    assert path.stat().st_mode & 0o077 == 0
    options = {each.name: each.value for each in parse_properties(path.read_text(), str(path))}
    assert options == {
        "bootstrap.servers": "localhost:20013",
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/data/security/ca.pem",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="alice" password="alice-secret";',
    }
    mutual = {each.name: each.value for each in parse_properties(files["mtls"].read_text(), "")}
    assert mutual["ssl.keystore.location"] == "/data/security/client.pem"


def test_a_choice_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="one of tls, mtls, sasl-plain, scram, oauth, all, not 'kerberos'"):
        DevCluster(security="kerberos")


def test_a_java_without_keytool_is_named(fake_java: Path) -> None:
    with pytest.raises(DevBrokerError, match=r"no keytool beside .*java"):
        DevCluster(security="tls").start()


def test_a_cluster_without_secured_listeners_says_so(fake_java: Path) -> None:
    with (
        DevCluster() as cluster,
        pytest.raises(
            DevBrokerError, match=r"no access 'mtls'.*no secured listener\. Start one that has it: "
        ),
    ):
        cluster.client_options("mtls")


@pytest.mark.parametrize(
    ("access", "choice"),
    [
        ("mtls", "mtls"),
        ("ssl", "tls"),
        ("sasl_plaintext-plain", "sasl-plain"),
        ("sasl_ssl-scram-sha-512", "scram"),
        ("sasl_ssl-oauthbearer", "oauth"),
    ],
)
def test_a_way_to_connect_that_is_missing_is_told_with_the_start_that_has_it(
    access: str, choice: str
) -> None:
    told = how_to_have(access)
    assert f"DevCluster(security={choice!r})" in told
    assert f"`penstock broker start --security {choice}`" in told
    assert "There are ssl, mtls, sasl_ssl-plain, " in how_to_have("sasl_ssl-kerberos")
