# SPDX-License-Identifier: Apache-2.0
"""A viewer of a page that is no browser."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple
from urllib.parse import urlsplit

VIEWER = {"Penstock-Viewer": "test"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def get(url: str, path: str = "api/state", method: str = "GET", **headers: str) -> Answer:
    """Ask a page; headers in snake case, and None leaves one of the usual ones out."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    named = VIEWER | {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.putrequest(method, f"/{path}", skip_host="Host" in named)
        for name, value in named.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read())
    finally:
        connection.close()
