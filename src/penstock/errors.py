# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as one tree of exceptions and one table of broker codes.

The type tells the caller what to do:

    KafkaError                      every error of this package
    |- ConfigError                  an option is wrong; nothing was started
    |  |- BootstrapError            no bootstrap address can be resolved
    |  `- PipelineDefinitionError   a pipeline's definition is wrong
    |- SerializationError           a key or value could not be turned into bytes
    |- RecordTooLargeError          the record exceeds max.request.size or buffer.memory
    |- PipelineError                a pipeline on Spark did not come to its end
    |  `- ExpectationFailedError    a row did not meet an expectation that must be met
    |- BadRowsError                 rows of a bulk cannot be sent, and so none was
    |- DamagedRowError              a row of an Arrow table contradicts itself
    |- BulkDeliveryError            records of a bulk were not delivered
    |- KafkaTimeoutError            the time given was not enough (retriable)
    |  |- BufferExhaustedError      no memory within max.block.ms
    |  `- DeliveryTimeoutError      no acknowledgement within delivery.timeout.ms
    |- IllegalStateError            the call is not allowed now (closed, forked, wrong order)
    |  |- ProducerClosedError
    |  |- ProducerFailedError
    |  `- ForkedProducerError
    |- TransactionOutcomeError      a transaction has ended in another way than was asked, or nobody can tell how
    |  |- TransactionAbortedError
    |  |- TransactionCommittedError
    |  `- TransactionUnknownError
    |- SinkError                    an exactly-once sink cannot go on; one class for each thing that a user must tell apart
    |  |- SinkSupersededError
    |  |- SinkLogLostError
    |  |- SinkLogUnfitError
    |  |- DecisionRefusedError
    |  |- DecisionInDoubtError
    |  |- DecidedDataLostError
    |  |- RestoredCheckpointError
    |  |- RunIdReusedError
    |  `- SinkAuthorizationError
    |- InvalidMetadataError         the client's view of the cluster is old (retriable, refreshed by itself)
    |- AuthenticationError          the broker refused who we are
    |- ProtocolError                the peer sent what Kafka would not send
    |- NotKafkaError                the peer does not speak Kafka at all
    `- BrokerError                  a broker answered with an error code; one class for each code that matters

Three flags on each: `retriable` (the same call may succeed later), `fatal` (this producer cannot go on) and
`requires_abort` (the transaction must be aborted, then work goes on).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self


class KafkaError(Exception):
    """Root of all errors raised by this package."""

    retriable: ClassVar[bool] = False
    fatal: ClassVar[bool] = False
    requires_abort: ClassVar[bool] = False

    # Where send_many or send_arrow raised it after rows had been accepted: their BulkDelivery.
    bulk_delivery: Any = None

    def twin(self) -> Self:
        """A new error that says the same, and has no traceback yet: one to be raised while another keeps this one."""
        kind = type(self)
        other = kind.__new__(kind, *self.args)
        other.args = self.args  # those of OSError's family may leave it to __init__
        other.__dict__.update(self.__dict__)
        if hasattr(self, "__notes__"):
            other.__notes__ = list(self.__notes__)
        other.__cause__ = self.__cause__
        other.__suppress_context__ = self.__suppress_context__  # which a cause, even None, has just set
        return other


class ConfigError(KafkaError):
    """A configuration option is unknown, malformed, or contradicts another one.

    Attributes:
        option: the name of the option to correct: the dotted one, also where it was given in snake case; of an unknown
            option the name as it was given; None where it is not one option.
    """

    def __init__(self, message: str = "", option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


class BootstrapError(ConfigError):
    """None of the bootstrap addresses can be resolved."""

    def __init__(self, message: str = "", option: str | None = "bootstrap.servers") -> None:
        super().__init__(message, option)


class PipelineDefinitionError(ConfigError):
    """A pipeline's definition is wrong; the text names file, line and key, and `option` the key: `[sink] topic`."""


class PipelineError(KafkaError):
    """A pipeline on Spark did not come to its end."""


class ExpectationFailedError(PipelineError):
    """A row did not meet an expectation whose action is `fail`.

    Attributes:
        expectation: its name.
    """

    def __init__(self, message: str, expectation: str = "") -> None:
        super().__init__(message)
        self.expectation = expectation


class SerializationError(KafkaError):
    """A key or value could not be turned into bytes."""


class RecordTooLargeError(KafkaError):
    """The record is larger than max.request.size, buffer.memory, or what the broker accepts."""


class BadRowsError(KafkaError, ValueError):
    """Rows that were given to send_many or send_arrow cannot be sent.

    Attributes:
        errors: the first of them, as RowErrors.
        count: how many there are.
    """

    def __init__(self, message: str, errors: Sequence[Any] = (), count: int = 0) -> None:
        super().__init__(message)
        self.errors = tuple(errors)
        self.count = count


class DamagedRowError(KafkaError, ValueError):
    """A row of an Arrow table says that its bytes are where the table has none: nothing of it can be believed."""


class BulkDeliveryError(KafkaError):
    """Some records of a bulk were not delivered; the cause is the error of the first of them.

    Attributes:
        report: the BulkReport, with what was delivered and what was not.
    """

    def __init__(self, message: str, report: Any = None) -> None:
        super().__init__(message)
        self.report = report


class KafkaTimeoutError(KafkaError, TimeoutError):
    """Something did not happen within the time given; it may succeed when tried again."""

    retriable = True


class BufferExhaustedError(KafkaTimeoutError):
    """No memory for the record became free within max.block.ms."""


class DeliveryTimeoutError(KafkaTimeoutError):
    """The record was not acknowledged within delivery.timeout.ms; whether the broker wrote it is unknown."""


class IllegalStateError(KafkaError, RuntimeError):
    """The call is not allowed in the producer's present state."""


class ReentrantCallError(IllegalStateError):
    """A finalizer or a signal handler made the call in the middle of another one on the same thread, and would wait for it.

    Records that `send` gets in such a place are accepted; calls that wait are refused with this error.
    """


class ProducerClosedError(IllegalStateError):
    """The producer is closed, or was closed while the call waited."""


class ProducerFailedError(IllegalStateError):
    """An earlier error, which is its cause, has put an end to this producer."""

    fatal = True


class ForkedProducerError(IllegalStateError):
    """The producer was made before a fork and is used in the child."""


class TransactionOutcomeError(KafkaError):
    """A detached transaction did not end as asked, or nobody can tell any more how it ended."""


class TransactionAbortedError(TransactionOutcomeError):
    """The transaction has been aborted: its records are lost, and those that waited were not sent."""


class TransactionCommittedError(TransactionOutcomeError):
    """A detached transaction was to be aborted, but has been committed; its records are visible."""


class TransactionUnknownError(TransactionOutcomeError):
    """The coordinator does not know the detached transaction any more, and the log does not tell how it ended."""


class SinkError(KafkaError):
    """An exactly-once sink cannot go on."""


class SinkSupersededError(SinkError):
    """A newer driver, or a newer run of the batch, has taken over: this one must not write."""


class SinkLogLostError(SinkError):
    """The log of a sink's decisions is gone, or parts of it: what was decided is not known any more."""


class SinkLogUnfitError(SinkError):
    """The topic for a sink's decisions is not made as it must be."""


class DecisionRefusedError(SinkError):
    """A batch was not decided, because a task's transaction is dead or could die before it is ended."""


class DecisionInDoubtError(SinkError):
    """Whether a batch was decided, or all of a decided batch is visible, is not known yet; the next start finds out."""


class DecidedDataLostError(SinkError):
    """Records of a batch that was decided are lost: their transactions were aborted before they could be committed.

    Attributes:
        partitions: (topic, partition, records) of what is lost.
    """

    def __init__(self, message: str, partitions: Sequence[tuple[str, int, int]] = ()) -> None:
        super().__init__(message)
        self.partitions = tuple(partitions)


class RestoredCheckpointError(SinkError):
    """A batch is older than the last one that was decided for its query, or has other rows: the checkpoint was set back."""


class RunIdReusedError(SinkError):
    """A run id that has written before is used for another topic, or for other rows."""


class SinkAuthorizationError(SinkError):
    """This client lacks a permission that an exactly-once sink needs."""


class InvalidMetadataError(KafkaError):
    """What the client knew of the cluster is out of date; it refreshes by itself."""

    retriable = True


class AuthenticationError(KafkaError):
    """The broker refused this client's identity."""


class ProtocolError(KafkaError):
    """Bytes that do not follow the Kafka protocol."""


class NotKafkaError(ProtocolError):
    """Whatever listens at the address does not speak Kafka."""


class BrokerError(KafkaError):
    """A broker answered with an error code.

    Attributes:
        code: the number on the wire.
        name: Kafka's name for it, for example "NOT_LEADER_OR_FOLLOWER".
        names_record: whether the broker refused this very record, by its number in the batch or by its topic, and no
            other because of it.
    """

    code: int = -1
    name: str = "UNKNOWN_SERVER_ERROR"
    names_record: bool = False

    def __init__(self, message: str | None = None, *, code: int | None = None) -> None:
        row = error_row(self.code if code is None else code)
        self.code = row.code
        self.name = row.name
        super().__init__(message or row.description)

    def __str__(self) -> str:
        return f"{super().__str__()} [{self.name} ({self.code})]"

    def __reduce__(self) -> tuple[object, ...]:
        # Spark and multiprocessing pickle errors; the default would lose the code.
        return (_rebuild, (type(self), self.args[0] if self.args else None, self.code))


def _rebuild(cls: type[BrokerError], message: str | None, code: int) -> BrokerError:
    return cls(message, code=code)


class RetriableBrokerError(BrokerError):
    """A passing condition of the broker; the producer retries by itself."""

    retriable = True


class StaleMetadataError(RetriableBrokerError, InvalidMetadataError):
    """The broker says that our view of the cluster is old."""


class UnknownTopicOrPartitionError(StaleMetadataError):
    """The topic or partition does not exist on that broker."""

    code = 3


class LeaderNotAvailableError(StaleMetadataError):
    """The partition has no leader now."""

    code = 5


class NotLeaderOrFollowerError(StaleMetadataError):
    """The broker asked is not the leader of the partition."""

    code = 6


class RequestTimedOutError(RetriableBrokerError, KafkaTimeoutError):
    """No answer came in time, or the broker could not replicate in time."""

    code = 7


class MessageTooLargeError(BrokerError, RecordTooLargeError):
    """The batch is larger than the broker or topic accepts."""

    code = 10


class NetworkError(StaleMetadataError):
    """The connection broke before the answer came."""

    code = 13


class InvalidTopicError(BrokerError):
    """The topic's name is not allowed."""

    code = 17


class NotEnoughReplicasError(RetriableBrokerError):
    """Fewer in-sync replicas than the topic demands."""

    code = 19


class TopicAuthorizationError(BrokerError):
    """This client may not write to the topic."""

    code = 29


class ClusterAuthorizationError(BrokerError):
    """This client may not do that on the cluster."""

    code = 31
    fatal = True


class UnsupportedVersionError(BrokerError):
    """Client and broker have no common version of a request, or the broker lacks a feature."""

    code = 35
    fatal = True


class OutOfOrderSequenceError(BrokerError):
    """The broker saw a gap in the sequence numbers of a partition."""

    code = 45


class InvalidProducerEpochError(BrokerError):
    """The producer's epoch is older than the broker's."""

    code = 47
    requires_abort = True


class TransactionalIdAuthorizationError(BrokerError):
    """This client may not use the transactional id."""

    code = 53
    fatal = True


class UnknownProducerIdError(OutOfOrderSequenceError):
    """The broker has no state for this producer id."""

    code = 59


class InvalidRecordError(BrokerError):
    """The broker refused the record itself."""

    code = 87


class ProducerFencedError(BrokerError):
    """A newer producer with the same transactional id has taken over."""

    code = 90
    fatal = True


class TransactionAbortableError(BrokerError):
    """The transaction must be aborted; the producer can go on afterwards."""

    code = 120
    requires_abort = True


class ErrorRow(NamedTuple):
    """One broker error code."""

    code: int
    name: str
    cls: type[BrokerError]
    description: str


_FAIL, _RETRY, _STALE = BrokerError, RetriableBrokerError, StaleMetadataError

# One row per code. Codes that only consumers, share groups or administration can meet keep the plain class.
_ROWS = (
    ErrorRow(-1, "UNKNOWN_SERVER_ERROR", _FAIL, "The broker met an unexpected error"),
    ErrorRow(1, "OFFSET_OUT_OF_RANGE", _FAIL, "The offset is outside the range kept by the broker"),
    ErrorRow(2, "CORRUPT_MESSAGE", _RETRY, "The batch arrived damaged: wrong checksum or size"),
    ErrorRow(3, "UNKNOWN_TOPIC_OR_PARTITION", UnknownTopicOrPartitionError, "The broker does not host this topic or partition"),
    ErrorRow(4, "INVALID_FETCH_SIZE", _FAIL, "The fetch size is invalid"),
    ErrorRow(5, "LEADER_NOT_AVAILABLE", LeaderNotAvailableError, "The partition has no leader at the moment"),
    ErrorRow(6, "NOT_LEADER_OR_FOLLOWER", NotLeaderOrFollowerError, "The broker is not the leader of the partition"),
    ErrorRow(7, "REQUEST_TIMED_OUT", RequestTimedOutError, "The request timed out"),
    ErrorRow(8, "BROKER_NOT_AVAILABLE", _FAIL, "The broker is not available"),
    ErrorRow(9, "REPLICA_NOT_AVAILABLE", _STALE, "The replica is not available for the partition"),
    ErrorRow(
        10,
        "MESSAGE_TOO_LARGE",
        MessageTooLargeError,
        "The batch is larger than the broker or topic accepts: send smaller records, or raise the topic's "
        "max.message.bytes",
    ),
    ErrorRow(11, "STALE_CONTROLLER_EPOCH", _FAIL, "The controller moved"),
    ErrorRow(12, "OFFSET_METADATA_TOO_LARGE", _FAIL, "The metadata of the offset is too large"),
    ErrorRow(13, "NETWORK_EXCEPTION", NetworkError, "The connection broke before the answer came"),
    ErrorRow(14, "COORDINATOR_LOAD_IN_PROGRESS", _RETRY, "The coordinator is loading its state"),
    ErrorRow(15, "COORDINATOR_NOT_AVAILABLE", _RETRY, "The coordinator is not available"),
    ErrorRow(16, "NOT_COORDINATOR", _RETRY, "The broker is not the coordinator"),
    ErrorRow(17, "INVALID_TOPIC_EXCEPTION", InvalidTopicError, "The topic's name is not allowed"),
    ErrorRow(18, "RECORD_LIST_TOO_LARGE", _FAIL, "The batch is larger than a log segment"),
    ErrorRow(19, "NOT_ENOUGH_REPLICAS", NotEnoughReplicasError, "Fewer in-sync replicas than min.insync.replicas"),
    ErrorRow(20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", NotEnoughReplicasError, "Written to fewer in-sync replicas than required"),
    ErrorRow(21, "INVALID_REQUIRED_ACKS", _FAIL, "The broker does not accept this value of acks"),
    ErrorRow(22, "ILLEGAL_GENERATION", _FAIL, "The group's generation is not the current one"),
    ErrorRow(23, "INCONSISTENT_GROUP_PROTOCOL", _FAIL, "The group member's protocols do not fit the group"),
    ErrorRow(24, "INVALID_GROUP_ID", _FAIL, "The group id is invalid"),
    ErrorRow(25, "UNKNOWN_MEMBER_ID", _FAIL, "The coordinator does not know this member"),
    ErrorRow(26, "INVALID_SESSION_TIMEOUT", _FAIL, "The session time-out is outside the broker's range"),
    ErrorRow(27, "REBALANCE_IN_PROGRESS", _FAIL, "The group is rebalancing"),
    ErrorRow(28, "INVALID_COMMIT_OFFSET_SIZE", _FAIL, "The committing offset data is too large"),
    ErrorRow(29, "TOPIC_AUTHORIZATION_FAILED", TopicAuthorizationError, "Not authorized to use the topic"),
    ErrorRow(30, "GROUP_AUTHORIZATION_FAILED", _FAIL, "Not authorized to use the group"),
    ErrorRow(31, "CLUSTER_AUTHORIZATION_FAILED", ClusterAuthorizationError, "Not authorized to do this on the cluster"),
    ErrorRow(32, "INVALID_TIMESTAMP", _FAIL, "The record's timestamp is out of the range the topic accepts"),
    ErrorRow(33, "UNSUPPORTED_SASL_MECHANISM", _FAIL, "The broker does not offer this SASL mechanism"),
    ErrorRow(34, "ILLEGAL_SASL_STATE", _FAIL, "The request does not fit the state of the SASL exchange"),
    ErrorRow(35, "UNSUPPORTED_VERSION", UnsupportedVersionError, "The broker does not support this version of the request"),
    ErrorRow(36, "TOPIC_ALREADY_EXISTS", _FAIL, "The topic exists already"),
    ErrorRow(37, "INVALID_PARTITIONS", _FAIL, "The number of partitions is invalid"),
    ErrorRow(38, "INVALID_REPLICATION_FACTOR", _FAIL, "The replication factor is invalid or larger than the cluster"),
    ErrorRow(39, "INVALID_REPLICA_ASSIGNMENT", _FAIL, "The replica assignment is invalid"),
    ErrorRow(40, "INVALID_CONFIG", _FAIL, "The configuration is invalid"),
    ErrorRow(41, "NOT_CONTROLLER", _RETRY, "The broker is not the controller"),
    ErrorRow(42, "INVALID_REQUEST", _FAIL, "The broker could not make sense of the request"),
    ErrorRow(43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", _FAIL, "The topic's message format does not support this"),
    ErrorRow(44, "POLICY_VIOLATION", _FAIL, "A policy of the cluster forbids this"),
    ErrorRow(45, "OUT_OF_ORDER_SEQUENCE_NUMBER", OutOfOrderSequenceError, "The broker saw a gap in the sequence numbers"),
    ErrorRow(46, "DUPLICATE_SEQUENCE_NUMBER", _FAIL, "The broker has this batch already"),
    ErrorRow(47, "INVALID_PRODUCER_EPOCH", InvalidProducerEpochError, "The producer's epoch is older than the broker's"),
    ErrorRow(48, "INVALID_TXN_STATE", _FAIL, "The transaction is not in a state that allows this"),
    ErrorRow(49, "INVALID_PRODUCER_ID_MAPPING", _FAIL, "The producer id does not belong to the transactional id"),
    ErrorRow(50, "INVALID_TRANSACTION_TIMEOUT", _FAIL, "The transaction time-out exceeds the broker's maximum"),
    ErrorRow(51, "CONCURRENT_TRANSACTIONS", _RETRY, "An earlier transaction of this id is still being completed"),
    ErrorRow(52, "TRANSACTION_COORDINATOR_FENCED", _FAIL, "The coordinator that sent the marker has been replaced"),
    ErrorRow(53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", TransactionalIdAuthorizationError, "Not authorized to use the transactional id"),
    ErrorRow(54, "SECURITY_DISABLED", _FAIL, "Security features are disabled on the broker"),
    ErrorRow(55, "OPERATION_NOT_ATTEMPTED", _FAIL, "Not attempted because another part of the request failed"),
    ErrorRow(56, "KAFKA_STORAGE_ERROR", _STALE, "The broker's disk failed for this partition"),
    ErrorRow(57, "LOG_DIR_NOT_FOUND", _FAIL, "The broker has no such log directory"),
    ErrorRow(58, "SASL_AUTHENTICATION_FAILED", _FAIL, "SASL authentication failed"),
    ErrorRow(59, "UNKNOWN_PRODUCER_ID", UnknownProducerIdError, "The broker has no state for this producer id"),
    ErrorRow(60, "REASSIGNMENT_IN_PROGRESS", _FAIL, "A partition reassignment is in progress"),
    ErrorRow(61, "DELEGATION_TOKEN_AUTH_DISABLED", _FAIL, "Delegation tokens are not enabled"),
    ErrorRow(62, "DELEGATION_TOKEN_NOT_FOUND", _FAIL, "The delegation token was not found"),
    ErrorRow(63, "DELEGATION_TOKEN_OWNER_MISMATCH", _FAIL, "The delegation token belongs to another principal"),
    ErrorRow(64, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", _FAIL, "Delegation tokens cannot be requested on this channel"),
    ErrorRow(65, "DELEGATION_TOKEN_AUTHORIZATION_FAILED", _FAIL, "Not authorized to use delegation tokens"),
    ErrorRow(66, "DELEGATION_TOKEN_EXPIRED", _FAIL, "The delegation token has expired"),
    ErrorRow(67, "INVALID_PRINCIPAL_TYPE", _FAIL, "The principal type is not supported"),
    ErrorRow(68, "NON_EMPTY_GROUP", _FAIL, "The group is not empty"),
    ErrorRow(69, "GROUP_ID_NOT_FOUND", _FAIL, "The group does not exist"),
    ErrorRow(70, "FETCH_SESSION_ID_NOT_FOUND", _RETRY, "The fetch session was not found"),
    ErrorRow(71, "INVALID_FETCH_SESSION_EPOCH", _RETRY, "The fetch session's epoch is invalid"),
    ErrorRow(72, "LISTENER_NOT_FOUND", _STALE, "The leader has no listener that matches this connection"),
    ErrorRow(73, "TOPIC_DELETION_DISABLED", _FAIL, "Topic deletion is disabled"),
    ErrorRow(74, "FENCED_LEADER_EPOCH", _STALE, "The leader epoch in the request is older than the broker's"),
    ErrorRow(75, "UNKNOWN_LEADER_EPOCH", _RETRY, "The leader epoch in the request is newer than the broker's"),
    ErrorRow(76, "UNSUPPORTED_COMPRESSION_TYPE", _FAIL, "The broker does not support this codec"),
    ErrorRow(77, "STALE_BROKER_EPOCH", _FAIL, "The broker's epoch has changed"),
    ErrorRow(78, "OFFSET_NOT_AVAILABLE", _RETRY, "The high watermark has not caught up after an election"),
    ErrorRow(79, "MEMBER_ID_REQUIRED", _FAIL, "The group member needs an id before it joins"),
    ErrorRow(80, "PREFERRED_LEADER_NOT_AVAILABLE", _STALE, "The preferred leader is not available"),
    ErrorRow(81, "GROUP_MAX_SIZE_REACHED", _FAIL, "The group is full"),
    ErrorRow(82, "FENCED_INSTANCE_ID", _FAIL, "Another member uses the same instance id"),
    ErrorRow(83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", _STALE, "No eligible leader is available"),
    ErrorRow(84, "ELECTION_NOT_NEEDED", _STALE, "No election is needed"),
    ErrorRow(85, "NO_REASSIGNMENT_IN_PROGRESS", _FAIL, "No reassignment is in progress"),
    ErrorRow(86, "GROUP_SUBSCRIBED_TO_TOPIC", _FAIL, "The group is subscribed to the topic"),
    ErrorRow(87, "INVALID_RECORD", InvalidRecordError, "The broker refused the record"),
    ErrorRow(88, "UNSTABLE_OFFSET_COMMIT", _RETRY, "Pending offset commits make the answer unstable"),
    ErrorRow(89, "THROTTLING_QUOTA_EXCEEDED", _RETRY, "A quota of the cluster is used up"),
    ErrorRow(90, "PRODUCER_FENCED", ProducerFencedError, "A newer producer with the same transactional id has taken over"),
    ErrorRow(91, "RESOURCE_NOT_FOUND", _FAIL, "The resource was not found"),
    ErrorRow(92, "DUPLICATE_RESOURCE", _FAIL, "The resource exists already"),
    ErrorRow(93, "UNACCEPTABLE_CREDENTIAL", _FAIL, "The credential does not meet the broker's demands"),
    ErrorRow(94, "INCONSISTENT_VOTER_SET", _FAIL, "The voter sets of sender and receiver differ"),
    ErrorRow(95, "INVALID_UPDATE_VERSION", _FAIL, "The update's version is invalid"),
    ErrorRow(96, "FEATURE_UPDATE_FAILED", _FAIL, "Features could not be updated"),
    ErrorRow(97, "PRINCIPAL_DESERIALIZATION_FAILURE", _FAIL, "The forwarded principal could not be read"),
    ErrorRow(98, "SNAPSHOT_NOT_FOUND", _FAIL, "The snapshot was not found"),
    ErrorRow(99, "POSITION_OUT_OF_RANGE", _FAIL, "The position is outside the snapshot"),
    ErrorRow(100, "UNKNOWN_TOPIC_ID", _STALE, "The broker does not host this topic id"),
    ErrorRow(101, "DUPLICATE_BROKER_REGISTRATION", _FAIL, "The broker id is in use"),
    ErrorRow(102, "BROKER_ID_NOT_REGISTERED", _FAIL, "The broker id is not registered"),
    ErrorRow(103, "INCONSISTENT_TOPIC_ID", _STALE, "The topic id in the request does not match the log's"),
    ErrorRow(104, "INCONSISTENT_CLUSTER_ID", _FAIL, "The cluster id does not match"),
    ErrorRow(105, "TRANSACTIONAL_ID_NOT_FOUND", _FAIL, "The transactional id was not found"),
    ErrorRow(106, "FETCH_SESSION_TOPIC_ID_ERROR", _RETRY, "The fetch session met inconsistent topic ids"),
    ErrorRow(107, "INELIGIBLE_REPLICA", _FAIL, "The replica may not join the in-sync set"),
    ErrorRow(108, "NEW_LEADER_ELECTED", _FAIL, "The leader changed the in-sync set after an election"),
    ErrorRow(109, "OFFSET_MOVED_TO_TIERED_STORAGE", _FAIL, "The offset is in tiered storage"),
    ErrorRow(110, "FENCED_MEMBER_EPOCH", _FAIL, "The member was fenced by the coordinator"),
    ErrorRow(111, "UNRELEASED_INSTANCE_ID", _FAIL, "The instance id is still used by another member"),
    ErrorRow(112, "UNSUPPORTED_ASSIGNOR", _FAIL, "The assignor is not supported"),
    ErrorRow(113, "STALE_MEMBER_EPOCH", _FAIL, "The member's epoch is old"),
    ErrorRow(114, "MISMATCHED_ENDPOINT_TYPE", _FAIL, "The request was sent to an endpoint of another type"),
    ErrorRow(115, "UNSUPPORTED_ENDPOINT_TYPE", _FAIL, "The endpoint type is not supported"),
    ErrorRow(116, "UNKNOWN_CONTROLLER_ID", _FAIL, "The controller id is not known"),
    ErrorRow(117, "UNKNOWN_SUBSCRIPTION_ID", _FAIL, "The telemetry subscription has changed"),
    ErrorRow(118, "TELEMETRY_TOO_LARGE", _FAIL, "The telemetry is larger than the broker accepts"),
    ErrorRow(119, "INVALID_REGISTRATION", _FAIL, "The controller refused the broker's registration"),
    ErrorRow(120, "TRANSACTION_ABORTABLE", TransactionAbortableError, "The transaction must be aborted"),
    ErrorRow(121, "INVALID_RECORD_STATE", _FAIL, "The record's state does not allow this"),
    ErrorRow(122, "SHARE_SESSION_NOT_FOUND", _RETRY, "The share session was not found"),
    ErrorRow(123, "INVALID_SHARE_SESSION_EPOCH", _RETRY, "The share session's epoch is invalid"),
    ErrorRow(124, "FENCED_STATE_EPOCH", _FAIL, "The share coordinator refused an old state epoch"),
    ErrorRow(125, "INVALID_VOTER_KEY", _FAIL, "The voter key does not match"),
    ErrorRow(126, "DUPLICATE_VOTER", _FAIL, "The voter is in the set already"),
    ErrorRow(127, "VOTER_NOT_FOUND", _FAIL, "The voter is not in the set"),
    ErrorRow(128, "INVALID_REGULAR_EXPRESSION", _FAIL, "The regular expression is not valid"),
    ErrorRow(129, "REBOOTSTRAP_REQUIRED", _FAIL, "The client must start again from its bootstrap servers"),
)  # fmt: skip

BROKER_ERRORS: dict[int, ErrorRow] = {row.code: row for row in _ROWS}


def error_row(code: int) -> ErrorRow:
    """The row of a code; a code of a newer broker gets a row that keeps its number."""
    row = BROKER_ERRORS.get(code)
    if row is None:
        return ErrorRow(
            code, f"UNKNOWN_{code}", BrokerError, f"The broker answered with the unknown error code {code}"
        )
    return row


def broker_error(code: int, message: str | None = None) -> BrokerError:
    """The exception for an error code of a response; `message` is the broker's own text, where it gave one."""
    return error_row(code).cls(message, code=code)
