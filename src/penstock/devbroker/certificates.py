# SPDX-License-Identifier: Apache-2.0
"""Certificates for a development broker: an authority of its own, the broker's certificate, and a client's.

Java's keytool makes them, because Java is there already. It keeps private keys to itself, so the store that it writes
is read by our own reader, and becomes files in PEM. They are for tests on this machine: everyone who can read the
folder has all keys.
"""

from __future__ import annotations

import base64
import os
import subprocess
import textwrap
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.devbroker.machine import DevBrokerError, with_tail

# Who a client with the certificate is to the broker.
CLIENT_NAME = "alice"
STORE_PASSWORD = "penstock"  # noqa: S105 - the keys lie beside it in the clear
_STORE = "made-by-keytool.jks"
_VALID_DAYS = 365
# Older ones are made anew at the next start, long before they expire.
_RENEW_AFTER_SECONDS = 300 * 24 * 3600
_LIMIT_SECONDS = 120.0


@dataclass(frozen=True)
class Certificates:
    """The files in one folder.

    Attributes:
        folder: where they are.
    """

    folder: Path

    @property
    def authority(self) -> Path:
        """The certificate that clients and broker trust."""
        return self.folder / "ca.pem"

    @property
    def broker(self) -> Path:
        """The broker's key and chain, for localhost and 127.0.0.1."""
        return self.folder / "broker.pem"

    @property
    def client(self) -> Path:
        """A client's key and chain."""
        return self.folder / "client.pem"

    @property
    def broker_store(self) -> Path:
        """The broker's key and chain in a store of Java's, for brokers that cannot read PEM."""
        return self.folder / "broker.jks"

    def ensure(self, java: Path, *, with_store: bool = False) -> None:
        """Make the files unless they are there, and not about to expire.

        Args:
            java: the Java whose keytool makes them.
            with_store: make ``broker_store``, too.

        Raises:
            DevBrokerError: keytool is missing, or fails.
        """
        made = self._are_made and (self.broker_store.is_file() or not with_store)
        if made and time.time() - self.authority.stat().st_mtime < _RENEW_AFTER_SECONDS:
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        store = self.folder / _STORE
        store.unlink(missing_ok=True)
        try:
            _make_store(_keytool(java), store)
            if with_store:
                self.broker_store.unlink(missing_ok=True)
                _copy_broker_key(_keytool(java), store, self.broker_store)
            self._write_pem_files(store)
        finally:
            store.unlink(missing_ok=True)

    @property
    def _are_made(self) -> bool:
        return all(path.is_file() for path in (self.authority, self.broker, self.client))

    def _write_pem_files(self, store: Path) -> None:
        from penstock.security.tls.jks import read_jks  # only a secured broker needs it

        made = {key.alias: key for key in read_jks(store.read_bytes(), STORE_PASSWORD).keys}
        for alias, path in (("broker", self.broker), ("client", self.client)):
            key = _pem("PRIVATE KEY", made[alias].unlock(STORE_PASSWORD))
            _write_private(path, [key, *(_pem("CERTIFICATE", each.der) for each in made[alias].chain)])
        # Last: it is the sign that all are there.
        _write_private(self.authority, [_pem("CERTIFICATE", made["ca"].chain[0].der)])


def _keytool(java: Path) -> Path:
    # The java on the path is often a link; keytool is beside what it leads to.
    for folder in (java.parent, java.resolve().parent):
        if os.access(folder / "keytool", os.X_OK):
            return folder / "keytool"
    raise DevBrokerError(
        f"there is no keytool beside {java}: certificates are made by it; it comes with every Java"
    )


def _make_store(keytool: Path, store: Path) -> None:
    _run(
        keytool,
        store,
        "ca",
        "CN=Penstock development CA",
        "-ext",
        "bc:c=ca:true",
        "-ext",
        "ku:c=keyCertSign,cRLSign",
    )
    signed = ("-signer", "ca", "-signerkeypass", STORE_PASSWORD)
    names = "san=dns:localhost,ip:127.0.0.1"
    _run(keytool, store, "broker", "CN=localhost", *signed, "-ext", names, "-ext", "eku=serverAuth")
    _run(keytool, store, "client", f"CN={CLIENT_NAME}", *signed, "-ext", "eku=clientAuth")


def _copy_broker_key(keytool: Path, store: Path, target: Path) -> None:
    """A store with one key: Java would choose among several by its own rules."""
    of_source = ("-srckeystore", str(store), "-srcstoretype", "JKS", "-srcalias", "broker")
    of_target = ("-destkeystore", str(target), "-deststoretype", "JKS")
    secrets = ("-srcstorepass", "-srckeypass", "-deststorepass", "-destkeypass")
    passwords = [word for secret in secrets for word in (secret, STORE_PASSWORD)]
    _call(keytool, "broker", "-importkeystore", "-noprompt", *of_source, *of_target, *passwords)


def _run(keytool: Path, store: Path, alias: str, name: str, *more: str) -> None:
    _call(
        keytool, alias, "-genkeypair",
        "-keystore", str(store), "-storetype", "JKS", "-storepass", STORE_PASSWORD, "-keypass", STORE_PASSWORD,
        "-keyalg", "EC", "-groupname", "secp256r1", "-validity", str(_VALID_DAYS), "-alias", alias, "-dname", name,
        *more,
    )  # fmt: skip


def _call(keytool: Path, alias: str, *args: str) -> None:
    command = [str(keytool), "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", "-J-Xshare:auto", *args]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DevBrokerError(f"{keytool} could not make a certificate: {error}") from error
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).splitlines()
        raise DevBrokerError(with_tail(f"{keytool} could not make the certificate {alias!r}", lines))


def _pem(kind: str, der: bytes) -> str:
    body = "\n".join(textwrap.wrap(base64.b64encode(der).decode("ascii"), 64))
    return f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n"


def _write_private(path: Path, blocks: Iterable[str]) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.writelines(blocks)
