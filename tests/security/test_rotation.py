# SPDX-License-Identifier: Apache-2.0
"""Passwords, tokens and certificates that are replaced under a running producer, on the fake cluster.

It goes on without a new one, and nothing is lost, twice or in another order. `docs/security.md` says what it logs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from security.numbered import Numbered, wait_until
from security.rotation import KINDS, REFUSED, Provider, lines, replace, values
from security.tls.certificates import client, make, other_ca, server_context, the_ca

from penstock import Producer
from penstock.errors import AuthenticationError
from penstock.testing import FakeKafka, FakeSecurity

every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "penstock"):
        yield caplog


def once_for_each_peer(told: pytest.LogCaptureFixture) -> list[str]:
    """The refusals: of the broker and of the bootstrap server, and not of each attempt."""
    refusals = lines(told, logging.ERROR, "")
    assert 1 <= len(refusals) == len({line.split(" at ")[0].split(" server ")[0] for line in refusals}) <= 2
    return refusals


def cut(kafka: FakeKafka) -> None:
    with kafka.locked() as cluster:
        cluster.drop_connections()


# ---- passwords


@every_kind
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_password_that_is_replaced_on_both_sides(kind: str, mechanism: str, tmp_path: Path, told):
    security = FakeSecurity(protocol="SASL_PLAINTEXT")
    secret = tmp_path / "password"
    secret.write_text("alice-secret\n")
    with FakeKafka(topics={"t": 1}, security=security) as kafka:
        options = kafka.client_options(mechanism) | {"sasl.password": f"${{file:{secret}}}"}
        with Numbered("t", **options, **KINDS[kind]) as stream:
            stream.wait_for_more()
            security.users["alice"] = "new-alice-secret"
            stream.wait_for_more()  # what is connected stays connected
            cut(kafka)
            wait_until(lambda: lines(told, logging.ERROR, REFUSED), "the refusal")
            time.sleep(0.3)  # more than one attempt
            secret.write_text("new-alice-secret\n")
            stream.wait_for_more()
            expected = stream.finish()
        assert values(kafka) == expected
    refusals = once_for_each_peer(told)
    assert "alice" in refusals[0]
    assert lines(told, logging.WARNING, "") == refusals
    assert "secret" not in told.text


def test_a_password_file_that_is_gone_for_a_while_keeps_the_last_one(tmp_path: Path, told):
    security = FakeSecurity(protocol="SASL_PLAINTEXT")
    secret = tmp_path / "password"
    secret.write_text("alice-secret")
    with FakeKafka(topics={"t": 1}, security=security) as kafka:
        options = kafka.client_options("PLAIN") | {"sasl.password": f"${{file:{secret}}}"}
        with Numbered("t", **options) as stream:
            stream.wait_for_more()
            secret.unlink()
            for _ in range(3):
                cut(kafka)
                stream.wait_for_more()
            expected = stream.finish()
        assert values(kafka) == expected
    (warning,) = lines(told, logging.WARNING, "")
    assert "a secret cannot be read again, the last one is kept" in warning
    assert str(secret) in warning


@contextmanager
def locked_out(tmp_path: Path, **more: str) -> Iterator[tuple[FakeKafka, Producer, Callable[[], None]]]:
    """A cluster, a producer that has sent a record, and what makes its password right again after all was cut."""
    security = FakeSecurity(protocol="SASL_PLAINTEXT")
    secret = tmp_path / "password"
    secret.write_text("alice-secret")
    with FakeKafka(topics={"t": 1}, security=security) as kafka:
        options = kafka.client_options("PLAIN") | {"sasl.password": f"${{file:{secret}}}", "linger.ms": "0"}
        with Producer(options | more) as producer:
            if "transactional.id" in more:
                producer.init_transactions()
                producer.begin_transaction()
            producer.send("t", b"1").result(60)
            security.users["alice"] = "new-alice-secret"
            cut(kafka)
            yield kafka, producer, lambda: secret.write_text("new-alice-secret") and None


def told_soon(call: Callable[[], object], *words: str) -> None:
    """Long before any time-out, and with all that helps."""
    began = time.monotonic()
    with pytest.raises(AuthenticationError) as caught:
        call()
    assert time.monotonic() - began < 30
    assert (caught.value.mechanism, caught.value.user) == ("PLAIN", "alice")
    assert "broker" in (caught.value.broker or "") or "bootstrap" in (caught.value.broker or "")
    assert [each for each in ("Invalid username or password", *words) if each not in str(caught.value)] == []
    assert "secret" not in str(caught.value)


def again(call: Callable[[], object]) -> None:
    """Make a call until it goes through: an attempt may have begun with the old password. Long before any time-out."""
    began = time.monotonic()

    def is_done() -> bool:
        try:
            call()
        except AuthenticationError:
            return False
        return True

    wait_until(is_done, "the end of the call")
    assert time.monotonic() - began < 50


def test_a_commit_that_waits_is_told_and_made_again(tmp_path: Path):
    with locked_out(tmp_path, **{"transactional.id": "x"}) as (kafka, producer, put_right):
        producer.send("t", b"2")
        told_soon(producer.commit_transaction, "commit_transaction() continues", "make the same call again")
        told_soon(producer.commit_transaction)
        put_right()
        again(producer.commit_transaction)
        with producer.transaction():
            producer.send("t", b"3")
        assert values(kafka) == [b"1", b"2", b"3"]


def test_a_block_that_commits_is_told_and_its_commit_is_made_again(tmp_path: Path):
    with locked_out(tmp_path, **{"transactional.id": "x"}) as (kafka, producer, put_right):
        put_right()
        again(producer.commit_transaction)

        def block() -> None:
            with producer.transaction():
                producer.send("t", b"2").result(60)
                kafka.cluster.security.users["alice"] = "third-alice-secret"
                cut(kafka)

        told_soon(block, "commit_transaction() continues")
        kafka.cluster.security.users["alice"] = "new-alice-secret"
        again(producer.commit_transaction)
        assert values(kafka) == [b"1", b"2"]


def test_an_abort_that_waits_is_told_and_made_again(tmp_path: Path):
    with locked_out(tmp_path, **{"transactional.id": "x"}) as (kafka, producer, put_right):
        told_soon(producer.abort_transaction, "abort_transaction() continues")
        put_right()
        again(producer.abort_transaction)
        with producer.transaction():
            producer.send("t", b"2")
        assert values(kafka) == [b"2"]


def test_a_flush_that_waits_is_told_and_its_records_stay(tmp_path: Path):
    with locked_out(tmp_path) as (kafka, producer, put_right):
        delivery = producer.send("t", b"2")
        told_soon(
            producer.flush, "1 record has no outcome yet: Penstock sends what is left when the cause is fixed"
        )
        put_right()
        assert delivery.result(60).offset == 1
        again(producer.flush)
        assert values(kafka) == [b"1", b"2"]


@pytest.mark.parametrize("many", [False, True], ids=["send", "send_many"])
def test_a_send_that_waits_for_memory_is_told_and_made_again(tmp_path: Path, many: bool):
    with locked_out(tmp_path, **{"buffer.memory": "4096", "batch.size": "1024"}) as (
        kafka,
        producer,
        put_right,
    ):
        sent: list[bytes] = []

        def fill() -> None:
            while True:
                value = b"%900d" % len(sent)
                producer.send_many("t", [value]) if many else producer.send("t", value)
                sent.append(value)

        told_soon(fill, "buffer.memory is full", "send again when the cause is fixed")
        assert 2 <= len(sent) <= 4, "what fits"
        told_soon(fill, "buffer.memory is full")
        put_right()
        again(producer.flush)
        producer.send("t", b"last").result(60)
        assert values(kafka) == [b"1", *sent, b"last"]


# ---- tokens


@every_kind
def test_a_token_that_expires_while_the_provider_is_down(kind: str, told):
    # When the next token cannot be had, the old one is good for a second and a half: long enough to tell so.
    provider = Provider(3.0)
    with FakeKafka(topics={"t": 1}, security=FakeSecurity(protocol="SASL_PLAINTEXT")) as kafka:
        options: dict[str, Any] = kafka.client_options("OAUTHBEARER")
        del options["sasl.jaas.config"]
        options["sasl.oauth.token.provider"] = provider
        options |= {"sasl.login.refresh.window.factor": "0.5", "sasl.login.refresh.window.jitter": "0"}
        with Numbered("t", **options, **KINDS[kind]) as stream:
            stream.wait_for_more()
            provider.is_down = True
            wait_until(lambda: lines(told, logging.ERROR, REFUSED), "the refusal")
            stood_still_at = stream.acknowledged
            time.sleep(0.5)
            assert stream.acknowledged <= stood_still_at + 10, "there is no session any more"
            provider.is_down = False
            stream.wait_for_more()
            stream.wait_for_more(50)
            expected = stream.finish()
        assert values(kafka) == expected
    assert lines(told, logging.WARNING, "No new token for OAUTHBEARER; the old one is good for")
    assert "there is no token: the token provider failed" in once_for_each_peer(told)[0]
    wait_until(lambda: lines(told, logging.INFO, "There is a token for OAUTHBEARER again"), "the good news")


# ---- certificates


@every_kind
def test_a_certificate_that_is_replaced_on_both_sides(kind: str, tmp_path: Path, told):
    own, trusted = tmp_path / "own.pem", tmp_path / "ca.pem"
    own.write_text(client().key_pem() + client().pem)
    trusted.write_text(the_ca().pem)
    security = FakeSecurity(
        protocol="SSL", wants_certificate=True, tls=server_context(wants_client_of=the_ca())
    )
    with FakeKafka(topics={"t": 1}, security=security) as kafka:
        options = kafka.client_options() | {
            "ssl.truststore.location": str(trusted),
            "ssl.keystore.location": str(own),
        }
        with Numbered("t", **options, **KINDS[kind]) as stream:
            stream.wait_for_more()
            # The file is wrong for a moment: what was read before serves.
            replace(own, client().key_pem() + "-----BEGIN CERTIFICATE-----\n")
            cut(kafka)
            stream.wait_for_more()
            assert lines(told, logging.WARNING, f"'{own}': block 2")
            replace(own, client().key_pem() + client().pem)
            # Now all certificates are of another authority.
            theirs = make("broker", other_ca(), ("localhost", "127.0.0.1"))
            security.tls = server_context(theirs, wants_client_of=other_ca())
            cut(kafka)
            wait_until(lambda: lines(told, logging.ERROR, "ssl.truststore.location"), "the unknown authority")
            replace(trusted, other_ca().pem)
            wait_until(lambda: lines(told, logging.ERROR, "wants a client certificate"), "the refused client")
            mine = make("client", other_ca())
            replace(own, mine.key_pem() + mine.pem)
            stream.wait_for_more()
            expected = stream.finish()
        assert values(kafka) == expected
    assert lines(told, logging.WARNING, "A changed file cannot be used, what was read before stays in use")
    assert lines(told, logging.INFO, "Read changed TLS files anew")
    assert len(lines(told, logging.ERROR, "")) <= 4, "a broker that is not known, then a client that is not"
    assert "PRIVATE KEY" not in told.text


def test_certificates_of_a_broker_that_are_renewed_by_the_same_authority_are_nothing_to_tell(
    tmp_path: Path, told
):
    trusted = tmp_path / "ca.pem"
    trusted.write_text(the_ca().pem)
    security = FakeSecurity(protocol="SSL", tls=server_context())
    with FakeKafka(topics={"t": 1}, security=security) as kafka:
        options = kafka.client_options() | {"ssl.truststore.location": str(trusted)}
        with Numbered("t", **options) as stream:
            stream.wait_for_more()
            security.tls = server_context(make("broker", the_ca(), ("localhost", "127.0.0.1")))
            cut(kafka)
            stream.wait_for_more()
            expected = stream.finish()
        assert values(kafka) == expected
    assert not lines(told, logging.WARNING, "")
