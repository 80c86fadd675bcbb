# SPDX-License-Identifier: Apache-2.0
"""What `penstock demo` sends: readings of pumps that never were, the same ones on every run and every machine.

Keys, headers and values are plain ASCII without tabs and line ends: the consumer that reads them back prints one line
of text for each record, with tabs in between, and with such data its text is exact.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

SEED = 20_110  # any number would do; another one gives other records
PUMPS = 5000  # so many keys, spread over the partitions by their hash

_STATES = (b"open", b"closing", b"closed", b"opening")
_SITES = tuple(b"weir-%02d" % number for number in range(24))


class DemoRecord(NamedTuple):
    """A record to be sent."""

    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]

    @property
    def size(self) -> int:
        """Bytes of its key, value and headers."""
        return len(self.key) + len(self.value) + sum(len(name) + len(value) for name, value in self.headers)

    def line(self, offset: int) -> bytes:
        """The line that the console consumer prints for it, after the partition and up to the end of the line."""
        headers = b",".join(b"%s:%s" % (name.encode("ascii"), value) for name, value in self.headers)
        return b"Offset:%d\t%s\t%s\t%s" % (offset, headers, self.key, self.value)


def demo_records(name: str, count: int) -> Iterator[DemoRecord]:
    """The first `count` records of the series called `name`."""
    bits = random.Random(f"{SEED} {name}").getrandbits
    codec = name.encode("ascii")
    for number in range(count):
        draw = bits(48)
        pump = draw % PUMPS
        value = b'{"seq":%d,"site":"%s","pump":%d,"litres":%d,"millibar":%d,"valve":"%s"}' % (
            number,
            _SITES[pump % len(_SITES)],
            pump,
            (draw >> 13) & 0xFFFF,
            (draw >> 29) & 0x1FFF,
            _STATES[(draw >> 42) & 3],
        )
        headers = (("series", codec), ("trace", b"%08x" % (draw & 0xFFFFFFFF)))
        yield DemoRecord(b"pump-%04d" % pump, value, headers)


class PartitionDigest(NamedTuple):
    """How many lines a partition has, and the SHA-256 of all of them in the order of their offsets."""

    records: int
    sha256: str


class Digester:
    """Digests the lines of a topic, partition by partition, in the order in which they are added."""

    def __init__(self) -> None:
        self._hashes: defaultdict[int, hashlib._Hash] = defaultdict(hashlib.sha256)
        self._counts: defaultdict[int, int] = defaultdict(int)

    def add(self, partition: int, line: bytes) -> None:
        """Take one line into account."""
        self._hashes[partition].update(line + b"\n")
        self._counts[partition] += 1

    def digests(self) -> dict[int, PartitionDigest]:
        """The digest of each partition that has lines."""
        return {
            partition: PartitionDigest(self._counts[partition], found.hexdigest())
            for partition, found in sorted(self._hashes.items())
        }


def digest_acknowledged(
    places: Iterable[tuple[int, int]], records: Iterable[DemoRecord]
) -> dict[int, PartitionDigest]:
    """The digests that a reader must find.

    Args:
        places: partition and offset of each record, as it was acknowledged.
        records: the records, in the same order.
    """
    by_partition: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for (partition, offset), record in zip(places, records, strict=True):
        by_partition[partition].append((offset, record.line(offset)))
    digester = Digester()
    for partition, lines in by_partition.items():
        for _, line in sorted(lines):
            digester.add(partition, line)
    return digester.digests()


def differences(sent: Mapping[int, PartitionDigest], read: Mapping[int, PartitionDigest]) -> list[str]:
    """What is not the same in the two, in words; nothing when all is well."""
    nothing = PartitionDigest(0, "-")
    found = []
    for partition in sorted({*sent, *read}):
        ours, theirs = sent.get(partition, nothing), read.get(partition, nothing)
        if ours.records != theirs.records:
            found.append(f"partition {partition}: {ours.records:,} records sent, {theirs.records:,} read")
        elif ours != theirs:
            found.append(
                f"partition {partition}: {ours.records:,} records, but SHA-256 {ours.sha256[:12]} sent "
                f"and {theirs.sha256[:12]} read"
            )
    return found
