# SPDX-License-Identifier: Apache-2.0
"""The writer of a micro-batch that takes Arrow batches; Spark 4.1 and later have its base."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.writers import Messages, Write


class StreamArrowWriter(DataSourceStreamArrowWriter):
    """Writes a micro-batch.

    Args:
        write: what is done.
    """

    def __init__(self, write: Write) -> None:
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition; in a task."""
        return self._write.write(iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """All tasks have written; on the driver."""
        self._write.commit(messages, batchId)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """A task, or the commit, has failed; on the driver."""
        self._write.abort(messages, batchId)
