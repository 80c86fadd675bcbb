# SPDX-License-Identifier: Apache-2.0
"""A real Kafka with every kind of secured listener and an authorizer, shared by the whole run.

Alice may do everything, and so may a client without a name. Bob may do what a test grants him. What was written is
read back by a consumer that is not ours.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.devbroker import DevCluster
from penstock.devbroker.security import CHOICES, USERS, accesses

BOB = "bob"
# What the tests of rights connect by.
BOBS_WAY = "sasl_ssl-scram-sha-512"
READ_SECONDS = 60.0
# Every way to connect.
PLAINTEXT = "plaintext"
WAYS = (PLAINTEXT, *(way.name for way in accesses(CHOICES["all"])))
STRICT = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:alice",
    "allow.everyone.if.no.acl.found": "false",
    # With it a broker gives delegation tokens.
    "delegation.token.secret.key": "a-key-of-the-brokers",
}


@dataclass(frozen=True)
class SecuredKafka:
    """The cluster, and what clients need to know of it."""

    cluster: DevCluster

    def options(self, way: str, user: str = "alice", password: str | None = None) -> dict[str, str]:
        """What a client writes to connect that way."""
        if way == PLAINTEXT:
            return {"bootstrap.servers": self.cluster.bootstrap_servers, "security.protocol": "PLAINTEXT"}
        options = self.cluster.client_options(way)
        if "sasl.jaas.config" in options:
            jaas = options["sasl.jaas.config"]
            jaas = jaas.replace(USERS["alice"], USERS.get(user, "") if password is None else password)
            options["sasl.jaas.config"] = jaas.replace('"alice"', f'"{user}"')
        return options

    def topic(self, partitions: int = 2) -> str:
        """Make a topic with a name of its own."""
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.cluster.create_topic(name, partitions)
        return name

    def grant(self, kind: str, name: str, *operations: str, prefixed: bool = False, user: str = BOB) -> None:
        """Let a user do something with a topic, a transactional id or the cluster."""
        from confluent_kafka.admin import (
            AclBinding,
            AclBindingFilter,
            AclOperation,
            AclPermissionType,
            AdminClient,
            ResourcePatternType,
            ResourceType,
        )

        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        rules = [
            AclBinding(
                ResourceType[kind], name, pattern, f"User:{user}", "*", AclOperation[operation],
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]  # fmt: skip
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap_servers})
        for future in admin.create_acls(rules).values():
            future.result(60)
        # The answer comes from the controller: the broker knows it a moment later.
        wanted = AclBindingFilter(
            ResourceType[kind], name, pattern, f"User:{user}", "*", AclOperation.ANY, AclPermissionType.ANY
        )
        deadline = time.monotonic() + READ_SECONDS
        while len(admin.describe_acls(wanted).result(60)) < len(operations):
            assert time.monotonic() < deadline, "the broker does not learn the rights"

    def read(self, topic: str, count: int, way: str = "ssl", partitions: int = 2) -> list[bytes]:
        """What a consumer that is not ours reads of committed records over that listener, sorted."""
        from confluent_kafka import Consumer, TopicPartition

        group = {"group.id": uuid.uuid4().hex, "isolation.level": "read_committed"}
        consumer = Consumer(librdkafka_options(self.options(way)) | group | {"enable.partition.eof": True})
        values: list[bytes] = []
        deadline = time.monotonic() + READ_SECONDS
        try:
            consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
            while len(values) < count and time.monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is not None and message.error() is None:
                    values.append(message.value())
            # Nothing may come after it.
            late = consumer.poll(0.1)
            while late is not None:
                if late.error() is None:
                    values.append(late.value())
                late = consumer.poll(0.1)
        finally:
            consumer.close()
        return sorted(values)


def values_in_order(cluster: DevCluster, topic: str) -> list[bytes]:
    """All that is committed in partition 0, in its order, as a consumer gets it that is not ours."""
    import confluent_kafka

    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": topic,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    try:
        while True:
            message = reader.poll(30)
            assert message is not None, "the end does not come"
            if message.error() is None:
                found.append(message.value())
            else:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
    finally:
        reader.close()


def librdkafka_options(ours: Mapping[str, str]) -> dict[str, Any]:
    """The same way, as librdkafka writes it."""
    theirs: dict[str, Any] = {name: ours[name] for name in ("bootstrap.servers", "security.protocol")}
    if "ssl.truststore.location" in ours:
        theirs["ssl.ca.location"] = ours["ssl.truststore.location"]
    if "ssl.keystore.location" in ours:
        theirs |= dict.fromkeys(
            ("ssl.certificate.location", "ssl.key.location"), ours["ssl.keystore.location"]
        )
    mechanism = ours.get("sasl.mechanism")
    if mechanism == "OAUTHBEARER":
        theirs |= {
            "sasl.mechanism": mechanism,
            "enable.sasl.oauthbearer.unsecure.jwt": True,
            "sasl.oauthbearer.config": "principal=alice",
        }
    elif mechanism is not None:
        theirs |= {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": USERS["alice"]}
    return theirs


@pytest.fixture(scope="session")
def secured() -> Iterator[SecuredKafka]:
    """One broker with all listeners for the whole run."""
    with DevCluster(security="all", properties=STRICT) as cluster:
        yield SecuredKafka(cluster)
