# SPDX-License-Identifier: Apache-2.0
"""Penstock: a Kafka producer for Python."""

from penstock._compiled import install_finder

install_finder()  # before any import of a hot module

from penstock import errors, partitioners, serializers  # noqa: E402
from penstock._version import __version__  # noqa: E402
from penstock.control.end_transaction import complete_transaction  # noqa: E402
from penstock.partitioners import Partitioner  # noqa: E402
from penstock.producer._delivery_cy import Delivery  # noqa: E402
from penstock.producer.bulk_delivery import BulkDelivery  # noqa: E402
from penstock.producer.interceptors import Interceptor  # noqa: E402
from penstock.producer.producer import Producer  # noqa: E402
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

__all__ = [
    "BulkDelivery",
    "ConsumerGroupMetadata",
    "Delivery",
    "Header",
    "Interceptor",
    "OffsetAndMetadata",
    "Partitioner",
    "Producer",
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
