# SPDX-License-Identifier: Apache-2.0
"""The code of the pages on Spark, spark.md and spark-connector.md, and the README's line, on a real Spark and Kafka."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fix_snippets import ADDRESS, DOCS, ROOT, snippets

from penstock.devbroker import DevCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]


def run_page(name: str, names: dict[str, Any], cluster: DevCluster, **instead: str) -> int:
    """Run the code of a page from top to bottom, in one program; how many blocks it has."""
    found = [snippet for snippet in snippets(DOCS / name) if snippet.language == "python"]
    for snippet in found:
        code = snippet.code.replace(ADDRESS, cluster.bootstrap_servers)
        for old, new in instead.items():
            code = code.replace(old, new)
        exec(compile(code, str(snippet), "exec"), names)
        for query in names["spark"].streams.active:
            query.processAllAvailable()
            query.stop()
            assert query.exception() is None
        if "def write(rows, topic)" in snippet.code:
            names["write"](names["events"], "snippets-by-thread")
    return len(found)


def test_spark_md(spark: SparkSession, dev_cluster: DevCluster, tmp_path: Path, consume: Any) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\ntwo\n", encoding="utf-8")
    stream = spark.readStream.text(str(tmp_path / "in"))
    names = {
        "spark": spark,
        "events_stream": stream,
        "totals": stream.groupBy("value")
        .count()
        .selectExpr("value as key", "cast(count as string) as value"),
    }
    count = run_page("spark.md", names, dev_cluster, checkpoints=f"{tmp_path}/checkpoints")
    assert count == 6
    committed = {"isolation_level": "read_committed"}
    assert len(consume("events", count=1002, **committed)) == 1002
    assert len(consume("orders", count=2000, **committed)) >= 2000
    assert len(consume("snippets-by-thread", count=1000, **committed)) == 1000
    assert {record.key for record in consume("totals", count=2, **committed)} == {b"one", b"two"}


def test_spark_connector_md(spark: SparkSession, dev_cluster: DevCluster, consume: Any) -> None:
    names: dict[str, Any] = {"spark": spark}
    assert run_page("migrate/spark-connector.md", names, dev_cluster, events="snippets-connector") == 1
    assert len(consume("snippets-connector", count=100, isolation_level="read_committed")) == 100


def test_the_line_of_the_readme(spark: SparkSession, dev_cluster: DevCluster, consume: Any) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^```text\n(df\.write\.format.*)\n```$", readme, re.MULTILINE)
    code = line.replace(ADDRESS, dev_cluster.bootstrap_servers).replace('"orders"', '"snippets-readme"')
    rows = spark.range(10).selectExpr("cast(id as string) as value")
    exec(compile(code, "README.md", "exec"), {"df": rows})
    assert len(consume("snippets-readme", count=10, isolation_level="read_committed")) == 10
