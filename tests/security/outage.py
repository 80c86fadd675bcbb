# SPDX-License-Identifier: Apache-2.0
"""The broker is gone, and clients reach it by TLS and SCRAM: memory stays bounded, and what was accepted arrives.

A part of `make test-security`. It kills its broker, so it has its own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fix_flood import check_outage, outage_under_load

from penstock.devbroker import DevCluster

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.mark.parametrize("way", ["ssl", "sasl_ssl-scram-sha-512"])
def test_memory_is_bounded_while_the_broker_is_gone(way: str, note: Callable[[str], None]) -> None:
    with DevCluster(security="all") as cluster:
        cluster.create_topic("t", 3)
        outage = outage_under_load(cluster, cluster.client_options(way), "t")
        records, doubled = check_outage(outage, cluster, "t")
    note(
        f"{way}: {records:,} records, {doubled:,} twice, {outage.megabytes:.0f} MB above the idle interpreter"
    )
