# SPDX-License-Identifier: Apache-2.0
"""The permissions that exactly-once delivery needs, told when one is missing."""

from __future__ import annotations

from penstock.error_codes import ErrorCode
from penstock.errors import BrokerError, KafkaError, SinkAuthorizationError

_AUTHORIZATION_CODES = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)


def explain_refusal(error: BrokerError, wanted: str) -> KafkaError:
    """A refusal for want of a permission, in words; any other error as it is."""
    if error.code not in _AUTHORIZATION_CODES:
        return error
    return SinkAuthorizationError(
        f"this client may not {wanted}: {error}. Exactly-once delivery needs Write and Describe on the transactional "
        "ids `ps.*` (an ACL with a prefix), Read, Write, Describe and DescribeConfigs on the log's topic, and Create "
        "for it unless it exists. Nothing was written"
    )
