# SPDX-License-Identifier: Apache-2.0
"""The pages of a process: by option or by the environment, shared, forked, and never at the price of a producer."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import stat
import subprocess
import sys
import textwrap
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from watching.glass_box.support import get

from penstock import AsyncProducer, Producer
from penstock.testing import FakeCluster
from penstock.watching import glass_box
from penstock.watching.glass_box import box

ADDRESS = "127.0.0.1:0"


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pages are noted: nobody else's folder. And the environment of the tests asks for none."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_GLASS_BOX", raising=False)
    return tmp_path / "penstock"


def event_total(producer: Producer, event: str) -> Any:
    return producer.metrics()["producer-event-metrics"][event]["event-total"]


def test_a_producer_is_seen_until_it_is_closed(kafka: FakeCluster, notes: Path) -> None:
    kafka.create_topic("orders", 3)
    with Producer(bootstrap_servers=kafka.bootstrap_servers, client_id="shop", glass_box=ADDRESS) as producer:
        (url,) = glass_box.urls()
        producer.send("orders", b"secret value", key=b"secret key", headers=[("h", b"secret header")]).result(
            60
        )
        answer = get(url)
        assert b"secret" not in answer.body
        (seen,) = answer.json["producers"]
        assert seen["client_id"] == "shop"
        assert seen["totals"]["records"] == 1
        assert [lane["topic"] for lane in seen["lanes"]] == ["orders"] * 3
        (note,) = notes.iterdir()
        assert stat.S_IMODE(note.stat().st_mode) == 0o600
        assert stat.S_IMODE(notes.stat().st_mode) == 0o700
        assert json.loads(note.read_text())["url"] == url
        assert json.loads(note.read_text())["pid"] == os.getpid()
    assert glass_box.urls() == []
    assert list(notes.iterdir()) == []
    with pytest.raises(OSError, match=r"refused|reset|closed"):
        get(url)


def test_producers_with_one_address_are_on_one_page_and_one_can_be_followed(kafka: FakeCluster) -> None:
    kafka.create_topic("t", 1)
    with (
        Producer(bootstrap_servers=kafka.bootstrap_servers, client_id="a", glass_box=ADDRESS),
        Producer(bootstrap_servers=kafka.bootstrap_servers, client_id="b", glass_box=ADDRESS) as second,
    ):
        (url,) = glass_box.urls()
        producers = get(url).json["producers"]
        assert [one["client_id"] for one in producers] == ["a", "b"]
        number = producers[1]["id"]
        get(url, f"api/follow?producer={number}&topic=t&key=k1")
        for key in (b"k0", b"k1"):
            second.send("t", b"x", key).result(60)

        def steps() -> list[str]:
            following = get(url).json["producers"][1]["following"]
            return [] if following is None else [step["what"] for step in following["steps"]]

        while "acknowledged" not in steps():
            pass  # the state is up to 0.2 s old
        assert steps() == ["sent", "accepted", "request", "acknowledged"]
        assert get(url, "api/follow?producer=99&topic=t").status == 404
        assert get(url, "api/follow?producer=x&topic=t").status == 400


def test_an_async_producer(kafka: FakeCluster) -> None:
    kafka.create_topic("t", 1)

    async def send() -> str:
        async with AsyncProducer(
            bootstrap_servers=kafka.bootstrap_servers, client_id="loop", glass_box=ADDRESS
        ) as producer:
            await producer.send_and_wait("t", b"x")
            (url,) = glass_box.urls()
            return str(get(url).json["producers"][0]["client_id"])

    assert asyncio.run(send()) == "loop"


@pytest.mark.slow
def test_the_environment_asks_for_one_page_that_stays_and_a_forked_child_has_its_own(
    kafka: FakeCluster,
) -> None:
    """And nothing is imported before."""
    code = """
        import os, sys, penstock
        def produce():
            return penstock.Producer(bootstrap_servers=sys.argv[1])
        produce().close()
        assert not [name for name in sys.modules if name.startswith(("penstock.watching", "http"))]
        os.environ["PENSTOCK_GLASS_BOX"] = "127.0.0.1:0"
        produce().close()
        from penstock.watching import glass_box
        first = glass_box.urls()
        produce().close()
        assert len(first) == 1 and glass_box.urls() == first, glass_box.urls()
        if os.fork() == 0:
            assert glass_box.urls() == []
            with produce():
                assert len(glass_box.urls()) == 1 and glass_box.urls() != first
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
        assert glass_box.urls() == first
    """
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            textwrap.dedent(code),
            kafka.bootstrap_servers,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["pyspark.daemon", "pyspark.worker"])
def test_workers_of_spark_have_no_page_unless_an_option_asks(
    kafka: FakeCluster, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setenv("PENSTOCK_GLASS_BOX", ADDRESS)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(module, None))
    with Producer(bootstrap_servers=kafka.bootstrap_servers):
        assert glass_box.urls() == []
    with Producer(bootstrap_servers=kafka.bootstrap_servers, glass_box=ADDRESS):
        assert len(glass_box.urls()) == 1


def test_the_page_of_the_environment_wins_over_that_of_a_file(
    kafka: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "producer.properties"
    file.write_text(
        f"bootstrap.servers={kafka.bootstrap_servers}\nglass.box=nonsense\nglass.box.token=short\n"
    )
    monkeypatch.setenv("PENSTOCK_GLASS_BOX", ADDRESS)
    monkeypatch.setenv("PENSTOCK_GLASS_BOX_TOKEN", "0123456789abcdef")
    with Producer(file):
        (url,) = glass_box.urls()
        assert get(url).status == 401
        assert get(url, Authorization="Bearer 0123456789abcdef").status == 200
    box._process.close()  # it would stay until the process ends


@pytest.mark.parametrize("bad", ["nonsense", "0.0.0.0:0", "taken"])
def test_a_page_that_cannot_be_is_one_warning(
    kafka: FakeCluster, caplog: pytest.LogCaptureFixture, bad: str
) -> None:
    kafka.create_topic("t", 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}" if bad == "taken" else bad
        with caplog.at_level(logging.WARNING, "penstock"):
            for _ in range(2):
                with Producer(bootstrap_servers=kafka.bootstrap_servers, glass_box=address) as producer:
                    producer.send("t", b"x").result(60)
                    assert glass_box.urls() == []
                    # Of the second producer, too, which writes no line.
                    assert event_total(producer, "page-failed") == 1
    (warning,) = [record for record in caplog.records if record.name == "penstock.watching"]
    assert "cannot be shown" in warning.getMessage()
    told = {name: value for name, value in vars(warning).items() if name.startswith("kafka_")}
    assert told.pop("kafka_client_id").startswith("producer-")
    assert told == {"kafka_event": "page-failed", "kafka_option": "glass.box", "kafka_error": "BadAddress"}


def test_a_page_that_is_made_is_counted_and_another_token_is_told(
    kafka: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    servers = kafka.bootstrap_servers
    with (
        caplog.at_level(logging.INFO, "penstock"),
        Producer(bootstrap_servers=servers, client_id="a", glass_box=ADDRESS) as first,
        Producer(
            bootstrap_servers=servers, client_id="b", glass_box=ADDRESS, glass_box_token="0123456789abcdef"
        ) as second,
    ):
        assert event_total(first, "page-started") == 1
        assert event_total(second, "option-without-effect") == 1
        fields = ("kafka_event", "kafka_client_id", "kafka_url", "kafka_option")
        told = [
            tuple(getattr(record, field, None) for field in fields)
            for record in caplog.records
            if record.name == "penstock.watching"
        ]
        (url,) = glass_box.urls()
        assert told == [
            ("page-started", "a", url, None),
            ("option-without-effect", "b", url, "glass.box.token"),
        ]


def test_a_token_is_asked_for_and_not_logged(kafka: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    token = "0123456789abcdef-token"
    with (
        caplog.at_level(logging.DEBUG),
        Producer(bootstrap_servers=kafka.bootstrap_servers, glass_box="0.0.0.0:0", glass_box_token=token),
    ):
        (url,) = glass_box.urls()
        url = url.replace("0.0.0.0", "127.0.0.1")
        assert get(url).status == 401
        assert get(url, Authorization=f"Bearer {token}").status == 200
    assert token not in caplog.text
    assert "can be seen at http://0.0.0.0:" in caplog.text


def test_a_handler_of_the_log_may_make_a_producer_while_a_page_is_made(kafka: FakeCluster) -> None:
    made: list[Producer] = []

    class Sends(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not made:
                made.append(Producer(bootstrap_servers=kafka.bootstrap_servers, glass_box=ADDRESS))

    logger, handler = logging.getLogger("penstock.watching"), Sends()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with Producer(bootstrap_servers=kafka.bootstrap_servers, glass_box=ADDRESS):
            (url,) = glass_box.urls()
            assert len(get(url).json["producers"]) == 2
            made[0].close()
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
