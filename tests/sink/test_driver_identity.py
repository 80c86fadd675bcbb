# SPDX-License-Identifier: Apache-2.0
"""A driver knows itself, and tells its JVM from every other one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.sink import DriverIdentity
from penstock.sink import identity as module
from penstock.sink.identity import Jvm, Life, current_place, jvm_from_json, life_of

CHILD = """
import json
from penstock.sink import DriverIdentity
driver = DriverIdentity.current()
print(json.dumps([list(driver.jvm), driver.planner_pid, driver.token]))
"""


def test_the_same_process_is_always_the_same() -> None:
    first, second = DriverIdentity.current(), DriverIdentity.current()
    assert first == second
    assert first.planner_pid == os.getpid()


def test_a_fork_has_a_token_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    before = DriverIdentity.current().token
    monkeypatch.setattr(module.os, "getpid", lambda: 1)
    assert module._process_token() != before


def fake_proc(folder: Path, processes: dict[int, tuple[str, int, int]]) -> Path:
    boot = folder / "sys/kernel/random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text("boot-1\n")
    for pid, (command, parent, started) in processes.items():
        (folder / str(pid)).mkdir()
        # The state and the parent, 17 fields of no interest here, the start time, and more.
        fields = ["S", str(parent), *("0" for _ in range(17)), str(started), "0", "0"]
        (folder / str(pid) / "stat").write_text(f"{pid} ({command}) {' '.join(fields)}\n")
    return folder


def test_the_nearest_java_among_the_parents_is_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proc = fake_proc(
        tmp_path,
        {
            os.getpid(): ("python3", 40, 900),
            40: ("odd (name) x", 30, 800),
            30: ("java", 20, 700),
            20: ("java", 1, 600),
        },
    )
    monkeypatch.setattr(module, "_PROC", proc)
    jvm = DriverIdentity.current().jvm
    assert (jvm.pid, jvm.started) == (30, "boot-1:700")


def test_without_java_the_process_stands_for_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_PROC", fake_proc(tmp_path, {os.getpid(): ("python3", 1, 900)}))
    jvm = DriverIdentity.current().jvm
    assert (jvm.pid, jvm.started) == (os.getpid(), "boot-1:900")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="only where there is something to compare with")
def test_ps_finds_the_same_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        subprocess.run(["ps", "-p", "1"], capture_output=True, check=True, timeout=300)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("there is no ps here")
    by_proc, by_ps = module._from_proc(os.getpid()), module._from_ps(os.getpid())
    assert by_proc is not None
    assert by_ps is not None
    assert by_ps.parent == by_proc.parent


def test_processes_differ(tmp_path: Path) -> None:
    told = {
        subprocess.run(
            [sys.executable, "-c", CHILD], capture_output=True, text=True, check=True, timeout=300
        ).stdout
        for _ in range(2)
    }
    assert len(told) == 2


def test_a_jvm_survives_json() -> None:
    jvm = Jvm("host", 12, "boot:9")
    assert jvm_from_json(list(jvm)) == jvm
    with pytest.raises(ValueError, match="not a JVM"):
        jvm_from_json({"host": 1})


# ---- whether a driver runs


def test_this_process_runs_and_one_with_its_id_that_was_there_before_has_ended() -> None:
    jvm = DriverIdentity.current().jvm
    assert current_place()
    assert life_of(jvm, current_place()) is Life.RUNS
    assert life_of(jvm._replace(started="boot:1"), current_place()) is Life.ENDED


def test_a_process_that_was_killed_has_ended_also_while_nobody_has_asked_for_its_exit_code() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = module._look_at(child.pid)
        assert found is not None
        jvm, place = Jvm("host", child.pid, found.started), current_place()
        assert life_of(jvm, place) is Life.RUNS
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays in the table
        assert life_of(jvm, place) is Life.ENDED
    assert life_of(jvm, place) is Life.ENDED


@pytest.mark.parametrize("place", ["", "another boot pid:[1]"])
def test_of_another_place_nothing_is_known(place: str) -> None:
    """The same host's name says nothing: containers have names, and process ids, of their own."""
    jvm = DriverIdentity.current().jvm
    assert life_of(jvm._replace(pid=2**22 + 1), place) is Life.UNKNOWN
    assert life_of(jvm, place) is Life.UNKNOWN


@pytest.mark.parametrize("pid", [-1, 0, 2**31, 2**70])
def test_of_an_impossible_process_nothing_is_known(pid: int) -> None:
    jvm = DriverIdentity.current().jvm
    assert life_of(jvm._replace(pid=pid), current_place()) is Life.UNKNOWN


def test_the_end_of_a_process_that_stands_for_an_unknown_driver_means_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spark ends idle planner processes while their driver goes on."""
    proc = fake_proc(tmp_path, {os.getpid(): ("python3", 40, 900), 40: ("launcher", 1, 800)})
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").symlink_to("pid:[1]")
    monkeypatch.setattr(module, "_PROC", proc)
    assert DriverIdentity.current().place == ""
    (proc / "40/stat").write_text((proc / "40/stat").read_text().replace("launcher", "java"))
    assert DriverIdentity.current().place == "boot-1 pid:[1]"


def test_a_place_is_also_one_of_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The start time of one process is another one in each: it would pass for ended where it runs."""
    proc = fake_proc(tmp_path, {os.getpid(): ("java", 1, 900)})
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").symlink_to("pid:[1]")
    (proc / "self/ns/time").symlink_to("time:[2]")
    monkeypatch.setattr(module, "_PROC", proc)
    driver = DriverIdentity.current()
    assert life_of(driver.jvm, driver.place) is Life.RUNS
    (proc / "self/ns/time").unlink()
    (proc / "self/ns/time").symlink_to("time:[3]")
    assert life_of(driver.jvm._replace(started="boot-1:901"), driver.place) is Life.UNKNOWN


def test_of_a_process_that_is_hidden_from_us_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    jvm = DriverIdentity.current().jvm
    monkeypatch.setattr(module, "_look_at", lambda pid: None)
    assert life_of(jvm, current_place()) is Life.UNKNOWN
