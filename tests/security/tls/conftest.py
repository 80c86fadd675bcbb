# SPDX-License-Identifier: Apache-2.0
"""Stores that keytool has written, once for all tests."""

from __future__ import annotations

import pytest
from security.tls.stores import Stores, make_stores


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return make_stores(tmp_path_factory.mktemp("stores"))
