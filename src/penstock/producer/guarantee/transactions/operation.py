# SPDX-License-Identifier: Apache-2.0
"""One call at a time that waits for the coordinator: its Ticket, and who may make which call meanwhile.

The base of the TransactionManager that knows nothing of transactions. All fields are guarded by the manager's lock;
Tickets are completed outside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock._locks import new_nesting_lock
from penstock._ticket import Ticket
from penstock.errors import IllegalStateError, KafkaError


class _Operation:
    """A call that waits for the coordinator, and what it is about."""

    __slots__ = ("about", "name", "ticket")

    def __init__(self, name: str, about: object) -> None:
        self.name = name
        self.about = about
        self.ticket: Ticket[None] = Ticket(f"the coordinator's answer to {name}()")


class OperationDesk:
    """Starts operations, and completes their Tickets.

    Args:
        wake: wakes the I/O thread, which does the work.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        # The transaction lock; guards all below, and all of the manager.
        self._lock: Any = new_nesting_lock()
        self._operation: _Operation | None = None
        self._done: list[Callable[[], object]] = []  # Tickets to be completed once the lock is free

    def fetched(self, ticket: Ticket[None]) -> None:
        """The caller has seen the outcome of an operation: the next one may start."""
        with self._lock:
            if self._operation is not None and self._operation.ticket is ticket:
                self._operation = None

    @property
    def busy(self) -> bool:
        """Whether an operation waits for the coordinator."""
        with self._lock:
            return self._operation is not None and not self._operation.ticket.done

    def _drop_operation(self) -> None:
        with self._lock:
            if self._operation is not None and self._operation.ticket.done:
                self._operation = None

    def _start(self, name: str, about: object = None) -> Ticket[None]:
        self._operation = _Operation(name, about)
        self._wake()
        return self._operation.ticket

    def _same_operation(self, name: str, about: object = None) -> Ticket[None] | None:
        """The pending Ticket of the same call; raises when another one is pending, be it in its arguments only."""
        operation = self._operation
        if operation is None:
            return None
        if (operation.name, operation.about) != (name, about):
            self._check_no_operation(name)
        return operation.ticket

    def _check_no_operation(self, name: str) -> None:
        if self._operation is not None:
            raise IllegalStateError(
                f"{name}() is not possible while the outcome of {self._operation.name}() is not known: make that call "
                "again first"
            )

    def _end_operation(self) -> None:
        operation = self._operation
        if operation is not None:
            self._done.append(lambda: operation.ticket.complete(None))

    def _fail_operation(self, error: KafkaError) -> None:
        operation = self._operation
        if operation is not None:
            # The producer keeps the error: the caller gets another one to hang a traceback, and with it a stack, on.
            own = error.twin()
            self._done.append(lambda: operation.ticket.fail(own))

    def _complete(self) -> None:
        """Complete Tickets, outside the lock."""
        with self._lock:
            done, self._done = self._done, []
        for complete in done:
            complete()
