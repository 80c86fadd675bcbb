# SPDX-License-Identifier: Apache-2.0
"""The values that everybody sends in turn; the same in every measurement.

There are so many different ones that a batch does not hold one twice: a codec would find it again, at no cost.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

TOTAL_BYTES = 4 << 20
FEWEST, MOST = 1024, 16_384
_PAGES = ("/", "/search", "/cart", "/checkout", "/orders/recent", "/product/list", "/account/settings")
_KINDS = ("page_view", "click", "add_to_cart", "purchase", "search")
_AGENTS = ("Mozilla/5.0 (X11; Linux x86_64)", "Mozilla/5.0 (Windows NT 10.0; Win64; x64)", "okhttp/4.12.0")


def letters(generator: random.Random, size: int) -> bytes:
    """Letters without any pattern."""
    return generator.randbytes(size).translate(bytes(65 + value % 26 for value in range(256)))


def event(generator: random.Random, size: int) -> bytes:
    """An event of a web shop as compact JSON, about 300 bytes: the same names everywhere, some values of their own."""
    del size  # it is what it is
    fields = {
        "event_id": f"{generator.getrandbits(128):032x}",
        "type": generator.choice(_KINDS),
        "occurred_at": f"2026-03-{generator.randint(1, 28):02}T{generator.randint(0, 23):02}:"
        f"{generator.randint(0, 59):02}:{generator.randint(0, 59):02}.{generator.randint(0, 999):03}Z",
        "user": {
            "id": generator.randint(1, 2_000_000),
            "country": generator.choice(("DE", "FR", "US", "BR")),
        },
        "page": generator.choice(_PAGES),
        "product_id": generator.randint(1, 50_000),
        "amount_cents": generator.randint(0, 50_000),
        "currency": "EUR",
        "session": f"{generator.getrandbits(64):016x}",
        "agent": generator.choice(_AGENTS),
    }
    return json.dumps(fields, separators=(",", ":")).encode()


KINDS: dict[str, Callable[[random.Random, int], bytes]] = {"letters": letters, "events": event}


def make_values(kind: str, size: int) -> list[bytes]:
    """As many different values as a measurement needs; none has a line break in it."""
    generator = random.Random(0)
    count = min(MOST, max(FEWEST, TOTAL_BYTES // size))
    return [KINDS[kind](generator, size) for _ in range(count)]
