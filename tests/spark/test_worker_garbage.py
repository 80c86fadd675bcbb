# SPDX-License-Identifier: Apache-2.0
"""The garbage collector passes over what a worker keeps, in Spark's workers and nowhere else."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fix_broker import MakeTopic

from penstock.devbroker import DevCluster
from pyspark_penstock import DefaultSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage
    from pyspark.sql.types import StructType


def frozen_in_a_process_called(name: str, then: str = "") -> int:
    """How many objects are left out in a new process, run as the module of a name."""
    code = (
        "import gc, sys; from importlib.machinery import ModuleSpec\n"
        f"sys.modules['__main__'].__spec__ = ModuleSpec({name!r}, None)\n"
        "from penstock.spark.worker import AFTER_FIRST_WORK, spare_lasting_objects\n"
        f"{then}\n"
        "print(gc.get_freeze_count())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return int(done.stdout)


FIRST_WORK = "work = [[] for _ in range(5000)]; spare_lasting_objects(AFTER_FIRST_WORK)"
MORE_WORK = f"{FIRST_WORK}; more = [[] for _ in range(50_000)]; spare_lasting_objects(AFTER_FIRST_WORK)"


@pytest.mark.slow
def test_what_there_is_in_a_worker_is_left_out_before_imports_and_after_the_first_work() -> None:
    before = frozen_in_a_process_called("pyspark.daemon")
    assert before > 1000
    after = frozen_in_a_process_called("pyspark.daemon", FIRST_WORK)
    assert after > before + 5000
    assert frozen_in_a_process_called("pyspark.daemon", MORE_WORK) < after + 1000


@pytest.mark.slow
def test_garbage_of_the_first_work_does_not_last() -> None:
    garbage = "cycles = [[] for _ in range(5000)]; [each.append(each) for each in cycles]; del cycles"
    clean = frozen_in_a_process_called("pyspark.daemon", "spare_lasting_objects(AFTER_FIRST_WORK)")
    found = frozen_in_a_process_called(
        "pyspark.daemon", f"gc.disable(); {garbage}; spare_lasting_objects(AFTER_FIRST_WORK)"
    )
    assert found < clean + 1000


@pytest.mark.slow
def test_processes_of_others_are_left_alone() -> None:
    assert frozen_in_a_process_called("somebody.elses.program", FIRST_WORK) == 0
    code = f"import gc; from penstock.spark.worker import *; {FIRST_WORK}; exit(gc.get_freeze_count())"
    subprocess.run([sys.executable, "-c", code], check=True)  # which has no module's name at all


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_process_of_a_job_spares_its_objects(
    spark: SparkSession, dev_cluster: DevCluster, topic: MakeTopic, tmp_path: Path
) -> None:
    # Made in here, so that it is sent to Spark's processes by value: they do not know this file.
    class WatchedSource(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "penstock_watched"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            from penstock.spark.writers import BatchWriter, batch_writer

            class WatchedWriter(BatchWriter):
                def __getstate__(self) -> dict[str, Any]:
                    pickle.dumps(self._write)  # which plans; Spark is about to do it too
                    self.note("plan")
                    return vars(self).copy()

                def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
                    message = super().write(iterator)
                    self.note("task")
                    return message

                def commit(self, messages: Any) -> None:
                    super().commit(messages)
                    self.note("commit")

                def note(self, where: str) -> None:
                    ours = vars(sys.modules["penstock.spark.writers"])
                    (tmp_path / where).write_text(
                        "looked at" if any(each is ours for each in gc.get_objects()) else "spared"
                    )

            return WatchedWriter(batch_writer(self.options, schema, overwrite)._write)  # type: ignore[attr-defined]

    spark.dataSource.register(WatchedSource)
    write = spark.range(0, 9, 1, 1).selectExpr("CAST(id AS STRING) AS value").write.format("penstock_watched")
    options = {"topic": topic(1), "kafka.bootstrap.servers": dev_cluster.bootstrap_servers}
    write.mode("append").options(**options).save()
    # Of the thousands of objects one that is imported in each: what other tests left in a process does not matter.
    found = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert found == {"plan": "spared", "task": "spared", "commit": "spared"}
