# SPDX-License-Identifier: Apache-2.0
"""How the fake brokers answer: one module for each API, with its behaviour and its versions at the top."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from penstock.protocol import messages
from penstock.protocol.schema import ApiSchema
from penstock.testing.apis import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    api_versions,
    create_topics,
    describe_configs,
    describe_transactions,
    end_txn,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    list_transactions,
    metadata,
    offset_fetch,
    produce,
    txn_offset_commit,
)
from penstock.testing.apis.context import Handler

_MODULES: Final[dict[ApiSchema, ModuleType]] = {
    messages.PRODUCE: produce,
    messages.FETCH: fetch,
    messages.LIST_OFFSETS: list_offsets,
    messages.METADATA: metadata,
    messages.OFFSET_FETCH: offset_fetch,
    messages.FIND_COORDINATOR: find_coordinator,
    messages.API_VERSIONS: api_versions,
    messages.CREATE_TOPICS: create_topics,
    messages.INIT_PRODUCER_ID: init_producer_id,
    messages.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    messages.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    messages.END_TXN: end_txn,
    messages.TXN_OFFSET_COMMIT: txn_offset_commit,
    messages.DESCRIBE_CONFIGS: describe_configs,
    messages.DESCRIBE_TRANSACTIONS: describe_transactions,
    messages.LIST_TRANSACTIONS: list_transactions,
}

HANDLERS: Final[dict[int, Handler]] = {
    api.key: Handler(module.handle, module.refuse) for api, module in _MODULES.items()
}
