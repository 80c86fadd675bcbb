# SPDX-License-Identifier: Apache-2.0
"""Sizes, positions and sequence arithmetic of the batch format."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from fix_impl import golden

from penstock.records import format as layout

MAX_SEQUENCE = 2**31 - 1


@pytest.mark.parametrize("case", golden("sizes.jsonl"))
def test_estimate_is_javas(case):
    headers = [(name, None if size is None else bytes(size)) for name, size in case["headers"]]
    estimate = layout.estimate_record_size(case["key_size"], case["value_size"], headers)
    assert estimate == case["estimate_upper_bound"]
    assert estimate >= layout.HEADER_SIZE + case["record_size"]


def test_estimate_takes_headers_from_an_iterator():
    pairs = [("a", b"1"), ("b", None)]
    assert layout.estimate_record_size(1, 2, iter(pairs)) == layout.estimate_record_size(1, 2, pairs)


def test_field_positions_follow_from_the_struct():
    fields = layout.BatchHeader._fields
    codes = layout.BATCH_HEADER.format.lstrip(">")
    assert len(codes) == len(fields)
    for index, field in enumerate(fields):
        assert getattr(layout, f"{field.upper()}_AT") == struct.calcsize(">" + codes[:index])
    assert layout.BATCH_HEADER.size == layout.HEADER_SIZE == 61


def test_compiled_code_has_the_same_layout():
    constants = Path(layout.__file__).with_name("_layout_cy.pxd").read_text(encoding="utf-8")
    found = re.findall(r"^ +(\w+) = (-?\w+)$", constants, re.MULTILINE)
    assert {name: int(value, 0) for name, value in found} == {
        name: getattr(layout, name) for name, _ in found
    }
    assert {name for name in vars(layout) if name.endswith("_AT")} < {name for name, _ in found}


@pytest.mark.parametrize(
    ("base", "count", "following", "last"),
    [
        (0, 1, 1, 0),
        (17, 5, 22, 21),
        (MAX_SEQUENCE - 1, 1, MAX_SEQUENCE, MAX_SEQUENCE - 1),
        (MAX_SEQUENCE - 1, 2, 0, MAX_SEQUENCE),
        (MAX_SEQUENCE, 1, 0, MAX_SEQUENCE),
        (MAX_SEQUENCE, 2, 1, 0),
        (MAX_SEQUENCE - 2, 10, 7, 6),
        (-1, 1, -1, -1),
        (-1, 10, -1, -1),
    ],
)
def test_sequences_wrap_to_zero(base, count, following, last):
    """Requirement 92."""
    assert layout.next_sequence(base, count) == following
    assert layout.last_sequence(base, count - 1) == last
