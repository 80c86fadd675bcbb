# SPDX-License-Identifier: Apache-2.0
"""Texts of others in errors of ours: bounded in time and length, without secrets."""

from __future__ import annotations

import time

import pytest

from penstock.security.quoting import MOST_CHARACTERS, quoted

SECRET = "hunter2-of-the-pod"


@pytest.mark.parametrize("text", ["a.", "a-b", "a://b:${", "a='", "bearer ", "password=${", "x:"])
def test_a_text_of_any_length_takes_no_time(text):
    began = time.thread_time()
    for _ in range(20):
        shown = quoted(text * 100_000)
    assert len(shown) <= MOST_CHARACTERS + 3
    assert time.thread_time() - began < 2


@pytest.mark.parametrize("before", range(1_980, 2_030, 3))
def test_where_a_text_is_cut_no_half_of_a_secret_stays(before):
    begin = "refused by the rules of this place: "
    filler = f"{begin}token='{'x' * (before - 8 - len(begin))}'"
    shown = quoted(filler + SECRET + "y" * 5_000, [SECRET])
    assert shown.startswith("refused by the rules")
    assert "hunt" not in shown
