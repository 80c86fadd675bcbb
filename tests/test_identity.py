# SPDX-License-Identifier: Apache-2.0
"""Who a producer is to the brokers."""

from __future__ import annotations

import pickle

import pytest

from penstock import sink
from penstock._identity import NO_IDENTITY, ProducerIdentity, TransactionalIdentity


def test_an_identity_that_nobody_gave_is_not_valid() -> None:
    assert ProducerIdentity(-1, -1) == NO_IDENTITY
    assert not NO_IDENTITY.valid
    assert ProducerIdentity(0, 0).valid


@pytest.mark.parametrize(("version", "joins"), [(3, False), (4, False), (5, True), (6, True)])
def test_the_version_of_its_end_tells_the_protocol(version: int, joins: bool) -> None:
    assert TransactionalIdentity("x", 7, 0, version).joins_by_writing is joins


def test_the_sink_gives_it_under_its_public_name() -> None:
    assert sink.ProducerIdentity is TransactionalIdentity
    given = sink.ProducerIdentity("x", 7, 3, end_txn_version=5)
    assert (given.transactional_id, given.producer_id, given.epoch, given.end_txn_version) == ("x", 7, 3, 5)
    assert pickle.loads(pickle.dumps(given)) == given
