# SPDX-License-Identifier: Apache-2.0
"""The checker finds what it is there to find; otherwise a run without findings would mean nothing."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from chaos.check import Checker, Findings
from chaos.journal import KnownState, SentNote, TransactionHistory, TransactionJournal, TransactionNote
from chaos.worker import pad


def plain_note(sent: int = 5, failed: tuple[int, ...] = ()) -> SentNote:
    offsets = array("q", (-1 if number in failed else number for number in range(sent)))
    return SentNote([sent], {0: list(failed)}, {}, 0.0, [offsets])


def check_plain(order: list[int], note: SentNote) -> Findings:
    checker = Checker({"i": note}, {})
    for offset, number in enumerate(order):
        checker.see(0, offset, pad(b"i %d " % number))
    return checker.conclude()


def found(findings: Findings) -> dict[str, int]:
    """What is not as it should be."""
    names = ("lost", "duplicated", "reordered", "torn", "ghosts", "misplaced", "unknown")
    return {name: count for name in names if (count := getattr(findings, name))}


def test_all_is_well() -> None:
    findings = check_plain([0, 1, 2, 3, 4], plain_note())
    assert (findings.faultless, findings.records, findings.examples) == (True, 5, [])


@pytest.mark.parametrize(
    ("order", "failed", "expected"),
    [
        ([0, 1, 3, 4], (), {"lost": 1, "misplaced": 2}),
        ([0, 1, 2, 3], (), {"lost": 1}),
        ([], (), {"lost": 5}),
        ([0, 1, 2, 3, 4, 4], (), {"duplicated": 1}),
        ([0, 1, 2, 3, 4, 1], (), {"duplicated": 1}),
        ([0, 2, 1, 3, 4], (), {"reordered": 1, "misplaced": 2}),
        ([0, 1, 2, 3], (4,), {}),
        ([0, 1, 2, 3, 4], (4,), {}),
        ([0, 1, 2, 3, 4, 4], (4,), {"duplicated": 1}),
        ([0, 1, 2, 3, 4, 5], (), {"unknown": 1}),
    ],
)
def test_numbered_records(order: list[int], failed: tuple[int, ...], expected: dict[str, int]) -> None:
    findings = check_plain(order, plain_note(failed=failed))
    assert found(findings) == expected
    assert findings.faultless == (not expected)


def test_what_nobody_sent() -> None:
    checker = Checker({"i": plain_note(0)}, {})
    for offset, value in enumerate((b"", b"j 0", b"i", b"i 0 0")):
        checker.see(0, offset, value)
    assert found(checker.conclude()) == {"unknown": 4}


def test_what_was_sent_elsewhere() -> None:
    checker = Checker({"i": plain_note(1)}, {})
    for offset, value in enumerate((b"i 0 @0 ", b"i 1 @1 ", b"i 1 @ ", b"i @0 ", b"@0 ")):
        checker.see(0, offset, pad(value))
    assert found(checker.conclude()) == {"unknown": 4}


def test_duplicates_are_told_with_both_their_places() -> None:
    assert check_plain([0, 1, 2, 3, 4, 1], plain_note()).examples == [
        "i, partition 0: 1 again at offset 5",
        "i, partition 0: 1 was at offset 1 before",
    ]


def check_transaction(state: KnownState, seen: list[int]) -> Findings:
    checker = Checker({}, {"t": TransactionHistory({0: TransactionNote(3, state)})})
    for offset, index in enumerate(seen):
        checker.see(index % 2, offset, pad(b"t 0 %d " % index))
    return checker.conclude()


@pytest.mark.parametrize(
    ("state", "seen", "expected"),
    [
        (KnownState.COMMITTED, [0, 1, 2], {}),
        (KnownState.COMMITTED, [0, 1], {"lost": 1, "torn": 1}),
        (KnownState.COMMITTED, [], {"lost": 3}),
        (KnownState.COMMITTED, [0, 1, 2, 2], {"duplicated": 1}),
        (KnownState.COMMITTED, [2, 1, 0], {"reordered": 1}),
        (KnownState.ABORTED, [], {}),
        (KnownState.ABORTED, [1], {"ghosts": 1}),
        (KnownState.BEGUN, [], {}),
        (KnownState.BEGUN, [0, 1, 2], {"ghosts": 1}),
        (KnownState.COMMITTING, [], {}),
        (KnownState.COMMITTING, [0, 1, 2], {}),
        (KnownState.COMMITTING, [0, 2], {"torn": 1}),
        (KnownState.COMMITTED, [0, 1, 2, 3], {"unknown": 1, "torn": 1}),
    ],
)
def test_transactions(state: KnownState, seen: list[int], expected: dict[str, int]) -> None:
    assert found(check_transaction(state, seen)) == expected


def test_transactions_of_one_process_are_in_order() -> None:
    notes = {number: TransactionNote(1, KnownState.COMMITTED) for number in range(2)}
    checker = Checker({}, {"t": TransactionHistory(notes)})
    checker.see(0, 0, pad(b"t 1 0 "))
    checker.see(0, 1, pad(b"t 0 0 "))
    assert found(checker.conclude()) == {"reordered": 1}


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "t.journal"
    assert TransactionHistory.read(path).last_number == -1
    journal = TransactionJournal(path)
    for number in range(4):
        journal.note(number, KnownState.BEGUN, 10 + number)
    journal.note(1, KnownState.COMMITTING)
    journal.note(2, KnownState.COMMITTING)
    journal.note(2, KnownState.COMMITTED, "1.5")
    TransactionJournal(path).note(3, KnownState.ABORTED, "0.25")  # by the process that came after
    journal.line("trouble transaction 3: something")
    history = TransactionHistory.read(path)
    assert history.transactions == {
        0: TransactionNote(10, KnownState.BEGUN),
        1: TransactionNote(11, KnownState.COMMITTING),
        2: TransactionNote(12, KnownState.COMMITTED, 1.5),
        3: TransactionNote(13, KnownState.ABORTED, 0.25),
    }
    assert history.last_number == 3
    assert history.troubles == ["transaction 3: something"]


def test_a_note_is_read_as_it_was_written(tmp_path: Path) -> None:
    note = SentNote([3, 1], {1: [0]}, {"E: e": 1}, 2.5, [array("q", (4, 5, 9)), array("q", (-1,))])
    note.write(tmp_path / "i.journal")
    assert SentNote.read(tmp_path / "i.journal") == note
