# SPDX-License-Identifier: Apache-2.0
"""Converts corrupt batches to message sets, and looks at corrupt sets before they are sent: both are done in C.

A seed decides the bytes. A batch is refused, or its set has the records that the reader of batches finds in it. A set
is refused, or its entries fill it exactly.

As a program, for a build with the address sanitizer: python set_rounds.py [--seconds n] [--seed n]
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import time

from fuzz.mutations import BOMBS

from penstock.errors import ProtocolError
from penstock.protocol._produce_cy import PartitionBatch, ProduceRequest
from penstock.records._batch_cy import BatchWriter
from penstock.records._crc_cy import crc32c
from penstock.records.compression import codec
from penstock.records.format import HEADER_SIZE
from penstock.records.legacy import _sets_cy
from penstock.records.legacy.errors import LegacyFormatError
from penstock.records.legacy.reader import read_set
from penstock.records.reader import read_batches
from penstock.types import Header

CODECS = ("none", "none", "gzip", "snappy", "lz4")
MAX_BYTES = 1_000_000


def random_batch(rng: random.Random) -> bytearray:
    """A sealed batch, uncompressed."""
    writer = BatchWriter(bytearray(300_000), 300_000)
    largest = rng.choice((3, 30, 300, 20_000))
    for _ in range(rng.choice((1, 2, 5, 12))):
        key, value = (None if rng.random() < 0.2 else rng.randbytes(rng.randrange(largest)) for _ in range(2))
        headers = (Header("h", b"1"),) if rng.random() < 0.02 else ()
        writer.append(rng.choice((-1, 0, 5, 1_700_000_000_000, 2**62)), key, value, headers)
    return bytearray(writer.seal(0))


def corrupted(rng: random.Random, data: bytes, begin: int) -> bytearray:
    """One to three changes from `begin` on: bytes overwritten, put in or cut out, or the end cut off."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(begin, len(changed) + 1)
        add = rng.choice((rng.randbytes(rng.randrange(1, 5)), rng.choice(BOMBS), b""))
        drop = rng.choice((0, len(add), rng.randrange(4), 1 << 30 if rng.random() < 0.2 else 1))
        changed[at : at + drop] = add
    return changed


def with_header(batch: bytearray, rng: random.Random) -> bytes:
    """With a length and checksum that are right, and sometimes another number of records or time."""
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    if rng.random() < 0.1:
        struct.pack_into(">i", batch, 57, rng.choice((0, 1, 3, 2**31 - 1, -1)))
    if rng.random() < 0.1:
        struct.pack_into(">q", batch, 27, rng.choice((2**63 - 1, -(2**63), -1)))
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def one_round(seed: int) -> bool:
    """Corrupt a batch and a set; return whether the batch was converted all the same."""
    rng = random.Random(seed)
    magic = rng.randrange(2)
    good = random_batch(rng)
    batch = with_header(corrupted(rng, good, HEADER_SIZE) if rng.random() < 0.9 else good, rng)
    try:
        converted = _sets_cy.convert(batch, magic, codec(rng.choice(CODECS)))
    except (ProtocolError, LegacyFormatError):
        return False
    expected = _as_read(batch)
    assert expected is None or [(each.key, each.value) for each in read_set(converted)] == expected
    _look_at(bytes(corrupted(rng, bytes(converted), 0)))
    return True


def _as_read(batch: bytes) -> list[tuple[bytes | None, bytes | None]] | None:
    """The reader also looks at the numbers of records: what it refuses says nothing here."""
    try:
        (read,) = read_batches(batch)
        return [(each.key, each.value) for each in read.iter_records(MAX_BYTES)]
    except ProtocolError:
        return None


def _look_at(data: bytes) -> None:
    try:
        ProduceRequest(1, 1, [PartitionBatch("t", bytes(16), 0, data)])
    except ValueError:
        return
    at = 0
    while at < len(data) and data[16] < 2:
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    assert at == len(data) or data[16] == 2


def main() -> None:
    """Rounds until the time is up."""
    parser = argparse.ArgumentParser(description="convert batches that are damaged")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, help="this one only")
    told = parser.parse_args()
    if not _sets_cy.is_compiled():
        sys.exit("the hot modules are not compiled: there is nothing that a sanitizer could see")
    first = random.SystemRandom().randrange(2**40) if told.seed is None else told.seed
    until = time.monotonic() + told.seconds
    seed, converted = first, 0
    while told.seed is None or seed == first:
        try:
            converted += one_round(seed)
        except BaseException:
            sys.stderr.write(f"seed {seed} failed; replay it with --seed {seed}\n")
            raise
        seed += 1
        if time.monotonic() > until:
            break
    sys.stdout.write(f"{seed - first} batches from seed {first}, of which {converted} were converted\n")


if __name__ == "__main__":
    main()
