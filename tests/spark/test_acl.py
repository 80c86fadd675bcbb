# SPDX-License-Identifier: Apache-2.0
"""A cluster that denies transactions to the user: said on the driver, before a task starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from fix_spark import read_committed

from penstock.devbroker import DevCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def strict_cluster() -> Iterator[DevCluster]:
    """A broker with an authorizer, which denies nothing that nobody has denied."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with DevCluster(properties=properties) as cluster:
        yield cluster


def deny(cluster: DevCluster, kind: str, prefix: str, operation: str = "ALL") -> None:
    """Deny something, or everything, on the resources whose names begin with a prefix."""
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    acl = AclBinding(
        ResourceType[kind],
        prefix,
        ResourcePatternType.PREFIXED,
        "User:ANONYMOUS",
        "*",
        AclOperation[operation],
        AclPermissionType.DENY,
    )
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.create_acls([acl]).values():
        future.result(60)


def test_without_the_right_to_transactions_the_driver_says_so(
    spark: SparkSession, strict_cluster: DevCluster
) -> None:
    strict_cluster.create_topic("orders", 1)
    write = (
        spark.range(10)
        .selectExpr("CAST(id AS STRING) AS value")
        .write.format("penstock")
        .mode("append")
        .option("kafka.bootstrap.servers", strict_cluster.bootstrap_servers)
        .option("topic", "orders")
    )
    deny(strict_cluster, "TRANSACTIONAL_ID", "ps.")
    with pytest.raises(Exception, match=r"penstock\.errors\.SinkAuthorizationError") as caught:
        write.save()
    said = str(caught.value)
    assert "Failed to initialize Python data source writer" in said, "it must fail before a task starts"
    assert "Traceback" not in said
    assert "ransactional" in said
    assert read_committed(strict_cluster.bootstrap_servers, "orders") == []
    write.option("delivery", "at-least-once").save()  # which needs no transactions
    assert len(read_committed(strict_cluster.bootstrap_servers, "orders")) == 10


def test_without_the_right_to_write_the_driver_says_so(
    spark: SparkSession, strict_cluster: DevCluster
) -> None:
    """The topic is there to be seen, so only the rights tell."""
    strict_cluster.create_topic("ledger", 1)
    deny(strict_cluster, "TOPIC", "ledger", "WRITE")
    write = spark.range(10).selectExpr("CAST(id AS STRING) AS value").write.format("penstock").mode("append")
    servers = strict_cluster.bootstrap_servers
    with pytest.raises(
        Exception, match=r"may not write to topic 'ledger': ask for the right WRITE"
    ) as caught:
        write.option("kafka.bootstrap.servers", servers).option("topic", "ledger").save()
    assert "Failed to initialize Python data source writer" in str(caught.value)
    assert read_committed(servers, "ledger") == []
