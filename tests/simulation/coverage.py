# SPDX-License-Identifier: Apache-2.0
"""Which rows of the transition tables and of the error tables a run went through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self
from unittest import mock

from penstock.errors import error_row
from penstock.network import states
from penstock.network.states import NodeState
from penstock.producer.batch import _batch_cy
from penstock.producer.batch._batch_cy import BatchState
from penstock.producer.guarantee.gate import OpenGate
from penstock.producer.guarantee.idempotent import IdempotentGate
from penstock.producer.guarantee.transactions import policy as txn_policy
from penstock.producer.guarantee.transactions import requests as txn_requests
from penstock.producer.guarantee.transactions import states as transactions
from penstock.producer.guarantee.transactions.manager import TransactionManager
from penstock.producer.guarantee.transactions.states import TransactionState, TxnState

Rows = Counter[tuple[str, str]]  # (table, row)

BATCHES, CONNECTIONS, TRANSACTIONS = "batch states", "connection states", "transaction states"
PRODUCE_ERRORS, TRANSACTION_ERRORS = "answers to Produce", "answers to transaction requests"


@contextmanager
def counted(rows: Rows) -> Iterator[None]:
    """Count the rows that are used while the block runs."""
    with ExitStack() as stack:
        # Batches are compiled: their methods cannot be replaced, but the table that these look into can.
        stack.enter_context(mock.patch.object(_batch_cy, "TRANSITIONS", _CountedTable(rows)))
        stack.enter_context(_moves(NodeState, "move_to", lambda one: one.state, CONNECTIONS, rows))
        stack.enter_context(_moves(TransactionState, "move_to", lambda one: one.current, TRANSACTIONS, rows))
        for gate in (OpenGate, IdempotentGate, TransactionManager):
            stack.enter_context(_decisions(gate, rows))
        stack.enter_context(_verdicts(rows))
        yield


class _CountedTable(dict[BatchState, frozenset[BatchState]]):
    """The transitions of batches; counts each that is made."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(
            {state: _CountedRow(state, allowed, rows) for state, allowed in _batch_cy.TRANSITIONS.items()}
        )


class _CountedRow(frozenset[BatchState]):
    """The states that may follow one; counts each that does."""

    def __new__(cls, before: BatchState, allowed: frozenset[BatchState], rows: Rows) -> Self:
        row = super().__new__(cls, allowed)
        row._before, row._rows = before, rows
        return row

    _before: BatchState
    _rows: Rows

    def __contains__(self, after: object) -> bool:
        allowed = super().__contains__(after)
        if allowed and isinstance(after, BatchState):
            self._rows[BATCHES, f"{self._before.value} -> {after.value}"] += 1
        return allowed


def _moves(owner: type, method: str, state: Callable[[Any], Any], table: str, rows: Rows) -> Any:
    original = getattr(owner, method)

    def move_to(self: Any, target: Any, *args: Any) -> Any:
        before = state(self)
        result = original(self, target, *args)
        rows[table, f"{before.value} -> {target.value}"] += 1
        return result

    return mock.patch.object(owner, method, move_to)


def _decisions(owner: type, rows: Rows) -> Any:
    original = owner.decide  # type: ignore[attr-defined]

    def decide(self: Any, code: int, *args: Any) -> Any:
        decision = original(self, code, *args)
        extras = [name for name, value in decision._asdict().items() if value is True]
        rows[PRODUCE_ERRORS, " ".join([f"{_name(code)}: {decision.action.value}", *extras])] += 1
        return decision

    return mock.patch.object(owner, "decide", decide)


def _verdicts(rows: Rows) -> Any:
    original = txn_policy.judge

    def judge(api: str, code: int, **options: Any) -> Any:
        verdict = original(api, code, **options)
        rows[TRANSACTION_ERRORS, f"{api} {_name(code)}: {verdict.name}"] += 1
        return verdict

    return mock.patch.object(txn_requests, "judge", judge)


def _name(code: int) -> str:
    return "NONE (0)" if code == 0 else f"{error_row(code).name} ({code})"


def _all_moves() -> Iterator[tuple[str, str]]:
    for table, transitions in ((BATCHES, _batch_cy.TRANSITIONS), (CONNECTIONS, states.TRANSITIONS)):
        for before, following in transitions.items():
            yield from ((table, f"{before.value} -> {after.value}") for after in following)
    for before, following in transactions.TRANSITIONS.items():
        targets = following | ({TxnState.FATAL_ERROR} if before is not TxnState.FATAL_ERROR else set())
        yield from ((TRANSACTIONS, f"{before.value} -> {after.value}") for after in targets)


def _all_verdicts() -> Iterator[tuple[str, str]]:
    for api, verdicts in txn_policy.VERDICTS.items():
        yield from (
            (TRANSACTION_ERRORS, f"{api} {_name(code)}: {verdict.name}") for code, verdict in verdicts.items()
        )


def describe(rows: Rows) -> list[str]:
    """The rows used with their counts, then those of the tables that were not."""
    lines = []
    known = {*_all_moves(), *_all_verdicts()}
    for table in (BATCHES, CONNECTIONS, TRANSACTIONS, PRODUCE_ERRORS, TRANSACTION_ERRORS):
        used = sorted((row, count) for (name, row), count in rows.items() if name == table)
        missed = sorted(row for name, row in known if name == table and not rows[name, row])
        lines.append(
            f"{table}: {len(used)} rows used" + (f", {len(missed)} of the table not used" if missed else "")
        )
        lines += [f"  {count:>9}  {row}" for row, count in used]
        lines += [f"          -  {row}" for row in missed]
    return lines
