# SPDX-License-Identifier: Apache-2.0
"""Looks at a producer as others do, in a process of its own: as a browser with the live page, or as Prometheus.

It asks for the same paths, with the same headers and as often. What it learns is thrown away, but an answer counts
only if it tells about the producer.

This module is also the program that does so; see `main`.
"""

from __future__ import annotations

import gzip
import json
import select
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection
from typing import IO
from urllib.parse import urlsplit

ASK_SECONDS = 10.0  # for one answer, at most


@dataclass(frozen=True)
class Kind:
    """A kind of viewer.

    Attributes:
        path: what it asks for, again and again.
        period: seconds between two looks.
        rests: whether these begin with the answer, and not with the look.
        headers: of each request, besides Host.
        marker: what the answer has if it tells about a producer.
        opens_with: paths that it asks for once, before.
    """

    path: str
    period: float
    rests: bool
    headers: Mapping[str, str]
    marker: bytes
    opens_with: Sequence[str] = field(default=())


_BROWSER = {
    "Connection": "keep-alive",
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 "
    "Safari/537.36",
    "Accept": "*/*",
    "Sec-Fetch-Site": "same-origin",
    "Sec-Fetch-Mode": "cors",
    "Sec-Fetch-Dest": "empty",
    "Accept-Encoding": "gzip, deflate, br, zstd",
    "Accept-Language": "en-US,en;q=0.9",
}

KINDS = {
    # page.js: `ask`, and PERIOD after each answer. "no-store" becomes the two headers of caches.
    "page": Kind(
        "/api/state",
        0.5,
        True,
        {**_BROWSER, "Pragma": "no-cache", "Cache-Control": "no-cache", "Penstock-Viewer": "page"},
        b'"lanes":[{',
        ("/", "/page.css", "/page.js"),
    ),
    # Prometheus 3 with scrape_interval: 1s. It wants OpenMetrics, compressed.
    "prometheus": Kind(
        "/metrics",
        1.0,
        False,
        {
            "User-Agent": "Prometheus/3.5.0",
            "Accept": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
            "application/openmetrics-text;version=0.0.1;q=0.5,"
            "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            "Accept-Encoding": "gzip",
            "X-Prometheus-Scrape-Timeout-Seconds": "1",
        },
        b"kafka_producer_producer_metrics_record_send_total",
    ),
}


class Viewer:
    """Looks at one address.

    Args:
        url: where the page is, or where the metrics are.

    Attributes:
        answered: when each answer came that told about the producer, in monotonic seconds. That clock is the same for
            all processes of a machine.
    """

    def __init__(self, kind: Kind, url: str) -> None:
        self._kind = kind
        # It keeps the connection if the server does, and makes a new one if not.
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=ASK_SECONDS)
        self.answered: list[float] = []

    def open(self) -> None:
        """Ask for what is needed once."""
        for path in self._kind.opens_with:
            self._ask(path)

    def look(self) -> float:
        """Ask once; when the next look is due."""
        started = time.monotonic()
        status, body = self._ask(self._kind.path)
        ended = time.monotonic()
        if status == HTTPStatus.OK and self._kind.marker in body:
            self.answered.append(ended)
        return (ended if self._kind.rests else started) + self._kind.period

    def look_until_told(self, due: float, told: IO[str]) -> None:
        """Look when it is due, and as often as such a viewer does, until there is something to read, or its end."""
        while not select.select([told], [], [], max(0.0, due - time.monotonic()))[0]:
            due = self.look()

    def close(self) -> None:
        self._connection.close()

    def _ask(self, path: str) -> tuple[int, bytes]:
        self._connection.putrequest("GET", path, skip_accept_encoding=True)
        for name, value in self._kind.headers.items():
            self._connection.putheader(name, value)
        self._connection.endheaders()
        answer = self._connection.getresponse()
        body = answer.read()
        return answer.status, gzip.decompress(body) if answer.headers["Content-Encoding"] == "gzip" else body


def main(arguments: Sequence[str]) -> None:
    """Look at an address, as such a viewer: a line when it was looked at once, and one at the end of the input."""
    kind, url = arguments
    viewer = Viewer(KINDS[kind], url)
    viewer.open()
    due = viewer.look()
    print(json.dumps({"answered": viewer.answered}), flush=True)
    viewer.look_until_told(due, sys.stdin)
    viewer.close()
    print(json.dumps({"answered": viewer.answered}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
