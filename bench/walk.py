# SPDX-License-Identifier: Apache-2.0
"""Follows one record from `send` to its outcome, and prints every function of the package on its way.

    PENSTOCK_PURE=1 python -m bench.walk

Each line is a module and a function, in the order in which they are entered. The producer is at rest before: the topic
and its leader are known, the connection stands, a producer id was given. The record has a key and opens a batch. It is
sent, the turns of the I/O thread are taken, and its Delivery is asked for the result. The lines are the same in every
run.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from types import FrameType

from bench.in_memory import InlineProducer

_TOPIC = "walk"
_PARTITIONS = 3
_WARM_UP = 20  # records


def _send_one(inline: InlineProducer) -> None:
    delivery = inline.producer.send(_TOPIC, b"value", b"key")
    while not delivery.done():
        inline.take_turns()
    delivery.result()


def walk() -> list[tuple[str, str]]:
    """The modules and functions on the way of one record."""
    hops: list[tuple[str, str]] = []

    def follow(frame: FrameType, event: str, argument: object) -> None:
        del argument
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("penstock."):
            hops.append((module, frame.f_code.co_qualname))

    inline = InlineProducer({"linger.ms": "0"}, _TOPIC, _PARTITIONS)
    try:
        for _ in range(_WARM_UP):
            _send_one(inline)
        sys.setprofile(follow)
        _send_one(inline)
    finally:
        sys.setprofile(None)
        inline.close()
    return hops


def main() -> None:
    """Print the way, and to standard error how many modules and changes of module it has."""
    hops = walk()
    for module, function in hops:
        print(module, function)
    modules = [module for module, _ in hops]
    changes = sum(one != other for one, other in pairwise(modules))
    print(f"{len(hops)} functions, {len(set(modules))} modules, {changes} changes of module", file=sys.stderr)


if __name__ == "__main__":
    main()
