# SPDX-License-Identifier: Apache-2.0
"""Tokens and sources for tests."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

from penstock.security.oauth.token import Token


def part(content: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode("ascii")


def jwt(**claims: Any) -> str:
    """A JWT that nobody could verify; good for an hour unless it is said otherwise."""
    full = {"sub": "svc", "iat": time.time(), "exp": time.time() + 3600} | claims
    full = {name: value for name, value in full.items() if value is not None}
    return f"{part({'alg': 'RS256'})}.{part(full)}.c2ln"


def claims_of(token: str) -> dict[str, Any]:
    middle = token.split(".")[1]
    return dict(json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4))))


class Scripted:
    """A source that gives what a function gives."""

    name = "the scripted source"

    def __init__(self, give: Callable[[], Token]) -> None:
        self.give = give
        self.calls = 0
        self.trouble = ""
        self.left = 0
        self.stopped = 0

    def fetch(self) -> Token:
        self.calls += 1
        return self.give()

    def stop(self) -> None:
        self.stopped += 1

    def leave(self) -> None:
        self.left += 1
