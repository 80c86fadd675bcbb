# SPDX-License-Identifier: Apache-2.0
"""One-shot requests outside a producer: ending transactions, looking at those of others, topics.

From the bottom: `steps` (work as generators), `settings`, `metadata` and `coordinators` (what is known of the cluster),
`runner` (drives jobs), `client` (the blocking face). On them: `handle`, `markers`, `ending` (how a transaction ended,
decided without I/O), `end_transaction` and `pool`, `transactions`, `topics`, `configs`.
"""

from __future__ import annotations

from penstock.control.client import ControlClient
from penstock.control.configs import TopicDescription, describe_topic
from penstock.control.end_transaction import complete_transaction
from penstock.control.ending import AbortCause, Decision, TransactionOutcome
from penstock.control.pool import Completion, complete_all
from penstock.control.topics import NewTopic, TopicCreation, create_topic, create_topics
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
