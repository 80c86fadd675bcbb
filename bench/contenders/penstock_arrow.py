# SPDX-License-Identifier: Apache-2.0
"""Penstock's `send_arrow`: tables of 131,072 rows one after another; with keys, each row's partition is hashed."""

from __future__ import annotations

import time
from itertools import cycle, islice
from typing import Any

from bench.model import BenchError
from bench.worker import FIRST_SECONDS, Answer, PythonContender, Task, clock_stopped, work

ROWS = 131_072


class _SendArrow(PythonContender):
    def missing(self) -> str | None:
        from penstock import Producer

        if not hasattr(Producer, "send_arrow"):
            return "this Producer has no send_arrow"
        return super().missing()


CONTENDERS = [
    _SendArrow(
        "penstock-arrow", "Penstock send_arrow", 4_000_000, module="penstock_arrow", packages=("pyarrow",)
    ),
]


def send_tables(task: Task) -> Answer:
    """Send the same table again and again, flush; look at the reports when the clock has stopped."""
    from penstock import Producer

    table = _make_table(task)
    with Producer(task.settings) as producer:
        send_arrow: Any = getattr(producer, "send_arrow")  # noqa: B009 -- not in every version
        producer.send(task.topic, task.values[0]).result(FIRST_SECONDS)
        started = time.perf_counter()
        bulks = [
            send_arrow(task.topic, table.slice(0, min(ROWS, task.records - sent)))
            for sent in range(0, task.records, ROWS)
        ]
        producer.flush()
        answer = clock_stopped(started)
    reported = sum(bulk.result(0).records for bulk in bulks)
    if reported != task.records:
        raise BenchError(f"{reported} of {task.records} records reported")
    return answer


def _make_table(task: Task) -> Any:
    import pyarrow as pa

    rows = min(ROWS, task.records)
    columns = {"value": pa.array(islice(cycle(task.values), rows), pa.binary())}
    if task.keys:
        columns["key"] = pa.array((b"%07d" % number for number in range(rows)), pa.binary())
    return pa.table(columns)


if __name__ == "__main__":
    work({"": send_tables})
