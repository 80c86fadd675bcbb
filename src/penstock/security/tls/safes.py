# SPDX-License-Identifier: Apache-2.0
"""How much work a PKCS#12 store asks for, also where that stands in its encrypted parts.

A store is a sequence of safes, in the clear or encrypted, and each safe is a sequence of bags. A bag may hold a key
with a count of rounds of its own. The package `cryptography` decrypts all of them in one call, which nobody can
interrupt. So the encrypted safes are opened here first, and only looked at. What cannot be opened here is refused.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple, NoReturn

from penstock.security.tls import rc2
from penstock.security.tls.der import INTEGER, OBJECT_ID, SEQUENCE, Node, Work, parse
from penstock.security.tls.material import StoreError

_RSA: Final = "2a864886f70d01"
_DATA: Final = bytes.fromhex(_RSA + "0701")
_ENCRYPTED_DATA: Final = bytes.fromhex(_RSA + "0706")
_PBES2: Final = bytes.fromhex(_RSA + "050d")
_PBKDF2: Final = bytes.fromhex(_RSA + "050c")
_HMAC_SHA1: Final = bytes.fromhex("2a864886f70d0207")
_HMACS: Final = {
    _HMAC_SHA1: "sha1",
    bytes.fromhex("2a864886f70d0208"): "sha224",
    bytes.fromhex("2a864886f70d0209"): "sha256",
    bytes.fromhex("2a864886f70d020a"): "sha384",
    bytes.fromhex("2a864886f70d020b"): "sha512",
}


class _Cipher(NamedTuple):
    name: str
    key_size: int
    block: int


_BY_PBES2: Final = {
    bytes.fromhex("60864801650304" + "0102"): _Cipher("AES", 16, 16),
    bytes.fromhex("60864801650304" + "0116"): _Cipher("AES", 24, 16),
    bytes.fromhex("60864801650304" + "012a"): _Cipher("AES", 32, 16),
    bytes.fromhex("2a864886f70d0307"): _Cipher("3DES", 24, 8),
}
# The schemes of PKCS#12 itself, which all use SHA-1.
_BY_PKCS12: Final = {
    bytes.fromhex(_RSA + "0c0103"): _Cipher("3DES", 24, 8),
    bytes.fromhex(_RSA + "0c0104"): _Cipher("3DES", 16, 8),
    bytes.fromhex(_RSA + "0c0105"): _Cipher("RC2", 16, 8),
    bytes.fromhex(_RSA + "0c0106"): _Cipher("RC2", 5, 8),
}
_ENCRYPTION: Final = "the encryption of a safe"
_FOR_KEY: Final = 1
_FOR_VECTOR: Final = 2
# Of the hash, which works on so many bytes at a time.
_HASH_BLOCK: Final = 64


class NotOpenedError(Exception):
    """A safe cannot be opened: the password is wrong, or it is damaged."""


def check_safes(data: bytes, password: bytes) -> None:
    """Refuse a store that would take too long to decrypt, wherever it says so.

    Args:
        data: the store.
        password: as UTF-8; empty where there is none.

    Raises:
        StoreError: it asks for too many rounds, or has a form that is not known here.
        NotOpenedError: the password does not open it.
    """
    work = Work()
    outer = parse(data)
    work.add(outer)
    if not outer or len(outer[0].parts) < 2:
        _unknown("the store")
    row = parse(_in_the_clear(outer[0].parts[1], "the row of safes"))
    safes = _only(row, "the row of safes").parts
    work.add(safes)
    locked: list[Node] = []
    for at, safe in enumerate(safes, 1):
        if _kind(safe) == _ENCRYPTED_DATA:
            locked.append(safe)
        else:
            work.add(parse(_in_the_clear(safe, f"safe {at}")))
    for safe in locked:  # now that it is known what that takes
        for bags in _opened(safe, password):
            work.add(bags)


def _opened(safe: Node, password: bytes) -> list[list[Node]]:
    """What is in an encrypted safe. An empty password is written in two ways, and both may open it."""
    try:
        encrypted = _only(safe.parts[1].parts, "an encrypted safe").parts[1]
        _, algorithm, content = encrypted.parts
        scheme, parameters = algorithm.parts
    except (IndexError, ValueError):
        _unknown("an encrypted safe")
    found = []
    for key, vector, cipher in _keys(scheme.content, parameters, password):
        try:
            found.append(parse(_decrypted(cipher, key, vector, content.octets)))
        except (NotOpenedError, StoreError):
            continue  # not by this one
    if not found:
        raise NotOpenedError
    return found


def _keys(scheme: bytes, parameters: Node, password: bytes) -> list[tuple[bytes, bytes, _Cipher]]:
    if scheme == _PBES2:
        return [_key_of_pbes2(parameters, password)]
    cipher = _BY_PKCS12.get(scheme)
    if cipher is None or len(parameters.parts) != 2 or not parameters.parts[0].is_string:
        _unknown(_ENCRYPTION)
    salt, rounds = parameters.parts[0].octets, _number(parameters.parts[1])
    wide = password.decode("utf-8", "surrogatepass").encode("utf-16-be", "surrogatepass") + b"\0\0"
    return [
        (
            _derive(_FOR_KEY, form, salt, rounds, cipher.key_size),
            _derive(_FOR_VECTOR, form, salt, rounds, cipher.block),
            cipher,
        )
        for form in ((wide,) if password else (wide, b""))
    ]


def _key_of_pbes2(parameters: Node, password: bytes) -> tuple[bytes, bytes, _Cipher]:
    try:
        (derivation, given), (encryption, vector) = (each.parts for each in parameters.parts)
        salt, rounds = given.parts[:2]
        # The length of the key may stand before the hash; it is known from the cipher.
        hashes = [each.parts[0].content for each in given.parts[2:] if each.tag == SEQUENCE]
    except (IndexError, ValueError):
        _unknown(_ENCRYPTION)
    name = _HMACS.get(hashes[0] if hashes else _HMAC_SHA1)
    cipher = _BY_PBES2.get(encryption.content)
    if derivation.content != _PBKDF2 or name is None or cipher is None:
        _unknown(_ENCRYPTION)
    if not salt.is_string or len(vector.octets) != cipher.block:
        _unknown(_ENCRYPTION)
    key = hashlib.pbkdf2_hmac(name, password, salt.octets, _number(rounds), cipher.key_size)
    return key, vector.octets, cipher


def _derive(purpose: int, password: bytes, salt: bytes, rounds: int, size: int) -> bytes:
    """A key or a vector of RFC 7292, appendix B.2, with SHA-1."""
    mixed = bytearray(_filled(salt) + _filled(password))
    found = b""
    while len(found) < size:
        digest = hashlib.sha1(bytes([purpose]) * _HASH_BLOCK + mixed, usedforsecurity=False).digest()
        for _ in range(rounds - 1):
            digest = hashlib.sha1(digest, usedforsecurity=False).digest()
        found += digest
        more = int.from_bytes((digest * 4)[:_HASH_BLOCK], "big") + 1
        for at in range(0, len(mixed), _HASH_BLOCK):
            total = int.from_bytes(mixed[at : at + _HASH_BLOCK], "big") + more
            mixed[at : at + _HASH_BLOCK] = total.to_bytes(_HASH_BLOCK + 1, "big")[1:]
    return found[:size]


def _filled(text: bytes) -> bytes:
    """Repeated to fill whole blocks of the hash."""
    size = -(-len(text) // _HASH_BLOCK) * _HASH_BLOCK
    return (text * (size // len(text) + 1))[:size] if text else b""


def _decrypted(cipher: _Cipher, key: bytes, vector: bytes, data: bytes) -> bytes:
    if not data or len(data) % cipher.block:
        raise NotOpenedError
    plain = (
        rc2.decrypt_cbc(key, vector, data) if cipher.name == "RC2" else _by_library(cipher, key, vector, data)
    )
    padding = plain[-1]
    if not 1 <= padding <= cipher.block or plain[-padding:] != bytes([padding]) * padding:
        raise NotOpenedError
    return plain[:-padding]


def _by_library(cipher: _Cipher, key: bytes, vector: bytes, data: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    if cipher.name == "AES":
        decryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor()
    else:
        try:
            from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
        except ImportError:  # before version 43
            from cryptography.hazmat.primitives.ciphers.algorithms import TripleDES
        whole = key if len(key) == 24 else key + key[:8]
        decryptor = Cipher(TripleDES(whole), modes.CBC(vector)).decryptor()
    return decryptor.update(data) + decryptor.finalize()


def _kind(content: Node) -> bytes:
    """What a ContentInfo holds."""
    if content.tag == SEQUENCE and len(content.parts) == 2 and content.parts[0].tag == OBJECT_ID:
        return content.parts[0].content
    return b""


def _in_the_clear(content: Node, what: str) -> bytes:
    if _kind(content) != _DATA:
        _unknown(what)
    inner = _only(content.parts[1].parts, what)
    if not inner.is_string:
        _unknown(what)
    return inner.octets


def _only(nodes: list[Node] | tuple[Node, ...], what: str) -> Node:
    if len(nodes) != 1:
        _unknown(what)
    return nodes[0]


def _number(node: Node) -> int:
    number = int.from_bytes(node.content, "big") if node.tag == INTEGER and len(node.content) <= 4 else 0
    if not number:
        _unknown(_ENCRYPTION)
    return number


def _unknown(what: str) -> NoReturn:
    raise StoreError(
        f"{what} has a form that is not known here. Write the store anew: "
        "openssl pkcs12 -in store.p12 -nodes | openssl pkcs12 -export -out new.p12"
    )
