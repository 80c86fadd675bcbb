# SPDX-License-Identifier: Apache-2.0
"""Commands take secrets from a file or the environment: none is in the list of processes, or in what they say."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fix_patience import silent

from penstock.testing import FakeKafka, FakeSecurity

pytestmark = [pytest.mark.slow]

SECRET = "xyzzy-plugh-1976"
VARIABLE = "PENSTOCK_TEST_PASSWORD"
COMMANDS = {
    "produce": ["produce", "orders", "-"],
    "perf": ["perf", "--topic", "orders", "--num-records", "20", "--record-size", "5", "--print-metrics"],
    "recover": ["recover", "--all"],
}
SAID = {"produce": "", "perf": "20 records sent", "recover": "there is nothing to do"}


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    security = FakeSecurity(protocol="SASL_SSL", users={"alice": SECRET})
    with FakeKafka(topics={"orders": 1}, security=security) as kafka:
        yield kafka


def properties(kafka: FakeKafka, password: str) -> str:
    options = FakeSecurity(protocol="SASL_SSL", users={"alice": password}).client_options("SCRAM-SHA-512")
    return "".join(
        f"{name}={value}\n"
        for name, value in {"bootstrap.servers": kafka.bootstrap_servers, **options}.items()
    )


def secret_arguments(kafka: FakeKafka, folder: Path, place: str) -> list[str]:
    """How a command is told its password."""
    config = folder / "client.properties"
    if place == "the file of options":
        config.write_text(properties(kafka, SECRET))
        return ["--config", str(config)]
    (folder / "password").write_text(f"{SECRET}\n")
    reference = f"${{env:{VARIABLE}}}" if place == "the environment" else f"${{file:{folder / 'password'}}}"
    config.write_text(properties(kafka, "replaced by -X"))
    return ["--config", str(config), "-X", f"sasl.password={reference}"]


def command_line(process: psutil.Process) -> str:
    """As others see it; while a process is being replaced by its program, there is none for a moment."""
    deadline = time.monotonic() + 60
    while not (words := process.cmdline()) and time.monotonic() < deadline:
        os.sched_yield()
    return " ".join(words)


@pytest.mark.parametrize(
    ("command", "place"),
    [("produce", "the file of options"), ("perf", "the environment"), ("recover", "a file")],
)
def test_a_command_shows_no_secret(kafka: FakeKafka, tmp_path: Path, command: str, place: str) -> None:
    arguments = [*COMMANDS[command], *secret_arguments(kafka, tmp_path, place), "--debug"]
    # No answer before its command line was read: it must not end before.
    with (
        silent(kafka) as answer,
        subprocess.Popen(
            [sys.executable, "-m", "penstock", *arguments],
            env={**os.environ, VARIABLE: SECRET},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        if command == "produce":  # it waits for its input, connected or not
            process.stdin.write("one\n")
            process.stdin.flush()
        seen = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        command_lines = [command_line(each) for each in seen]
        answer()
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert SAID[command] in said
    assert len(kafka.records("orders")) == {"produce": 1, "perf": 20, "recover": 0}[command]
    assert "penstock" in command_lines[0]
    assert SECRET not in said + "".join(command_lines)


def test_the_log_of_debug_is_ours() -> None:
    """Spark's gateway and clients of HTTP log what they send."""
    program = (
        "import logging, sys; from penstock.cli import main as cli\n"
        "def run(*_, **__):\n"
        "    logging.getLogger('py4j.clientserver').debug('Command to send: %s', sys.argv[1])\n"
        "    logging.getLogger('penstock.network').debug('Connecting')\n"
        "    logging.getLogger('py4j').warning('of another')\n"
        "    return 0\n"
        "cli._run = run\n"
        "sys.exit(cli.main(['--debug', 'produce', 't']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, SECRET], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "DEBUG penstock.network: Connecting" in done.stderr
    assert "WARNING py4j: of another" in done.stderr
    assert SECRET not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_secret_on_the_command_line_is_refused_and_not_repeated(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *COMMANDS[command], "-X", f"sasl.password={SECRET}", "--debug"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "-X sasl.password=...: a secret on the command line" in done.stderr
    assert SECRET not in done.stdout + done.stderr
