# SPDX-License-Identifier: Apache-2.0
"""Which versions of which APIs each release of Kafka has, from 0.8.2 to 4.3.

Three things need it: brokers before 0.10, which cannot be asked for their versions; errors, which name the release of a
broker; and tests, which imitate a release.

Each row is what brokers of the release list in their answer to ApiVersions; releases before 0.10 have no such answer,
and their rows are what they accept. The columns are the APIs that this package uses, without those of telemetry. A
cell is the highest version, or the lowest and the highest where the lowest is not 0; "-" is an API that the release
does not have. From 4.0 on brokers list Produce from 0, but refuse 0 to 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from penstock.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_FETCH,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TXN_OFFSET_COMMIT,
)
from penstock.protocol.schema import ApiSchema

if TYPE_CHECKING:
    from penstock.protocol.requests import NodeApiVersions

Ranges = Mapping[int, tuple[int, int]]

_COLUMNS: Final[tuple[ApiSchema, ...]] = (
    PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_FETCH, FIND_COORDINATOR, SASL_HANDSHAKE, API_VERSIONS,
    CREATE_TOPICS, INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT,
    DESCRIBE_CONFIGS, SASL_AUTHENTICATE, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS,
)  # fmt: skip

# Columns: Produce, Fetch, ListOffsets, Metadata, OffsetFetch, FindCoordinator, SaslHandshake, ApiVersions,
# CreateTopics, InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit, DescribeConfigs,
# SaslAuthenticate, DescribeTransactions, ListTransactions.
_ROWS: Final = """
#        Pr   Fe   LO  Me  OF  FC  SH  AV  CT  IP  AP  AO  ET  TC  DC  SA  DT  LT
0.8.2    0    0    0   0   1   0   -   -   -   -   -   -   -   -   -   -   -   -
0.9.0    1    1    0   0   1   0   -   -   -   -   -   -   -   -   -   -   -   -
0.10.0   2    2    0   1   1   0   0   0   -   -   -   -   -   -   -   -   -   -
0.10.1   2    3    1   2   1   0   0   0   0   -   -   -   -   -   -   -   -   -
0.10.2   2    3    1   2   2   0   0   0   1   -   -   -   -   -   -   -   -   -
0.11.0   3    5    2   4   3   1   0   1   2   0   0   0   0   0   0   -   -   -
1.0      5    6    2   5   3   1   1   1   2   0   0   0   0   0   0   0   -   -
1.1      5    7    2   5   3   1   1   1   2   0   0   0   0   0   1   0   -   -
2.0      6    8    3   6   4   2   1   2   3   1   1   1   1   1   2   0   -   -
2.1      7    10   4   7   5   2   1   2   3   1   1   1   1   2   2   0   -   -
2.2      7    10   5   7   5   2   1   2   3   1   1   1   1   2   2   1   -   -
2.3      7    11   5   8   5   2   1   2   3   1   1   1   1   2   2   1   -   -
2.4      8    11   5   9   6   3   1   3   5   2   1   1   1   2   2   1   -   -
2.5      8    11   5   9   7   3   1   3   5   3   1   1   1   3   2   2   -   -
2.6      8    11   5   9   7   3   1   3   5   3   1   1   1   3   3   2   -   -
2.7      8    12   5   9   7   3   1   3   6   4   2   2   2   3   3   2   -   -
2.8      9    12   6   11  7   3   1   3   7   4   3   3   3   3   4   2   -   -
3.0      9    12   7   11  8   4   1   3   7   4   3   3   3   3   4   2   0   0
3.1      9    13   7   12  8   4   1   3   7   4   3   3   3   3   4   2   0   0
3.2      9    13   7   12  8   4   1   3   7   4   3   3   3   3   4   2   0   0
3.3      9    13   7   12  8   4   1   3   7   4   3   3   3   3   4   2   0   0
3.4      9    13   7   12  8   4   1   3   7   4   3   3   3   3   4   2   0   0
3.5      9    15   8   12  8   4   1   3   7   4   3   3   3   3   4   2   0   0
3.6      9    15   8   12  8   4   1   3   7   4   4   3   3   3   4   2   0   0
3.7      10   16   8   12  9   4   1   3   7   4   4   3   3   3   4   2   0   0
3.8      11   16   8   12  9   5   1   3   7   5   5   4   4   4   4   2   0   1
3.9      11   17   9   12  9   6   1   4   7   5   5   4   4   4   4   2   0   1
4.0      12   4-17 1-10 13 1-9 6   1   4   2-7 5   5   4   5   5   1-4 2   0   1
4.1      13   4-18 1-10 13 1-9 6   1   4   2-7 5   5   4   5   5   1-4 2   0   2
4.2      13   4-18 1-11 13 1-10 6  1   4   2-7 5   5   4   5   5   1-4 2   0   2
4.3      13   4-18 1-11 13 1-10 6  1   4   2-7 5   5   4   5   5   1-4 2   0   2
"""

UNKNOWN: Final = "unknown"


def _read_rows() -> dict[str, Ranges]:
    table: dict[str, Ranges] = {}
    for line in _ROWS.strip().splitlines()[1:]:
        name, *cells = line.split()
        ranges = {api.key: _read_cell(cell) for api, cell in zip(_COLUMNS, cells, strict=True) if cell != "-"}
        table[name] = MappingProxyType(ranges)
    return table


def _read_cell(cell: str) -> tuple[int, int]:
    low, dash, high = cell.partition("-")
    return (int(low), int(high)) if dash else (0, int(low))


@cache
def _table() -> dict[str, Ranges]:
    # Made when somebody asks: most processes never do.
    return _read_rows()


def releases() -> tuple[str, ...]:
    """The names of all releases, the oldest first."""
    return tuple(_table())


def release_name(text: str) -> str:
    """The name of a release in this table, from what a user would call it: 0.9.0.1 and 0.9 are 0.9.0, 2.8.2 is 2.8.

    Raises:
        ValueError: the table has no such release.
    """
    parts = text.strip().split(".")
    if all(part.isascii() and part.isdigit() for part in parts):
        numbers = [str(int(part)) for part in parts]
        # Before 1.0 a release had three numbers, and its patches a fourth.
        size = 3 if numbers[0] == "0" else 2
        name = ".".join([*numbers, "0"][:size] if len(numbers) < size else numbers[:size])
        if 2 <= len(numbers) <= size + 1 and name in _table():
            return name
    known = releases()
    raise ValueError(f"{text!r} is no release of Kafka from {known[0]} to {known[-1]}")


def ranges_of(release: str) -> dict[int, tuple[int, int]]:
    """The lowest and highest version of each API of a release, by API key.

    Raises:
        ValueError: the table has no such release.
    """
    return dict(_table()[release_name(release)])


def first_release_with(api: ApiSchema, version: int) -> str | None:
    """The oldest release that knows the version of an API, or a later one; None where no release of the table does."""
    found = (name for name, ranges in _table().items() if ranges.get(api.key, (0, -1))[1] >= version)
    return next(found, None)


def likely_release(versions: NodeApiVersions) -> str:
    """The release whose brokers list these versions: "2.4", "3.1 to 3.4", "newer than 4.3", or UNKNOWN.

    Only the highest versions count. A broker whose inter.broker.protocol.version is that of an older release leaves
    out APIs, so one that is missing says nothing; but Produce and Metadata are there in all releases.
    """
    offered = {api.key: found for api in _COLUMNS if (found := versions.range(api.key)) is not None}
    if PRODUCE.key not in offered or METADATA.key not in offered:
        return UNKNOWN
    fitting = [name for name, ranges in _table().items() if _fits(offered, ranges)]
    if fitting:
        return fitting[0] if len(fitting) == 1 else f"{fitting[0]} to {fitting[-1]}"
    newest, ranges = list(_table().items())[-1]
    if all(key in offered and offered[key][1] >= high for key, (_, high) in ranges.items()):
        return f"newer than {newest}"
    return UNKNOWN


def _fits(offered: Ranges, ranges: Ranges) -> bool:
    return all(key in ranges and ranges[key][1] == high for key, (_, high) in offered.items())
