# SPDX-License-Identifier: Apache-2.0
"""For the tests of those who use Penstock: a Kafka cluster in memory, and a producer that sends nothing.

The names are loaded when they are used, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from penstock.error_codes import ErrorCode as Code

if TYPE_CHECKING:
    from penstock.testing.cluster import FakeCluster
    from penstock.testing.faults import Fault
    from penstock.testing.mock.producer import MockProducer
    from penstock.testing.refused import Refused
    from penstock.testing.server import FakeKafka
    from penstock.testing.session import Session
    from penstock.testing.settings import ClusterSettings

__all__ = [
    "ClusterSettings",
    "Code",
    "FakeCluster",
    "FakeKafka",
    "Fault",
    "MockProducer",
    "Refused",
    "Session",
]

_HOMES: Final = {
    "ClusterSettings": "settings",
    "FakeCluster": "cluster",
    "FakeKafka": "server",
    "Fault": "faults",
    "MockProducer": "mock.producer",
    "Refused": "refused",
    "Session": "session",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
