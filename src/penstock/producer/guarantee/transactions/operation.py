# SPDX-License-Identifier: Apache-2.0
"""The call that the application waits for: one at a time, its Ticket, and which call may be made meanwhile.

It knows nothing of transactions. The TransactionManager owns it. Every method needs the transaction lock held, but for
`complete_tickets`, which is called after the lock was released.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock._ticket import Ticket
from penstock.errors import IllegalStateError, KafkaError


class _Call:
    """A call, and what it is about."""

    __slots__ = ("about", "ended", "name", "ticket")

    def __init__(self, name: str, about: object) -> None:
        self.name = name
        self.about = about
        self.ended = False
        self.ticket = self.new_ticket()

    def new_ticket(self) -> Ticket[None]:
        """Another one to wait for."""
        return Ticket(f"the coordinator's answer to {self.name}()")


class Operation:
    """The call under way, until its caller has seen the outcome; none at the beginning.

    Args:
        lock: the transaction lock.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._call: _Call | None = None
        self._completions: list[Callable[[], object]] = []  # of Tickets, for when the lock is free
        self._to_tell: list[Callable[[], object]] = []  # to the log, likewise

    @property
    def name(self) -> str | None:
        """The call under way, or whose outcome was not fetched; None without one."""
        return None if self._call is None else self._call.name

    @property
    def pending(self) -> bool:
        """Whether it waits for the coordinator."""
        return self._call is not None and not self._call.ticket.done

    def start(self, name: str, about: object = None) -> Ticket[None]:
        """A call begins to wait; `about` has its arguments."""
        self._call = _Call(name, about)
        return self._call.ticket

    def same(self, name: str, about: object = None) -> Ticket[None] | None:
        """The Ticket of the same call, if it is under way.

        Raises:
            IllegalStateError: another call is under way, or the same one with other arguments.
        """
        call = self._call
        if call is None:
            return None
        if (call.name, call.about) != (name, about):
            self.check_none(name)
        return call.ticket

    def check_none(self, name: str) -> None:
        """Refuse a call while another one is under way.

        Raises:
            IllegalStateError: one is.
        """
        if self._call is not None:
            raise IllegalStateError(
                f"{name}() is not possible while the outcome of {self._call.name}() is not known: make that call "
                "again first"
            )

    def succeed(self) -> None:
        """End the call under way, if there is one, with success."""
        call = self._call
        if call is not None:
            call.ended = True
            ticket = call.ticket
            self._completions.append(lambda: ticket.complete(None))

    def fail(self, error: KafkaError) -> None:
        """The call under way, if there is one, ends with an error."""
        call = self._call
        if call is not None:
            # The producer keeps the error. The caller gets a copy: a raised error has a traceback, which holds frames.
            own = error.twin()
            call.ended = True
            ticket = call.ticket
            self._completions.append(lambda: ticket.fail(own))

    def tell(self, error: KafkaError) -> None:
        """Raise an error in the call that waits. The operation goes on: the same call waits for it again."""
        call = self._call
        if call is not None and not call.ended:
            ticket, call.ticket = call.ticket, call.new_ticket()
            self._completions.append(lambda: ticket.fail(error))

    def fetched(self, ticket: Ticket[None]) -> None:
        """The caller has seen the outcome: the next call may start."""
        if self._call is not None and self._call.ticket is ticket:
            self._call = None

    def drop(self) -> None:
        """Nobody will fetch the outcome."""
        self._call = None

    def drop_if_done(self) -> None:
        """Nobody will fetch the outcome, if there is one."""
        if not self.pending:
            self._call = None

    def tell_later(self, write: Callable[[], object]) -> None:
        """Write to the log when the lock is free: a handler of the log may send, on this thread or on another one."""
        self._to_tell.append(write)

    def complete_tickets(self) -> None:
        """Complete the Tickets of calls that have ended; not under the lock, because callbacks run. Then log."""
        with self._lock:
            completions, self._completions = self._completions, []
            to_tell, self._to_tell = self._to_tell, []
        for complete in completions:
            complete()
        for write in to_tell:
            write()
