# SPDX-License-Identifier: Apache-2.0
"""The rows of several Arrow tables that belong to one call of `send_arrow`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from penstock.records._rows_cy import Rows
from penstock.records.arrow import ArrowSource
from penstock.records.arrow_rows import ColumnNames, arrow_rows


class TableRows:
    """Reads tables one after the other; they are kept until the block is left, because rows lie in their memory.

    Args:
        tables: anything that ArrowSource takes.
        names: their columns.

    Attributes:
        count: how many rows were read.
    """

    def __init__(self, tables: Iterable[Any], names: ColumnNames) -> None:
        self._tables = tables
        self._names = names
        self._sources = ExitStack()
        self.count = 0

    def __iter__(self) -> Iterator[Rows]:
        for table in self._tables:
            source = self._sources.enter_context(ArrowSource(table))
            for rows in arrow_rows(source, self._names):
                self.count += rows.length
                yield rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sources.close()
