# SPDX-License-Identifier: Apache-2.0
"""`penstock top`: the glass box of a process in a terminal, and the list of those that run."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, urlencode, urlsplit

from penstock._counted import counted
from penstock._escaping import escaped
from penstock._redaction import redacted
from penstock.cli.options import CommandError, UsageError

if TYPE_CHECKING:
    from penstock.cli.options import SubParsers
    from penstock.watching.glass_box.address import Note

_EPILOG = """
examples:
  penstock top                        the pages of your processes on this machine
  penstock top 127.0.0.1:8400         what that process does, until Ctrl-C
  penstock top 4711 --once            the same of process 4711, one look
  penstock top 4711 --follow orders   the way of the next record of that topic, with times
  PENSTOCK_GLASS_BOX=127.0.0.1:0 python my_program.py     gives a program a page without changing it

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
_LONG = 0.5  # seconds from which on the page shows what the I/O thread does now
_PLACES = {
    "record-queue-time": "in the queue",
    "request-latency": "for the broker's answer",
    "record-retry-time": "in retries",
    "callback-time": "in callbacks",
    "record-delivery-time": "in all",
}
_FOLLOW_INTERVAL = 0.3  # seconds between two looks, at most: what is followed may end soon
_OLDER_LOOKS = 10
_FOLLOW = "/api/follow?"
_NOT_HEARD = -1  # no number of a question


class Place(NamedTuple):
    """The address of a live page, and the token that it wants."""

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
        "--follow",
        metavar="TOPIC",
        help="follow the next record of a topic from send() to its outcome, print its way with times, and end",
    )
    parser.add_argument("--key", metavar="K", help="with --follow: the next record that has this key")
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

    _check(args)
    notes = list(read_notes(_warn))
    if args.address is None:
        for line in listed(notes, time.time()):
            print(line)
        return 0
    place = find(args.address, notes)
    look(place, 100)  # a process that ends after this was there
    with _there_before(place):
        return _show(args, place)


def _show(args: argparse.Namespace, place: Place) -> int:
    if args.follow is not None:
        follow(place, args.follow, args.key, min(_FOLLOW_INTERVAL, args.interval))
        return 0
    if args.once:
        # Rates need two looks.
        time.sleep(min(1.0, args.interval))
        print("\n".join(look(place, 100)))
        return 0
    if not sys.stdout.isatty():
        raise CommandError("standard output is no terminal: --once shows one look")
    while True:
        _draw(look(place, shutil.get_terminal_size().columns))
        time.sleep(args.interval)


def _check(args: argparse.Namespace) -> None:
    if args.key is not None and args.follow is None:
        raise UsageError("--key needs --follow TOPIC, whose records may have the key")
    if args.follow is not None and args.address is None:
        raise UsageError("--follow needs ADDRESS; `penstock top` without it lists those that there are")
    if "" in (args.follow, args.key):
        raise UsageError("--follow and --key need a value; without --key any record of the topic is followed")
    try:
        f"{args.follow}{args.key}".encode()
    except UnicodeEncodeError:  # what the system gave is no text in its encoding
        raise UsageError(
            "--follow and --key take text in UTF-8; a key of other bytes cannot be followed by its value"
        ) from None


def _draw(lines: Sequence[str]) -> None:
    size = shutil.get_terminal_size()
    shown = [line[: size.columns - 1] for line in lines][: size.lines - 1]
    sys.stdout.write(_HOME_AND_CLEAR + "\n".join(shown) + "\n")
    sys.stdout.flush()


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
        is_port = len(address) <= 5 and 0 < int(address) < 65_536
        port = f"; if {address} is a port, write 127.0.0.1:{address}" if is_port else ""
        raise CommandError(f"process {address} has no page; `penstock top` lists those that there are{port}")
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
        UsageError: it is another one.
    """
    try:
        split = urlsplit(url)
        if split.scheme in _PORTS and split.hostname and split.port != 0:
            return split
    except ValueError:
        pass  # of a port or an IPv6 address
    raise UsageError(
        f"{redacted(url)} is no address of a page: HOST:PORT, http://HOST:PORT/ or https://HOST/ is one"
    )


def look(place: Place, width: int) -> list[str]:
    """What the page says, as lines for a terminal.

    Raises:
        CommandError: nobody answers, or not with the state of producers.
    """
    body = ask(place)
    with _understood(place):
        head, *others = screen(json.loads(body), width)
    return [f"{head}  {_page(place)}", *others]


def _page(place: Place) -> str:
    """The address of the page; what a user may have written beside it is left out, it may be a secret."""
    split = _split(place.url)
    return escaped(f"{split.scheme}://{split.netloc.rpartition('@')[2]}/")


@contextlib.contextmanager
def _understood(place: Place) -> Iterator[None]:
    try:
        yield
    except _NOT_A_STATE as error:
        raise _no_page(place, f"{type(error).__name__}: {error}") from error


def _no_page(place: Place, why: str) -> CommandError:
    return CommandError(
        f"what answers at {_page(place)} is no glass box, or that of another version of Penstock "
        f"({why[:_MOST_SHOWN]}); `penstock top` lists your pages, and a browser shows those of every version"
    )


class _NobodyAnswersError(CommandError):
    """Nobody listens at the address, or what listens says nothing."""


@contextlib.contextmanager
def _there_before(place: Place) -> Iterator[None]:
    """A page that has answered before, and does so no more, has ended."""
    try:
        yield
    except _NobodyAnswersError as error:
        raise CommandError(
            f"the page at {_page(place)} does not answer any more: its process has ended, or has closed its last "
            f"producer ({error.__cause__})"
        ) from error


class _ProducerEnded(CommandError):
    """The producer that was asked is not on the page any more."""


def ask(place: Place, path: str = "/api/state") -> bytes:
    """The answer of the page.

    Raises:
        _ProducerEnded: to follow a record of a producer that was closed.
        CommandError: nobody answers, or not as a page does.
    """
    connection = _connection(_split(place.url))
    headers = _headers(place)
    try:
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read(_MOST_BYTES + 1)
        finally:
            connection.close()
    except (
        OSError,
        http.client.HTTPException,
        ValueError,
    ) as error:  # ValueError: of a name that is no host's
        raise _NobodyAnswersError(
            f"no page answers at {_page(place)}: {error}; `penstock top` lists those that there are"
        ) from error
    if answer.status == http.client.UNAUTHORIZED:
        raise CommandError(f"the page at {_page(place)} needs its token in {_TOKEN_VARIABLE}")
    if answer.status == http.client.NOT_FOUND and path.startswith(_FOLLOW):
        raise _ProducerEnded(f"the producer at {_page(place)} was closed")
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
                f"the token for {_page(place)} has a character that cannot be sent, for example a line break; see "
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


# ------------------------------------------------------------------------------------------ following a record


def follow(place: Place, topic: str, key: str | None, interval: float) -> None:
    """Follow the next record of a topic, by whatever producer of the process it is sent, and print its way.

    Raises:
        CommandError: no such record came, it was not seen to its end, or nobody answers.
    """
    asked: dict[int, _Asked] = {}
    shown: list[str] = []
    done = overtaken = False
    try:
        _ask_for(place, topic, key, asked)
        print(f"penstock: waits for a record of {escaped(topic)}; Ctrl-C gives up", file=sys.stderr)
        while not done:
            time.sleep(interval)
            body = ask(place)
            with _understood(place):
                state = json.loads(body)
                overtaken = overtaken or _is_overtaken(state, asked)
                found = _found(state, asked)
                if found is not None:
                    shown = [escaped(line) for line in followed(found[1])]
                    done = bool(found[1]["done"])
            if shown and sys.stdout.isatty():
                _draw(shown)
            if found is not None:
                # A process that has ended meanwhile follows nothing any more.
                with contextlib.suppress(CommandError if done else _ProducerEnded):
                    _stop(place, asked, but=found[0])
            elif not asked:
                raise CommandError(_why_not(topic, seen=bool(shown), overtaken=overtaken))
    finally:
        # Also after Ctrl-C, and where the process has ended: as much as is known.
        if shown and not sys.stdout.isatty():
            print("\n".join(shown))
        if not done:
            with contextlib.suppress(CommandError):
                _stop(place, asked)


def _stop(place: Place, asked: dict[int, _Asked], but: int | None = None) -> None:
    """Let the producers follow nothing any more."""
    for producer in [one for one in asked if one != but]:
        del asked[producer]
        with contextlib.suppress(_ProducerEnded):
            ask(place, f"{_FOLLOW}{urlencode({'producer': producer})}")


def _why_not(topic: str, *, seen: bool, overtaken: bool) -> str:
    if overtaken:
        what = "the record is" if seen else f"records of {topic} are"
        return f"{what} not followed any more: a producer follows one at a time, and another viewer has asked"
    if seen:
        return "the record is not followed any more: its producer was closed"
    return f"no such record of {topic} came within two minutes, or another viewer has given it up"


class _Asked:
    """What one producer was asked to follow."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.older = (
            _OLDER_LOOKS  # so many states may be from before the question; none when an answer was seen
        )


def _ask_for(place: Place, topic: str, key: str | None, asked: dict[int, _Asked]) -> None:
    """Have all producers of the process follow such a record.

    Args:
        asked: what they were asked is added here, by their ids; also of one that may not have received the question.
    """
    given = {"topic": topic} if key is None else {"topic": topic, "key": key}
    body = ask(place)
    with _understood(place):
        producers = [int(one["id"]) for one in json.loads(body)["producers"]]
    for producer in producers:
        asked[producer] = question = _Asked(_NOT_HEARD)
        try:
            body = ask(place, f"{_FOLLOW}{urlencode({'producer': producer, **given})}")
        except _ProducerEnded:
            del asked[producer]
            continue
        with _understood(place):
            question.number = int(json.loads(body)["followed"])
    if not asked:
        raise CommandError(f"the process at {_page(place)} has no producer now")


def _is_overtaken(state: Mapping[str, Any], asked: Mapping[int, _Asked]) -> bool:
    """Whether a producer was asked something else since."""
    numbers = {
        one["id"]: one["following"]["number"] for one in state["producers"] if one["following"] is not None
    }
    return any(numbers.get(producer, _NOT_HEARD) > question.number for producer, question in asked.items())


def _found(state: Mapping[str, Any], asked: dict[int, _Asked]) -> tuple[int, Mapping[str, Any]] | None:
    """Who has sent the record, where one came, and its way; who waits for none any more is taken out of `asked`."""
    following = {one["id"]: one["following"] for one in state["producers"]}
    for producer, question in list(asked.items()):
        now = following.get(producer)
        if now is not None and now["number"] == question.number:
            question.older = 0
            if now["steps"]:
                return producer, now
            if now["waiting"]:
                continue
        if not question.older or producer not in following:
            del asked[producer]
        else:
            question.older -= 1
    return None


def followed(following: Mapping[str, Any]) -> Iterator[str]:
    """What is followed, and its way until now, as lines for a terminal."""
    of = f"a record of {following['topic']}"
    if following["waiting"]:
        key = "" if following["key"] is None else " with that key"
        yield f"follow   waits for {of}{key}"
    elif following["steps"]:
        yield f"follow   the way of {of}{'' if following['done'] else ', until now'}"
    else:
        yield "follow   no such record came"
    for step in following["steps"]:
        yield f"  {_ms(step['at_ms']):>10}  {step['text']}"


# ------------------------------------------------------------------------------------------------- the screen


def screen(state: Mapping[str, Any], width: int) -> list[str]:
    """All lines, the important ones first; what others have named can neither end a line nor overwrite it."""
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
    yield from _numbers(one)
    for said in one["advice"]:
        yield from _wrapped(f"{_MARKS[said['tone']]:<2} {said['text']}", width)
    yield from _memory(one["memory"])
    yield from _io(one["io"])
    leaving = "  ".join(
        f"{entry['reason']} {100 * entry['share']:.0f} % (filled to {100 * entry['fill']:.0f} %)"
        for entry in one["leaving"]
    )
    yield f"batches  {f'left by  {leaving}' if leaving else 'none left yet'}"
    yield from _times(one["times"])
    for broker in one["brokers"]:
        yield from _broker(broker, width)
    if one["following"] is not None:
        yield from followed(one["following"])
    options = "  ".join(f"{name}={value}" for name, value in one["options"].items())
    yield from _wrapped(f"options  bootstrap.servers={one['servers']}  {options}", width)
    yield from _lanes(one)


def _numbers(one: Mapping[str, Any]) -> Iterator[str]:
    rates, totals = one["rates"], one["totals"]
    yield (
        f"{one['client_id']}  {rates['records']:,.0f} records/s  {_bytes(rates['bytes'])}/s  "
        f"{rates['requests']:,.0f} requests/s  {totals['records']:,} sent  {totals['retries']:,} sent again  "
        f"{totals['errors']:,} failed  {one['counts']['waiting_records']:,} without outcome yet"
    )
    if one["transaction"]:
        yield f"transaction {str(one['transaction']).lower().replace('_', ' ')}"


def _memory(memory: Mapping[str, Any]) -> Iterator[str]:
    used = memory["total"] - memory["free"]
    fill = _bar(used / max(1, memory["total"]))
    yield f"memory   {fill} {_bytes(used)} of {_bytes(memory['total'])}, {memory['waiting']} wait"
    for wait in memory["waits"]:
        yield (
            f"  {wait['thread']} waits {_ms(1000 * wait['seconds'])} for {_bytes(wait['bytes'])}, of which it has "
            f"{_bytes(wait['gathered'])}"
        )


def _io(io: Mapping[str, Any]) -> Iterator[str]:
    shares = "  ".join(
        f"{name} {100 * share:.0f} %" for name, share in io["shares"].items() if share >= 0.005
    )
    yield f"I/O      {shares or 'no numbers yet'}"
    if io["for_s"] >= _LONG and io["now"] != "waiting":
        where = f", in {io['where']}" if io["where"] else ""
        yield f"  now: {io['now']}, for {io['for_s']:.1f} s{where}"


def _times(times: Mapping[str, Any]) -> Iterator[str]:
    """How long records wait, and where."""
    title = "waits"
    for name, place in _PLACES.items():
        found = times.get(name)
        if found is not None:
            half, most, nearly_all = (_ms(found[which]) for which in ("p50", "p95", "p99"))
            yield f"{title:<8} {place:<24} half {half:>8}   95 % {most:>8}   99 % {nearly_all:>8}"
            title = ""


def _broker(broker: Mapping[str, Any], width: int) -> Iterator[str]:
    latency = "" if broker["latency_ms"] is None else f"  {broker['latency_ms']:.1f} ms"
    name = f"broker   {broker['id']:>4}" if broker["id"] >= 0 else f"{'bootstrap':<13}"
    yield (f"{name} {broker['address']:<22} {broker['state']:<20} {broker['in_flight']} in flight{latency}")
    for text in (broker["text"] if broker["tone"] in ("bad", "warn") else "", broker["past"]):
        yield from (f"  {line}" for line in _wrapped(text, width - 2))


def _lanes(one: Mapping[str, Any]) -> Iterator[str]:
    counts = one["counts"]
    left = f"; the {len(one['lanes']):,} that matter most:" if counts["left_out"] else ""
    yield (
        f"lanes    {counted(counts['partitions'], 'partition')}, {counts['busy']:,} busy: {counts['open']:,} open, "
        f"{counts['queued']:,} queued, {counts['in_flight']:,} in flight, {counts['retries']:,} to be sent again{left}"
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


def _ms(milliseconds: float) -> str:
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.1f} s"
    return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"
