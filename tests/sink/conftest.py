# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the sink's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sink.support import TOPIC, World

from penstock.testing import FakeKafka


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A fake cluster with three brokers, in either transaction protocol."""
    features = {"transaction.version": request.param}
    with FakeKafka(brokers=3, topics={TOPIC: 2}, features=features) as kafka:
        yield World(kafka)
