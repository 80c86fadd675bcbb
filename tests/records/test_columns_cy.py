# SPDX-License-Identifier: Apache-2.0
"""Columns in every form: what is read of Arrow's memory is what Arrow reads there."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from fix_impl import forms, load
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

MODULE = "penstock.records._columns_cy"


@pytest.mark.parametrize("form", forms(MODULE))
@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(st.none() | st.binary(max_size=9), max_size=40),
    large=st.booleans(),
    first=st.integers(0, 12),
)
def test_lengths_are_those_of_the_texts(
    form: str, texts: list[bytes | None], large: bool, first: int
) -> None:
    column: Any = pa.array(texts, pa.large_binary() if large else pa.binary())[first:]
    validity, offsets, _ = column.buffers()
    if offsets is None:
        return  # Arrow makes none for an empty column
    at = 0 if validity is None else validity.address
    found = load(MODULE, form).text_lengths(offsets.address, at, large, column.offset, len(column))
    assert list(array("i", bytes(found))) == [-1 if text is None else len(text) for text in texts[first:]]
