# SPDX-License-Identifier: Apache-2.0
"""Sends tables of `arrow_layouts` through everything between an Arrow table and the bytes of a batch.

A seed decides the table. Each row that is good must be in the batch, byte for byte; each that is wrong must be told by
its number. In the second kind of round another thread changes the table meanwhile: then any outcome is right but a
batch that cannot be read, or memory that is not ours.

As a program, for a build with the address sanitizer: python arrow_rounds.py [--seconds n] [--seed n]
"""

from __future__ import annotations

import argparse
import ctypes
import random
import sys
import threading
import time
from typing import Any

from fuzz.arrow_layouts import BAD_NAME, LIE, Made, Maker, Memory

from penstock.records import _batch_cy, _rows_cy, _window_cy
from penstock.records.arrow import ArrowSource
from penstock.records.arrow_rows import ColumnNames, arrow_rows
from penstock.records.reader import read_batches

PARTITIONS = 3
LIMIT = 700  # what a record may take
NOW = 77
PLENTY = 1 << 40
UNITS = {
    "l": 1,
    "i": 1,
    "L": 1,
    "tsm:": 1,
    "tss:UTC": 1000,
    "tsu:": -1000,
    "tsn:": -1_000_000,
    "tdD": 86_400_000,
}


class Round:
    """One table, and what is known of its rows."""

    def __init__(self, seed: int, *, wrong_numbers: bool, rows: int | None = None) -> None:
        rng = random.Random(seed)
        self.memory = Memory()
        self.rows = rng.choice((0, 1, 4, 30)) if rows is None else rows
        skip = rng.choice((0, 0, 3))
        maker = Maker(rng, wrong_numbers, self.memory)
        shape = lambda: maker.shape(self.rows, skip)  # noqa: E731 - each column has its own
        self.columns: dict[str, Made] = {"value": maker.text(shape())}
        if rng.random() < 0.6:
            self.columns["key"] = maker.text(shape())
        if rng.random() < 0.6:
            self.columns["headers"] = maker.headers(shape())
        if rng.random() < 0.4:
            form = rng.choice(("c", "C", "i", "l", "L"))
            self.columns["partition"] = maker.numbers(shape(), form, [0, 1, 2, 2, 3, -1, 2**63, -(2**63)])
        self.unit = rng.choice(list(UNITS))
        if rng.random() < 0.4:
            moments = [0, 1, 86_400, 1_700_000_000_000, 2**62, -1, -(2**63)]
            self.columns["timestamp"] = maker.numbers(shape(), self.unit, moments)
        self.has_topic = rng.random() < 0.3
        if self.has_topic:
            self.columns["topic"] = maker.text(
                shape(), [b"x", b"y", b"a topic that is longer than a view", None]
            )
        self.table = maker.table(self.columns, self.rows, skip)

    def open(self) -> list[Any]:
        """The table as rows."""
        names = ColumnNames(topic="topic" if self.has_topic else None)
        with ArrowSource(self.table) as source:
            return list(arrow_rows(source, names))

    def cell(self, part: str, row: int) -> Any:
        made = self.columns.get(part)
        return None if made is None else made.rows[row]

    def timestamp(self, row: int) -> int | None:
        """A row's moment in milliseconds; -1 for one that cannot be sent."""
        number = self.cell("timestamp", row)
        if number is None:
            return None
        times = UNITS[self.unit]
        moment: int = number * times if times > 0 else number // -times
        return moment if number >= 0 and moment < 2**63 else -1

    def verdict(self, row: int, size: int) -> set[int]:
        """What may be said of a row that cannot be sent; nothing for one that can."""
        parts = [self.cell(part, row) for part in ("key", "value", "headers")]
        if self.has_topic and self.cell("topic", row) in (None, LIE):
            return {_rows_cy.BAD_LAYOUT if self.cell("topic", row) is LIE else _window_cy.NO_TOPIC}
        if LIE in parts[:2] or parts[2] is LIE:
            return (
                {_rows_cy.BAD_LAYOUT} if BAD_NAME not in parts else {_rows_cy.BAD_LAYOUT, _rows_cy.BAD_HEADER}
            )
        if parts[2] is BAD_NAME:
            return {_rows_cy.BAD_HEADER, _rows_cy.BAD_SIZE}
        if size > LIMIT:
            return {_rows_cy.BAD_SIZE}
        moment, partition = self.timestamp(row), self.cell("partition", row)
        if moment is not None and moment < 0:
            return {_rows_cy.BAD_TIMESTAMP}
        if partition is not None and not 0 <= partition < PARTITIONS:
            return {_rows_cy.BAD_PARTITION}
        return set()

    def check(self) -> int:
        """Place and append all rows, and compare; how many were good."""
        sent = 0
        for rows in self.open():
            window = _opened(rows, self.has_topic)
            told = dict(window.bad_rows())
            good = []
            for row in range(self.rows):
                size = 0 if row in told and told[row] != _rows_cy.BAD_SIZE else rows.size_bound(row)
                expected = self.verdict(row, size)
                assert (row in told) == bool(expected), f"row {row}: {told.get(row)} instead of {expected}"
                if expected:
                    assert told[row] in expected, f"row {row}: {told[row]} instead of {expected}"
                else:
                    good.append(row)
                    self._compare(rows, row)
            self._compare_bytes(window, good)
            sent += len(good)
        return sent

    def _compare(self, rows: Any, row: int) -> None:
        value, key, headers, partition, timestamp = rows.record(row)
        assert value == self.cell("value", row)
        assert key == self.cell("key", row)
        assert list(headers) == (self.cell("headers", row) or [])
        assert partition == self.cell("partition", row)
        assert timestamp == self.timestamp(row)

    def _compare_bytes(self, window: Any, good: list[int]) -> None:
        """What a window appends is what a writer would, row by row."""
        at_once, one_by_one = (_batch_cy.BatchWriter(bytearray(50_000), 50_000) for _ in range(2))
        groups = window.sort()
        order = [window.row_at(at) for _, first, last in groups for at in range(first, last)]
        assert sorted(order) == good
        for row in order:
            moment = self.timestamp(row)
            headers = tuple(self.cell("headers", row) or ())
            at = NOW if moment is None else moment
            assert one_by_one.append(at, self.cell("key", row), self.cell("value", row), headers) > 0
        for _, first, last in groups:
            assert window.append_to(at_once, first, last, PLENTY) == last - first
        assert bytes(at_once.raw_records()) == bytes(one_by_one.raw_records())

    def survive(self, writer_size: int = 60_000) -> int:
        """Append what is good while another thread changes the table; return how many records came out.

        It begins once the table was taken: what the last offset says before is used as it is.
        """
        chunks = self.open()
        stop = threading.Event()
        changer = threading.Thread(target=self._change_table, args=(stop,))
        changer.start()
        try:
            return sum(self._append_some(rows, writer_size) for rows in chunks)
        finally:
            stop.set()
            changer.join()

    def _append_some(self, rows: Any, writer_size: int) -> int:
        try:
            window = _opened(rows, self.has_topic)
        except ValueError:
            return 0  # a topic that is another one a moment later
        writer = _batch_cy.BatchWriter(bytearray(writer_size), writer_size)
        for _, first, last in window.sort():
            at = first
            while at < last:
                try:
                    at += window.append_to(writer, at, last, PLENTY)
                except ValueError:
                    at += 1
                    continue
                if window.refusal:
                    break
        if not writer.count:
            return 0
        [batch] = read_batches(bytes(writer.seal(0)))
        count = len(batch.records())
        assert count == writer.count
        return count

    def _change_table(self, stop: threading.Event) -> None:
        rng = random.Random(self.rows)
        while not stop.is_set():
            address, size = rng.choice(self.memory.numbers or [(0, 0)])
            if not size:
                return
            at = rng.randrange(size)
            some = min(size - at, rng.choice((1, 4, 8, 64)))
            # Lets go of the interpreter lock, like any other library that writes there.
            ctypes.memset(address + at, rng.choice((0, 1, 0x40, 0x7F, 0x80, 0xFF)), some)


def _opened(rows: Any, has_topic: bool) -> Any:
    window = _window_cy.Window(max(1, rows.length))
    window.open(rows, 0, rows.length)
    window.now_ms = NOW
    counts = [PARTITIONS]
    if has_topic:
        known: dict[bytes, int] = {}
        window.read_topics(known)
        counts = [PARTITIONS] * len(known)
    window.place(counts, LIMIT, True)
    if window.sticky and window.sticky < window.count:
        window.settle_sticky([lambda: 0] * len(counts), 100)
    return window


def one_round(seed: int) -> int:
    """Send a table, correct or wrong, that does not change; return how many of its rows were good."""
    some = Round(seed, wrong_numbers=seed % 4 > 0)
    try:
        return some.check()
    finally:
        some.memory.free()


def changed_round(seed: int) -> int:
    """A table of many rows that is changed meanwhile."""
    some = Round(seed, wrong_numbers=seed % 2 > 0, rows=random.Random(seed).choice((4, 600)))
    try:
        return some.survive()
    finally:
        some.memory.free()


def main() -> None:
    """Rounds until the time is up."""
    parser = argparse.ArgumentParser(description="send Arrow tables with wrong numbers")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, help="this one only")
    told = parser.parse_args()
    if not _window_cy.is_compiled():
        sys.exit("the hot modules are not compiled: there is nothing that a sanitizer could see")
    first = random.SystemRandom().randrange(2**40) if told.seed is None else told.seed
    until = time.monotonic() + told.seconds
    seed, good, kept = first, 0, 0
    while told.seed is None or seed == first:
        try:
            good += one_round(seed)
            kept += changed_round(seed)
        except BaseException:
            sys.stderr.write(f"seed {seed} failed; replay it with --seed {seed}\n")
            raise
        seed += 1
        if time.monotonic() > until:
            break
    sys.stdout.write(
        f"{seed - first} tables from seed {first}: {good} good rows, and {kept} of tables that were changed meanwhile\n"
    )


if __name__ == "__main__":
    main()
