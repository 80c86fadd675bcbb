# SPDX-License-Identifier: Apache-2.0
"""What Spark finds by itself: light to import, and named penstock."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.errors import ConfigError
from pyspark_penstock import DefaultSource

VALUE = StructType([StructField("value", StringType())])
OPTIONS = {"kafka.bootstrap.servers": "localhost:9092", "topic": "orders"}


@pytest.mark.slow
def test_importing_it_brings_nothing_heavy() -> None:
    code = (
        "import sys, pyspark_penstock\n"
        "names = ('penstock', 'pyarrow', 'pandas', 'numpy', 'google_crc32c')\n"
        "heavy = [name for name in names if name in sys.modules]\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_its_name() -> None:
    assert DefaultSource.name() == "penstock"


@pytest.fixture
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


@pytest.mark.usefixtures("_own_environment")
def test_wrong_writes_are_refused_before_anything_is_asked_of_kafka() -> None:
    with pytest.raises(ConfigError, match=r'cannot be overwritten.*mode\("append"\)'):
        DefaultSource(OPTIONS).writer(VALUE, overwrite=True)
    with pytest.raises(ConfigError, match="column value is bigint"):
        DefaultSource(OPTIONS).writer(StructType([StructField("value", LongType())]), overwrite=False)
    with pytest.raises(ConfigError, match="checkpointLocation"):
        DefaultSource(OPTIONS).streamWriter(schema=VALUE, overwrite=False)
    with pytest.raises(ConfigError, match="runId is for batch jobs"):
        DefaultSource(OPTIONS | {"runId": "1"}).streamWriter(schema=VALUE, overwrite=True)


def test_writers_are_made_without_kafka() -> None:
    batch = DefaultSource(OPTIONS).writer(VALUE, overwrite=False)
    stream = DefaultSource(OPTIONS | {"sinkId": "a"}).streamWriter(schema=VALUE, overwrite=True)
    # Spark asks for these by name.
    assert [callable(getattr(batch, name)) for name in ("write", "commit", "abort")] == [True] * 3
    assert [callable(getattr(stream, name)) for name in ("write", "commit", "abort")] == [True] * 3
