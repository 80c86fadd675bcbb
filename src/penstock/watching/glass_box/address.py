# SPDX-License-Identifier: Apache-2.0
"""Where a page is: the address that was asked for, who may ask it, and the note that `penstock top` finds.

Rules for requests:
1. The Host header must name this machine by an address or by a name of its own. A page elsewhere whose name was made to
   point here (DNS rebinding) names itself there, and is refused.
2. With a token, everything but the empty page needs it. Tokens are compared in constant time.
3. Data is given only to who says by a header of ours that it is no link or picture of another page.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

SHORTEST_TOKEN: Final = 16
VIEWER_HEADER: Final = "Penstock-Viewer"  # a browser lets no other site send it without asking us
_SAME_SITE: Final = ("same-origin", "none")


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


def is_own_host(header: str | None, bound: str) -> bool:
    """Whether a Host header names this machine; the port may be that of a tunnel."""
    if not header:
        return False
    host, _, port = header.rpartition(":")
    name = (header if not host or "]" in port else host).lower().removeprefix("[").removesuffix("]")
    try:
        ip = ipaddress.ip_address(name)
    except ValueError:
        own = {"localhost", bound.lower()}
        if not Address(bound, 0).is_loopback:
            own |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        return name in own
    return ip.is_loopback or not Address(bound, 0).is_loopback


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
    port = url.rstrip("/").rpartition(":")[2]
    path = notes_folder() / f"glass-box-{os.getpid()}-{port}.json"
    note = {"pid": os.getpid(), "url": url, "token": token, "program": program_name(), "since": time.time()}
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(note, file)
    return path


def read_notes() -> Iterator[dict[str, Any]]:
    """The pages of this user's processes that run; notes of those that have ended are taken away."""
    try:
        paths = sorted(notes_folder().glob("glass-box-*.json"))
    except OSError:
        return
    for path in paths:
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
            pid = int(note["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # somebody is writing it, or has taken it away
        if _runs(pid):
            yield note
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is another user's
    return True
