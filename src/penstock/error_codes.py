# SPDX-License-Identifier: Apache-2.0
"""The error codes of the Kafka protocol: number, name, what each code means, and what the client does about it.

A new code is one row here. It gets a class of its own in `errors` only where programs must tell it apart.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

# What a client does about a code: (retriable, stale_metadata). Plain tuples, because every process imports this module.
_FAIL = (False, False)
_RETRY = (True, False)
_STALE = (True, True)


class ErrorCode(IntEnum):
    """A number on the wire, by Kafka's name. NONE is zero, so that `if code` asks for an error.

    Attributes:
        retriable: the same request may succeed later.
        stale_metadata: the client's view of the cluster is old: it must be refreshed before the next attempt.
        description: one sentence for users.
    """

    retriable: bool
    stale_metadata: bool
    description: str

    def __new__(cls, code: int, handling: tuple[bool, bool], description: str) -> Self:
        """A member out of its row."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable, member.stale_metadata = handling
        member.description = description
        return member

    # Codes that only consumers, share groups or administration can meet are here so that errors name them.
    # fmt: off
    UNKNOWN_SERVER_ERROR = -1, _FAIL, "The broker met an unexpected error"
    NONE = 0, _FAIL, "No error"
    OFFSET_OUT_OF_RANGE = 1, _FAIL, "The offset is outside the range kept by the broker"
    CORRUPT_MESSAGE = 2, _RETRY, "The batch arrived damaged: wrong checksum or size"
    UNKNOWN_TOPIC_OR_PARTITION = 3, _STALE, "The broker does not host this topic or partition"
    INVALID_FETCH_SIZE = 4, _FAIL, "The fetch size is invalid"
    LEADER_NOT_AVAILABLE = 5, _STALE, "The partition has no leader at the moment"
    NOT_LEADER_OR_FOLLOWER = 6, _STALE, "The broker is not the leader of the partition"
    REQUEST_TIMED_OUT = 7, _RETRY, "The request timed out"
    BROKER_NOT_AVAILABLE = 8, _FAIL, "The broker is not available"
    REPLICA_NOT_AVAILABLE = 9, _STALE, "The replica is not available for the partition"
    MESSAGE_TOO_LARGE = 10, _FAIL, "The batch is larger than the broker or topic accepts: send smaller records, or raise the topic's max.message.bytes"
    STALE_CONTROLLER_EPOCH = 11, _FAIL, "The controller moved"
    OFFSET_METADATA_TOO_LARGE = 12, _FAIL, "The metadata of the offset is too large"
    NETWORK_EXCEPTION = 13, _STALE, "The connection broke before the answer came"
    COORDINATOR_LOAD_IN_PROGRESS = 14, _RETRY, "The coordinator is loading its state"
    COORDINATOR_NOT_AVAILABLE = 15, _RETRY, "The coordinator is not available"
    NOT_COORDINATOR = 16, _RETRY, "The broker is not the coordinator"
    INVALID_TOPIC_EXCEPTION = 17, _FAIL, "The topic's name is not allowed"
    RECORD_LIST_TOO_LARGE = 18, _FAIL, "The batch is larger than a log segment"
    NOT_ENOUGH_REPLICAS = 19, _RETRY, "Fewer in-sync replicas than min.insync.replicas"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, _RETRY, "Written to fewer in-sync replicas than required"
    INVALID_REQUIRED_ACKS = 21, _FAIL, "The broker does not accept this value of acks"
    ILLEGAL_GENERATION = 22, _FAIL, "The group's generation is not the current one"
    INCONSISTENT_GROUP_PROTOCOL = 23, _FAIL, "The group member's protocols do not fit the group"
    INVALID_GROUP_ID = 24, _FAIL, "The group id is invalid"
    UNKNOWN_MEMBER_ID = 25, _FAIL, "The coordinator does not know this member"
    INVALID_SESSION_TIMEOUT = 26, _FAIL, "The session time-out is outside the broker's range"
    REBALANCE_IN_PROGRESS = 27, _FAIL, "The group is rebalancing"
    INVALID_COMMIT_OFFSET_SIZE = 28, _FAIL, "The committing offset data is too large"
    TOPIC_AUTHORIZATION_FAILED = 29, _FAIL, "Not authorized to use the topic"
    GROUP_AUTHORIZATION_FAILED = 30, _FAIL, "Not authorized to use the group"
    CLUSTER_AUTHORIZATION_FAILED = 31, _FAIL, "Not authorized to do this on the cluster"
    INVALID_TIMESTAMP = 32, _FAIL, "The record's timestamp is out of the range the topic accepts"
    UNSUPPORTED_SASL_MECHANISM = 33, _FAIL, "The broker does not offer this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, _FAIL, "The request does not fit the state of the SASL exchange"
    UNSUPPORTED_VERSION = 35, _FAIL, "The broker does not support this version of the request"
    TOPIC_ALREADY_EXISTS = 36, _FAIL, "The topic exists already"
    INVALID_PARTITIONS = 37, _FAIL, "The number of partitions is invalid"
    INVALID_REPLICATION_FACTOR = 38, _FAIL, "The replication factor is invalid or larger than the cluster"
    INVALID_REPLICA_ASSIGNMENT = 39, _FAIL, "The replica assignment is invalid"
    INVALID_CONFIG = 40, _FAIL, "The configuration is invalid"
    NOT_CONTROLLER = 41, _RETRY, "The broker is not the controller"
    INVALID_REQUEST = 42, _FAIL, "The broker could not make sense of the request"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, _FAIL, "The topic's message format does not support this"
    POLICY_VIOLATION = 44, _FAIL, "A policy of the cluster forbids this"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, _FAIL, "The broker saw a gap in the sequence numbers"
    DUPLICATE_SEQUENCE_NUMBER = 46, _FAIL, "The broker has this batch already"
    INVALID_PRODUCER_EPOCH = 47, _FAIL, "The producer's epoch is older than the broker's"
    INVALID_TXN_STATE = 48, _FAIL, "The transaction is not in a state that allows this"
    INVALID_PRODUCER_ID_MAPPING = 49, _FAIL, "The producer id does not belong to the transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, _FAIL, "The transaction time-out exceeds the broker's maximum"
    CONCURRENT_TRANSACTIONS = 51, _RETRY, "An earlier transaction of this id is still being completed"
    TRANSACTION_COORDINATOR_FENCED = 52, _FAIL, "The coordinator that sent the marker has been replaced"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, _FAIL, "Not authorized to use the transactional id"
    SECURITY_DISABLED = 54, _FAIL, "Security features are disabled on the broker"
    OPERATION_NOT_ATTEMPTED = 55, _FAIL, "Not attempted because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, _STALE, "The broker's disk failed for this partition"
    LOG_DIR_NOT_FOUND = 57, _FAIL, "The broker has no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, _FAIL, "SASL authentication failed"
    UNKNOWN_PRODUCER_ID = 59, _FAIL, "The broker has no state for this producer id"
    REASSIGNMENT_IN_PROGRESS = 60, _FAIL, "A partition reassignment is in progress"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, _FAIL, "Delegation tokens are not enabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, _FAIL, "The delegation token was not found"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, _FAIL, "The delegation token belongs to another principal"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, _FAIL, "Delegation tokens cannot be requested on this channel"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, _FAIL, "Not authorized to use delegation tokens"
    DELEGATION_TOKEN_EXPIRED = 66, _FAIL, "The delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, _FAIL, "The principal type is not supported"
    NON_EMPTY_GROUP = 68, _FAIL, "The group is not empty"
    GROUP_ID_NOT_FOUND = 69, _FAIL, "The group does not exist"
    FETCH_SESSION_ID_NOT_FOUND = 70, _RETRY, "The fetch session was not found"
    INVALID_FETCH_SESSION_EPOCH = 71, _RETRY, "The fetch session's epoch is invalid"
    LISTENER_NOT_FOUND = 72, _STALE, "The leader has no listener that matches this connection"
    TOPIC_DELETION_DISABLED = 73, _FAIL, "Topic deletion is disabled"
    FENCED_LEADER_EPOCH = 74, _STALE, "The leader epoch in the request is older than the broker's"
    UNKNOWN_LEADER_EPOCH = 75, _RETRY, "The leader epoch in the request is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = 76, _FAIL, "The broker does not support this codec"
    STALE_BROKER_EPOCH = 77, _FAIL, "The broker's epoch has changed"
    OFFSET_NOT_AVAILABLE = 78, _RETRY, "The high watermark has not caught up after an election"
    MEMBER_ID_REQUIRED = 79, _FAIL, "The group member needs an id before it joins"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, _STALE, "The preferred leader is not available"
    GROUP_MAX_SIZE_REACHED = 81, _FAIL, "The group is full"
    FENCED_INSTANCE_ID = 82, _FAIL, "Another member uses the same instance id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, _STALE, "No eligible leader is available"
    ELECTION_NOT_NEEDED = 84, _STALE, "No election is needed"
    NO_REASSIGNMENT_IN_PROGRESS = 85, _FAIL, "No reassignment is in progress"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, _FAIL, "The group is subscribed to the topic"
    INVALID_RECORD = 87, _FAIL, "The broker refused the record"
    UNSTABLE_OFFSET_COMMIT = 88, _RETRY, "Pending offset commits make the answer unstable"
    THROTTLING_QUOTA_EXCEEDED = 89, _RETRY, "A quota of the cluster is used up"
    PRODUCER_FENCED = 90, _FAIL, "A newer producer with the same transactional id has taken over"
    RESOURCE_NOT_FOUND = 91, _FAIL, "The resource was not found"
    DUPLICATE_RESOURCE = 92, _FAIL, "The resource exists already"
    UNACCEPTABLE_CREDENTIAL = 93, _FAIL, "The credential does not meet the broker's demands"
    INCONSISTENT_VOTER_SET = 94, _FAIL, "The voter sets of sender and receiver differ"
    INVALID_UPDATE_VERSION = 95, _FAIL, "The update's version is invalid"
    FEATURE_UPDATE_FAILED = 96, _FAIL, "Features could not be updated"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, _FAIL, "The forwarded principal could not be read"
    SNAPSHOT_NOT_FOUND = 98, _FAIL, "The snapshot was not found"
    POSITION_OUT_OF_RANGE = 99, _FAIL, "The position is outside the snapshot"
    UNKNOWN_TOPIC_ID = 100, _STALE, "The broker does not host this topic id"
    DUPLICATE_BROKER_REGISTRATION = 101, _FAIL, "The broker id is in use"
    BROKER_ID_NOT_REGISTERED = 102, _FAIL, "The broker id is not registered"
    INCONSISTENT_TOPIC_ID = 103, _STALE, "The topic id in the request does not match the log's"
    INCONSISTENT_CLUSTER_ID = 104, _FAIL, "The cluster id does not match"
    TRANSACTIONAL_ID_NOT_FOUND = 105, _FAIL, "The transactional id was not found"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, _RETRY, "The fetch session met inconsistent topic ids"
    INELIGIBLE_REPLICA = 107, _FAIL, "The replica may not join the in-sync set"
    NEW_LEADER_ELECTED = 108, _FAIL, "The leader changed the in-sync set after an election"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, _FAIL, "The offset is in tiered storage"
    FENCED_MEMBER_EPOCH = 110, _FAIL, "The member was fenced by the coordinator"
    UNRELEASED_INSTANCE_ID = 111, _FAIL, "The instance id is still used by another member"
    UNSUPPORTED_ASSIGNOR = 112, _FAIL, "The assignor is not supported"
    STALE_MEMBER_EPOCH = 113, _FAIL, "The member's epoch is old"
    MISMATCHED_ENDPOINT_TYPE = 114, _FAIL, "The request was sent to an endpoint of another type"
    UNSUPPORTED_ENDPOINT_TYPE = 115, _FAIL, "The endpoint type is not supported"
    UNKNOWN_CONTROLLER_ID = 116, _FAIL, "The controller id is not known"
    UNKNOWN_SUBSCRIPTION_ID = 117, _FAIL, "The telemetry subscription has changed"
    TELEMETRY_TOO_LARGE = 118, _FAIL, "The telemetry is larger than the broker accepts"
    INVALID_REGISTRATION = 119, _FAIL, "The controller refused the broker's registration"
    TRANSACTION_ABORTABLE = 120, _FAIL, "The transaction must be aborted"
    INVALID_RECORD_STATE = 121, _FAIL, "The record's state does not allow this"
    SHARE_SESSION_NOT_FOUND = 122, _RETRY, "The share session was not found"
    INVALID_SHARE_SESSION_EPOCH = 123, _RETRY, "The share session's epoch is invalid"
    FENCED_STATE_EPOCH = 124, _FAIL, "The share coordinator refused an old state epoch"
    INVALID_VOTER_KEY = 125, _FAIL, "The voter key does not match"
    DUPLICATE_VOTER = 126, _FAIL, "The voter is in the set already"
    VOTER_NOT_FOUND = 127, _FAIL, "The voter is not in the set"
    INVALID_REGULAR_EXPRESSION = 128, _FAIL, "The regular expression is not valid"
    REBOOTSTRAP_REQUIRED = 129, _FAIL, "The client must start again from its bootstrap servers"
    # fmt: on
