# SPDX-License-Identifier: Apache-2.0
"""The fetching is tried with stand-ins for Java, Ivy and Maven: shell scripts that write files or fail."""

from __future__ import annotations

import hashlib
import io
import re
import threading
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.devbroker import DevBrokerError, cache_home
from penstock.devbroker.releases import fetch
from penstock.devbroker.releases.jars import Dependency, JarSet

NAMES = [wanted.file_name for wanted in fetch.KAFKA.dependencies]


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with Java and nothing else; returns the folder of its programs."""
    programs = tmp_path / "bin"
    script(programs / "java", """echo 'openjdk version "17.0.1"' >&2""")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(fetch, "try_find_ivy", lambda: None)
    empty = dict.fromkeys(NAMES, hashlib.sha256(b"").hexdigest())
    monkeypatch.setattr(fetch, "KAFKA", replace(fetch.KAFKA, sha256=empty))
    return programs


def working_maven(machine: Path, log: Path, names: list[str] = NAMES) -> None:
    """A Maven that puts empty jars where it is told to."""
    write_jars = "; ".join(f': > "$out/{name}"' for name in names)
    script(
        machine / "mvn",
        f"""echo run >> {log}
        for arg; do case "$arg" in -DoutputDirectory=*) out="${{arg#*=}}";; esac; done
        echo "Downloaded from somewhere: a.jar (2.5 MB at 1 MB/s)"; {write_jars}""",
    )


def test_nothing_to_fetch_with_says_what_to_install(machine: Path, tmp_path: Path) -> None:
    with pytest.raises(DevBrokerError, match=r"pip install pyspark.*Maven"):
        fetch.kafka_jars(home=tmp_path / "home", stream=io.StringIO())


def test_fetched_once_then_found(machine: Path, tmp_path: Path) -> None:
    working_maven(machine, tmp_path / "log")
    shown = io.StringIO()
    folder = fetch.kafka_jars(home=tmp_path / "home", stream=shown)
    assert sorted(path.name for path in folder.iterdir()) == sorted(NAMES)
    assert f"{len(NAMES)} jars" in shown.getvalue().splitlines()[-1]
    assert fetch.kafka_jars(home=tmp_path / "home", stream=shown) == folder
    assert (tmp_path / "log").read_text() == "run\n"
    # No scratch folder is left.
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["fetch.lock", folder.name]


def test_two_at_once_fetch_once(machine: Path, tmp_path: Path) -> None:
    working_maven(machine, tmp_path / "log")
    threads = [
        threading.Thread(target=fetch.kafka_jars, kwargs={"home": tmp_path / "home", "stream": io.StringIO()})
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (tmp_path / "log").read_text() == "run\n"


def test_failure_shows_the_last_lines_and_leaves_nothing(machine: Path, tmp_path: Path) -> None:
    script(machine / "mvn", "echo resolving; echo 'unknown host'; exit 1")
    with pytest.raises(DevBrokerError, match=r"(?s)Maven did not fetch.*unknown host"):
        fetch.kafka_jars(home=tmp_path / "home", stream=io.StringIO())
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["fetch.lock"]


def test_success_without_jars_is_a_failure(machine: Path, tmp_path: Path) -> None:
    script(machine / "mvn", "echo all is well")
    with pytest.raises(DevBrokerError, match="did not fetch"):
        fetch.kafka_jars(home=tmp_path / "home", stream=io.StringIO())


def test_maven_helps_when_ivy_fails(machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "try_find_ivy", lambda: tmp_path / "ivy.jar")
    script(
        machine / "java", """case "$*" in *-version*) echo 'version "17"' ;; *) echo broken; exit 3;; esac"""
    )
    working_maven(machine, tmp_path / "log")
    assert fetch.is_complete(fetch.kafka_jars(home=tmp_path / "home", stream=io.StringIO()))


def test_both_tools_keep_their_caches_below_home_and_ask_for_the_same(tmp_path: Path) -> None:
    home, scratch = tmp_path / "home", tmp_path / "scratch"
    wanted = fetch.KAFKA.dependencies
    ivy = fetch.ivy_tool(Path("/java"), Path("/ivy.jar"), scratch, home, wanted)
    maven = fetch.maven_tool(Path("/mvn"), scratch, home, wanted)
    assert f"-Divy.default.ivy.user.dir={home}/ivy" in ivy.command
    assert f"-Dmaven.repo.local={home}/m2" in maven.command
    asked_ivy = [
        (d.get("org"), d.get("name"), d.get("rev")) for d in ET.fromstring(ivy.files[0][1]).iter("dependency")
    ]
    asked_maven = [
        tuple(d.findtext(tag) for tag in ("groupId", "artifactId", "version"))
        for d in ET.fromstring(maven.files[0][1]).iter("dependency")
    ]
    assert asked_ivy == asked_maven == [(d.organisation, d.name, d.version) for d in wanted]


def test_maven_runs_a_plugin_of_one_version_and_refuses_a_wrong_checksum(tmp_path: Path) -> None:
    command = fetch.maven_tool(Path("/mvn"), tmp_path, tmp_path, fetch.KAFKA.dependencies).command
    (goal,) = (word for word in command if word.endswith(":copy-dependencies"))
    assert re.fullmatch(
        r"org\.apache\.maven\.plugins:maven-dependency-plugin:\d+\.\d+\.\d+:copy-dependencies", goal
    )
    assert "--strict-checksums" in command


# ------------------------------------------------------------------------------------------------ other sets of jars


def pinned(sha256: str) -> JarSet:
    dependency = Dependency("org.example", "engine", "1.0", transitive=False)
    return JarSet("Engine 1.0", "engine-1.0", (dependency,), {"engine-1.0.jar": sha256})


def test_another_set_has_a_folder_of_its_own(machine: Path, tmp_path: Path) -> None:
    working_maven(machine, tmp_path / "log", ["engine-1.0.jar"])
    shown = io.StringIO()
    wanted = pinned(hashlib.sha256(b"").hexdigest())
    folder = fetch.fetch_jars(wanted, home=tmp_path / "home", stream=shown)
    assert folder == tmp_path / "home" / "engine-1.0"
    assert [path.name for path in folder.iterdir()] == ["engine-1.0.jar"]
    assert "Fetched Engine 1.0" in shown.getvalue()
    assert not fetch.is_complete(folder)  # it is not Kafka


def test_other_bytes_than_were_pinned_are_not_taken(machine: Path, tmp_path: Path) -> None:
    working_maven(machine, tmp_path / "log", ["engine-1.0.jar"])
    wanted = pinned(hashlib.sha256(b"the real one").hexdigest())
    with pytest.raises(DevBrokerError, match=r"(?s)did not fetch Engine 1\.0.*other bytes.*engine-1\.0\.jar"):
        fetch.fetch_jars(wanted, home=tmp_path / "home", stream=io.StringIO())
    assert not (tmp_path / "home" / "engine-1.0").exists()


def test_a_jar_that_nobody_pinned_is_not_taken(machine: Path, tmp_path: Path) -> None:
    working_maven(machine, tmp_path / "log", [*NAMES, "backdoor-1.0.jar"])
    with pytest.raises(DevBrokerError, match=r"backdoor-1\.0\.jar \(not one of the set\)"):
        fetch.kafka_jars(home=tmp_path / "home", stream=io.StringIO())
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["fetch.lock"]


def test_what_the_tool_kept_goes_when_it_is_not_what_was_pinned(machine: Path, tmp_path: Path) -> None:
    """It would hand out the same bytes for ever."""
    kept = tmp_path / "home" / "m2" / "engine-1.0.jar"
    kept.parent.mkdir(parents=True)
    kept.touch()
    working_maven(machine, tmp_path / "log", ["engine-1.0.jar"])
    with pytest.raises(DevBrokerError, match="other bytes"):
        fetch.fetch_jars(
            pinned(hashlib.sha256(b"the real one").hexdigest()), home=tmp_path / "home", stream=io.StringIO()
        )
    assert not kept.exists()


@pytest.mark.parametrize("change", [NAMES[0], "backdoor.jar", "backdoor.JAR"])
def test_a_cache_that_was_filled_before_is_compared_too(machine: Path, tmp_path: Path, change: str) -> None:
    working_maven(machine, tmp_path / "log")
    home = tmp_path / "home"
    folder = fetch.kafka_jars(home=home, stream=io.StringIO())
    victim = folder / change
    victim.write_bytes(b"evil")
    with pytest.raises(
        DevBrokerError, match=r"was changed after it was fetched; nothing of it was run"
    ) as caught:
        fetch.kafka_jars(home=home, stream=io.StringIO())
    assert victim.name in str(caught.value)
    assert not victim.exists()
    assert fetch.kafka_jars(home=home, stream=io.StringIO()) == folder  # fetched anew, where it is missing
    assert fetch.altered_jars(folder, fetch.KAFKA) == {}


def test_the_jars_of_this_machine_are_those() -> None:
    """They are run by many other tests."""
    folder = cache_home() / fetch.KAFKA.folder
    if not fetch.is_complete(folder):
        pytest.skip("no Kafka was fetched yet")
    assert fetch.altered_jars(folder, fetch.KAFKA) == {}
