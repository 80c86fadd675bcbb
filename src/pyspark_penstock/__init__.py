# SPDX-License-Identifier: Apache-2.0
"""The data source `penstock`, found by Spark itself: it imports every module whose name starts with `pyspark_`.

Spark does so in every program that names any Python data source, and an import that fails here would hide all of them.
So this module imports nothing but Spark's own interface; what a write needs is imported when one is planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Writes the rows of a DataFrame to Kafka: `df.write.format("penstock")`, `df.writeStream.format("penstock")`."""

    @classmethod
    def name(cls) -> str:
        """What users give to `format`."""
        return "penstock"

    def schema(self) -> StructType:
        """Asked of a source that is read from."""
        raise NotImplementedError(
            'format("penstock") writes to Kafka, and does not read from it; to read, use Spark\'s own connector'
        )

    # Spark calls both by keyword in places: the names of the parameters are part of its interface.

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of a batch job; checks options, schema and cluster."""
        from penstock.spark.writers import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """The writer of one micro-batch; checks options, schema and cluster."""
        from penstock.spark.writers import stream_writer

        return stream_writer(self.options, schema)
