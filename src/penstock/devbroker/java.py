# SPDX-License-Identifier: Apache-2.0
"""Find Java, and refuse one that is too old for Kafka's server before the server does so in a stack trace."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from penstock.devbroker._errors import DevBrokerError, with_tail

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
