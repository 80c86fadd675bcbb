# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from penstock.devbroker import settings
from penstock.devbroker.settings import NodeAddress

ONE = [NodeAddress(1, 20001, 20002)]
THREE = [NodeAddress(n, 20000 + n, 21000 + n) for n in (1, 2, 3)]
FIVE = [NodeAddress(n, 20000 + n, 21000 + n) for n in range(1, 6)]


def test_a_node_listens_on_the_loopback_only() -> None:
    properties = settings.server_properties(ONE[0], ONE, Path("/data"), {})
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:20001,CONTROLLER://127.0.0.1:20002"
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:20001"
    assert properties["log.dirs"] == "/data"


def test_every_node_knows_the_whole_quorum() -> None:
    for node in THREE:
        properties = settings.server_properties(node, THREE, Path("/data"), {})
        assert properties["node.id"] == str(node.node_id)
        assert (
            properties["controller.quorum.voters"] == "1@127.0.0.1:21001,2@127.0.0.1:21002,3@127.0.0.1:21003"
        )


@pytest.mark.parametrize(
    ("cluster", "copies", "in_sync"), [(ONE, "1", "1"), (THREE, "3", "2"), (FIVE, "3", "2")]
)
def test_internal_topics_have_as_many_copies_as_the_cluster_can_hold(
    cluster: list[NodeAddress], copies: str, in_sync: str
) -> None:
    properties = settings.server_properties(cluster[0], cluster, Path("/data"), {})
    assert properties["offsets.topic.replication.factor"] == copies
    assert properties["transaction.state.log.replication.factor"] == copies
    assert properties["transaction.state.log.min.isr"] == in_sync


def test_properties_of_the_caller_win() -> None:
    properties = settings.server_properties(ONE[0], ONE, Path("/data"), {"num.io.threads": 9, "my.own": True})
    assert properties["num.io.threads"] == "9"
    assert properties["my.own"] == "True"


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("a.b", "c", "a.b=c"),
        ("path", "C:\\x y", "path=C:\\\\x y"),
        ("lead", "  two", "lead=\\  two"),
        ("a:b c", "1=2", "a\\:b\\ c=1=2"),
        ("uni", "\u00e9\U0001f600", "uni=\\u00e9\\ud83d\\ude00"),
        ("lines", "one\ntwo", "lines=one\\ntwo"),
    ],
)
def test_properties_are_escaped_as_java_reads_them(name: str, value: str, line: str) -> None:
    assert settings.properties_text({name: value}) == line + "\n"


def test_command_line_has_options_before_the_class_and_arguments_after() -> None:
    command = settings.java_command(
        Path("/j/java"),
        Path("/jars"),
        "a.Tool",
        ["--x", "1"],
        jvm=("-Xmx1m",),
        logging=Path("/l"),
        scratch=Path("/s"),
    )
    assert command[0] == "/j/java"
    assert command[-3:] == ["a.Tool", "--x", "1"]
    assert command[command.index("-cp") + 1] == "/jars/*"
    assert {"-Xmx1m", "-Djava.io.tmpdir=/s", "-Dlog4j2.configurationFile=/l"} < set(
        command[: command.index("a.Tool")]
    )


def test_the_broker_runs_with_its_heap_and_the_optimising_compiler() -> None:
    options = settings.server_jvm(512)
    assert "-Xmx512m" in options
    assert not any("TieredStopAtLevel" in option for option in options)
    # A start heap above the largest one is refused by Java.
    assert "-Xms64m" in settings.server_jvm(64)


def test_logs_go_to_the_file_for_servers_and_to_stderr_for_tools() -> None:
    assert "appender.main.fileName=/x/server.log\n" in settings.server_logging(Path("/x/server.log"))
    assert "appender.main.target=SYSTEM_ERR\n" in settings.tool_logging()


@pytest.mark.parametrize(
    ("environ", "home"),
    [
        ({"PENSTOCK_HOME": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/penstock")),
        ({"PENSTOCK_HOME": ""}, Path("~/.cache/penstock").expanduser()),
    ],
)
def test_cache_home(environ: dict[str, str], home: Path) -> None:
    assert settings.cache_home(environ) == home
