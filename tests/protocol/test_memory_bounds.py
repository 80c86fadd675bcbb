# SPDX-License-Identifier: Apache-2.0
"""Compiled readers stay within what they were given: an answer lies at the very end of readable memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from penstock.protocol import _produce_cy

# In a process of its own: who reads on is stopped by the system.
GUARDED = """
import ctypes, random, struct
from penstock.protocol._produce_cy import TopicBatches, read_plain_answer

PAGE = 4096
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
memory = libc.mmap(None, 2 * PAGE, 3, 0x22, -1, 0)
if libc.mprotect(memory + PAGE, PAGE, 0) != 0:
    raise SystemExit("the memory cannot be guarded here")

def at_the_end(data):
    start = memory + PAGE - len(data)
    ctypes.memmove(start, data, len(data))
    return memoryview((ctypes.c_char * len(data)).from_address(start)).cast("B")

topics = [TopicBatches("t", bytes(range(16)))]
partition = struct.pack(">ihqqq", 0, 0, 7, -1, 0) + bytes([1, 0, 0])
whole = bytes([2]) + bytes(range(16)) + bytes([3]) + 2 * partition + bytes([0]) + struct.pack(">i", 0) + bytes([0])
read = read_plain_answer(at_the_end(whole), topics)
assert [each.base_offset for each in read.partitions] == [7, 7], read
for end in range(1, len(whole)):
    assert read_plain_answer(at_the_end(whole[:end]), topics) is None, end
rng = random.Random(1)
for _ in range(20_000):
    corrupted = bytearray(whole[: rng.randrange(1, len(whole) + 1)])
    for _ in range(rng.randrange(3)):
        corrupted[rng.randrange(len(corrupted))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    read_plain_answer(at_the_end(bytes(corrupted)), topics)
print("within bounds")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="guards a page of memory as Linux does")
@pytest.mark.skipif(not _produce_cy.is_compiled(), reason="plain Python cannot read beyond the end")
def test_an_answer_is_not_read_beyond_its_end() -> None:
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(GUARDED)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (run.returncode, run.stdout.strip()) == (0, "within bounds"), run.stderr
