# SPDX-License-Identifier: Apache-2.0
"""What a development broker needs of this machine: a Java that is new enough, and free ports.

Its error stands apart from the tree in ``penstock.errors``: that one tells what a broker answered or what a producer
could not do, this one tells that a tool on this machine is missing or that a local process did not start.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from penstock.devbroker.settings import HOST


class DevBrokerError(RuntimeError):
    """A development broker could not be fetched, started or stopped.

    The message says what happened and what to do about it; where a tool printed something useful, its last
    lines follow.
    """


def with_tail(message: str, lines: Iterable[str], *, limit: int = 25) -> str:
    """Return ``message`` followed by the last ``limit`` non-empty ``lines``, indented."""
    kept = [line.rstrip() for line in lines if line.strip()][-limit:]
    if not kept:
        return f"{message} (it printed nothing)"
    return "\n".join([f"{message}; its last lines:", *(f"    {line}" for line in kept)])


MINIMUM_JAVA = 17
OPTIONS_VARIABLE = "PENSTOCK_JAVA_OPTIONS"
_INSTALL_HINT = f"install a Java runtime, version {MINIMUM_JAVA} or newer (or set JAVA_HOME to one)"


def parse_major_version(version_output: str) -> int | None:
    """Return the major version that ``java -version`` printed, or None when there is none to read.

    Java 8 and older call themselves ``1.8``; the second number is the major one then.
    """
    match = re.search(r'version "(\d+)(?:\.(\d+))?', version_output)
    if match is None:
        return None
    first, second = int(match.group(1)), match.group(2)
    return int(second) if first == 1 and second is not None else first


def try_find_java(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the ``java`` of ``JAVA_HOME``, else the first on the path, else None."""
    env = os.environ if environ is None else environ
    java_home = env.get("JAVA_HOME")
    if java_home:
        candidate = Path(java_home) / "bin" / "java"
        if os.access(candidate, os.X_OK):
            return candidate
    found = shutil.which("java", path=env.get("PATH", os.defpath))
    return Path(found) if found else None


def java_options(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the options that the user has for every Java process of a development broker, brokers and tools alike.

    Raises:
        DevBrokerError: They cannot be split into words.
    """
    env = os.environ if environ is None else environ
    text = env.get(OPTIONS_VARIABLE, "")
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise DevBrokerError(
            f"{OPTIONS_VARIABLE} has no options that a shell could read: {text!r} ({error})"
        ) from None


def find_java(environ: Mapping[str, str] | None = None) -> Path:
    """Return a Java that can run Kafka's server.

    Raises:
        DevBrokerError: There is none, it does not run, or it is older than Java 17.
    """
    java = try_find_java(environ)
    if java is None:
        raise DevBrokerError(f"no 'java' was found, and Kafka's broker needs it: {_INSTALL_HINT}")
    try:
        probe = subprocess.run(
            [str(java), "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DevBrokerError(f"{java} does not run ({error}): {_INSTALL_HINT}") from error
    major = parse_major_version(probe.stdout)
    if probe.returncode != 0 or major is None:
        raise DevBrokerError(
            with_tail(f"'{java} -version' failed: {_INSTALL_HINT}", probe.stdout.splitlines())
        )
    if major < MINIMUM_JAVA:
        raise DevBrokerError(f"{java} is Java {major}, and Kafka's broker needs a newer one: {_INSTALL_HINT}")
    return java


# Below the range from which Linux (32768 up) and the BSDs (49152 up) take the local ports of outgoing
# connections: a broker that is down for a moment must find its port free when it comes back.
_LOWEST, _HIGHEST = 20000, 32000


def is_free(port: int) -> bool:
    """Say whether a server could bind ``port`` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Java does: a port whose last connections linger in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_ports(count: int, *, avoid: Collection[int] = (), rng: random.Random | None = None) -> list[int]:
    """Return ``count`` different ports that are free now.

    Another process may take one before it is used, so the caller must be ready to choose again.

    Raises:
        DevBrokerError: Too few ports are free.
    """
    source = random.Random() if rng is None else rng
    found: list[int] = []
    for port in source.sample(range(_LOWEST, _HIGHEST), _HIGHEST - _LOWEST):
        if len(found) == count:
            break
        if port not in avoid and is_free(port):
            found.append(port)
    if len(found) < count:
        raise DevBrokerError(
            f"too few ports are free, {len(found)} of {count}, between {_LOWEST} and {_HIGHEST} on {HOST}"
        )
    return found
