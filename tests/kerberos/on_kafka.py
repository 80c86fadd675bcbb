# SPDX-License-Identifier: Apache-2.0
"""GSSAPI with a real KDC and a real Kafka: `make test-kerberos`. What is missing for it is a failure.

Two listeners: SASL_SSL, where the broker is kafka/localhost, and SASL_PLAINTEXT, where it is kafka/127.0.0.1 and
sessions end after two seconds. What was written is read back by confluent-kafka.
"""

from __future__ import annotations

import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fix_patience import within
from fix_security import PLAINTEXT, STRICT, SecuredKafka, values_in_order
from kerberos.realm import REALM, Realm, set_clock_ahead
from quick_java import KAFKA_VARIABLE
from security.numbered import PATIENCE, Numbered, wait_until
from security.rotation import KINDS, REFUSED, check_renewals, lines

from penstock import Producer
from penstock.control import ControlClient
from penstock.devbroker import DevCluster
from penstock.errors import AuthenticationError, KafkaError, TopicAuthorizationError

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "security.md"
TLS, CLEAR = "sasl_ssl-plain", "sasl_plaintext-plain"
SESSION_SECONDS = 2.0
SOON = 5.0  # seconds that any refusal may take
BLOCK_MS = 20_000  # nothing shall meet it
MODULE = "com.sun.security.auth.module.Krb5LoginModule required"

Options = dict[str, Any]


@dataclass(frozen=True)
class KerberosKafka:
    """A broker whose listeners want Kerberos, and its realm."""

    secured: SecuredKafka
    realm: Realm

    def options(self, way: str = TLS, **more: Any) -> Options:
        """What a client writes whose ticket is in the default cache; `sasl_x` stands for `sasl.x`."""
        options: Options = dict(self.secured.options(way))
        del options["sasl.jaas.config"]
        named = {name.replace("_", "."): value for name, value in more.items()}
        return options | {"sasl.mechanism": "GSSAPI", "sasl.kerberos.service.name": "kafka"} | named

    def new_user(self, *options: str) -> tuple[str, Path]:
        """A principal that nobody has seen before, and its keytab."""
        name = f"user-{uuid.uuid4().hex[:8]}"
        return name, self.realm.add(name, *options)


def with_keytab(keytab: Path, name: str) -> str:
    return f'{MODULE} useKeyTab=true storeKey=true keyTab="{keytab}" principal="{name}@{REALM}";'


def broker_properties(realm: Realm) -> dict[str, object]:
    properties: dict[str, object] = {**STRICT, "sasl.kerberos.service.name": "kafka"}
    # Some tests make users of their own.
    properties["allow.everyone.if.no.acl.found"] = "true"
    for listener, host in (("sasltls", "localhost"), ("saslplain", "127.0.0.1")):
        keytab, prefix = realm.add(f"kafka/{host}"), f"listener.name.{listener}"
        properties[f"{prefix}.sasl.enabled.mechanisms"] = "GSSAPI"
        properties[f"{prefix}.gssapi.sasl.jaas.config"] = with_keytab(keytab, f"kafka/{host}")
    session_ms = int(1000 * SESSION_SECONDS)
    return properties | {"listener.name.saslplain.gssapi.connections.max.reauth.ms": session_ms}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerberosKafka]:
    folder = tmp_path_factory.mktemp("realm")
    with Realm(folder) as realm, pytest.MonkeyPatch.context() as patch:
        for name in ("alice", "bob", "kafka/elsewhere"):
            realm.add(name)
        # Read by the library each time that it is asked for something. No ticket of the user who runs this is used.
        patch.setenv("KRB5_CONFIG", str(realm.config))
        patch.setenv("KRB5CCNAME", f"FILE:{folder}/no-tickets")
        patch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{folder}/no-keytab")
        java = f"{os.environ.get(KAFKA_VARIABLE, '')} -Djava.security.krb5.conf={realm.config}"
        patch.setenv(KAFKA_VARIABLE, java)
        with DevCluster(security="sasl-plain", properties=broker_properties(realm)) as cluster:
            yield KerberosKafka(SecuredKafka(cluster), realm)


@pytest.fixture
def alice(kafka: KerberosKafka) -> Path:
    """The file with alice's key."""
    return kafka.realm.keytab("alice")


@pytest.fixture
def cache(kafka: KerberosKafka, tmp_path: Path) -> Path:
    """A cache with alice's ticket."""
    place = tmp_path / "tickets"
    kafka.realm.log_in("alice", place)
    return place


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "penstock")
    return caplog


def write(kafka: KerberosKafka, options: Options, **more: Any) -> None:
    """Write, and have it read back by somebody else."""
    topic = kafka.secured.topic()
    with Producer(options | more) as producer:
        for number in range(50):
            producer.send(topic, b"%02d" % number)
    assert kafka.secured.read(topic, 50, PLAINTEXT) == [b"%02d" % number for number in range(50)]


# ---------------------------------------------------------------------------------------- who is let in


@pytest.mark.parametrize("way", [TLS, CLEAR])
def test_a_keytab(kafka: KerberosKafka, alice: Path, way: str) -> None:
    write(kafka, kafka.options(way, sasl_jaas_config=with_keytab(alice, "alice")))


def test_a_keytab_by_the_options_of_librdkafka(kafka: KerberosKafka, alice: Path) -> None:
    options = kafka.options(sasl_kerberos_keytab=str(alice), sasl_kerberos_principal=f"alice@{REALM}")
    write(kafka, options)


def test_the_default_cache(kafka: KerberosKafka, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{cache}")
    write(kafka, kafka.options())
    jaas = f'{MODULE} useTicketCache=true principal="alice@{REALM}";'
    write(kafka, kafka.options(sasl_jaas_config=jaas))


def test_a_cache_that_is_named(kafka: KerberosKafka, cache: Path) -> None:
    jaas = f'{MODULE} useTicketCache=true ticketCache="{cache}";'
    write(kafka, kafka.options(CLEAR, sasl_jaas_config=jaas))


def test_the_mechanism_is_the_default_one(kafka: KerberosKafka, alice: Path) -> None:
    options = kafka.options(sasl_jaas_config=with_keytab(alice, "alice"))
    del options["sasl.mechanism"]
    write(kafka, options)


def test_the_name_that_stands_for_the_brokers(kafka: KerberosKafka, alice: Path) -> None:
    """A broker that is reached by another name than the one in its principal."""
    options = kafka.options(sasl_jaas_config=with_keytab(alice, "alice"))
    options["bootstrap.servers"] = options["bootstrap.servers"].replace("localhost", "127.0.0.1")
    write(kafka, options, sasl_kerberos_domain_name="localhost")


def test_transactions(kafka: KerberosKafka, alice: Path) -> None:
    topic = kafka.secured.topic()
    options = kafka.options(sasl_jaas_config=with_keytab(alice, "alice"))
    with Producer(options, transactional_id=f"x-{topic}") as producer:
        producer.init_transactions()
        for commit in (True, False, True):
            producer.begin_transaction()
            producer.send(topic, b"kept" if commit else b"dropped")
            (producer.commit_transaction if commit else producer.abort_transaction)()
    assert kafka.secured.read(topic, 2, PLAINTEXT) == [b"kept"] * 2


def test_the_broker_knows_who_it_is(kafka: KerberosKafka, alice: Path) -> None:
    topic = kafka.secured.topic()
    kafka.secured.grant("TOPIC", topic, "WRITE", "DESCRIBE", user="alice")
    write_once(kafka.options(sasl_jaas_config=with_keytab(alice, "alice")), topic)
    with pytest.raises(TopicAuthorizationError):
        write_once(kafka.options(sasl_jaas_config=with_keytab(kafka.realm.keytab("bob"), "bob")), topic)


def write_once(options: Options, topic: str) -> None:
    with Producer(options) as producer:
        producer.send(topic, b"x").result(PATIENCE)


def test_the_recipe_of_the_page(kafka: KerberosKafka, alice: Path, tmp_path: Path) -> None:
    section = PAGE.read_text(encoding="utf-8").split("### Kerberos\n")[1].split("\n### ")[0]
    (text,) = re.findall(r"^```properties\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    options = kafka.options()
    text = text.replace("kafka.example.com:9093", options["bootstrap.servers"])
    text = text.replace("/etc/kafka/orders.keytab", str(alice)).replace(
        "orders@EXAMPLE.COM", f"alice@{REALM}"
    )
    # It trusts the system's roots.
    text += f"ssl.truststore.location={options['ssl.truststore.location']}\n"
    file = tmp_path / "client.properties"
    file.write_text(text)
    with Producer(file) as producer:
        assert producer.send(kafka.secured.topic(), b"x").result(PATIENCE).offset == 0


# ---------------------------------------------------------------------------------------- who is not


def unknown_client(kafka: KerberosKafka, folder: Path) -> Options:
    # The KDC has forgotten the principal that the keytab has a key of.
    name, keytab = kafka.new_user()
    kafka.realm.remove(name)
    return kafka.options(sasl_jaas_config=with_keytab(keytab, name))


def no_such_key(kafka: KerberosKafka, folder: Path) -> Options:
    return kafka.options(sasl_jaas_config=with_keytab(kafka.realm.keytab("bob"), "alice"))


def no_keytab(kafka: KerberosKafka, folder: Path) -> Options:
    (folder / "rubbish").write_bytes(b"this is no keytab")
    return kafka.options(sasl_jaas_config=with_keytab(folder / "rubbish", "alice"))


def changed_key(kafka: KerberosKafka, folder: Path) -> Options:
    name, keytab = kafka.new_user()
    kafka.realm.change_key(name)
    return kafka.options(sasl_jaas_config=with_keytab(keytab, name))


def disabled(kafka: KerberosKafka, folder: Path) -> Options:
    name, keytab = kafka.new_user()
    kafka.realm.disable(name)
    return kafka.options(sasl_jaas_config=with_keytab(keytab, name))


def expired_principal(kafka: KerberosKafka, folder: Path) -> Options:
    name, keytab = kafka.new_user("-expire", "2020-01-01")
    return kafka.options(sasl_jaas_config=with_keytab(keytab, name))


def unknown_realm(kafka: KerberosKafka, folder: Path) -> Options:
    name = f"alice-{uuid.uuid4().hex[:8]}@ELSEWHERE.TEST"
    jaas = with_keytab(kafka.realm.add(name), name).replace(f"@{REALM}", "")
    return kafka.options(sasl_jaas_config=jaas)


def broker_of_another_realm(kafka: KerberosKafka, folder: Path) -> Options:
    jaas = with_keytab(kafka.realm.keytab("alice"), "alice")
    return kafka.options(sasl_jaas_config=jaas, sasl_kerberos_domain_name="broker.elsewhere.test")


def in_cache(cache: Path, more: str = "") -> str:
    return f'{MODULE} useTicketCache=true ticketCache="{cache}"{more};'


def no_ticket(kafka: KerberosKafka, folder: Path) -> Options:
    return kafka.options()


def no_cache(kafka: KerberosKafka, folder: Path) -> Options:
    return kafka.options(sasl_jaas_config=in_cache(folder / "nothing"))


def other_ticket(kafka: KerberosKafka, folder: Path) -> Options:
    kafka.realm.log_in("bob", folder / "tickets")
    return kafka.options(sasl_jaas_config=in_cache(folder / "tickets", f' principal="alice@{REALM}"'))


def expired_ticket(kafka: KerberosKafka, folder: Path) -> Options:
    kafka.realm.log_in("alice", folder / "tickets", "-l", "1s")
    time.sleep(2.1)
    return kafka.options(sasl_jaas_config=in_cache(folder / "tickets"))


def wrong_clock(kafka: KerberosKafka, folder: Path) -> Options:
    kafka.realm.log_in("alice", folder / "tickets")
    set_clock_ahead(folder / "tickets", 1800)
    return kafka.options(sasl_jaas_config=in_cache(folder / "tickets"))


def unknown_service(kafka: KerberosKafka, folder: Path) -> Options:
    jaas = with_keytab(kafka.realm.keytab("alice"), "alice")
    return kafka.options(sasl_jaas_config=jaas) | {"sasl.kerberos.service.name": "bus"}


def other_service(kafka: KerberosKafka, folder: Path) -> Options:
    # The KDC knows the principal, and the broker has no key of it: so it is with a keytab that is out of date, too.
    jaas = with_keytab(kafka.realm.keytab("alice"), "alice")
    return kafka.options(sasl_jaas_config=jaas, sasl_kerberos_domain_name="elsewhere")


CHECK_KEYTAB = "check principal and keyTab"
REFUSALS: dict[str, tuple[Callable[[KerberosKafka, Path], Options], tuple[str, ...]]] = {
    "a principal that the KDC does not know": (
        unknown_client,
        ("not found in Kerberos database", "check the principal"),
    ),
    "a keytab of another principal": (no_such_key, (f"as alice@{REALM}", CHECK_KEYTAB, "bob.keytab")),
    "a keytab that is none": (no_keytab, (CHECK_KEYTAB,)),
    "a keytab with an old key": (changed_key, ("check the keytab: the key",)),
    "a principal that is disabled": (disabled, ("revoked", "ask the administrator of the KDC")),
    "a principal that has expired": (expired_principal, ("has expired", "ask the administrator of the KDC")),
    "a realm that nobody knows": (unknown_realm, ("ELSEWHERE.TEST", "check the realm, and krb5.conf")),
    "a broker of another realm": (
        broker_of_another_realm,
        ("krbtgt/ELSEWHERE.TEST", "check the realm of the brokers"),
    ),
    "no ticket at all": (no_ticket, ("run kinit",)),
    "no such cache": (no_cache, ("run kinit",)),
    "a ticket of somebody else": (other_ticket, (f"as alice@{REALM}", "run kinit")),
    "a ticket that has expired": (
        expired_ticket,
        ("Ticket expired", "run kinit again, or use a keytab"),
    ),
    "a clock that is wrong": (wrong_clock, ("Clock skew too great", "clock")),
    "a service that the KDC does not know": (
        unknown_service,
        ("bus/localhost", "sasl.kerberos.service.name"),
    ),
    "a service that the broker is not": (other_service, ("kafka/elsewhere", "keytab")),
}


def told_by_producer(options: Options) -> KafkaError:
    with Producer(options | {"max.block.ms": BLOCK_MS}) as producer:
        with pytest.raises(KafkaError) as refused:
            producer.partitions_for("orders")
        producer.close(0)
    return refused.value


def told_by_control(options: Options) -> KafkaError:
    with ControlClient(options) as client, pytest.raises(KafkaError) as refused:
        client.brokers(timeout=BLOCK_MS / 1000)
    return refused.value


@pytest.mark.parametrize("ask", [told_by_producer, told_by_control], ids=["producer", "control"])
@pytest.mark.parametrize(("make_options", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refused(
    kafka: KerberosKafka,
    ask: Callable[[Options], KafkaError],
    make_options: Callable[[KerberosKafka, Path], Options],
    words: tuple[str, ...],
    tmp_path: Path,
    told: pytest.LogCaptureFixture,
) -> None:
    options = make_options(kafka, tmp_path)

    def refused() -> KafkaError:
        told.clear()
        error: KafkaError = ask(options)
        return error

    error = within(SOON, refused)
    text = str(error)
    assert [word for word in words if word not in text] == [], text
    assert isinstance(error, AuthenticationError)
    assert error.mechanism == "GSSAPI"
    assert len(lines(told, logging.WARNING, "")) <= 2, "it is told once, and not with each attempt"


# ---------------------------------------------------------------------------------------- what passes


def test_without_a_kdc_the_error_says_so_and_it_goes_on_when_the_kdc_is_back(
    kafka: KerberosKafka, told: pytest.LogCaptureFixture
) -> None:
    name, keytab = kafka.new_user()
    topic = kafka.secured.topic(1)
    options = kafka.options(sasl_jaas_config=with_keytab(keytab, name))
    kafka.realm.stop()
    try:
        error = within(SOON, lambda: told_by_producer(options))
        assert isinstance(error, AuthenticationError)
        assert "check the network to the KDC, and krb5.conf" in str(error)
        assert REALM in str(error)
        with Numbered(topic, **options) as stream:
            wait_until(lambda: lines(told, logging.ERROR, REFUSED), "the refusal")
            kafka.realm.start()
            stream.wait_for_more(50)
            expected = stream.finish()
    finally:
        kafka.realm.stop()
        kafka.realm.start()
    assert values_in_order(kafka.secured.cluster, topic) == expected


def test_a_kdc_that_does_not_answer_is_told_within_the_time_for_a_connection(kafka: KerberosKafka) -> None:
    name, keytab = kafka.new_user()
    times = {
        "socket.connection.setup.timeout.ms": 1000,
        "socket.connection.setup.timeout.max.ms": 1000,
    }
    options = kafka.options(sasl_jaas_config=with_keytab(keytab, name))
    kafka.realm.freeze()
    try:
        error = within(SOON, lambda: told_by_producer(options | times))
    finally:
        kafka.realm.thaw()
    assert isinstance(error, AuthenticationError)
    assert "key distribution center" in str(error)
    write(kafka, options)


@pytest.mark.parametrize("kind", KINDS)
def test_sessions_are_renewed_with_requests_in_flight(
    kafka: KerberosKafka, alice: Path, kind: str, told: pytest.LogCaptureFixture
) -> None:
    topic = kafka.secured.topic(1)
    options = kafka.options(CLEAR, sasl_jaas_config=with_keytab(alice, "alice"))
    with Numbered(topic, eager=True, **options, **KINDS[kind]) as stream:
        stream.wait_for_more()
        in_flight = stream.watch(5 * SESSION_SECONDS)
        expected = stream.finish()
        check_renewals(stream, told, at_least=3)
    assert values_in_order(kafka.secured.cluster, topic) == expected
    assert in_flight >= (5 if kind == "idempotent" else 2)


def test_sessions_are_renewed_without_a_kdc_while_the_ticket_is_good(
    kafka: KerberosKafka, cache: Path, told: pytest.LogCaptureFixture
) -> None:
    topic = kafka.secured.topic(1)
    with Numbered(topic, **kafka.options(CLEAR, sasl_jaas_config=in_cache(cache))) as stream:
        stream.wait_for_more()
        kafka.realm.stop()
        try:
            before = stream.metric("successful-reauthentication-total")
            stream.watch(2 * SESSION_SECONDS)
            renewed = stream.metric("successful-reauthentication-total") - before
        finally:
            kafka.realm.start()
        expected = stream.finish()
    assert renewed >= 1
    assert values_in_order(kafka.secured.cluster, topic) == expected
    assert not lines(told, logging.WARNING, "")


def test_tickets_of_a_keytab_are_renewed(kafka: KerberosKafka, told: pytest.LogCaptureFixture) -> None:
    name, keytab = kafka.new_user("-maxlife", "4 seconds")
    topic = kafka.secured.topic(1)
    options = kafka.options(CLEAR, sasl_jaas_config=with_keytab(keytab, name))
    with Numbered(topic, **options) as stream:
        stream.watch(6 * SESSION_SECONDS)
        renewed = stream.metric("successful-reauthentication-total")
        expected = stream.finish()
    assert renewed >= 3
    assert values_in_order(kafka.secured.cluster, topic) == expected
    assert not lines(told, logging.WARNING, "")


def test_a_ticket_that_expires_under_a_producer_and_is_replaced(
    kafka: KerberosKafka, tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    topic, place = kafka.secured.topic(1), tmp_path / "tickets"
    kafka.realm.log_in("alice", place, "-l", "3s")
    with Numbered(topic, **kafka.options(CLEAR, sasl_jaas_config=in_cache(place))) as stream:
        stream.wait_for_more()
        wait_until(lambda: lines(told, logging.ERROR, REFUSED), "the refusal")
        kafka.realm.log_in("alice", place)
        stream.wait_for_more(50)
        expected = stream.finish()
    assert values_in_order(kafka.secured.cluster, topic) == expected
    (line,) = lines(told, logging.ERROR, REFUSED)
    assert "expired" in line
    assert "run kinit again, or use a keytab" in line


def test_a_broker_whose_key_is_changed(
    kafka: KerberosKafka, alice: Path, told: pytest.LogCaptureFixture
) -> None:
    """The ticket for the broker is good for an hour, but not for the new key."""
    topic = kafka.secured.topic(1)
    options = kafka.options(CLEAR, sasl_jaas_config=with_keytab(alice, "alice"))
    with Numbered(topic, **options) as stream:
        stream.wait_for_more()
        kafka.realm.replace_key("kafka/127.0.0.1")
        wait_until(lambda: lines(told, logging.INFO, "could not be renewed"), "the end of the session")
        before = stream.metric("successful-reauthentication-total")
        wait_until(lambda: stream.metric("successful-reauthentication-total") > before, "the next session")
        expected = stream.finish()
    assert values_in_order(kafka.secured.cluster, topic) == expected
