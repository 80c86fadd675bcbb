# SPDX-License-Identifier: Apache-2.0
"""How the fake brokers answer. An API has two functions: one tells its behaviour and versions, the other refuses."""

from __future__ import annotations

from typing import Final

from penstock.protocol import messages
from penstock.protocol.schema import ApiSchema
from penstock.testing.apis import cluster, groups, produce, reading, sasl, telemetry, topics, transactions
from penstock.testing.apis.context import Handler

_HANDLERS: Final[dict[ApiSchema, Handler]] = {
    messages.PRODUCE: Handler(produce.handle, produce.refuse),
    messages.FETCH: Handler(reading.handle_fetch, reading.refuse_fetch),
    messages.LIST_OFFSETS: Handler(reading.handle_list_offsets, reading.refuse_list_offsets),
    messages.METADATA: Handler(cluster.handle_metadata, cluster.refuse_metadata),
    messages.OFFSET_FETCH: Handler(groups.handle_offset_fetch, groups.refuse_offset_fetch),
    messages.FIND_COORDINATOR: Handler(cluster.handle_find_coordinator, cluster.refuse_find_coordinator),
    messages.API_VERSIONS: Handler(cluster.handle_api_versions, cluster.refuse_api_versions),
    messages.SASL_HANDSHAKE: Handler(sasl.handle_sasl_handshake, sasl.refuse_sasl_handshake),
    messages.SASL_AUTHENTICATE: Handler(sasl.handle_sasl_authenticate, sasl.refuse_sasl_authenticate),
    messages.CREATE_TOPICS: Handler(topics.handle_create_topics, topics.refuse_create_topics),
    messages.INIT_PRODUCER_ID: Handler(
        transactions.handle_init_producer_id, transactions.refuse_init_producer_id
    ),
    messages.ADD_PARTITIONS_TO_TXN: Handler(
        transactions.handle_add_partitions_to_txn, transactions.refuse_add_partitions_to_txn
    ),
    messages.ADD_OFFSETS_TO_TXN: Handler(
        transactions.handle_add_offsets_to_txn, transactions.refuse_add_offsets_to_txn
    ),
    messages.END_TXN: Handler(transactions.handle_end_txn, transactions.refuse_end_txn),
    messages.TXN_OFFSET_COMMIT: Handler(groups.handle_txn_offset_commit, groups.refuse_txn_offset_commit),
    messages.DESCRIBE_CONFIGS: Handler(topics.handle_describe_configs, topics.refuse_describe_configs),
    messages.DESCRIBE_TRANSACTIONS: Handler(
        transactions.handle_describe_transactions, transactions.refuse_describe_transactions
    ),
    messages.LIST_TRANSACTIONS: Handler(
        transactions.handle_list_transactions, transactions.refuse_list_transactions
    ),
    messages.GET_TELEMETRY_SUBSCRIPTIONS: Handler(
        telemetry.handle_get_telemetry_subscriptions, telemetry.refuse_get_telemetry_subscriptions
    ),
    messages.PUSH_TELEMETRY: Handler(telemetry.handle_push_telemetry, telemetry.refuse_push_telemetry),
}

HANDLERS: Final[dict[int, Handler]] = {api.key: handler for api, handler in _HANDLERS.items()}
