# SPDX-License-Identifier: Apache-2.0
"""Where a page is: the address that was asked for, who may ask it, and the note that `penstock top` finds.

Rules for requests:
1. The Host header must name this machine by an address or by a name of its own. A page elsewhere whose name was made to
   point here (DNS rebinding) names itself there, and is refused. On loopback the port must be the page's, too; where
   others can reach the page, a container may publish it at another one.
2. With a token, everything but the empty page needs it. Tokens are compared in constant time.
3. Data is given only to who says by a header of ours that it is no link or picture of another page.

A note has the start of its process beside the id: a process that was killed leaves its note, and its id is given to
another one, in a container at each restart. Who listens at the noted port then must not be given the token.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import os
import re
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from penstock._json_fields import Fields
from penstock._processes import try_read_start

SHORTEST_TOKEN: Final = 16
VIEWER_HEADER: Final = "Penstock-Viewer"  # a browser lets no other site send it without asking us
_HOST_HEADER: Final = re.compile(r"(\[[^\[\]@]+\]|[^\s\[\]:@/]+)(?::([0-9]{1,5}))?")
_SAME_SITE: Final = ("same-origin", "none")
_LARGEST_PID: Final = 2**31 - 1
_LATEST: Final = 2**53  # seconds since 1970, which a float can hold as well


class BadAddress(ValueError):
    """An address at which no page can be shown; the text says why."""


class Address(NamedTuple):
    """Where to listen; port 0 is any free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read HOST:PORT.

    Raises:
        BadAddress: it is something else.
    """
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 0xFFFF):
        raise BadAddress(f"{text!r} is not HOST:PORT, for example 127.0.0.1:0 for any free port")
    return Address(host, int(port))


def check_token(address: Address, token: str | None) -> None:
    """Refuse a page that other machines could see without a token.

    Raises:
        BadAddress: there is none, or it can be guessed.
    """
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise BadAddress(f"glass.box.token must have at least {SHORTEST_TOKEN} characters")
    if token is None and not address.is_loopback:
        raise BadAddress(
            f"other machines can reach {address}, so that glass.box.token is needed; 127.0.0.1 needs none"
        )


# ------------------------------------------------------------------------------------------------ requests


def is_own_host(header: str | None, bound: Address) -> bool:
    """Whether a Host header names the page at this address."""
    found = _HOST_HEADER.fullmatch(header or "")
    if found is None:
        return False
    name, port = found[1].lower().strip("[]"), found[2]
    if bound.is_loopback and port is not None and int(port) != bound.port:
        return False
    try:
        ip = ipaddress.ip_address(name)
    except ValueError:
        own = {"localhost", bound.host.lower()}
        if not bound.is_loopback:
            own |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        return name in own
    return ip.is_loopback or not bound.is_loopback


def is_from_elsewhere(fetch_site: str | None, origin: str | None, host: str | None) -> bool:
    """Whether a browser says that another page has made the request."""
    if fetch_site is not None and fetch_site not in _SAME_SITE:
        return True
    return origin is not None and origin not in (f"http://{host}", f"https://{host}")


def is_let_in(token: str | None, authorization: str | None) -> bool:
    """Whether a request has the token, if there is one."""
    if token is None:
        return True
    scheme, _, given = (authorization or "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), token.encode())


# --------------------------------------------------------------------------------------------------- notes


class Note(NamedTuple):
    """A page of a process that runs.

    Attributes:
        pid: The process.
        url: Where its page is.
        token: What viewers must know; None: nothing.
        program: What runs in the process.
        since: When the page was made, in seconds since 1970.
    """

    pid: int
    url: str
    token: str | None
    program: str
    since: int


def program_name() -> str:
    """What runs in this process, without its arguments, which may be secret."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c") else "python"


def notes_folder() -> Path:
    """Where the processes of this user note their pages; made if need be, for this user alone.

    Raises:
        OSError: it cannot be made, or belongs to somebody else.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(runtime) / "penstock" if runtime else Path(tempfile.gettempdir()) / f"penstock-{user}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or (hasattr(os, "getuid") and found.st_uid != user):
        raise PermissionError(f"{folder} belongs to somebody else")
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)
    return folder


def write_note(url: str, token: str | None) -> Path:
    """Note a page of this process, for its user alone; the file.

    Raises:
        OSError: it cannot be written.
    """
    pid = os.getpid()
    started = try_read_start(pid)
    if started is None:
        raise ProcessLookupError("it cannot be told here when this process started")
    note = {
        "pid": pid,
        "started": started,
        "url": url,
        "token": token,
        "program": program_name(),
        "since": int(time.time()),
    }
    port = url.rstrip("/").rpartition(":")[2]
    path = notes_folder() / f"glass-box-{pid}-{port}.json"
    scratch = path.with_suffix(".tmp")  # renamed when it is complete: a reader sees no half of a note
    with contextlib.suppress(FileNotFoundError):
        scratch.unlink()
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(note, file)
    scratch.replace(path)
    return path


def read_notes(say: Callable[[str], None]) -> Iterator[Note]:
    """The pages of this user's processes that run; notes of those that have ended are taken away.

    Args:
        say: is given a line about each note that cannot be used.
    """
    try:
        paths = sorted(notes_folder().glob("glass-box-*.json"))
    except OSError:
        return
    for path in paths:
        try:
            note = _try_read_note(path)
        except FileNotFoundError:
            continue  # its process has taken it away
        except (OSError, ValueError) as error:
            say(f"{path} is no note of a page, or that of another version of Penstock ({error}); delete it")
            continue
        if note is not None:
            yield note
            continue
        with contextlib.suppress(OSError):
            path.unlink()


def _try_read_note(path: Path) -> Note | None:
    """The note in a file; None if the process that wrote it has ended, also if another one has its id now.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no note.
    """
    fields = Fields.parse(path.read_text(encoding="utf-8"))
    pid = fields.number("pid", 1, _LARGEST_PID)
    started = try_read_start(pid)
    if started is None or started != fields.text("started"):
        return None
    url = fields.text("url")
    split = urlsplit(url)
    if split.scheme != "http" or not split.hostname or split.port is None:
        raise ValueError("url is not the address of a page")
    return Note(
        pid, url, fields.optional_text("token"), fields.text("program"), fields.number("since", 0, _LATEST)
    )
