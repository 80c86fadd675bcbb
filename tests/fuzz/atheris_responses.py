# SPDX-License-Identifier: Apache-2.0
"""Coverage-guided fuzzing of everything that reads a broker's bytes: `make fuzz` runs it, and fails without atheris.

The input's first byte chooses what reads the rest: frames, the header and body of an answer, record batches, message
sets. Whatever the bytes are, only ProtocolError and its kin may come out, and a body that was read must be the same
after being written again.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import google_crc32c

try:
    import atheris
except ImportError:
    sys.exit("atheris is not installed (pip install atheris): fuzzing guided by coverage needs it")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

with atheris.instrument_imports(include=["penstock.protocol", "penstock.records"]):
    from fuzz.cases import CASES, HANDSHAKES
    from records.legacy.entries import batch_of

    from penstock.errors import KafkaError
    from penstock.protocol._framing_cy import FrameReader, parse_response_header
    from penstock.protocol.codec import decode_response_body, encode_response_body
    from penstock.protocol.messages import API_VERSIONS
    from penstock.protocol.requests import NodeApiVersions
    from penstock.records.compression import CODECS, ZSTD, codec
    from penstock.records.format import HEADER_SIZE
    from penstock.records.legacy._sets_cy import convert
    from penstock.records.legacy.errors import LegacyFormatError
    from penstock.records.legacy.reader import read_set
    from penstock.records.reader import Record, read_batches
    from penstock.types import Header

READABLE = [*CASES, *HANDSHAKES]
REQUESTS = [case.request() for case in READABLE]
MAX_FRAME = 1_000_000


def read_frames(data: bytes) -> None:
    """Cut into pieces anywhere, the same frames must come out."""
    whole = FrameReader(MAX_FRAME)
    frames = whole.feed(data)
    piece_size = 1 + data[0] % 7
    pieces = FrameReader(MAX_FRAME)
    found = []
    for at in range(0, len(data), piece_size):
        found += pieces.feed(data[at : at + piece_size])
        if pieces.trouble is not None:
            break
    if [bytes(frame) for frame in found] != [bytes(frame) for frame in frames]:
        raise AssertionError("frames depend on how the bytes came")


def read_answer(data: bytes) -> None:
    """The second byte chooses the API and version."""
    index = data[0] % len(READABLE)
    case = READABLE[index]
    body = decode_response_body(case.api, case.version, data[1:])
    if case.api is API_VERSIONS:
        NodeApiVersions.from_response(body)
        return
    raw = b"".join(bytes(part) for part in encode_response_body(case.api, case.version, body))
    if plain(decode_response_body(case.api, case.version, raw)) != plain(body):
        raise AssertionError(f"{case}: what was read cannot be written and read again")
    REQUESTS[index].decode_response(case.version, memoryview(data)[1:])


def read_header(data: bytes) -> None:
    case = READABLE[data[0] % len(READABLE)]
    parse_response_header(case.api, case.version, data[1:])


def read_records(data: bytes) -> None:
    """As they are: nearly all of them are refused for their checksum."""
    for batch in read_batches(data):
        batch.records()


def read_records_with_checksum(data: bytes) -> None:
    """With length, magic and checksum put right, so that what lies behind them is read too."""
    read_records(with_checksum(data))


def with_checksum(data: bytes) -> bytes:
    corrupted = bytearray(data)
    if len(corrupted) > HEADER_SIZE:
        struct.pack_into(">i", corrupted, 8, len(corrupted) - 12)
        corrupted[16] = 2
        struct.pack_into(">I", corrupted, 17, google_crc32c.value(bytes(corrupted[21:])))
    return bytes(corrupted)


def read_message_set(data: bytes) -> None:
    """With sizes and checksums put right in as many entries as there are; what is in wrappers comes as it is."""
    corrupted = bytearray(data)
    at = 0
    while len(corrupted) - at >= 26:
        (size,) = struct.unpack_from(">i", corrupted, at + 8)
        if not 14 <= size <= len(corrupted) - at - 12:
            size = len(corrupted) - at - 12
            struct.pack_into(">i", corrupted, at + 8, size)
        corrupted[at + 16] &= 1
        struct.pack_into(">I", corrupted, at + 12, zlib.crc32(corrupted[at + 16 : at + 12 + size]))
        at += 12 + size
    for _ in read_set(bytes(corrupted), max_bytes=MAX_FRAME):
        pass


def convert_records(data: bytes) -> None:
    """A batch that can be converted has the same records before and after."""
    batch = with_checksum(data[1:])
    try:
        converted = convert(batch, data[0] & 1, codec("none"))
    except LegacyFormatError:
        return
    found = [(each.key, each.value) for each in read_set(converted)]
    (read,) = read_batches(batch)
    if found != [(each.key, each.value) for each in read.iter_records()]:
        raise AssertionError("conversion has changed the records")


READERS: list[Callable[[bytes], None]] = [
    read_frames,
    read_answer,
    read_answer,
    read_header,
    read_records,
    read_records_with_checksum,
    read_message_set,
    convert_records,
]


def plain(value: object) -> object:
    """Views as bytes, so that bodies can be compared."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


def test_one_input(data: bytes) -> None:
    """Read one response; atheris calls this with each input."""
    if len(data) < 3:
        return
    try:
        READERS[data[0] % len(READERS)](data[1:])
    except KafkaError:
        pass  # refused, and told so


def record_batches() -> list[bytes]:
    """Small batches of every codec, that can be converted and that cannot."""
    records = [Record(index, 1_700_000_000_000 + index, b"k", b"v" * index, ()) for index in range(4)]
    refused = [Record(0, 5, None, None, (Header("h", b"1"),))]
    return [batch_of(each, codec(row.name)) for row in CODECS for each in (records, refused)]


def message_sets() -> list[bytes]:
    """What becomes of them."""
    return [
        bytes(convert(record_batches()[0], magic, codec(row.name)))
        for row in CODECS[:ZSTD]
        for magic in (0, 1)
    ]


def main() -> None:
    """Start from one good answer of each kind, so that mutations have something to change."""
    corpus = next((Path(word) for word in sys.argv[1:] if not word.startswith("-")), None)
    if corpus is not None:
        corpus.mkdir(parents=True, exist_ok=True)
        for index, case in enumerate(READABLE):
            if index < 256:
                (corpus / str(case)).write_bytes(bytes((1, index)) + case.answer(index)[:4000])
        for index, data in enumerate(message_sets()):
            (corpus / f"message-set-{index}").write_bytes(bytes((READERS.index(read_message_set),)) + data)
        for index, data in enumerate(record_batches()):
            (corpus / f"batch-{index}").write_bytes(bytes((READERS.index(convert_records), index % 2)) + data)
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
