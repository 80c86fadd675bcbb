# SPDX-License-Identifier: Apache-2.0
"""The driver and each task look references up where they run; where one leads nowhere, the error names that place."""

from __future__ import annotations

import platform
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from penstock.testing import FakeKafka, FakeSecurity
from pyspark_penstock import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceWriter
    from pyspark.sql.types import StructType

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PASSWORD = "only-in-one-place"


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    security = FakeSecurity(protocol="SASL_SSL", users={"alice": PASSWORD})
    with FakeKafka(topics={"orders": 1}, security=security) as kafka:
        yield kafka


@pytest.fixture
def variable() -> str:
    """Spark's Python processes are used again: what one test leaves in their environment is not for another one."""
    return f"PENSTOCK_{secrets.token_hex(4).upper()}"


def refusal(spark: SparkSession, kafka: FakeKafka, variable: str, source: str = "penstock") -> str:
    security = FakeSecurity(protocol="SASL_SSL", users={"alice": ""}).client_options("SCRAM-SHA-256")
    options = {f"kafka.{name}": value for name, value in security.items()}
    options |= {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.sasl.password": f"${{env:{variable}}}",
        "topic": "orders",
    }
    write = spark.range(10).selectExpr("CAST(id AS STRING) AS value").write.format(source).mode("append")
    with pytest.raises(Exception, match=r"penstock\.errors\.ConfigError") as caught:
        write.options(**options).save()
    said = str(caught.value)
    assert PASSWORD not in said
    assert "Traceback (most recent call last)" not in said
    assert f"sasl.password: the environment variable {variable} is not set in this process" in said
    assert "must be there on the driver and on every executor" in said
    assert kafka.records("orders") == []
    return said


def test_a_variable_that_the_driver_lacks(spark: SparkSession, kafka: FakeKafka, variable: str) -> None:
    said = refusal(spark, kafka, variable)
    assert "wrong on the driver: " in said
    assert "in a task" not in said


def test_a_variable_that_the_executors_lack(spark: SparkSession, kafka: FakeKafka, variable: str) -> None:
    # Made in here, so that it is sent to Spark's processes by value: they do not know this file.
    class OnlyOnTheDriver(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "penstock_only_on_the_driver"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            import os

            os.environ[variable] = PASSWORD
            return super().writer(schema, overwrite)

    spark.dataSource.register(OnlyOnTheDriver)
    said = refusal(spark, kafka, variable, "penstock_only_on_the_driver")
    assert f"wrong in a task on {platform.node()}, and was right on the driver: " in said
