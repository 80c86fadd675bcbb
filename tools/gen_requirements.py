# SPDX-License-Identifier: Apache-2.0
"""Writes docs/requirements.md: which tests show each requirement that a Kafka producer has to meet.

A test names the requirements it shows in its docstring ("Requirement 24." or "Requirements 24 and 39."). The table is
made from those, so it cannot name a test that does not say so; a test of the suite keeps it current.

    python tools/gen_requirements.py          write the page
    python tools/gen_requirements.py --check  say whether it is current
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "requirements.md"

# Numbers are those of the list of behaviours that the project works from; gaps belong to features that come later.
REQUIREMENTS: dict[str, dict[int, str]] = {
    "Configuration and construction": {
        1: "acks, retries and in-flight requests against idempotence, set or defaulted",
        2: "delivery.timeout.ms against linger.ms + request.timeout.ms, set or defaulted",
        3: "two-phase commit is refused, with and without a transaction time-out",
        4: "a constructor that fails closes what it had made",
        5: "plugins see the generated client.id",
        6: "bootstrap names that cannot be resolved: at once in the constructor, or in every call",
    },
    "Send, metadata, close": {
        7: "metadata is asked for once per unknown topic, and not at all for a known one",
        8: "a missing topic times out with a precise text and its cause",
        9: "a partition beyond the count waits for the topic to grow, then times out",
        10: "an idle topic is forgotten, and learned again when used",
        11: "close ends a wait for metadata",
        12: "serializers may add headers; afterwards they are frozen",
        13: "a record that is too large is refused, and interceptors learn its partition",
        14: "callbacks and interceptors get metadata also on failure",
        15: "flush waits for what is in flight, is refused in a callback, and its time is measured",
        16: "close may be called twice, refuses a negative time, and can be interrupted",
        17: "a forced close ends every wait for a coordinator at once",
        18: "a custom partitioner's impossible answer is refused",
        19: "an invalid topic fails at once, and again",
    },
    "Accumulator": {
        20: "full batches become ready, and sizes are respected",
        21: "a record larger than batch.size gets a batch of its own",
        22: "linger is respected, and the next look is timed exactly",
        23: "draining rotates, and respects muting and request size",
        24: "retry backoff: constant, exponential, skipped after a change of leader",
        25: "flush makes everything ready and waits for it",
        26: "aborting batches fires callbacks and frees memory",
        27: "expiry by delivery.timeout.ms, up to the largest values",
        28: "splitting keeps order, futures and headers, is rare, ends, and flush waits for the pieces",
        29: "an oversized first record is accepted, the next one not",
        30: "uniform and adaptive placement; fractional batches are avoided",
        31: "a broker without partitions drains nothing",
        32: "a commit makes batches ready that would linger",
    },
    "Buffer pool": {
        33: "accounting, reuse, and waking waiters",
        34: "more than the total is refused; time-outs raise BufferExhaustedError",
        35: "memory comes back to the byte after a time-out, an interrupt or an error",
        36: "close wakes waiters; large totals; many threads at once",
    },
    "Partitioner and batch": {
        37: "sticky switches at batch.size; unavailable partitions and racks",
        38: "round robin is even, also with unavailable partitions",
        39: "final states of a batch, errors of single records, leader changes",
        40: "a clock that goes backwards neither expires nor releases a batch wrongly",
    },
    "Sender": {
        41: "retry then success, retries used up, connections lost",
        42: "order is kept across a change of leader with one request in flight",
        43: "an expired batch does not release the next one while its request is in flight",
        44: "a callback of an expired batch may send",
        45: "an expired batch is neither retried nor split; late answers are ignored",
        46: "memory is freed exactly once, and not while a request holds it",
        47: "errors of single records and the broker's own text reach the caller",
        48: "leader hints are used at once when complete, ignored when not",
        49: "stalled brokers are noticed; the poll waits for the next expiry",
        50: "throttling shows in the metrics",
    },
    "Idempotence": {
        51: "several batches in flight are sent again in order, one at a time",
        52: "answers that come out of order leave the order of the batches alone",
        53: "a refused batch: those behind it are numbered anew",
        54: "out of order where nothing is missing raises the epoch, else it is only retried",
        55: "a sent batch that expires is in doubt until a later success, or a new epoch; an unsent one never",
        56: "a duplicate is a success without an offset, and lowers nothing",
        57: "a broker that forgot the producer, by the start of its log, in both modes",
        58: "a healthy partition goes on with the old epoch until its batches have ended",
        59: "after the largest sequence number comes 0",
        60: "the pieces of a split batch share its numbers, also in a transaction",
        61: "a new producer id with one request in flight is no deadlock",
        62: "after the last epoch a new id is had, also while closing; a forced close does not wait",
        63: "every error of a produce answer: retried, failed with a new epoch, or fatal",
    },
    "Transactions": {
        64: "the whole flow of both protocols, on old and new brokers",
        65: "the protocol changes only between transactions; from v1 to v2 with a new epoch",
        66: "the end waits for the last batch, and is not sent where nothing was added",
        67: "the end of a v2 transaction brings the next epoch, or another id",
        68: "the coordinator is searched for again: moved, gone, or not to be reached",
        69: "every error of every transaction request: retried, aborting, or fatal",
        70: "only the first partitions of a transaction are asked for again after 20 ms",
        71: "after a time-out only the same call may be made again, and waits for the same outcome",
        72: "a record that fails or expires drops the commit; without a new epoch one in doubt is fatal",
        73: "an abort drops what was not sent, and first settles what may have reached a broker",
        74: "a wrong call leaves the state alone; an answer that does not fit is fatal",
        75: "a demand to abort during an abort is fatal",
        76: "a close aborts what is open and sends what is pending; a forced one does not",
        77: "records that an abort drops fail with TransactionAbortedError",
        78: "a throttled coordinator is asked when it may be",
        79: "the version of TxnOffsetCommit belongs to the protocol; unknown topics are tried again",
    },
    "Network and metadata": {
        81: "version negotiation falls back, with and without a hint",
        82: "request time-outs disconnect; throttle time does not count",
        83: "connect time-outs and backoff grow, and are reset",
        84: "the next address after a failure, resolving again, not the same address twice",
        85: "the least loaded node, throttled and earlier attempts included",
        86: "starting again from the bootstrap servers: by time, by error, with requests in flight",
        87: "a disconnect ends requests oldest first; correlation ids skip what is reserved",
        88: "stale epochs refused, new topic ids accepted, partial answers, backoff, retention",
        89: "waiting for metadata ends on a fatal error, on close and on time",
    },
    "Record format": {
        91: "nothing is appended to a sealed batch, and bad identities are refused",
        92: "header and checksum round trip, sequence wrap, bad fields refused",
        93: "a produce request has one batch of format v2 per partition; zstd from version 7",
    },
}

_MENTION = re.compile(r"\bRequirements? (\d+(?:(?:, | and |, and )\d+)*)")


def tests_by_requirement() -> dict[int, list[str]]:
    """Node ids (without parameters) of the tests that name each requirement."""
    found: dict[int, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        for name, docstring in _tests(module):
            for mention in _MENTION.findall(docstring):
                for number in re.findall(r"\d+", mention):
                    found.setdefault(int(number), []).append(f"{path.relative_to(ROOT).as_posix()}::{name}")
    return found


def _tests(module: ast.Module) -> Iterator[tuple[str, str]]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name, ast.get_docstring(node) or ""
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.name.startswith("test_"):
                    yield f"{node.name}::{member.name}", ast.get_docstring(member) or ""


def page() -> str:
    """The text of the page."""
    found = tests_by_requirement()
    lines = [
        "# Requirements and the tests that show them",
        "",
        "Made by `make docs` from the docstrings of the tests; a test fails when a requirement has none, or when a",
        "test named here is missing or skipped.",
    ]
    for group, requirements in REQUIREMENTS.items():
        lines += ["", f"## {group}", "", "| no. | requirement | tests |", "|---|---|---|"]
        for number, text in requirements.items():
            tests = "<br>".join(f"`{test}`" for test in sorted(set(found.get(number, []))))
            lines.append(f"| {number} | {text} | {tests} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write or check the page."""
    text = page()
    if "--check" in sys.argv[1:]:
        current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        if current != text:
            print("docs/requirements.md is out of date: run `make docs`", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
