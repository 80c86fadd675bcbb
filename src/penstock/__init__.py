# SPDX-License-Identifier: Apache-2.0
"""Penstock: a Kafka producer for Python.

What makes up the producer is imported when it is first asked for. Not every process that imports the package sends
records: those that plan and commit a Spark job do not, and the job waits for what they import.
"""

import sys as _sys
import typing as _typing

if _sys.platform == "win32":
    raise ImportError(
        "Penstock does not run on Windows: it is written for POSIX systems; use WSL or a container with Linux"
    )

from penstock._compiled import install_finder

install_finder()  # before any import of a hot module

from penstock import errors, partitioners, serializers  # noqa: E402
from penstock._lazy import lazy_names as _lazy_names  # noqa: E402
from penstock._other_clients import OF_PACKAGES as _OF_PACKAGES  # noqa: E402
from penstock._version import __version__  # noqa: E402
from penstock.partitioners import Partitioner  # noqa: E402
from penstock.serializers import Serializer  # noqa: E402
from penstock.transaction_handle import TransactionHandle  # noqa: E402
from penstock.types import (  # noqa: E402
    ConsumerGroupMetadata,
    Header,
    OffsetAndMetadata,
    ProducerRecord,
    RecordMetadata,
    TopicPartition,
)

if _typing.TYPE_CHECKING:
    from penstock.aio.producer import AsyncProducer
    from penstock.config.keys import ProducerOptions
    from penstock.control.complete import complete_transaction
    from penstock.producer._interceptors_cy import Interceptor
    from penstock.producer.batch._delivery_cy import Delivery
    from penstock.producer.producer import Producer
    from penstock.producer.send.bulk_delivery import BulkDelivery

__all__ = [
    "AsyncProducer",
    "BulkDelivery",
    "ConsumerGroupMetadata",
    "Delivery",
    "Header",
    "Interceptor",
    "OffsetAndMetadata",
    "Partitioner",
    "Producer",
    "ProducerOptions",
    "ProducerRecord",
    "RecordMetadata",
    "Serializer",
    "TopicPartition",
    "TransactionHandle",
    "__version__",
    "complete_transaction",
    "errors",
    "partitioners",
    "serializers",
]

if not _typing.TYPE_CHECKING:  # to a type checker a module with a __getattr__ has every name
    __getattr__, __dir__ = _lazy_names(
        globals(),
        {
            "AsyncProducer": "penstock.aio.producer",
            "BulkDelivery": "penstock.producer.send.bulk_delivery",
            "Delivery": "penstock.producer.batch._delivery_cy",
            "Interceptor": "penstock.producer._interceptors_cy",
            "Producer": "penstock.producer.producer",
            "ProducerOptions": "penstock.config.keys",
            "complete_transaction": "penstock.control.complete",
        },
        _OF_PACKAGES,
    )
