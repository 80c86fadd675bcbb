# SPDX-License-Identifier: Apache-2.0
"""Changes that corrupt bytes, as values: so that hypothesis can shrink them, and a failing case can be read.

Positions are fractions of 2**16, so that one mutation fits data of any length.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st

# `make fuzz` looks for longer than an ordinary test run.
EFFORT = int(os.environ.get("PENSTOCK_FUZZ_EFFORT", "1"))

_SCALE = 1 << 16
# Lengths that no frame can hold, that are null, or that are one too many or too few: fixed width, then variable.
BOMBS = (
    *(struct.pack(">i", number) for number in (2**31 - 1, -(2**31), -1, -2, 0, 1, 0xFFFF, 0x00FFFFFF)),
    *(struct.pack(">h", number) for number in (2**15 - 1, -(2**15), -1, -2)),
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff\xff\xff",
    b"\x80\x80\x80\x80\x08",
    b"\x00",
    b"\x01",
)


class Mutation(NamedTuple):
    """One change: at `place`, `drop` bytes go and `add` comes."""

    place: int
    drop: int
    add: bytes

    def apply(self, data: bytes) -> bytes:
        at = self.place * (len(data) + 1) // _SCALE
        return data[:at] + self.add + data[at + self.drop :]


def corrupt(data: bytes, mutations: Sequence[Mutation]) -> bytes:
    """All of them, one after the other."""
    for mutation in mutations:
        data = mutation.apply(data)
    return data


_places = st.integers(0, _SCALE - 1)
_overwrites = st.binary(min_size=1, max_size=6).flatmap(
    lambda add: st.builds(Mutation, _places, st.just(len(add)), st.just(add))
)
_bombs = st.sampled_from(BOMBS).flatmap(
    lambda add: st.builds(Mutation, _places, st.sampled_from((0, len(add))), st.just(add))
)
_cuts = st.builds(Mutation, _places, st.just(1 << 30), st.just(b""))
_insertions = st.builds(Mutation, _places, st.just(0), st.binary(min_size=1, max_size=40))
_holes = st.builds(Mutation, _places, st.integers(1, 8), st.just(b""))
_one_of_them = st.one_of(_overwrites, _bombs, _cuts, _insertions, _holes)

mutations = st.lists(_one_of_them, min_size=1, max_size=4)
