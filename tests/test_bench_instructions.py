# SPDX-License-Identifier: Apache-2.0
"""Counting instructions: what is counted, what it is compared with, and when that fails; without valgrind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import counted, in_memory
from bench.__main__ import main as bench_main
from bench.studies import instructions
from bench.studies.instructions import RECORDS
from penstock.producer.owner import on_io_thread


def recorded(**per_record: float) -> dict[str, Any]:
    return {instructions.kind(): {"commit": "a", "why": "b", "per_record": per_record}}


def test_instructions_beyond_their_limit_are_named() -> None:
    before = recorded(send=1000.0, **{"send-keys": 1000.0})
    found = {"send": 1010.1, "send-keys": 1009.9}
    assert list(instructions.beyond_limit(found, before)) == ["send"]
    grown, same = instructions.compare_with_recorded(found, before)
    assert "GREW" in grown
    assert "+1.01 %" in grown
    assert "GREW" not in same


def count_instructions(monkeypatch: pytest.MonkeyPatch, value: float, *arguments: str) -> int:
    """Run `python -m bench --only instructions` where every program takes that many; its exit code."""
    monkeypatch.setattr(instructions.Instructions, "missing", lambda _: None)
    monkeypatch.setattr(instructions, "count", lambda program, records: value)
    # It needs neither of them.
    monkeypatch.setattr("bench.__main__.DevCluster", None)
    return bench_main(["--only", "instructions", *arguments])


def test_instructions_beyond_their_limit_are_a_failure_and_need_no_broker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(instructions, "RECORDED", instructions.ROOT / "bench" / "none.json")
    monkeypatch.setattr(instructions, "read_recorded", lambda: recorded(**dict.fromkeys(RECORDS, 1000.0)))
    assert count_instructions(monkeypatch, 1009.0) == 0
    assert count_instructions(monkeypatch, 1011.0) == 1
    assert "1 % above" in capsys.readouterr().out


def test_the_recorded_instructions_have_a_reason_each() -> None:
    for kind, entry in instructions.read_recorded().items():
        assert entry["why"].strip(), kind
        assert set(entry["per_record"]) == set(RECORDS), kind


@pytest.mark.parametrize("program", list(RECORDS))
def test_what_is_counted_sends_every_record_without_a_broker(program: str) -> None:
    if "arrow" in program:
        pytest.importorskip("pyarrow")
    counted.main([program, str(2 * counted.CHUNKS[program])])
    assert not on_io_thread()  # a thread that only measured waits like any other afterwards


def test_a_record_that_does_not_arrive_is_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_memory, "_COUNT_AT", 53)  # reads another number
    with pytest.raises(RuntimeError, match="arrived"):
        counted.main(["send", str(counted.CHUNKS["send"])])
