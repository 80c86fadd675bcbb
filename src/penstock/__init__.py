# SPDX-License-Identifier: Apache-2.0
"""Penstock: a Kafka producer for Python."""

from penstock._compiled import install_finder

install_finder()  # before any import of a hot module

from penstock import errors, partitioners, serializers  # noqa: E402
from penstock._version import __version__  # noqa: E402
from penstock.partitioners import Partitioner  # noqa: E402
from penstock.producer._send_cy import Delivery  # noqa: E402
from penstock.producer.interceptors import Interceptor  # noqa: E402
from penstock.producer.producer import Producer  # noqa: E402
from penstock.serializers import Serializer  # noqa: E402
from penstock.types import Header, ProducerRecord, RecordMetadata, TopicPartition  # noqa: E402

__all__ = [
    "Delivery",
    "Header",
    "Interceptor",
    "Partitioner",
    "Producer",
    "ProducerRecord",
    "RecordMetadata",
    "Serializer",
    "TopicPartition",
    "__version__",
    "errors",
    "partitioners",
    "serializers",
]
