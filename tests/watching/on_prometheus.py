# SPDX-License-Identifier: Apache-2.0
"""The example, scraped by a real Prometheus server: its queries have answers, and so has every panel of the dashboard.

Run by `make test-watching`. The server is Debian's package; PROMETHEUS names another one.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import FakeKafka

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "watching" / "prometheus_scrape.py"
DASHBOARD = ROOT / "examples" / "watching" / "grafana" / "penstock-producers.json"
SECONDS = 60.0


def server() -> str:
    found = shutil.which(os.environ.get("PROMETHEUS", "prometheus"))
    if found is None:
        pytest.fail(
            "there is no Prometheus server: install Debian's package prometheus, or let PROMETHEUS name the program"
        )
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def running(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture
def prometheus(kafka: FakeKafka, tmp_path: Path) -> Iterator[str]:
    """The address of a server that scrapes the example twice a second."""
    program = server()
    kafka.create_topic("orders", 3)
    example = (sys.executable, "-W", "error", str(EXAMPLE), kafka.bootstrap_servers, "orders", "0")
    with running(*example, stdout=subprocess.PIPE) as producing:
        assert producing.stdout is not None
        target = urllib.parse.urlsplit(producing.stdout.readline().strip()).netloc
        settings = tmp_path / "prometheus.yml"
        settings.write_text(
            "global: {scrape_interval: 500ms}\n"
            f"scrape_configs: [{{job_name: example, static_configs: [{{targets: ['{target}']}}]}}]\n",
            encoding="utf-8",
        )
        address = f"127.0.0.1:{free_port()}"
        arguments = (
            f"--config.file={settings}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={address}",
        )
        with (
            (tmp_path / "prometheus.log").open("w") as log,
            running(program, *arguments, stderr=log, stdout=log),
        ):
            yield address


def ask(address: str, query: str) -> list[dict[str, Any]]:
    """The series that a query gives now; none while the server starts."""
    url = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        pytest.fail(f"{query}: {error.read().decode()}")
    except OSError:
        return []
    series: list[dict[str, Any]] = found["data"]["result"]
    return series


def await_series(address: str, query: str) -> list[dict[str, Any]]:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        if series := ask(address, query):
            return series
        time.sleep(0.2)
    pytest.fail(f"no answer to {query} within {SECONDS:.0f} s")


def test_a_real_server_answers_queries_and_every_panel(prometheus: str) -> None:
    rate = "sum by (client_id) (rate(kafka_producer_producer_metrics_record_send_total[5s])) > 300"
    (series,) = await_series(prometheus, rate)
    assert series["metric"] == {"client_id": "producer-1"}
    # About a thousand a second: what the server computes is what the example sends.
    assert 300 < float(series["value"][1]) < 1100
    (up,) = await_series(prometheus, 'up{job="example"}')
    assert up["value"][1] == "1"
    reasons = await_series(prometheus, "sum by (reason) (kafka_producer_producer_batch_metrics_batch_total)")
    assert {one["metric"]["reason"] for one in reasons} >= {"full", "linger", "flush", "memory", "close"}

    panels = [
        panel for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"] if "targets" in panel
    ]
    assert len(panels) >= 20
    for panel in panels:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "5s").replace("$client_id", ".*")
            assert await_series(prometheus, query), panel["title"]
