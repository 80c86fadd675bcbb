# SPDX-License-Identifier: Apache-2.0
"""Records of a transaction that were never accepted because their `send` raised.

A program may catch that error and go on. To commit then would publish a transaction that lacks a record, and nobody
would know; so the transaction remembers that a call was refused, and is not committed or detached unless the caller
says that it may be incomplete.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from penstock.errors import KafkaError, TransactionAbortableError

# What `send` raises. `Producer` and `AsyncProducer` have the block under one name, with another statement.
NO_TRANSACTION: Final = (
    "no transaction is open: send inside the block `producer.transaction()`, or between begin_transaction() and "
    "commit_transaction()"
)

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Any)


class Refusals:
    """The first refusal since the transaction began. Guarded by its owner's lock."""

    def __init__(self) -> None:
        self._first: str | None = None
        self._cause: KafkaError | None = None

    def note(self, error: BaseException) -> None:
        """A call that sends has raised. Its error is not kept: with its traceback hang the records of its callers."""
        if self._first is None:
            self._first = f"{type(error).__name__}: {str(error).rstrip('.')}"
            self._cause = error.twin() if isinstance(error, KafkaError) else None

    def clear(self) -> None:
        """Forget the refusal: another transaction begins."""
        self._first = self._cause = None

    def check(self, call: str) -> None:
        """Refuse to commit or detach what lacks a record.

        Raises:
            TransactionAbortableError: it does.
        """
        if self._first is not None:
            raise TransactionAbortableError(
                f"{call}() is not possible: a send in this transaction was refused and the program went on, so that "
                f"records may be missing ({self._first}). Call abort_transaction(), then begin again; or, where what "
                f"was refused has been sent again, or is meant to be left out, {call}(incomplete=True)"
            ) from self._cause


def noting_refusals(call: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method of the producer that sends: whatever it raises, `_note_refused` notes it for the open transaction."""

    @functools.wraps(call)
    def noting(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(self, *args, **kwargs)
        except BaseException as error:
            self._note_refused(error)
            raise

    return noting
