# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that prints each collected test with the marks that would keep it from proving anything."""

from __future__ import annotations

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        found = {mark.name for mark in item.iter_markers() if mark.name in ("skip", "skipif", "xfail")}
        print(  # noqa: T201 - the output is what it is for
            f"MARKS {item.nodeid.split('[')[0]} {','.join(sorted(found))}"
        )
