# SPDX-License-Identifier: Apache-2.0
"""One producer for each Python worker and configuration, kept over tasks and micro-batches with memory and connections.

Rules:
1. A producer is made by the process that uses it, never before a fork: Spark forks its workers.
2. A worker runs one task at a time, so nobody else uses the producer meanwhile.
3. Workers end without a goodbye (SIGKILL, or an exit that runs no hooks). Nothing here needs one: what is left open of
   a transaction is aborted by others, and everything else was waited for before its task returned.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from penstock.errors import KafkaError
from penstock.producer.producer import Producer

_Key = tuple[int, tuple[tuple[str, str], ...]]

# Configurations in use at once; a notebook may try out many more in the life of a worker.
_KEPT = 4

# Last used last. The process id in the key guards against a copy made by a fork.
_producers: dict[_Key, Producer] = {}


def shared_producer(config: Mapping[str, str]) -> Producer:
    """The producer of this process for a configuration, made when there is none.

    Raises:
        KafkaError: the configuration is wrong, or no address can be resolved.
    """
    key = (os.getpid(), tuple(sorted(config.items())))
    producer = _producers.pop(key, None)
    if producer is None:
        producer = Producer(config)
    _producers[key] = producer
    while len(_producers) > _KEPT:
        forget_producer(next(iter(_producers.values())))  # idle: every task waits for its acknowledgements
    return producer


def forget_producer(producer: Producer) -> None:
    """Do not use a producer again: whatever it has on its way is given up."""
    for key, known in list(_producers.items()):
        if known is producer:
            del _producers[key]
    try:
        producer.close(0)
    except KafkaError:  # it may be given up because something is wrong already
        pass
