# SPDX-License-Identifier: Apache-2.0
"""One-shot requests outside a producer: ending transactions, looking at those of others, topics.

From the bottom: `steps` (work as generators), `cluster` (what is known of the cluster), `runner` (drives jobs),
`client` (the blocking calls). On them: `markers` and `ending` (how a transaction ended, decided without I/O),
`complete` (ends transactions), `transactions` (describes them), `topics`, `reach`, and `partition_log`, which
reads and writes the log of a partition.
"""

from __future__ import annotations

from penstock.control.client import ControlClient
from penstock.control.complete import Completion, complete_all, complete_transaction
from penstock.control.ending import AbortCause, Decision, TransactionOutcome
from penstock.control.topics import (
    NewTopic,
    TopicCreation,
    TopicDescription,
    create_topic,
    create_topics,
    describe_topic,
)
from penstock.control.transactions import (
    TransactionDescription,
    TransactionListing,
    describe_transactions,
    list_transactions,
)
from penstock.transaction_handle import TransactionHandle

__all__ = [
    "AbortCause",
    "Completion",
    "ControlClient",
    "Decision",
    "NewTopic",
    "TopicCreation",
    "TopicDescription",
    "TransactionDescription",
    "TransactionHandle",
    "TransactionListing",
    "TransactionOutcome",
    "complete_all",
    "complete_transaction",
    "create_topic",
    "create_topics",
    "describe_topic",
    "describe_transactions",
    "list_transactions",
]
