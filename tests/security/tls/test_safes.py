# SPDX-License-Identifier: Apache-2.0
"""PKCS#12 stores and encrypted keys: what is valid is taken whatever its random bytes are, and no work is hidden."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Iterable
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.serialization import pkcs12
from security.tls.certificates import client, the_ca
from security.tls.stores import STORE_PASSWORD, Stores

from penstock.security.tls import der, rc2
from penstock.security.tls.material import StoreError
from penstock.security.tls.pkcs12 import read_identity, read_trusted
from penstock.security.tls.safes import NotOpenedError, check_safes

PASSWORD = "store-S3cret"
ENDLESS = 2**31 - 1
# What begins like a structure: with a length that is not given, and with the very length that there is.
LOOKS_OPEN = b"\x30\x80"

DATA = "2a864886f70d010701"
ENCRYPTED = "2a864886f70d010706"
KEY_BAG = "2a864886f70d010c0a0101"
SHROUDED_BAG = "2a864886f70d010c0a0102"
CERTIFICATE_BAG = "2a864886f70d010c0a0103"
X509 = "2a864886f70d01091601"


# ---- writing stores


def tlv(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    size = len(body)
    if size < 128:
        return bytes([tag, size]) + body
    return bytes([tag, 0x82]) + size.to_bytes(2, "big") + body


def oid(digits: str) -> bytes:
    return tlv(6, bytes.fromhex(digits))


def number(value: int) -> bytes:
    return tlv(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def sequence(*parts: bytes) -> bytes:
    return tlv(0x30, *parts)


def pbes2(salt: bytes, vector: bytes, rounds: int) -> bytes:
    derivation = sequence(tlv(4, salt), number(rounds), sequence(oid("2a864886f70d0209"), b"\x05\0"))
    return sequence(
        oid("2a864886f70d01050d"),
        sequence(
            sequence(oid("2a864886f70d01050c"), derivation),
            sequence(oid("60864801650304012a"), tlv(4, vector)),
        ),
    )


def encrypted(plain: bytes, salt: bytes, vector: bytes, rounds: int) -> bytes:
    key = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), salt, rounds, 32)
    padding = 16 - len(plain) % 16
    encryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
    return encryptor.update(plain + bytes([padding]) * padding) + encryptor.finalize()


def key_bytes() -> bytes:
    return client().key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def encrypted_key(salt: bytes = b"saltsalt", vector: bytes = b"v" * 16, rounds: int = 2048) -> bytes:
    """A key as it stands in PEM, or in a bag. One that asks for endless work is never opened, and holds nothing."""
    content = b"x" * 160 if rounds == ENDLESS else encrypted(key_bytes(), salt, vector, rounds)
    return sequence(pbes2(salt, vector, rounds), tlv(4, content))


def bag(kind: str, value: bytes) -> bytes:
    return sequence(oid(kind), tlv(0xA0, value))


def certificate_bag() -> bytes:
    return bag(CERTIFICATE_BAG, sequence(oid(X509), tlv(0xA0, tlv(4, client().der))))


def open_safe(*bags: bytes) -> bytes:
    return sequence(oid(DATA), tlv(0xA0, tlv(4, sequence(*bags))))


def locked_safe(*bags: bytes, salt: bytes = b"saltsalt", vector: bytes = b"v" * 16) -> bytes:
    content = tlv(0x80, encrypted(sequence(*bags), salt, vector, 2048))
    inner = sequence(number(0), sequence(oid(DATA), pbes2(salt, vector, 2048), content))
    return sequence(oid(ENCRYPTED), tlv(0xA0, inner))


def mac_key(salt: bytes, rounds: int) -> bytes:
    """RFC 7292, appendix B.2, for one block of SHA-256."""
    password = PASSWORD.encode("utf-16-be") + b"\0\0"
    blocks = [(text * 64)[: -(-len(text) // 64) * 64] for text in (salt, password)]
    digest = hashlib.sha256(b"\x03" * 64 + b"".join(blocks)).digest()
    for _ in range(rounds - 1):
        digest = hashlib.sha256(digest).digest()
    return digest


def store(*safes: bytes, salt: bytes = b"saltsalt", pieces: int = 0) -> bytes:
    """A store of these safes, all in one string, or in pieces."""
    row = sequence(*safes)
    code = hmac.digest(mac_key(salt, 2048), row, "sha256")
    digest = sequence(sequence(oid("608648016503040201"), b"\x05\0"), tlv(4, code))
    content = tlv(4, row)
    if pieces:
        content = tlv(0x24, *(tlv(4, row[at : at + pieces]) for at in range(0, len(row), pieces)))
    return sequence(
        number(3), sequence(oid(DATA), tlv(0xA0, content)), sequence(digest, tlv(4, salt), number(2048))
    )


# ---- bytes that look like a structure


@pytest.mark.parametrize("look", [LOOKS_OPEN, b"\x30\x06", b"\x30\x0e", b"\x30\x84"], ids=bytes.hex)
def test_random_bytes_that_look_like_a_structure(look: bytes):
    salt, vector = (look + b"\x99" * 16)[:8], (look + b"\x99" * 16)[:16]
    der.check_rounds(encrypted_key(salt, vector))
    key = bag(SHROUDED_BAG, encrypted_key(salt, vector))
    made = store(open_safe(key), locked_safe(certificate_bag(), salt=salt, vector=vector), salt=salt)
    identity = read_identity(made, PASSWORD)
    assert [each.der for each in identity.chain] == [client().der]


# ---- stores that others write


@pytest.mark.parametrize("password", [PASSWORD, "pässwörd €"])
@pytest.mark.parametrize(
    "scheme", [pkcs12.PBES.PBESv2SHA256AndAES256CBC, pkcs12.PBES.PBESv1SHA1And3KeyTripleDESCBC]
)
def test_stores_of_openssl(scheme: Any, password: str):
    builder = serialization.PrivateFormat.PKCS12.encryption_builder()
    how = builder.kdf_rounds(1000).key_cert_algorithm(scheme).hmac_hash(hashes.SHA256())
    made = pkcs12.serialize_key_and_certificates(
        b"x", client().key, client().certificate, [the_ca().certificate], how.build(password.encode())
    )
    assert len(read_identity(made, password).chain) == 2
    with pytest.raises(NotOpenedError):
        check_safes(made, b"another one")
    with pytest.raises(StoreError, match="the password of the store is wrong") as caught:
        read_identity(made, "another one")
    assert caught.value.blame == "password"


def test_a_store_of_java_8(stores: Stores):
    made = stores.p12_java_8.read_bytes()
    assert bytes.fromhex("2a864886f70d010c0106") in made, "its certificates are encrypted with RC2"
    assert len(read_identity(made, STORE_PASSWORD).chain) == 2
    with pytest.raises(StoreError, match="the password of the store is wrong"):
        read_identity(made, "another one")


def test_a_store_that_is_not_encrypted():
    made = store(open_safe(certificate_bag(), bag(KEY_BAG, key_bytes())))
    assert len(read_identity(made, PASSWORD).chain) == 1


@pytest.mark.filterwarnings("ignore:PKCS#12 bundle could not be parsed as DER")
def test_a_store_in_pieces():
    """As BER allows it; the key stores of browsers are written so."""
    made = store(open_safe(bag(SHROUDED_BAG, encrypted_key())), locked_safe(certificate_bag()), pieces=100)
    assert len(read_identity(made, PASSWORD).chain) == 1


def test_rc2():
    """The examples of RFC 2268 in which all bits of the key count."""
    for key, plain, data in (
        ("ffffffffffffffff", "ffffffffffffffff", "278b27e42e2f0d49"),
        ("3000000000000000", "1000000000000001", "30649edf9be7d2c2"),
        ("88bca90e90875a7f0f79c384627bafb2", "0000000000000000", "2269552ab0f85ca6"),
    ):
        found = rc2.decrypt_cbc(bytes.fromhex(key), bytes(8), bytes.fromhex(data))
        assert found.hex() == plain


# ---- work that is hidden


def hiding_places() -> Iterable[tuple[str, bytes]]:
    hidden = bag(SHROUDED_BAG, encrypted_key(rounds=ENDLESS))
    nested = bag("2a864886f70d010c0a0106", sequence(hidden))
    yield "in a safe", store(open_safe(hidden))
    yield "in pieces", store(open_safe(hidden), pieces=40)
    yield "in an encrypted safe", store(locked_safe(hidden))
    yield "behind certificates", store(open_safe(certificate_bag()), locked_safe(certificate_bag(), hidden))
    yield "in a safe in a safe", store(locked_safe(nested))


@pytest.mark.parametrize(("where", "made"), [pytest.param(*each, id=each[0]) for each in hiding_places()])
def test_endless_work_is_found_wherever_it_is(where: str, made: bytes):
    began = time.thread_time()
    for read in (read_identity, read_trusted):
        with pytest.raises(StoreError, match=r"hashed 21474\d+ times"):
            read(made, PASSWORD)
    assert time.thread_time() - began < 2, where


def test_a_little_work_many_times_is_too_much():
    many = [bag(SHROUDED_BAG, encrypted_key(rounds=2048)).replace(b"\x02\x02\x08\0", b"\x02\x02\x7f\0")] * 200
    with pytest.raises(StoreError, match="more than 5000000"):
        read_trusted(store(locked_safe(*many)), PASSWORD)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "60864801650304012a",
            "608648016503040116",
        ),  # the length of the key does not fit: another one comes out
        ("2a864886f70d01050c", "2a864886f70d01050a"),
        ("2a864886f70d01050d", "2a864886f70d01050a"),
        ("2a864886f70d0209", "2a864886f70d02ff"),
        (ENCRYPTED, "2a864886f70d010703"),
    ],
)
def test_what_cannot_be_opened_is_not_handed_on(old: str, new: str, monkeypatch: pytest.MonkeyPatch):
    def load(*_: Any) -> None:
        raise AssertionError("it is handed on")

    monkeypatch.setattr(pkcs12, "load_pkcs12", load)
    made = store(locked_safe(certificate_bag()))
    assert bytes.fromhex(old) in made
    with pytest.raises(StoreError):
        read_trusted(made.replace(bytes.fromhex(old), bytes.fromhex(new)), PASSWORD)
