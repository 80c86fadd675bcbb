# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import _processes
from penstock._processes import ProcessRef, ProcStat, parse_proc_stat, try_reference


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_running_process_is_alive_and_takes_signals(sleeper: subprocess.Popen[bytes]) -> None:
    reference = try_reference(sleeper.pid)
    assert reference is not None
    assert reference.alive
    assert reference.send(signal.SIGTERM)
    assert sleeper.wait(60) == -signal.SIGTERM
    assert try_reference(sleeper.pid) is None
    assert not reference.send(signal.SIGTERM)


def test_a_recycled_id_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    stale = ProcessRef(sleeper.pid, "some other start")
    assert not stale.alive
    assert not stale.send(signal.SIGKILL)
    assert sleeper.poll() is None


def test_a_zombie_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    reference = try_reference(sleeper.pid)
    assert reference is not None
    os.kill(sleeper.pid, signal.SIGKILL)
    # Wait for the end without collecting it: what is left is a zombie.
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not reference.alive


def test_no_process_no_reference() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert try_reference(gone.pid) is None


@pytest.mark.parametrize("name", ["java", "a (b) c", ") S 1"])
def test_the_program_name_may_hold_anything(name: str) -> None:
    fields = ["S", *(str(number) for number in range(4, 22)), "777", "23"]
    found = parse_proc_stat(f"42 ({name}) {' '.join(fields)}", "boot")
    assert found == ProcStat(name, "S", 4, 20, "boot:777")


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
def test_without_a_proc_folder_a_start_is_told_alike_in_every_time_zone(
    sleeper: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_processes, "_BOOT_ID", tmp_path / "missing")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    reference = try_reference(sleeper.pid)
    assert reference is not None
    monkeypatch.setenv("TZ", "America/New_York")
    assert reference.alive
