# SPDX-License-Identifier: Apache-2.0
"""A realm of Kerberos with a key distribution centre (KDC) of its own, on this machine and without root.

The programs are on the PATH: `make test-kerberos` has seen to that.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.devbroker import _watchdog
from penstock.devbroker.machine import free_ports, with_tail
from penstock.devbroker.settings import HOST

REALM = "PENSTOCK.TEST"
_START_SECONDS = 20.0
_TOOL_SECONDS = 60.0
_CLIENT = """\
[libdefaults]
 default_realm = {realm}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
[realms]
 {realm} = {{
  kdc = {host}:{port}
 }}
[domain_realm]
 localhost = {realm}
 .elsewhere.test = ELSEWHERE.TEST
"""
_SERVER = """\
[kdcdefaults]
 kdc_listen = {host}:{port}
 kdc_tcp_listen = {host}:{port}
[realms]
 {realm} = {{
  database_name = {folder}/principals
  key_stash_file = {folder}/stash
  acl_file = {folder}/acl
  max_life = 1h
 }}
[logging]
 kdc = FILE:{folder}/kdc.log
"""


class Realm:
    """The realm, its principals and its KDC.

    Args:
        folder: where everything is kept.

    Attributes:
        config: krb5.conf for its clients and services.
    """

    def __init__(self, folder: Path) -> None:
        self.config = folder / "krb5.conf"
        self._folder = folder
        self._kdc: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        (self._port,) = free_ports(1)
        self._environment = os.environ | {
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
        }

    def __enter__(self) -> Self:
        place = {"realm": REALM, "host": HOST, "port": self._port, "folder": self._folder}
        self.config.write_text(_CLIENT.format(**place))
        (self._folder / "kdc.conf").write_text(_SERVER.format(**place) + _modules())
        # The password is of no use to anybody: the database ends with the test.
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", uuid.uuid4().hex)
        script = str(_watchdog.__file__)
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", script], stdin=subprocess.PIPE, process_group=0
        )
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._watchdog is not None:
            self._watchdog.communicate(b"done")

    # ---- principals and tickets

    def add(self, name: str, *options: str) -> Path:
        """Make a principal with a random key; the keytab that has it."""
        self._administer("addprinc", "-randkey", *options, name)
        self._administer("ktadd", "-k", str(self.keytab(name)), "-norandkey", name)
        return self.keytab(name)

    def keytab(self, name: str) -> Path:
        """The file with the key of a principal."""
        return self._folder / f"{name.replace('/', '-')}.keytab"

    def change_key(self, name: str) -> None:
        """Give a principal another key, which no keytab has."""
        self._administer("cpw", "-randkey", name)

    def replace_key(self, name: str) -> None:
        """Give a principal another key, which its keytab has then."""
        new = self._folder / f"{uuid.uuid4().hex}.keytab"
        self._administer("ktadd", "-k", str(new), name)
        new.replace(self.keytab(name))

    def remove(self, name: str) -> None:
        """Delete a principal from the realm."""
        self._administer("delprinc", "-force", name)

    def disable(self, name: str) -> None:
        """Give no more tickets to a principal."""
        self._administer("modprinc", "-allow_tix", name)

    def log_in(self, name: str, cache: Path, *options: str) -> None:
        """What `kinit` does: put a ticket into a cache."""
        self._run(
            "kinit", "-k", "-t", str(self.keytab(name)), "-c", f"FILE:{cache}", *options, f"{name}@{REALM}"
        )

    # ---- the KDC

    def start(self) -> None:
        """Start the KDC, and wait until it can be reached."""
        assert self._watchdog is not None
        with open(self._folder / "kdc.out", "ab") as output:
            self._kdc = subprocess.Popen(
                [_program("krb5kdc"), "-n", "-r", REALM],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=self._watchdog.pid,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_reached():
            if self._kdc.poll() is not None or time.monotonic() > deadline:
                said = (self._folder / "kdc.out").read_text(errors="replace")
                raise RuntimeError(with_tail("the KDC did not start", said.splitlines()))
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop the KDC: its port refuses connections."""
        if self._kdc is not None:
            self._kdc.kill()
            self._kdc.wait()
            self._kdc = None

    def freeze(self) -> None:
        """Let the KDC take connections and answer nothing."""
        assert self._kdc is not None
        self._kdc.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._kdc is not None
        self._kdc.send_signal(signal.SIGCONT)

    def _is_reached(self) -> bool:
        try:
            socket.create_connection((HOST, self._port), timeout=1).close()
        except OSError:
            return False
        return True

    def _administer(self, *arguments: str) -> None:
        self._run("kadmin.local", "-r", REALM, *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [_program(program), *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_TOOL_SECONDS,
        )
        if done.returncode != 0:
            raise RuntimeError(with_tail(f"{program} {' '.join(arguments)} failed", done.stdout.splitlines()))


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is not on the PATH: run these tests with `make test-kerberos`")
    return found


def _modules() -> str:
    """Where the database's plug-in is, in a tree that is not the system's."""
    root = os.environ.get("PENSTOCK_KRB5_ROOT")
    if not root:
        return ""
    (plugins,) = Path(root).expanduser().glob("usr/lib/**/krb5/plugins/kdb")
    return f"[dbmodules]\n db_module_dir = {plugins.absolute()}\n"


def set_clock_ahead(cache: Path, seconds: int) -> None:
    """Let all that uses this cache of tickets assume that the KDC's clock is ahead of this machine's."""
    data = cache.read_bytes()
    version, length = struct.unpack_from(">HH", data)
    assert version == 0x0504, "a file of another version"
    offset = struct.pack(">HHii", 1, 8, seconds, 0)
    cache.write_bytes(struct.pack(">HH", version, len(offset)) + offset + data[4 + length :])
