# SPDX-License-Identifier: Apache-2.0
"""`penstock top`: the glass box of a process in a terminal, and the list of those that run."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from penstock._escaping import escaped
from penstock.cli.options import CommandError

if TYPE_CHECKING:
    from penstock.cli.options import SubParsers
    from penstock.watching.glass_box.address import Note

_EPILOG = """
examples:
  penstock top                        the pages of your processes on this machine
  penstock top 127.0.0.1:8400         what that process does, until Ctrl-C
  penstock top 4711 --once            the same of process 4711, one look
  PENSTOCK_GLASS_BOX=127.0.0.1:0 python shop.py     gives a program a page without changing it

A page that needs a token and is not yours: PENSTOCK_GLASS_BOX_TOKEN has it.
"""

_TIMEOUT = 10.0  # seconds for one answer
_MOST_BYTES = 8 << 20  # of one answer: those of real pages are much shorter
_MOST_SHOWN = 120  # characters of why an answer is none
# What reading an answer can raise if any field is missing, or is anything.
_NOT_A_STATE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)
_PORTS = {"http": 80, "https": 443}  # the schemes that a page can have, and their usual ports
_TOKEN_VARIABLE = "PENSTOCK_GLASS_BOX_TOKEN"  # noqa: S105 - where it is, not what
_HOME_AND_CLEAR = "\x1b[H\x1b[J"
_MARKS = {"good": "+", "quiet": "-", "warn": "!", "bad": "!!"}
_MOST_EVENTS = 8


class Place(NamedTuple):
    """A page to ask."""

    url: str
    token: str | None


def add_parser(subparsers: SubParsers) -> None:
    """Add the `top` command."""
    parser = subparsers.add_parser(
        "top",
        help="see what a producer does, live",
        description="Show what the producers of a process do, and why. Without ADDRESS: list the pages that there are.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "address", metavar="ADDRESS", nargs="?", help="HOST:PORT or URL of a page, or the number of a process"
    )
    parser.add_argument("--once", action="store_true", help="show one look and end")
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="seconds between two looks (default: 1)"
    )
    parser.set_defaults(func=run)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return seconds


def run(args: argparse.Namespace) -> int:
    """List pages, or show one until Ctrl-C."""
    from penstock.watching.glass_box.address import read_notes

    notes = list(read_notes(_warn))
    if args.address is None:
        for line in listed(notes, time.time()):
            print(line)
        return 0
    place = find(args.address, notes)
    if args.once:
        look(place, 100)  # rates need two looks
        time.sleep(min(1.0, args.interval))
        print("\n".join(look(place, 100)))
        return 0
    if not sys.stdout.isatty():
        raise CommandError("standard output is no terminal: --once shows one look")
    while True:
        size = shutil.get_terminal_size()
        shown = [line[: size.columns - 1] for line in look(place, size.columns)][: size.lines - 1]
        sys.stdout.write(_HOME_AND_CLEAR + "\n".join(shown) + "\n")
        sys.stdout.flush()
        time.sleep(args.interval)


def _warn(text: str) -> None:
    print(f"penstock: {escaped(text)}", file=sys.stderr)


def find(address: str, notes: Sequence[Note]) -> Place:
    """The page that is meant.

    Raises:
        CommandError: there is none, or it is no address.
    """
    if address.isdecimal():
        for note in notes:
            if note.pid == int(address):
                return Place(note.url, note.token)
        raise CommandError(f"process {address} has no page; `penstock top` lists those that there are")
    url = address if "//" in address else f"http://{address}/"
    wanted = _split(url)
    for note in notes:
        noted = _split(note.url)
        if (noted.scheme, noted.netloc) == (wanted.scheme, wanted.netloc):
            return Place(note.url, note.token)
    return Place(url, os.environ.get(_TOKEN_VARIABLE))


def _split(url: str) -> SplitResult:
    """The parts of an address at which a page can be.

    Raises:
        CommandError: it is another one.
    """
    try:
        split = urlsplit(url)
        if split.scheme in _PORTS and split.hostname and split.port != 0:
            return split
    except ValueError:
        pass  # of a port or an IPv6 address
    raise CommandError(f"{url} is no address of a page: HOST:PORT, http://HOST:PORT/ or https://HOST/ is one")


def look(place: Place, width: int) -> list[str]:
    """What the page says, as lines for a terminal.

    Raises:
        CommandError: nobody answers, or not with the state of producers.
    """
    body = ask(place)
    try:
        return screen(json.loads(body), width)
    except _NOT_A_STATE as error:
        raise _no_page(place, f"{type(error).__name__}: {error}") from error


def _no_page(place: Place, why: str) -> CommandError:
    return CommandError(
        f"what answers at {place.url} is no glass box, or that of another version of Penstock ({why[:_MOST_SHOWN]}); "
        "`penstock top` lists your pages, and a browser shows those of every version"
    )


def ask(place: Place) -> bytes:
    """The answer of the page.

    Raises:
        CommandError: nobody answers, or not as a page does.
    """
    connection = _connection(_split(place.url))
    headers = _headers(place)
    try:
        try:
            connection.request("GET", "/api/state", headers=headers)
            answer = connection.getresponse()
            body = answer.read(_MOST_BYTES + 1)
        finally:
            connection.close()
    except (
        OSError,
        http.client.HTTPException,
        ValueError,
    ) as error:  # ValueError: of a name that is no host's
        raise CommandError(
            f"no page answers at {place.url}: {error}; `penstock top` lists those that there are"
        ) from error
    if answer.status == http.client.UNAUTHORIZED:
        raise CommandError(f"the page at {place.url} needs its token in {_TOKEN_VARIABLE}")
    if answer.status != http.client.OK:
        raise _no_page(place, f"status {answer.status}")
    if len(body) > _MOST_BYTES:
        raise _no_page(place, f"more than {_bytes(_MOST_BYTES)}")
    return body


def _connection(split: SplitResult) -> http.client.HTTPConnection:
    """Not open yet; of https with the certificate and the name checked, by the system's trust."""
    kind = http.client.HTTPSConnection if split.scheme == "https" else http.client.HTTPConnection
    return kind(split.hostname or "", split.port or _PORTS[split.scheme], timeout=_TIMEOUT)


def _headers(place: Place) -> dict[str, str]:
    headers = {"Penstock-Viewer": "top"}
    if place.token is not None:
        if any(each in "\r\n" or each > "\xff" for each in place.token):
            # Here, because the library's error quotes the header.
            raise CommandError(
                f"the token for {place.url} has a character that cannot be sent, for example a line break; see "
                f"{_TOKEN_VARIABLE}"
            )
        headers["Authorization"] = f"Bearer {place.token}"
    return headers


def listed(notes: Sequence[Note], now: float) -> Iterator[str]:
    """The pages of this user."""
    if not notes:
        yield "No process of yours shows its producers."
        yield "Start one with PENSTOCK_GLASS_BOX=127.0.0.1:0, with --watch, or with Producer(..., glass_box=...)."
        return
    for note in notes:
        minutes = max(0, int((now - note.since) / 60))
        yield escaped(f"{note.pid:>8}  {note.url:<28} {note.program:<20} for {minutes} min")
    yield "penstock top ADDRESS shows one; a browser does, too."


# ------------------------------------------------------------------------------------------------- the screen


def screen(state: Mapping[str, Any], width: int) -> list[str]:
    """All lines, the important ones first; what others have named can neither break a line nor paint over it."""
    process = state["process"]
    lines = [f"{process['program']}  process {process['pid']}  penstock {process['version']}"]
    for producer in state["producers"]:
        lines += ["", *_producer(producer, width)]
    if not state["producers"]:
        lines.append("no producer now")
    lines += ["", "last events"]
    for event in state["events"][:_MOST_EVENTS]:
        at = time.strftime("%H:%M:%S", time.localtime(event["at_ms"] / 1000))
        lines.append(f"  {at} {_MARKS[event['tone']]:<2} {event['text']}")
    return [escaped(line) for line in lines]


def _producer(one: Mapping[str, Any], width: int) -> Iterator[str]:
    rates, counts, memory, io = one["rates"], one["counts"], one["memory"], one["io"]
    yield (
        f"{one['client_id']}  {rates['records']:,.0f} records/s  {_bytes(rates['bytes'])}/s  "
        f"{rates['requests']:,.0f} requests/s  {one['totals']['records']:,} sent  "
        f"{one['totals']['retries']:,} sent again  {one['totals']['errors']:,} failed"
    )
    for said in one["advice"]:
        yield from _wrapped(f"{_MARKS[said['tone']]:<2} {said['text']}", width)
    used = memory["total"] - memory["free"]
    fill = _bar(used / max(1, memory["total"]))
    yield f"memory   {fill} {_bytes(used)} of {_bytes(memory['total'])}, {memory['waiting']} wait"
    shares = "  ".join(
        f"{name} {100 * share:.0f} %" for name, share in io["shares"].items() if share >= 0.005
    )
    yield f"I/O      {shares or 'no numbers yet'}"
    leaving = "  ".join(
        f"{entry['reason']} {100 * entry['share']:.0f} % ({100 * entry['fill']:.0f} % full)"
        for entry in one["leaving"]
    )
    yield f"batches  {leaving or 'none left yet'}"
    for broker in one["brokers"]:
        latency = "" if broker["latency_ms"] is None else f"  {broker['latency_ms']:.1f} ms"
        why = f"  {broker['text']}" if broker["tone"] in ("bad", "warn") else ""
        yield (
            f"broker   {broker['id']:>4} {broker['address']:<22} {broker['state']:<20} "
            f"{broker['in_flight']} in flight{latency}{why}"
        )
    yield (
        f"lanes    {counts['partitions']:,} partitions, {counts['busy']:,} busy: {counts['open']:,} open, "
        f"{counts['queued']:,} queued, {counts['in_flight']:,} in flight, {counts['retries']:,} to be sent again"
    )
    for lane in one["lanes"]:
        if lane["text"] != "idle":
            fill = _bar(lane["open_fill"] or 0.0)
            yield f"  {lane['topic']}-{lane['partition']:<5} {fill} {lane['text']}"


def _wrapped(text: str, width: int) -> Iterator[str]:
    import textwrap

    yield from textwrap.wrap(text, max(40, width - 1), subsequent_indent="   ")


def _bar(share: float, cells: int = 12) -> str:
    full = round(max(0.0, min(1.0, share)) * cells)
    return f"[{'#' * full}{'.' * (cells - full)}]"


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
