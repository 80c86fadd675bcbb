# SPDX-License-Identifier: Apache-2.0
"""JKS, the former key store of Java, with the standard library alone.

The file: a magic number, a version, a count, the entries, and a checksum over all of it with the password. An entry is
a trusted certificate, or a private key with its chain. Numbers are big endian. Certificates are in the clear; a key is
encrypted with a stream of SHA-1 hashes, by a password of its own, which mostly is that of the store.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock._escaping import escaped
from penstock.security.tls import der
from penstock.security.tls.material import MOST_CERTIFICATES, Certificate, StoreError

MAGIC: Final = b"\xfe\xed\xfe\xed"
# Another store of Java's: its keys are encrypted with ciphers that Python does not have.
JCEKS_MAGIC: Final = b"\xce\xce\xce\xce"

_DIGEST: Final = 20
_KEY: Final = 1
_TRUSTED: Final = 2
# 1.3.6.1.4.1.42.2.17.1.1, Sun's way to protect a key.
_PROTECTED_BY_SUN: Final = bytes.fromhex("2b060104012a02110101")
# A key of 16,384 bits has 9 KiB.
_MOST_KEY: Final = 65_536
_MOST_ALIAS: Final = 100


class JksKey(NamedTuple):
    """A private key that is still locked."""

    alias: str
    locked: bytes
    chain: Sequence[Certificate]

    def unlock(self, password: str) -> bytes:
        """The key as PKCS#8.

        Raises:
            StoreError: the password is wrong, or the entry is damaged.
        """
        salt_to_check = _protected(self.locked, self.alias)
        salt, locked, check = (
            salt_to_check[:_DIGEST],
            salt_to_check[_DIGEST:-_DIGEST],
            salt_to_check[-_DIGEST:],
        )
        secret = _bytes(password)
        stream, word = bytearray(), salt
        while len(stream) < len(locked):
            word = hashlib.sha1(secret + word, usedforsecurity=False).digest()
            stream += word
        whole = int.from_bytes(locked, "big") ^ int.from_bytes(stream[: len(locked)], "big")
        key = whole.to_bytes(len(locked), "big")
        if not hmac.compare_digest(hashlib.sha1(secret + key, usedforsecurity=False).digest(), check):
            raise StoreError(f"the password of the key {self.alias!r} is wrong", "key password")
        return key

    def __repr__(self) -> str:
        return f"<JksKey {self.alias!r}>"


class JksStore(NamedTuple):
    """What a store holds."""

    keys: Sequence[JksKey]
    trusted: Sequence[Certificate]


def read_jks(data: bytes, password: str | None) -> JksStore:
    """Read a store.

    Args:
        data: the file.
        password: for the checksum; with None that is not looked at, as Java does.

    Raises:
        StoreError: it is damaged, or the password is wrong.
    """
    if len(data) < 12 + _DIGEST:
        raise StoreError(f"it is cut: a JKS store has more than {len(data)} bytes")
    reader = _Reader(data, len(data) - _DIGEST)
    reader.take(4, "the magic number")
    version = reader.number(4, "the version")
    if version not in (1, 2):
        raise StoreError(f"JKS version {version} is not known")
    count = reader.number(4, "the number of entries")
    if count > MOST_CERTIFICATES:
        raise StoreError(f"it says that it has {count} entries, more than {MOST_CERTIFICATES}")
    keys: list[JksKey] = []
    trusted: list[Certificate] = []
    for at in range(1, count + 1):
        entry = f"entry {at} of {count}"
        tag = reader.number(4, f"the kind of {entry}")
        alias = reader.alias(entry)
        reader.take(8, f"the date of {entry}")
        if tag == _TRUSTED:
            trusted.append(reader.certificate(version, f"alias {alias!r}"))
        elif tag == _KEY:
            keys.append(_key(reader, version, alias))
        else:
            raise StoreError(f"{entry} is of the kind {tag}, which is not known (at byte {reader.at})")
    if password is not None:
        digest = hashlib.sha1(_bytes(password) + b"Mighty Aphrodite", usedforsecurity=False)
        digest.update(data[:-_DIGEST])
        if not hmac.compare_digest(digest.digest(), data[-_DIGEST:]):
            raise StoreError("the password of the store is wrong, or the file is damaged", "password")
    if reader.at != reader.stop:
        raise StoreError(f"there are {reader.stop - reader.at} bytes behind the last entry")
    return JksStore(keys, trusted)


def _key(reader: _Reader, version: int, alias: str) -> JksKey:
    size = reader.number(4, f"the size of the key {alias!r}")
    if size > _MOST_KEY:
        raise StoreError(f"the key {alias!r} has {size} bytes, more than {_MOST_KEY} (at byte {reader.at})")
    locked = reader.take(size, f"the key {alias!r}")
    length = reader.number(4, f"the length of the chain of {alias!r}")
    chain: list[Certificate] = []
    for at in range(1, length + 1):
        chain.append(reader.certificate(version, f"certificate {at} of alias {alias!r}"))  # noqa: PERF401 - ends early
    return JksKey(alias, locked, chain)


class _Reader:
    """Reads numbers and bytes, and says what is missing where."""

    def __init__(self, data: bytes, stop: int) -> None:
        self._data = data
        self.stop = stop
        self.at = 0
        self._certificates = 0

    def take(self, size: int, what: str) -> bytes:
        if size > self.stop - self.at:
            raise StoreError(
                f"it is cut at byte {self.at}: {what} needs {size} bytes, {self.stop - self.at} are left"
            )
        self.at += size
        return self._data[self.at - size : self.at]

    def number(self, size: int, what: str) -> int:
        return int.from_bytes(self.take(size, what), "big")

    def alias(self, entry: str) -> str:
        raw = self.take(self.number(2, f"the alias of {entry}"), f"the alias of {entry}")
        return escaped(raw[:_MOST_ALIAS].decode("utf-8", errors="replace"))

    def certificate(self, version: int, place: str) -> Certificate:
        if version == 2:
            kind = self.take(self.number(2, f"the type of {place}"), f"the type of {place}")
            if kind not in (b"X.509", b"X509"):
                raise StoreError(f"{place} is not an X.509 certificate")
        self._certificates += 1
        if self._certificates > MOST_CERTIFICATES:
            raise StoreError(
                f"there are more than {MOST_CERTIFICATES} certificates in it (at byte {self.at})"
            )
        size = self.number(4, f"the size of {place}")
        if not size:
            raise StoreError(f"{place} is empty (at byte {self.at})")
        return Certificate(place, self.take(size, place))


def _protected(locked: bytes, alias: str) -> bytes:
    """The salt, the encrypted key and its check, out of their wrapping."""
    damaged = StoreError(f"the key {alias!r} is damaged, or protected in an unknown way")
    try:
        outer = der.element_at(locked, 0, len(locked))
        algorithm, content = der.elements(locked, outer.start, outer.end)
        name = next(der.elements(locked, algorithm.start, algorithm.end))
    except (StoreError, ValueError, StopIteration):
        raise damaged from None
    if (
        locked[name.start : name.end] != _PROTECTED_BY_SUN
        or content.tag != der.OCTET_STRING
        or content.end - content.start <= 2 * _DIGEST
    ):
        raise damaged
    return locked[content.start : content.end]


def _bytes(password: str) -> bytes:
    return password.encode("utf-16-be", errors="surrogatepass")
