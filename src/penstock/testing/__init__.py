# SPDX-License-Identifier: Apache-2.0
"""For the tests of those who use Penstock: a Kafka cluster in memory, and a producer that sends nothing.

The names are loaded when they are used, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._lazy import lazy_names as _lazy_names
from penstock.error_codes import ErrorCode as Code

if TYPE_CHECKING:
    from penstock.testing.cluster import FakeCluster
    from penstock.testing.faults import Fault
    from penstock.testing.mock.aio import MockAsyncProducer
    from penstock.testing.mock.producer import MockProducer
    from penstock.testing.refused import Refused
    from penstock.testing.security.rights import Acl
    from penstock.testing.security.settings import FakeSecurity
    from penstock.testing.server import FakeKafka
    from penstock.testing.session import Session
    from penstock.testing.settings import ClusterSettings

__all__ = [
    "Acl",
    "ClusterSettings",
    "Code",
    "FakeCluster",
    "FakeKafka",
    "FakeSecurity",
    "Fault",
    "MockAsyncProducer",
    "MockProducer",
    "Refused",
    "Session",
]

if not TYPE_CHECKING:  # to a type checker a module with a __getattr__ has every name
    __getattr__, __dir__ = _lazy_names(
        globals(),
        {
            "Acl": "penstock.testing.security.rights",
            "ClusterSettings": "penstock.testing.settings",
            "FakeCluster": "penstock.testing.cluster",
            "FakeKafka": "penstock.testing.server",
            "FakeSecurity": "penstock.testing.security.settings",
            "Fault": "penstock.testing.faults",
            "MockAsyncProducer": "penstock.testing.mock.aio",
            "MockProducer": "penstock.testing.mock.producer",
            "Refused": "penstock.testing.refused",
            "Session": "penstock.testing.session",
        },
    )
