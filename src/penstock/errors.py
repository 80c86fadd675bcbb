# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as one tree of exceptions; what each code of a broker means is in `error_codes`.

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
    |- SinkError                    an exactly-once sink cannot go on; one class for each case that users tell apart
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
    |- AuthenticationError          the broker refused the authentication
    |- ProtocolError                the peer sent what Kafka would not send
    |- NotKafkaError                the peer does not speak Kafka at all
    `- BrokerError                  a broker answered with an error code; one class for each code that matters

Three flags on each: `retriable` (the same call may succeed later), `fatal` (this producer cannot go on) and
`requires_abort` (the transaction must be aborted, then work goes on).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Self

from penstock._other_clients import (
    OF_ERROR_CLASSES,
    OF_ERRORS,
    OF_MESSAGES_IN_ERRORS,
    names_of_other_clients,
)
from penstock.error_codes import ErrorCode


@names_of_other_clients(OF_ERRORS, "error")
@names_of_other_clients(OF_MESSAGES_IN_ERRORS, "message")
class KafkaError(Exception):
    """Root of all errors raised by this package."""

    retriable: ClassVar[bool] = False
    fatal: bool = False  # of a record's error also by its instance
    requires_abort: ClassVar[bool] = False

    # Where send_many or send_arrow raised it after rows had been accepted: their BulkDelivery.
    bulk_delivery: Any = None
    # The topic that it is about. Only a look at the cluster before a write (control/reach.py) sets it.
    topic: str | None = None

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
        option: the name of the option to correct: the dotted one, also where it was given in snake case; where it was
            given in another client's words, these, with dots; of an unknown option the name as it was given; None where
            it is not one option.
        options: all options that it is about, the first to correct first: more than one where they contradict each
            other, where one asks for another, or where several are unknown.
        reason: of a contradiction, what is wrong with the other options: "acks is 1, not all".
    """

    def __init__(
        self,
        message: str = "",
        option: str | None = None,
        options: Sequence[str] = (),
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.option = option
        self.options = tuple(options) or (() if option is None else (option,))
        self.reason = reason


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
    """The record is larger than max.request.size, buffer.memory, or what the broker accepts.

    Attributes:
        size: the bytes that the record takes at most.
        limit: the bytes that it may take.
        option: the option of the producer that says so. All three are None where a broker refused it.
    """

    def __init__(
        self,
        message: str = "",
        *,
        size: int | None = None,
        limit: int | None = None,
        option: str | None = None,
    ) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit
        self.option = option


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
    """Something did not happen within the time given; it may succeed when tried again.

    Attributes:
        records_left: of `flush()`, how many records had no outcome when the time was up.
        waited_for: of the control client, whom it wanted to ask when the time was up (a target of control/steps.py).
        obstacle: of the control client, the error that kept it from asking.
    """

    retriable = True

    records_left: int | None = None
    waited_for: Any = None
    obstacle: KafkaError | None = None


class BufferExhaustedError(KafkaTimeoutError):
    """No memory for the record became free within max.block.ms."""


class DeliveryTimeoutError(KafkaTimeoutError):
    """The record was not acknowledged within delivery.timeout.ms; whether the broker wrote it is unknown."""


class IllegalStateError(KafkaError, RuntimeError):
    """The call is not allowed in the producer's present state."""


class ReentrantCallError(IllegalStateError):
    """A finalizer or a signal handler made the call inside another one on the same thread, and would wait for it.

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
    """A batch was not decided: a task's transaction is dead or could die too early, or its topic was deleted."""


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
    """A batch is older than the last one decided for its query, or that one has other rows, or another topic."""


class RunIdReusedError(SinkError):
    """A run id that has written before is used for another topic, or for other rows."""


class SinkAuthorizationError(SinkError):
    """This client lacks a permission that an exactly-once sink needs."""


class InvalidMetadataError(KafkaError):
    """What the client knew of the cluster is out of date; it refreshes by itself."""

    retriable = True


class AuthenticationError(KafkaError):
    """The broker refused this client's identity, or the client cannot prove it, or the broker did not prove its own.

    Attributes:
        mechanism: of SASL, for example "SCRAM-SHA-512"; None where it was not SASL.
        user: whom the client calls itself, as far as the mechanism knows; never a secret.
        broker: which broker it was, as the connection names it; None where none was asked yet.
        guessed: no broker said so; it follows from connections that were closed again and again.
    """

    guessed: bool = False

    def __init__(
        self,
        message: str = "",
        *,
        mechanism: str | None = None,
        user: str | None = None,
        broker: str | None = None,
    ) -> None:
        super().__init__(message)
        self.mechanism = mechanism
        self.user = user
        self.broker = broker

    def told_to(self, sentence: str) -> Self:
        """The same for a call that waits; the sentence says what becomes of what it waits for."""
        other = self.twin()
        other.args = (f"{str(self).rstrip('.')}. {sentence}",)
        return other


class ProtocolError(KafkaError):
    """Bytes that do not follow the Kafka protocol."""


class NotKafkaError(ProtocolError):
    """Whatever listens at the address does not speak Kafka.

    Attributes:
        wants_tls: it answered as a server of TLS does that is not spoken to in TLS.
        advice: what to do, where the answer shows that; the text of the error has it only at a connection.
    """

    wants_tls: bool = False
    advice: str = ""


class BrokerError(KafkaError):
    """A broker answered with an error code.

    Attributes:
        code: the number on the wire.
        name: Kafka's name for it, for example "NOT_LEADER_OR_FOLLOWER".
        message: what happened, without name and code.
        names_record: whether the broker refused this very record, by its number in the batch or by its topic, and no
            other because of it.
    """

    code: int = ErrorCode.UNKNOWN_SERVER_ERROR
    name: str = ErrorCode.UNKNOWN_SERVER_ERROR.name
    names_record: bool = False

    def __init__(self, message: str | None = None, *, code: int | None = None) -> None:
        row = error_row(self.code if code is None else code)
        self.code = row.code
        self.name = row.name
        super().__init__(message or row.description)

    @property
    def message(self) -> str:
        """What happened, without name and code."""
        return str(self.args[0])

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

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class LeaderNotAvailableError(StaleMetadataError):
    """The partition has no leader now."""

    code = ErrorCode.LEADER_NOT_AVAILABLE


class NotLeaderOrFollowerError(StaleMetadataError):
    """The broker asked is not the leader of the partition."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class RequestTimedOutError(RetriableBrokerError, KafkaTimeoutError):
    """No answer came in time, or the broker could not replicate in time."""

    code = ErrorCode.REQUEST_TIMED_OUT


class MessageTooLargeError(BrokerError, RecordTooLargeError):
    """The batch is larger than the broker or topic accepts."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class NetworkError(StaleMetadataError):
    """The connection broke before the answer came."""

    code = ErrorCode.NETWORK_EXCEPTION


class InvalidTopicError(BrokerError):
    """The topic's name is not allowed."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class NotEnoughReplicasError(RetriableBrokerError):
    """Fewer in-sync replicas than the topic demands."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS


class TopicAuthorizationError(BrokerError):
    """This client may not write to the topic."""

    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class ClusterAuthorizationError(BrokerError):
    """This client may not do that on the cluster."""

    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    fatal = True


class UnsupportedVersionError(BrokerError):
    """Client and broker have no common version of a request, or the broker lacks a feature."""

    code = ErrorCode.UNSUPPORTED_VERSION
    fatal = True


class OutOfOrderSequenceError(BrokerError):
    """The broker saw a gap in the sequence numbers of a partition."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpochError(BrokerError):
    """The producer's epoch is older than the broker's."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH
    requires_abort = True


class TransactionalIdAuthorizationError(BrokerError):
    """This client may not use the transactional id."""

    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    fatal = True


class UnknownProducerIdError(OutOfOrderSequenceError):
    """The broker has no state for this producer id."""

    code = ErrorCode.UNKNOWN_PRODUCER_ID


class InvalidRecordError(BrokerError):
    """The broker refused the record itself."""

    code = ErrorCode.INVALID_RECORD


class ProducerFencedError(BrokerError):
    """A newer producer with the same transactional id has taken over."""

    code = ErrorCode.PRODUCER_FENCED
    fatal = True


class TransactionAbortableError(BrokerError):
    """The transaction must be aborted; the producer can go on afterwards."""

    code = ErrorCode.TRANSACTION_ABORTABLE
    requires_abort = True


class ErrorRow(NamedTuple):
    """One broker error code."""

    code: int
    name: str
    cls: type[BrokerError]
    description: str


def _below(cls: type[BrokerError]) -> Iterator[type[BrokerError]]:
    for child in cls.__subclasses__():
        yield child
        yield from _below(child)


_OWN_CLASSES = {cls.code: cls for cls in _below(BrokerError) if "code" in vars(cls)}


def _class_of(code: ErrorCode) -> type[BrokerError]:
    if code in _OWN_CLASSES:
        return _OWN_CLASSES[code]
    if code.stale_metadata:
        return StaleMetadataError
    return RetriableBrokerError if code.retriable else BrokerError


BROKER_ERRORS: dict[int, ErrorRow] = {
    int(code): ErrorRow(int(code), code.name, _class_of(code), code.description) for code in ErrorCode if code
}


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


if not TYPE_CHECKING:  # to a type checker a module with it has every name

    def __getattr__(name: str) -> NoReturn:
        """A class of another client's: what to write instead."""
        advice = f"; {OF_ERROR_CLASSES[name]}" if name in OF_ERROR_CLASSES else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}")
