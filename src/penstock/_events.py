# SPDX-License-Identifier: Apache-2.0
"""What is written to the log: events with a name and with fields, counted, and not repeated without end.

`tell` is the only way to the log. A record there has attributes of simple types that begin with `kafka_`, which
formatters for JSON and OpenTelemetry's handler take over. docs/logging.md lists the events and the fields.

Rules:
1. Each event counts, also one that is left out of the log. `ClientEvents` has the numbers of one client.
2. Of an event that may come again and again (`each`) there is one line a minute for each cause, which says how many
   were left out. In between it is written at DEBUG.
3. Whose event it is, the thread says that it happens on: an I/O thread works for one client. What belongs to a client
   and works on other threads too, takes note of `current()` when it is made.
4. No lock is taken here, and `tell` is called with none held: a handler of the log may call anything.
5. No contents of records, no texts of errors, nothing secret in a field.
6. An error of a handler or a filter does not leave `tell`: the caller may be the I/O thread, in the middle of
   anything. As for the handlers of `logging` itself it goes to stderr; and it counts. Ctrl-C and SystemExit do leave it
   on a thread of the application, but not on one of the package: the records that it works on would have no outcome.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterator
from enum import Enum, unique
from typing import Any, Final

PREFIX: Final = "kafka_"
SECONDS_BETWEEN: Final = 60.0  # two lines on the same cause
_MOST_CAUSES: Final = 500  # that are remembered; the oldest is forgotten
_MORE: Final = " (%d more like it since the last such line)"


# The order is said because another client's is the other way round.
ON_DELIVERY_RAISED = "on_delivery callback for %s raised (it is called with (metadata, error))"


@unique
class Event(Enum):
    """Every event that is logged, with a sentence on it. The name in the log is `label`; it does not change."""

    # Records and batches.
    BATCH_RETRIED = "A batch is sent again. The first attempt is a warning, later ones are at DEBUG."
    BATCH_SPLIT = "A batch was too large for the broker and is sent again in pieces."
    RECORDS_REFUSED = "The broker refused some records of a batch; the others are sent again without them."
    RECORDS_UNSEEN = "Records failed, and there was neither a callback nor a look at their Delivery."
    RECORDS_GIVEN_UP = "The producer was closed before all records had their outcome."
    BATCH_ERROR = "Something unexpected happened to a batch, which fails or is tried again. Please report it."
    BATCH_CONVERTED = "A broker stores an old message format: batches for it are converted."
    TIMESTAMPS_LOST = "A broker is too old to store timestamps."
    CONTEXT_LOST = (
        "A broker or a topic is too old to store headers: records lose the context that tracing gave them."
    )
    PRODUCE_REQUEST_FAILED = (
        "A produce request got no answer; what becomes of its batches is told by other events."
    )
    LATE_ANSWER = "An answer came for a batch that had its outcome already."

    # Code of the application.
    CALLBACK_FAILED = "An on_delivery callback, or a done callback of a delivery, raised."
    CALLBACK_NOT_AWAITED = (
        "An on_delivery callback of an AsyncProducer is a coroutine function, and was not run."
    )
    INTERCEPTOR_FAILED = "An interceptor raised, or gave something that is no record."
    PARTITIONER_FAILED = "The partitioner raised when a topic was forgotten."
    PLUGIN_CLOSE_FAILED = (
        "A serializer, a partitioner or another object of the configuration could not be closed."
    )
    REPORTER_FAILED = "A metric reporter raised when it was started or stopped."
    TRACING_FAILED = "A record or a request could not be traced; it is sent all the same."
    LOG_FAILED = "A handler or a filter of the log raised. It is counted, and told on stderr."

    # The producer.
    IO_THREAD_STARTED = "The I/O thread starts."
    IO_THREAD_ENDED = "The I/O thread has ended."
    IO_THREAD_ERROR = (
        "Something unexpected happened on the I/O thread, which goes on or is about to end. Please report it."
    )
    IO_THREAD_STUCK = "The I/O thread did not end with close(): code of the application holds it."
    NOT_CLOSED_AT_EXIT = "The program ended with a producer that was not closed, and records were given up."
    CLOSE_FAILED = "A producer could not be closed when the program ended."
    CLOSED_WITHOUT_COORDINATOR = "The producer closed although the transaction coordinator did not answer."

    # Producer ids and transactions.
    PRODUCER_ID_GIVEN = "A broker gave a producer id."
    PRODUCER_ID_REFUSED = "No broker gave a producer id, and it is of no use to ask again at once."
    EPOCH_RAISED = "The producer goes on with a new epoch after a failed batch."
    IDEMPOTENCE_OFF = (
        "Idempotence is off, by the options or because a broker is too old: a retry may write twice."
    )
    TRANSACTION_REQUEST_FAILED = "A request to the coordinator could not be made, or its answer does not fit."
    TRANSACTION_ENDED_LAST = "A transaction has ended, and the producer cannot begin another one."

    # The cluster and its connections.
    CONNECTING = "A connection is being made."
    CONNECTED = "A connection can be used."
    CONNECTION_FAILED = "A connection could not be made."
    CONNECTION_LOST = "A connection that had been made is gone."
    CONNECTION_IDLE = "A connection that was not used is closed (connections.max.idle.ms)."
    CONNECTION_ERROR = "Something unexpected happened to a connection. Please report it."
    AUTHENTICATION_FAILED = "A broker refused the identity of the client, or the client that of the broker."
    REAUTHENTICATED = "A connection has authenticated anew before its session ended."
    BOOTSTRAP_UNRESOLVED = (
        "The names of the bootstrap servers could not be looked up; they are looked up again."
    )
    REBOOTSTRAPPED = "No broker could be reached, and the client starts again from the bootstrap servers."
    TOPIC_ERROR = "The brokers refuse to describe a topic. One that is being created is told at DEBUG."
    METADATA_REQUESTED = "A broker is asked for metadata."
    METADATA_ERROR = "Metadata could not be asked for, or could not be used. Please report it."
    OLD_BROKER = "A broker does not tell its versions and is taken for an old one."
    NO_THREAD = "No thread could be started; the work is done on another one."

    # Security.
    TOKEN_FAILED = "There is no new token for OAUTHBEARER."  # noqa: S105 - as those below, a sentence
    TOKEN_RECOVERED = "There is a token again after a failure."  # noqa: S105
    SECRET_KEPT = "A secret could not be read again; the last one stays in use."  # noqa: S105
    TLS_FILES_READ = "Changed files of certificates or keys were read anew."
    TLS_FILES_REFUSED = "A changed file cannot be used; what was read before stays in use."
    SECURITY_WORK_FAILED = "A step of an authentication failed in an unexpected way."
    SECURITY_WEAKENED = "An option makes the connection less secure than it could be."

    # Options.
    OPTION_CHANGED = "An option does not fit another one, and another value is used."
    OPTION_WITHOUT_EFFECT = "An option has no effect."
    OPTION_DEPRECATED = "An option has a new name."
    CHECKSUM_SLOW = "Checksums are computed in plain Python, which is slow."

    # Watching.
    TELEMETRY_SUBSCRIBED = "The cluster said which metrics it wants."
    TELEMETRY_REFUSED = "A broker refused telemetry, or did not answer."
    TELEMETRY_FAILED = "Telemetry failed in an unexpected way; nothing more is pushed."
    PAGE_STARTED = "The live page can be seen at this address."
    PAGE_FAILED = "The live page could not be started; the producer works without it."
    PAGE_NOT_LISTED = "`penstock top` cannot list the live page."
    PAGE_REQUEST_FAILED = "A request to the live page could not be answered."
    PROMETHEUS_MULTIPROCESS = (
        "prometheus_client is in its multiprocess mode, which has no metrics of producers."
    )

    # The sink and Spark.
    SINK_NOTE = "Something that the driver of a sink could not do now, or left to the next start."
    SINK_TOPIC_WEAK = "A topic that decisions depend on has too few replicas."
    SINK_LISTING_INCOMPLETE = "A broker did not list its open transactions, which are left to the next time."
    SINK_CHECK_FAILED = "A task could not find out whether its batch is still wanted."
    SPARK_CLUSTER_AWAITED = (
        "No broker answers the driver yet; the cluster has answered before, so the driver waits."
    )
    SPARK_BATCH_WRITTEN = "What the producers of all tasks did to write a batch."
    SPARK_NUMBERS_UNREADABLE = (
        "What a producer of a task, or the sink, says of its work cannot be read; its rows are written."
    )
    SPARK_PROGRESS_UNWRITTEN = "The progress of a batch could not be written to the progress file."
    SPARK_RUN_SKIPPED = "A run was written before, and nothing was written again."
    SPARK_SECRET_SHOWN = "A secret is given in the clear, and Spark may show it."  # noqa: S105

    @property
    def label(self) -> str:
        """Its name in the log and in metrics, for example "batch-retried"."""
        return self.name.lower().replace("_", "-")


class _Cause:
    """Until when events of one cause are not logged, and how many were left out since the last line."""

    __slots__ = ("left_out", "quiet_until")

    def __init__(self, quiet_until: float) -> None:
        self.quiet_until = quiet_until
        self.left_out = 0


class ClientEvents:
    """The events of one client: how many there were of each kind, and what was told not long ago.

    Any thread may call, without a lock. Two threads with the same event at once may write a line too many; each counts.

    Args:
        client_id: its name; "" for what is no client.
        now: the monotonic clock.
    """

    def __init__(self, client_id: str, now: Callable[[], float] = time.monotonic) -> None:
        self.client_id = client_id
        self._now = now
        self._tallies: dict[
            Event, itertools.count[int]
        ] = {}  # to take the next number is one step of the interpreter
        self._looks: dict[Event, int] = {}  # a look takes a number, too
        self._causes: dict[tuple[Event, Hashable], _Cause] = {}

    def count(self, event: Event) -> None:
        """Count one more event of this kind."""
        tally = self._tallies.get(event)
        if tally is None:
            tally = self._tallies.setdefault(event, itertools.count())
        next(tally)

    def counts(self) -> dict[Event, int]:
        """How often each event has happened. One thread at a time."""
        found = {}
        for event, tally in list(self._tallies.items()):
            looks = self._looks.get(event, 0)
            found[event] = next(tally) - looks
            self._looks[event] = looks + 1
        return found

    def left_out(self, event: Event, each: Hashable) -> int | None:
        """How many like this were left out since the last that was told; None: this one is left out as well."""
        now = self._now()
        cause = self._causes.get((event, each))
        if cause is None:
            if len(self._causes) >= _MOST_CAUSES:
                self._causes.pop(list(self._causes)[0], None)  # noqa: RUF015 - a copy: others may add meanwhile
            self._causes[event, each] = _Cause(now + SECONDS_BETWEEN)
            return 0
        if now < cause.quiet_until:
            cause.left_out += 1
            return None
        cause.quiet_until = now + SECONDS_BETWEEN
        number, cause.left_out = cause.left_out, 0
        return number

    def __repr__(self) -> str:
        return f"<ClientEvents of {self.client_id!r}>"


class _Thread(threading.local):
    works_for: ClientEvents | None = None
    is_of_package = False  # it works for one client only


_thread = _Thread()


def current() -> ClientEvents | None:
    """Whose events happen on this thread; None: those of no client, and they are not counted."""
    return _thread.works_for


def work_for(events: ClientEvents | None) -> None:
    """From now on this thread works for that client alone."""
    _thread.works_for = events
    _thread.is_of_package = events is not None


@contextlib.contextmanager
def working_for(events: ClientEvents | None) -> Iterator[None]:
    """What happens on this thread meanwhile is that client's."""
    before, _thread.works_for = _thread.works_for, events
    try:
        yield
    finally:
        _thread.works_for = before


def tell(  # noqa: PLR0913 - the fields that most events have
    log: logging.Logger,
    level: int,
    event: Event,
    text: str,
    *args: Any,
    of: ClientEvents | None = None,
    each: Any = None,
    exc_info: Any = None,
    place: Any = None,
    node: Any = None,
    error: BaseException | str | None = None,
    depth: int = 1,
    **fields: Any,
) -> None:
    """Write an event to the log.

    Args:
        log: where to.
        level: as in `logging`.
        event: what it is.
        text: and `args`, for people.
        of: whose it is; without it, `current()`.
        each: what tells causes apart, beside text and error, for what may come again and again; hashable. Without it
            nothing is left out.
        exc_info: as in `logging`.
        place: a TopicPartition; the fields topic and partition.
        node: a Node; the fields broker and address.
        error: its name is a field.
        depth: how many callers up the line is that the record names.
        fields: others of simple types, without the prefix; None is left out.
    """
    client = of or _thread.works_for
    fields["error"] = error_name(error) if isinstance(error, BaseException) else error
    left_out = None
    if client is not None:
        client.count(event)
        if each is not None and level > logging.DEBUG:
            left_out = client.left_out(event, (text, each, fields["error"]))
            if left_out is None:
                level = logging.DEBUG
    if not log.isEnabledFor(level):
        return
    fields["event"] = event.label
    if client is not None and client.client_id:
        fields.setdefault("client_id", client.client_id)
    if place is not None:
        fields["topic"], fields["partition"] = place
    if node is not None:
        fields["broker"] = node.id if node.id >= 0 else None  # else a bootstrap server, whose id is not known
        fields["address"] = f"{node.host}:{node.port}"
    if left_out:
        fields["left_out"] = left_out
        text, args = text + _MORE, (*args, left_out)
    extra = {PREFIX + name: value for name, value in fields.items() if value is not None}
    try:
        log.log(level, text, *args, exc_info=exc_info, extra=extra, stacklevel=depth + 1)
    except BaseException as failure:  # of the user's handler or filter; it is printed on stderr
        if not isinstance(failure, Exception) and not _thread.is_of_package:
            raise
        _tell_of_the_log(failure, log, event, client)


def _tell_of_the_log(
    failure: BaseException, log: logging.Logger, event: Event, client: ClientEvents | None
) -> None:
    """Write to stderr what a handler or a filter has raised, as `logging.Handler.handleError` does.

    Not to the log, which would raise again. Of a client's there is one text a minute for each kind of error, since a
    handler that raises does so for every line.
    """
    left_out: int | None = 0
    if client is not None:
        client.count(Event.LOG_FAILED)
        left_out = client.left_out(Event.LOG_FAILED, (log.name, type(failure)))
    if left_out is None or not logging.raiseExceptions or sys.stderr is None:  # which pythonw has not
        return
    more = _MORE % left_out if left_out else ""
    try:
        # Alone: the error that was to be told may be its context, and may have a secret in its text.
        trace = "".join(traceback.format_exception(failure, chain=False))
        sys.stderr.write(
            f"--- Logging error: the event {event.label} could not be written to {log.name}{more} ---\n{trace}"
        )
    except Exception:  # noqa: BLE001, S110 - stderr may be closed, or lead to the log: no other place is left
        pass


def tell_error(
    log: logging.Logger,
    event: Event,
    text: str,
    *args: Any,
    error: BaseException,
    each: Any = (),
    **fields: Any,
) -> None:
    """Write an error with its traceback to the log, for each cause once a minute; see `tell`."""
    tell(log, logging.ERROR, event, text, *args, exc_info=error, error=error, each=each, depth=2, **fields)


def error_name(error: BaseException) -> str:
    """Kafka's name of a broker's error, such as "NOT_LEADER_OR_FOLLOWER"; of any other its class."""
    name = getattr(error, "name", None) if hasattr(error, "code") else None
    return name if isinstance(name, str) else type(error).__name__
