# SPDX-License-Identifier: Apache-2.0
"""A secret that stands in a key store: an entry of PKCS#12, as `keytool -importpass` writes it.

    keytool -importpass -alias kafka -keystore secrets.p12 -storetype PKCS12

Such a store is a row of contents. Certificates are encrypted as a whole; keys and secrets are not, since each of them
is encrypted by itself. A secret is encrypted as a private key is (PBES2), and its key is the text. Needs the package
`cryptography`, for AES.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock._escaping import escaped
from penstock.security.tls import der, pkcs12
from penstock.security.tls.jks import JCEKS_MAGIC, MAGIC
from penstock.security.tls.material import StoreError

_SET: Final = 0x31
_BMP_STRING: Final = 0x1E
_WRAPPED: Final = 0xA0  # [0]
_DATA: Final = bytes.fromhex("2a864886f70d010701")
_SECRET_BAG: Final = bytes.fromhex("2a864886f70d010c0a0105")
_FRIENDLY_NAME: Final = bytes.fromhex("2a864886f70d010914")
_PBES2: Final = bytes.fromhex("2a864886f70d01050d")
_PBKDF2: Final = bytes.fromhex("2a864886f70d01050c")
_DEFAULT_HASH: Final = "sha1"
_HASHES: Final = {
    bytes.fromhex("2a864886f70d0207"): "sha1",
    bytes.fromhex("2a864886f70d0209"): "sha256",
    bytes.fromhex("2a864886f70d020a"): "sha384",
    bytes.fromhex("2a864886f70d020b"): "sha512",
}
# AES-CBC, and the bytes of its key.
_CIPHERS: Final = {
    bytes.fromhex("60864801650304012a"): 32,
    bytes.fromhex("6086480165030401") + b"\x16": 24,
    bytes.fromhex("6086480165030401") + b"\x02": 16,
}
_AES_BLOCK: Final = 16
_MOST_ENTRIES: Final = 1_000
_NAMES_SHOWN: Final = 10
_MOST_NAME: Final = 100
_MAKE_ANOTHER: Final = "make it with keytool of Java 17 or newer: keytool -importpass -storetype PKCS12"


class _Locked(NamedTuple):
    """An entry, still encrypted: where its bytes are."""

    alias: str
    place: der.Element


def read_secret(data: bytes, alias: str, password: str) -> str:
    """The text of an entry.

    Args:
        data: the store.
        alias: of the entry; in a store of Java's the case does not matter.
        password: of the store, and of the entry.

    Raises:
        StoreError: it is damaged or of another kind, has no such entry, the password is wrong, or the package is not
            there.
    """
    if data[:4] in (MAGIC, JCEKS_MAGIC) or not pkcs12.looks_like_pkcs12(data):
        raise StoreError(f"it is no PKCS#12 store; {_MAKE_ANOTHER}")
    der.check_rounds(data)
    names: list[str] = []
    for found in _entries(data):
        if found.alias.lower() == alias.lower():
            pkcs12.check(data, password)
            return _unlocked(data, found.place, password)
        names.append(escaped(found.alias[:_MOST_NAME]))
    shown = ", ".join(names[:_NAMES_SHOWN]) or "none"
    raise StoreError(f"it has no secret of the alias {alias!r}; there are: {shown}")


def _entries(data: bytes) -> Iterator[_Locked]:
    """The secrets of a store, in their order."""
    _, safe = _inside(data, der.element_at(data, 0, len(data)), der.INTEGER, der.SEQUENCE)[:2]
    for content in _several(data, _content(data, safe)):
        kind, *_ = _inside(data, content, der.OBJECT_ID)
        if _bytes(data, kind) != _DATA:
            continue
        for bag in _several(data, _content(data, content)):
            kind, value, *attributes = _inside(data, bag, der.OBJECT_ID, _WRAPPED)
            if _bytes(data, kind) == _SECRET_BAG:
                yield _Locked(_alias(data, attributes), _content(data, _inside(data, value, der.SEQUENCE)[0]))


def _content(data: bytes, element: der.Element) -> der.Element:
    """What a sequence of a kind and a wrapped string holds."""
    _, wrapped = _inside(data, element, der.OBJECT_ID, _WRAPPED)[:2]
    (text,) = _inside(data, wrapped, der.OCTET_STRING)[:1]
    inner = der.element_at(data, text.start, text.end)
    if inner.tag != der.SEQUENCE or inner.end < 0:
        raise _unexpected(text)
    return inner


def _alias(data: bytes, attributes: list[der.Element]) -> str:
    for attribute in _several(data, attributes[0]) if attributes and attributes[0].tag == _SET else ():
        kind, values = _inside(data, attribute, der.OBJECT_ID, _SET)[:2]
        if _bytes(data, kind) == _FRIENDLY_NAME:
            (name,) = _inside(data, values, _BMP_STRING)[:1]
            return _bytes(data, name).decode("utf-16-be", errors="replace")
    return ""


def _unlocked(data: bytes, place: der.Element, password: str) -> str:
    """Decrypt an entry: an EncryptedPrivateKeyInfo of RFC 5958."""
    algorithm, locked = _inside(data, place, der.SEQUENCE, der.OCTET_STRING)[:2]
    scheme, settings = _inside(data, algorithm, der.OBJECT_ID, der.SEQUENCE)[:2]
    if _bytes(data, scheme) != _PBES2:
        raise StoreError(f"the secret is encrypted in an old way that is not supported; {_MAKE_ANOTHER}")
    derivation, encryption = _inside(data, settings, der.SEQUENCE, der.SEQUENCE)[:2]
    cipher, start = _inside(data, encryption, der.OBJECT_ID, der.OCTET_STRING)[:2]
    size = _CIPHERS.get(_bytes(data, cipher))
    if size is None or start.end - start.start != _AES_BLOCK:
        raise StoreError(f"the secret is encrypted with a cipher that is not supported; {_MAKE_ANOTHER}")
    key = _key(data, derivation, password, size)
    plain = _decrypted(key, _bytes(data, start), _bytes(data, locked))
    try:
        _, _, text = _inside(
            plain, der.element_at(plain, 0, len(plain)), der.INTEGER, der.SEQUENCE, der.OCTET_STRING
        )[:3]
        return _bytes(plain, text).decode()
    except ValueError:  # StoreError is one; its text would name bytes that nobody can look at
        raise _wrong_password() from None


def _key(data: bytes, derivation: der.Element, password: str, size: int) -> bytes:
    name, settings = _inside(data, derivation, der.OBJECT_ID, der.SEQUENCE)[:2]
    salt, rounds, *more = _inside(data, settings, der.OCTET_STRING, der.INTEGER)
    hashes = [each for each in more if each.tag == der.SEQUENCE]
    hash_name: str | None = _DEFAULT_HASH
    if hashes:
        hash_name = _HASHES.get(_bytes(data, _inside(data, hashes[0], der.OBJECT_ID)[0]))
    if _bytes(data, name) != _PBKDF2 or hash_name is None:
        raise StoreError(f"the key of the secret is derived in a way that is not supported; {_MAKE_ANOTHER}")
    count = int.from_bytes(_bytes(data, rounds), "big")  # check_rounds has looked at it
    if not count:
        raise _unexpected(rounds)
    secret = password.encode(errors="surrogatepass")
    return hashlib.pbkdf2_hmac(hash_name, secret, _bytes(data, salt), count, size)


def _decrypted(key: bytes, start: bytes, locked: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    if not locked or len(locked) % _AES_BLOCK:
        raise _wrong_password()
    decryptor = Cipher(algorithms.AES(key), modes.CBC(start)).decryptor()
    padded = decryptor.update(locked) + decryptor.finalize()
    padding = padded[-1]
    if not 1 <= padding <= _AES_BLOCK or padded[-padding:] != bytes([padding]) * padding:
        raise _wrong_password()
    return padded[:-padding]


def _wrong_password() -> StoreError:
    return StoreError("the password of the store is wrong, or the file is damaged", "password")


def _unexpected(element: der.Element) -> StoreError:
    return StoreError(f"it is damaged at byte {element.start}")


def _several(data: bytes, element: der.Element) -> Iterator[der.Element]:
    """The elements inside of another one."""
    for number, each in enumerate(der.elements(data, element.start, element.end)):
        if number == _MOST_ENTRIES:
            raise StoreError(f"it has more than {_MOST_ENTRIES} entries")
        yield each


def _inside(data: bytes, element: der.Element, *tags: int) -> list[der.Element]:
    """The elements inside of another one, of which the first are of these kinds."""
    if element.end < 0:
        raise _unexpected(element)
    found = list(_several(data, element))
    if [each.tag for each in found[: len(tags)]] != list(tags):
        raise _unexpected(element)
    return found


def _bytes(data: bytes, element: der.Element) -> bytes:
    return data[element.start : element.end]
