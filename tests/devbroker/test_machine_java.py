# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from penstock.devbroker import DevBrokerError
from penstock.devbroker.java_process import JavaHome
from penstock.devbroker.machine import find_java, java_options, parse_major_version
from penstock.devbroker.node import Node
from penstock.devbroker.settings import NodeAddress


def fake_java(folder: Path, output: str, code: int = 0) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{output}' >&2\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("output", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_202"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "22-ea" 2024-03-19', 22),
        ("no such thing", None),
    ],
)
def test_major_version(output: str, major: int | None) -> None:
    assert parse_major_version(output) == major


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "home", 'openjdk version "21.0.1"')
    other = fake_java(tmp_path / "other", 'openjdk version "17.0.1"')
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}) == java
    assert find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(other.parent)}) == other


def test_no_java_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(DevBrokerError, match=r"no 'java' was found.*version 17 or newer"):
        find_java({"PATH": str(tmp_path)})


def test_old_java_is_refused(tmp_path: Path) -> None:
    fake_java(tmp_path, 'openjdk version "11.0.2"')
    with pytest.raises(DevBrokerError, match=r"is Java 11.*version 17 or newer"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_broken_java_shows_what_it_printed(tmp_path: Path) -> None:
    fake_java(tmp_path, "libjvm.so is missing", code=1)
    with pytest.raises(DevBrokerError, match=r"libjvm\.so is missing"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_every_java_process_gets_the_options_of_the_user() -> None:
    assert java_options({}) == ()
    assert java_options({"PENSTOCK_JAVA_OPTIONS": "-Xss1m -Dname='two words'"}) == (
        "-Xss1m",
        "-Dname=two words",
    )
    with pytest.raises(DevBrokerError, match=r"PENSTOCK_JAVA_OPTIONS .*quotation"):
        java_options({"PENSTOCK_JAVA_OPTIONS": "-Dname='two"})


def test_they_come_last_so_that_they_win(tmp_path: Path) -> None:
    address = NodeAddress(1, 9092, 9093)
    node = Node(address, tmp_path, JavaHome(Path("java"), tmp_path, ("-Xmx99m",)), heap_mb=256)
    command = node.format_command("id")
    assert command.index("-Xmx99m") > max(
        index for index, word in enumerate(command) if word.startswith("-Xmx2")
    )
    assert command.index("-Xmx99m") < command.index("-cp")
