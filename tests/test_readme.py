# SPDX-License-Identifier: Apache-2.0
"""What the README shows works: its examples run on a real Kafka, its commands and make targets exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from fix_broker import Consume, committed_position

from penstock import Producer
from penstock.cli.main import build_parser
from penstock.devbroker import DevCluster

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
ADDRESS = "localhost:9092"


def console_lines() -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines() if line]


def command_lines(program: str) -> list[str]:
    """The lines of the console blocks that run a program, from its name on; a pipe may stand before it."""
    found = (re.search(rf"(?:^|\| ){program} (.*)$", line) for line in console_lines())
    return [match.group(1) for match in found if match is not None]


def run_example(source: str, cluster: DevCluster) -> None:
    assert ADDRESS in source
    exec(compile(source.replace(ADDRESS, cluster.bootstrap_servers), "README.md", "exec"), {})


@pytest.mark.broker
def test_the_first_example_delivers(
    dev_cluster: DevCluster, consume: Consume, capsys: pytest.CaptureFixture[str]
) -> None:
    run_example(EXAMPLES[0], dev_cluster)
    assert capsys.readouterr().out.startswith("RecordMetadata(topic='orders', partition=")
    records = consume("orders", count=1001)
    assert {record.value for record in records} == {b"two pumps", *(b"item %d" % n for n in range(1000))}
    (first,) = (record for record in records if record.key is not None)
    assert (first.key, first.headers) == (b"customer-7", (("trace", b"7f"),))


@pytest.mark.broker
def test_the_second_example_calls_back(
    dev_cluster: DevCluster, consume: Consume, capsys: pytest.CaptureFixture[str]
) -> None:
    run_example(EXAMPLES[1], dev_cluster)
    assert re.fullmatch(r"readings-\d+ @ 0\n", capsys.readouterr().out)
    (record,) = consume("readings", count=1)
    assert json.loads(record.value or b"") == {"station": 12, "level": 3.81}


@pytest.mark.broker
def test_the_example_for_asyncio_delivers(
    dev_cluster: DevCluster, consume: Consume, capsys: pytest.CaptureFixture[str]
) -> None:
    run_example(EXAMPLES[2], dev_cluster)
    assert capsys.readouterr().out == "offset 0\n"
    (record,) = consume("payments", count=1)
    assert (record.key, record.value) == (b"customer-7", b"840.00")


@pytest.mark.broker
def test_the_fourth_example_commits_records_and_positions_together(
    dev_cluster: DevCluster, consume: Consume
) -> None:
    # A group's position needs a topic that exists, whichever example ran first.
    with Producer(bootstrap_servers=dev_cluster.bootstrap_servers) as producer:
        producer.partitions_for("orders")
    run_example(EXAMPLES[3], dev_cluster)
    (invoice,) = consume("invoices", count=1, isolation_level="read_committed")
    (movement,) = consume("stock", count=1, isolation_level="read_committed")
    assert (invoice.key, invoice.value) == (b"customer-7", b"two pumps: 840.00")
    assert (movement.key, movement.value) == (b"pump", b"-2")
    assert committed_position(dev_cluster, "billing", "orders", 0) == 1


@pytest.mark.broker
def test_the_fifth_example_ends_a_transaction_that_was_handed_over(
    dev_cluster: DevCluster, consume: Consume
) -> None:
    run_example(EXAMPLES[4], dev_cluster)
    (record,) = consume("results", count=1, isolation_level="read_committed")
    assert record.value == b"done by task 7"


@pytest.mark.slow
def test_the_test_that_is_shown_runs_as_in_a_users_project(tmp_path: Path) -> None:
    (tmp_path / "test_shown.py").write_text(EXAMPLES[5], encoding="utf-8")
    # The plugin by its name: so it is that of these sources, installed or not.
    plugins = [*("-p", "pytest_penstock"), *("-p", "no:cacheprovider")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-W", "error", *plugins, str(tmp_path)],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_there_are_no_examples_that_nobody_runs() -> None:
    assert len(EXAMPLES) == 6


@pytest.mark.parametrize("arguments", command_lines("penstock"))
def test_commands_are_understood(arguments: str) -> None:
    parsed = build_parser().parse_args(shlex.split(arguments))
    assert callable(parsed.func)


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {arguments.split()[0] for arguments in command_lines("make")}
    assert {"demo", "test"} <= targets
    assert [target for target in targets if f"\n{target}:" not in makefile] == []
