# SPDX-License-Identifier: Apache-2.0
"""A sink that gets every row into Python, as Arrow, and drops it: no sink in Python can be faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from bench.words import counted

if TYPE_CHECKING:
    from pyarrow import RecordBatch


@dataclass
class Rows(WriterCommitMessage):
    """What a task has seen."""

    rows: int


class CountingSource(DataSource):
    """Registered by hand, by the program that is measured."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "bench-counting"

    def writer(self, schema: Any, overwrite: bool) -> CountingWriter:
        """The writer of a job that knows how many rows there will be."""
        del schema, overwrite
        return CountingWriter(int(self.options["rows"]))


class CountingWriter(DataSourceArrowWriter):
    """Counts.

    Args:
        expected: rows of the whole job.
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected

    def write(self, iterator: Iterator[RecordBatch]) -> Rows:
        """Look at nothing but the number of rows."""
        return Rows(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[Any]) -> None:
        """See that none is missing."""
        found = sum(message.rows for message in messages)
        if found != self._expected:
            raise ValueError(f"{found} of {counted(self._expected, 'row')}")
