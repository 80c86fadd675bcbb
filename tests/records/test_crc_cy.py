# SPDX-License-Identifier: Apache-2.0
"""The checksum in every form: by instruction, by the table in C, by google-crc32c, by the table in Python."""

from __future__ import annotations

import array
import logging
import platform
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import google_crc32c
import pytest
from fix_impl import as_bytes, forms, golden, implementations, load

from penstock.records import format as layout
from penstock.records._batch_cy import BatchWriter

MODULE = "penstock.records._crc_cy"

module = implementations(MODULE)

Checksum = Callable[..., int]

# What RFC 3720, B.4, has, and the digits that every description of a checksum has.
READ_COMMAND = bytes.fromhex(
    "01c00000 00000000 00000000 00000000 14000000 00000400"
    "00000014 00000018 28000000 00000000 02000000 00000000"
)
KNOWN = {
    b"": 0,
    b"123456789": 0xE3069283,
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    READ_COMMAND: 0xD9963A56,
}


def checksums(module: str) -> Iterator[Any]:
    for form in forms(module):
        loaded = load(module, form)
        yield pytest.param(loaded.crc32c, id=form)
        yield pytest.param(loaded.crc32c_by_table, id=f"{form}-table")


ALL = list(checksums(MODULE))
every = pytest.mark.parametrize("checksum", ALL)


def prefixes(data: bytes) -> list[int]:
    """The checksum of nothing, of the first byte, of the first two, and so on: bit by bit, as the RFC divides."""
    found = [0]
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        found.append(value ^ 0xFFFFFFFF)
    return found


@every
@pytest.mark.parametrize(("data", "expected"), KNOWN.items(), ids=range(len(KNOWN)))
def test_known_values(checksum: Checksum, data: bytes, expected: int) -> None:
    assert checksum(data) == expected


@every
def test_every_length_at_every_alignment(checksum: Checksum, request: pytest.FixtureRequest) -> None:
    longest = 2_100
    data = random.Random(1).randbytes(longest + 16)
    memory = memoryview(bytearray(data))
    in_python = "no-cython-table" in request.node.name or "uncompiled-table" in request.node.name
    for start in range(16):
        expected = prefixes(data[start : start + longest])
        # The table in Python reads a copy, wherever the bytes are: each length once is enough.
        lengths = range(start, longest + 1, 16) if in_python else range(longest + 1)
        assert [checksum(memory[start : start + length]) for length in lengths] == [
            expected[length] for length in lengths
        ]


# Below, at and above the sizes at which the parts that are read side by side change, and the lock is given up.
EDGES = [
    size + more
    for size in (
        3 * 64,
        3 * 256,
        3 * 1024,
        3 * 4096,
        6 * 4096,
        3 * (4096 + 1024 + 256 + 64),
        32 * 1024,
        128 * 1024,
    )
    for more in (-9, -8, -1, 0, 1, 7, 8, 9)
]


@every
def test_large_ones(checksum: Checksum) -> None:
    data = random.Random(2).randbytes(max(EDGES) + 21)
    memory = memoryview(data)[21:]  # where a batch has what is checked
    before = 0xDEADBEEF
    for size in EDGES:
        assert checksum(memory[:size]) == google_crc32c.value(bytes(memory[:size])), size
        assert checksum(memory[:size], before) == google_crc32c.extend(before, bytes(memory[:size])), size


@every
def test_one_piece_goes_on_from_another(checksum: Checksum) -> None:
    data = random.Random(3).randbytes(1_000)
    whole = google_crc32c.value(data)
    assert {checksum(data[cut:], checksum(data[:cut])) for cut in range(len(data) + 1)} == {whole}
    assert checksum(data, before=0) == whole
    assert checksum(b"", before=7) == 7


@every
@pytest.mark.parametrize("case", golden("record_batch_v2.jsonl"))
def test_that_of_javas_batches(checksum: Checksum, case: dict[str, Any]) -> None:
    batch = as_bytes(case["hex"])
    assert batch is not None
    assert checksum(memoryview(batch)[layout.CHECKED_FROM :]) == case["header"]["crc"]


@every
def test_what_has_bytes_is_taken(checksum: Checksum) -> None:
    numbers = array.array("i", range(100))
    expected = google_crc32c.value(numbers.tobytes())
    for data in (numbers, numbers.tobytes(), bytearray(numbers), memoryview(numbers)):
        assert checksum(data) == expected


@every
@pytest.mark.parametrize("data", [5, "text", None, [1, 2]])
def test_what_has_no_bytes_is_refused(checksum: Checksum, data: object) -> None:
    with pytest.raises(TypeError):
        checksum(data)


# ---------------------------------------------------------------------------------------------------- which form


def processor_has_it() -> bool:
    words = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    return ("sse4_2" if platform.machine() == "x86_64" else "crc32") in words


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64") or not Path("/proc/cpuinfo").exists(),
    reason="for processors whose instruction is known, on Linux",
)
def test_compiled_code_uses_the_instruction_where_there_is_one(module: ModuleType) -> None:
    compiled = "instruction" if processor_has_it() else "table"
    assert module.method() == (compiled if module.is_compiled() else "google-crc32c")


@pytest.fixture
def pure(module: ModuleType) -> Iterator[ModuleType]:
    """A form in plain Python that has not looked for the package yet."""
    if module.is_compiled():
        pytest.skip("for plain Python")
    module._extend.cache_clear()
    yield module
    module._extend.cache_clear()


class _NotCompiled(ModuleType):
    """The package where it has no compiled code, in a program that makes warnings errors."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeWarning("a pure python implementation that is significantly slower")


def in_python() -> ModuleType:
    package = ModuleType("google_crc32c")
    vars(package).update(implementation="python", extend=None)
    return package


@pytest.mark.parametrize(
    "package",
    [None, in_python(), _NotCompiled("google_crc32c")],
    ids=["not installed", "not compiled", "not compiled, which is an error"],
)
def test_the_last_resort_is_logged_once(
    pure: ModuleType,
    package: ModuleType | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", package)
    with caplog.at_level(logging.WARNING):
        assert [pure.crc32c(data) for data in KNOWN] == list(KNOWN.values())
    assert pure.method() == "Python"
    [line] = caplog.messages
    assert "Install google-crc32c" in line
    assert [record.name for record in caplog.records] == ["penstock.records"]


def test_the_package_is_used_without_a_word(pure: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    assert pure.crc32c(b"123456789") == KNOWN[b"123456789"]
    assert pure.method() == "google-crc32c"
    assert caplog.messages == []


@pytest.mark.slow
def test_the_package_is_not_imported_before_it_is_needed() -> None:
    code = (
        "import sys\n"
        "from penstock import Producer\n"
        "from penstock.records import reader\n"
        "from penstock.records._crc_cy import crc32c, is_compiled\n"
        "early = 'google_crc32c' in sys.modules\n"
        "crc32c(b'123456789')\n"
        "late = 'google_crc32c' in sys.modules\n"
        "sys.exit(early or late is is_compiled())"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------------------------------------------- other threads

compiled_only = pytest.mark.skipif("compiled" not in forms(MODULE), reason="for compiled code")


@pytest.fixture
def no_switching() -> Iterator[None]:
    """No thread has to make way for another: it runs until it gives up the interpreter lock."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(before)


def others_ran_during(work: Callable[[], object]) -> bool:
    """Whether a thread that waits for the interpreter lock gets it while work is done."""
    started, go = threading.Lock(), threading.Lock()
    started.acquire()
    go.acquire()
    seen: list[int] = []

    def other() -> None:
        started.release()
        go.acquire()
        seen.append(1)

    thread = threading.Thread(target=other)
    thread.start()
    started.acquire()
    go.release()
    work()
    ran = bool(seen)
    thread.join()
    return ran


@compiled_only
@pytest.mark.usefixtures("no_switching")
def test_other_threads_run_during_a_long_one_alone() -> None:
    crc32c = load(MODULE, "compiled").crc32c
    long = bytes(64 * 1024 * 1024)
    assert any(others_ran_during(lambda: crc32c(long)) for _ in range(20))
    short = bytes(32 * 1024 - 1)
    assert not any(others_ran_during(lambda: crc32c(short)) for _ in range(20))


@compiled_only
@pytest.mark.usefixtures("no_switching")
def test_no_other_thread_runs_while_a_batch_is_sealed() -> None:
    def full_writer() -> BatchWriter:
        writer = BatchWriter(bytearray(8 * 1024 * 1024), 8 * 1024 * 1024)
        writer.append(0, None, bytes(7 * 1024 * 1024), None)
        return writer

    writers = [full_writer() for _ in range(5)]
    assert not any(others_ran_during(lambda writer=writer: writer.seal(0)) for writer in writers)


@pytest.mark.parametrize("case", golden("crc32.jsonl"), ids=lambda case: case["name"])
def test_keys_are_placed_as_librdkafka_places_them(module: ModuleType, case: dict[str, Any]) -> None:
    found = {count: module.crc32_partition(as_bytes(case["key"]), int(count)) for count in case["partition"]}
    assert found == case["partition"]


def test_a_topic_without_partitions_has_no_place(module: ModuleType) -> None:
    with pytest.raises(ZeroDivisionError):
        module.crc32_partition(b"key", 0)
