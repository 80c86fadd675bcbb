# SPDX-License-Identifier: Apache-2.0
"""The parts of the matrix find what they are there to find; otherwise a table without failures would mean nothing."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from brokers.cases import CASES
from brokers.records import Found, Sent, difference, without_repeats
from brokers.segments import Entry, end_offset, read_entries, stored
from brokers.servers import NoServer, started_kfake
from brokers.table import Cell, report, table
from brokers.traits import Traits
from penstock.devbroker import RELEASES


def message(offset: int, magic: int, attributes: int = 0, value: bytes = b"v") -> bytes:
    timestamp = struct.pack(">q", 5) if magic else b""
    body = struct.pack(">Ibb", 0, magic, attributes) + timestamp + struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qi", offset, len(body)) + body


def batch(offset: int, count: int, attributes: int = 0, producer_id: int = -1, sequence: int = -1) -> bytes:
    numbers = struct.pack(">hiqqqhii", attributes, count - 1, 0, 0, producer_id, 0, sequence, count)
    body = struct.pack(">ibI", 0, 2, 0) + numbers + b"records"
    return struct.pack(">qi", offset, len(body)) + body


def test_every_format_is_told_apart_in_a_segment() -> None:
    data = (
        message(0, 0) + message(4, 1, attributes=3) + batch(5, 10, 0x14, 4000, 7) + batch(15, 1, 0x30, 4000)
    )
    assert read_entries(data) == [
        Entry(0, 0, 0, "none"),
        Entry(1, 4, 1, "lz4"),
        Entry(5, 14, 2, "zstd", 4000, 7, is_transactional=True),
        Entry(15, 15, 2, "none", 4000, is_transactional=True, is_control=True),
    ]
    assert end_offset(read_entries(data)) == 16


def test_an_entry_that_is_being_written_is_left_out() -> None:
    whole = message(0, 1)
    for cut in range(len(whole)):
        assert read_entries(whole + message(1, 1)[:cut]) == read_entries(whole)


def test_something_else_in_a_segment_is_an_error() -> None:
    with pytest.raises(ValueError, match="magic 9"):
        read_entries(message(0, 9))


def test_segments_are_read_in_their_order(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    (folder / "00000000000000000003.log").write_bytes(message(5, 1, attributes=1))
    (folder / "00000000000000000000.log").write_bytes(batch(0, 3))
    assert [(entry.first_offset, entry.last_offset) for entry in stored(tmp_path, "t")] == [(0, 2), (3, 5)]
    assert stored(tmp_path, "none") == []
    assert end_offset([]) == 0


SENT = [Sent(b"k", b"one", (("h", b"x"),), 7), Sent(None, b"two", (), 8)]
FOUND = [Found(b"k", b"one", (("h", b"x"),), 7, 0), Found(None, b"two", (), 8, 1)]


def test_equal_records_do_not_differ() -> None:
    assert difference(SENT, FOUND) is None
    # What a reader cannot show is not compared.
    assert difference(SENT, [Found(b"k", b"one"), Found(None, b"two")]) is None


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (FOUND[:1], "1 records instead of 2"),
        ([*FOUND, FOUND[0]], "3 records instead of 2"),
        (FOUND[::-1], "record 0 of 2 has key None instead of b'k'"),
        ([FOUND[0], Found(None, b"", (), 8)], "record 1 of 2 has value b'' instead of b'two'"),
        ([FOUND[0], Found(b"", b"two", (), 8)], "key b'' instead of None"),
        ([Found(b"k", b"one", (), 7), FOUND[1]], "headers () instead of"),
        ([FOUND[0], Found(None, b"two", (), 9)], "timestamp 9 instead of 8"),
    ],
)
def test_each_kind_of_difference_is_found(found: list[Found], text: str) -> None:
    assert text in str(difference(SENT, found))


def test_repeats_of_a_retry_are_left_out() -> None:
    assert without_repeats([*FOUND, FOUND[0], FOUND[1]]) == FOUND


def test_the_table_has_a_row_for_each_case_and_a_column_for_each_release() -> None:
    cells = [
        Cell("headers", "0.9.0.1", "refused"),
        Cell("acks 0", "0.9.0.1", "FAILED", ["nothing came"]),
        Cell("headers", "4.3.1", "ok"),
    ]
    assert table(cells).splitlines() == [
        "|         | 0.9.0.1 | 4.3.1 |",
        "|---------|---------|-------|",
        "| headers | refused | ok    |",
        "| acks 0  | FAILED  |       |",
    ]
    assert report(cells).endswith("FAILED on 0.9.0.1: acks 0: nothing came\n3 cells, 1 failed")
    assert report(cells[:1]).endswith("1 cells, none failed")


def test_traits_are_those_of_the_releases() -> None:
    assert {version: Traits(version).magic for version in RELEASES} == {
        "0.9.0.1": 0,
        "0.10.0.1": 1,
        "0.10.2.2": 1,
        "0.11.0.3": 2,
        "1.1.1": 2,
        "2.1.1": 2,
        "2.8.2": 2,
        "3.9.1": 2,
        "4.3.1": 2,
    }
    assert next(version for version in RELEASES if "zstd" in Traits(version).codecs) == "2.1.1"
    assert Traits("0.10.2.2").family == "0.10"


def test_names_of_cases_differ() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


def test_without_go_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokers.servers.shutil.which", lambda name: None)
    with pytest.raises(NoServer, match=r"github\.com/twmb/franz-go/pkg/kfake.*Go, which is not on the PATH"):
        started_kfake("matrix").__enter__()
